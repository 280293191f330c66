"""The decisions of an App: dispatch, completion, commits, retries, health.

`engine` has one method an event; `dispatcher` orders records by key or partition, `tracker` decides
what may be committed, `circuit_breaker` stops a partition whose dependency is down, `outbox` keeps
copies and outputs until they are published. Pure: no sockets, threads or clocks.
"""
