"""Analysis of a cluster's groups for the command line and the console, as pure functions.

They compute lag in records and time (`lag`) and why a group is stuck (`verdicts`) from snapshots
(`snapshot`). Imports descriptions of `kohort.client.admin`; `kohort.sampling` takes the snapshots.
"""
