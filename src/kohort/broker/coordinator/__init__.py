"""The shells around the coordinators' shards: append records, replay them, send replies.

A JoinGroup comes from `broker.apis.join_group` through `group_coordinator` to the shard of
`group_shard_host`, which asks `kohort.group.coordinator.handlers.classic_join`. `shard_host` loads
a shard: it replays the log. `transaction_shard_host` ends a transaction: `partition_marker` writes
one marker to one partition. `txn_verification` checks its partitions (KIP-890).
"""
