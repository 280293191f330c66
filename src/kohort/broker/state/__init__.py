"""The state of a broker process: topics, partitions, leaders, quotas, fetch sessions.

`broker_state` owns all of it and its timers (retention, compaction, flushing); `topics` creates,
changes and deletes; `partition` is a log as APIs see it; `leadership` decides who leads.
"""
