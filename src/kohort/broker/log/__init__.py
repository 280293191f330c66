"""The log: partitions of segments of record batches, in Kafka's own formats on disk.

`log` appends and reads, `loading` and `recovery` open it after a crash, `cleaner` compacts,
`producers` keeps sequences, `txn_index` the aborted transactions.
"""
