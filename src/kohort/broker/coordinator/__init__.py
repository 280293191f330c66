"""The shells around the coordinators' shards: append records, replay them, send replies.

A JoinGroup comes from `broker.apis.join_group` through `group_coordinator` to the shard of
`group_shard_host`, which asks `kohort.group.coordinator.handlers.classic_join`. `txn_markers`
writes a transaction's markers, `txn_verification` checks its partitions (KIP-890).
"""
