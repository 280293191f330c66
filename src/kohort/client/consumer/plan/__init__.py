"""The decisions of a consumer: positions, fetches, offset lookups, commits, subscriptions.

Pure: no sockets, threads or clocks. Imports `client.common`.
"""
