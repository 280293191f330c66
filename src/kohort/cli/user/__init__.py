"""`kohort user`: users with passwords (SCRAM).

Imports `kohort.cli.common` and what it shows, no other command.
"""
