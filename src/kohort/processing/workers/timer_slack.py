"""How late the system may wake a worker's thread that waits for a time.

Rules:
- Linux wakes a thread up to 50 us after its time, to wake several at once (timer slack). For a
  handler that waits 1 ms that is a twentieth of what its worker could do.
- Only threads that `App` made itself for handlers; never the user's, and never the whole process.
- Where the system does not allow it, waits are as late as they were.

Shell: files of the system, threads.
"""

from __future__ import annotations

import threading
from contextlib import suppress


def wake_on_time() -> None:
    """Let the calling thread's waits end on time, where the system supports it."""
    with (
        suppress(OSError),
        open(f"/proc/{threading.get_native_id()}/timerslack_ns", "w") as slack_file,
    ):
        slack_file.write("1")
