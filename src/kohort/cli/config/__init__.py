"""`kohort config`: the settings in force, and where each comes from.

Imports `kohort.cli.common` and what it shows, no other command.
"""
