"""What an App decides: dispatch, completion, commits, retries, health.

Pure: no sockets, threads or clocks.
"""
