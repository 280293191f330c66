"""Where handlers run: threads, tasks and processes."""
