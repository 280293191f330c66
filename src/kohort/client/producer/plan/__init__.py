"""What a producer decides: batches, partitions, send order, retries, transaction state.

Pure: no sockets, threads or clocks. Imports `client.common` and `records`.
"""
