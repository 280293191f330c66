"""`kohort app`: run an App (`commands`), and look at and command those elsewhere (`remote`).

Imports `kohort.cli.common` and what it shows, no other command.
"""
