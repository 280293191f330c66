"""The transaction coordinator: pure shards over the partitions of `__transaction_state`."""
