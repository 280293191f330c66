"""The log: partitions of segments of record batches, in Kafka's own formats on disk."""
