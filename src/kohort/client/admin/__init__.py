"""The admin client: one module per family of calls.

Imports `client.cluster` and `client.common`.
"""
