"""The log: partitions of segments of record batches, in Kafka's own formats on disk.

`log` appends, reads and deletes by retention; `segment` is one file, `stored_index` its indexes;
`loading` and `recovery` open a log after a crash, `repair` mends a damaged one, `cleaner` compacts
(`compacted_batch` one batch), `producers` keeps sequences, `txn_index` the aborted transactions.
"""
