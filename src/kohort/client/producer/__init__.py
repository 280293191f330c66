"""The producer: its public face, transactions, and the shell around the plans in `plan`.

Imports `client.cluster` and `client.common`.
"""
