"""Consuming apart from processing (spec 4.12, second model): one consumer, many workers.

Order is kept by key, what is in flight is bounded, and no commit passes an unfinished record.

python examples/threads_app.py TOPIC GROUP [BOOTSTRAP]
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from kohort import App


def make(topic: str, group: str, bootstrap: str, work: Callable[[Any], None]) -> App:
    """An app that does `work` with each record, 16 at a time, and retries what fails."""
    app = App(group, bootstrap_servers=bootstrap, threads=16, retries="5m 30m 1h")

    @app.handler(topic, order="key")
    def handle(record: Any) -> None:
        work(record)

    return app


if __name__ == "__main__":
    make(sys.argv[1], sys.argv[2], (sys.argv[3:] or ["localhost:9092"])[0], print).run()
