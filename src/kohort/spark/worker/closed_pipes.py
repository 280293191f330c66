"""Keeps Spark's Python daemons from printing tracebacks of workers that Spark has dropped.

Rules:
- A worker ends when Spark closes its pipe. This is normal, so its traceback is not printed.
- Spark starts the daemons of data sources itself, from `pyspark.daemon`; there a worker is changed
  when it imports our source.
"""

# pyspark's types are incomplete, so strict checking would report nothing else.
# pyright: basic
from __future__ import annotations

import sys
import traceback
from typing import Any

_DAEMON = "pyspark.daemon"


class QuietTraceback:
    """Stands for the module `traceback` in Spark's daemon."""

    @staticmethod
    def print_exc() -> None:
        """Print what is being handled, unless it is a closed pipe."""
        if not isinstance(sys.exc_info()[1], BrokenPipeError):
            traceback.print_exc()


def ignore_closed_pipes(daemon: Any) -> None:
    """Let a module of Spark's daemon print no closed pipes.

    Args:
        daemon: `pyspark.daemon`, imported or run as the program.
    """
    daemon.traceback = QuietTraceback


def ignore_closed_pipes_of_this_worker() -> None:
    """The same where this process is a worker of `python -m pyspark.daemon`."""
    main: Any = sys.modules["__main__"]
    if getattr(getattr(main, "__spec__", None), "name", None) == _DAEMON:
        ignore_closed_pipes(main)
