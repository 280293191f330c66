"""Who a client is and what it may do: logins, users, ACLs.

Imports `broker.base` and `sasl`, which has the mechanisms.
"""
