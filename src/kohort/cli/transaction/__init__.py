"""`kohort transaction`: open and hanging transactions.

Imports `kohort.cli.common` and what it shows, no other command.
"""
