"""Listeners and client connections, and `Broker`, which puts all parts together.

Imports every folder of the broker but `control`.
"""
