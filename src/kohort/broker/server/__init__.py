"""Listeners and client connections, and `Broker`, which puts all parts together."""
