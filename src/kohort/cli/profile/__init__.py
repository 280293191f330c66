"""`kohort profile`: clusters by name.

Imports `kohort.cli.common` and what it shows, no other command.
"""
