"""`kohort console`: the options of the web console; the console itself is `kohort.console`.

Imports `kohort.cli.common` and what it shows, no other command.
"""
