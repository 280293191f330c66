"""Answers about a cluster's groups, for the command line and the console: pure functions.

Snapshots in (`snapshot`), answers out: lag in records and in time (`lag`), why a group is stuck
(`verdicts`). Imports descriptions of `kohort.client.admin`; `kohort.sampling` takes the snapshots.
"""
