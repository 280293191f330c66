"""Spark's own Kafka connector and `format("kohort")` through the same scenarios."""
