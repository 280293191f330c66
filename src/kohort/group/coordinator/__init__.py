"""The coordinator's side of a group: a shard that turns requests into records and replies.

State changes only by replaying records. Imports `state`, `handlers` and `explain`.
"""
