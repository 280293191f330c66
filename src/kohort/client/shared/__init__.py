"""One transaction that several processes write: `transaction` begins and ends it, `writer` writes.

Over `client.admin` (blocking calls) and the pure parts of `client.producer`.
"""
