"""`kohort completion`: the script that makes a shell complete commands and options.

Imports `kohort.cli.common` and what it shows, no other command.
"""
