"""One connection pool per cluster: metadata, connections, logins, request routing.

`client` routes requests and refreshes metadata, `connections` chooses a connection, `connection`
logs in, negotiates versions and retries after a back-off, `in_flight` matches answers to requests,
`metadata` merges what brokers say of leaders. The shell that clients send requests
through. Imports `client.common` and `net`.
"""
