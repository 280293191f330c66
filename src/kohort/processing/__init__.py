"""`App`: handlers with workers, retries and safe commits (spec 4.12, 5).

A failed record: `engine.engine` decides on a retry and puts a copy (`kohort.retry.copies`) into
its outbox, `runtime.publishing` produces it to a retry topic, and `runtime.retry_topic_poller`
allows reading it when it is due (`kohort.retry.due_schedule`).
`engine` < `workers` < `runtime` < `app`; each imports only folders to its left.
"""
