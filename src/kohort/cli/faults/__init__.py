"""`kohort faults`: set and list faults of an embedded broker through its control port.

Imports `kohort.cli.common` and what it shows, no other command.
"""
