"""The member's side of a group: classic protocol and KIP-848, as pure machines.

The consumer runs one of these machines. Imports `group.assignors` and `wire`.
"""
