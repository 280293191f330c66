"""Where handlers run: threads, tasks and processes.

`worker_pools` hands out records, `handlers` calls the user's function and turns its result or error
into an outcome; `task_pool`, `process_worker` and `inline_pool` are the kinds of pools.
"""
