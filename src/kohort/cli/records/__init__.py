"""`kohort produce` and `kohort consume`: lines to records, and back.

Imports `kohort.cli.common` and what it shows, no other command.
"""
