"""One connection pool per cluster: metadata, connections, logins, request routing.

The shell that clients send requests through. Imports `client.common` and `net`.
"""
