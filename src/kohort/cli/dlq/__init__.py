"""`kohort dlq`: list and show dead letters, and send them back (`redrive`).

Imports `kohort.cli.common` and what it shows, no other command.
"""
