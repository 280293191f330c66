"""The shells around the coordinators' shards: append records, replay them, send replies."""
