"""The coordinator's side of a group: a shard that turns requests into records and replies.

`shard` looks up the handler of a request or of a timer that is due. State changes only by replaying
records. Imports `state`, `handlers` and `explain`.
"""
