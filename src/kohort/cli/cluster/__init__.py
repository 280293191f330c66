"""`kohort cluster`: brokers, their configuration and log directories, what is in trouble.

Imports `kohort.cli.common` and what it shows, no other command.
"""
