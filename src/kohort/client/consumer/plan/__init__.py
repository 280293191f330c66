"""What a consumer decides: positions, fetches, offset lookups, commits, subscriptions.

Pure: no sockets, threads or clocks. Imports `client.common`.
"""
