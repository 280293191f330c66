"""`kohort topic`: list, describe, create, grow and delete topics and their records.

Imports `kohort.cli.common` and what it shows, no other command.
"""
