"""The state that a Spark worker keeps between tasks, and records that kill it (`breadcrumbs`).

Tasks import it; it imports `kohort.retry` and nothing of `kohort.spark`.

Shell: environment and garbage collector of the process.

Rules:
- Spark's daemon collects garbage after every task: 30 to 40 ms over everything that was ever
  imported. Freezing it once costs next to nothing.
- Clients are kept for the process's next task, by configuration; a fork starts with none (C14).
"""

from __future__ import annotations

import atexit
import gc
import logging
import os
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

T = TypeVar("T")
log = logging.getLogger("kohort.spark")
YOUNG_OBJECTS: Final = 50_000
"""So many objects are made between two collections: rows by the thousand are no cycles."""
MAX_VALUES: Final = 100
"""How many values a process keeps at most; then it drops them all."""
_frozen_pid = 0
_values: dict[bytes, Any] = {}
_kept: dict[tuple[str, tuple[tuple[str, str], ...]], Any] = {}
_kept_pid = 0


def settle_down() -> None:
    """Freeze the heap of this process, and collect seldom, the first time it is called."""
    global _frozen_pid
    if _frozen_pid != os.getpid():
        gc.collect()
        gc.freeze()
        gc.set_threshold(YOUNG_OBJECTS)
        _frozen_pid = os.getpid()


def keep(kind: str, config: Mapping[str, str], make: Callable[[], T]) -> T:
    """The client of this kind and configuration of this process, made when there is none."""
    global _kept_pid
    if _kept_pid != os.getpid():
        _kept.clear()
        _kept_pid = os.getpid()
        atexit.register(_close_all)
    key = (kind, tuple(sorted(config.items())))
    if key not in _kept:
        _kept[key] = make()
    return _kept[key]


def forget(kind: str, config: Mapping[str, str]) -> None:
    """Drop a client that failed; the next task makes a new one."""
    client = _kept.pop((kind, tuple(sorted(config.items()))), None)
    if client is not None:
        client.close()


def keep_value(pickled: bytes, make: Callable[[], T]) -> T:
    """This process's value of these pickled bytes, made when there is none."""
    if pickled not in _values:
        if len(_values) >= MAX_VALUES:
            _values.clear()
        _values[pickled] = make()
    return _values[pickled]


def _close_all() -> None:
    """The end of the process; the cluster may be gone, so errors are ignored."""
    if _kept_pid != os.getpid():
        return
    while _kept:
        (kind, _), client = _kept.popitem()
        try:
            client.close()
        except Exception as error:  # the next client is closed all the same
            log.debug("the %s of this worker was not closed cleanly: %s", kind, error)
