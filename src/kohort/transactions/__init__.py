"""The transaction coordinator: pure shards over the partitions of `__transaction_state`.

`shard` answers requests and decides, by the tables of `states`; `kohort.broker.coordinator` appends
its records and writes the markers. Pure: imports `wire` and `group.coordinator.state`.
"""
