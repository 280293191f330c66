"""What the verifiable programs share: events as lines of JSON, in the form of Kafka's own tools.

Rules:
- One event a line, written and flushed whole before anything else happens: who reads the lines of a
  killed program knows at least what it had done before its last line.
- Names, order and types of the fields are those of Java's VerifiableConsumer and VerifiableProducer
  of Apache Kafka 4.3, so that a harness for those reads ours.
- A signal is only noted by its handler; the event follows from the program's own flow.

Shell: the clock, threads, signals.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from kohort.errors import ConfigError
from kohort.setting_keys import plain
from kohort.settings import read_settings
from kohort.signals import handled

JAVA_ONLY = ("key_serializer", "value_serializer", "key_deserializer", "value_deserializer")


class Events:
    """Writes events to standard output, from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def say(self, name: str, **fields: Any) -> None:
        """One event, with the present time."""
        event = {"timestamp": now_ms(), "name": name, **fields}
        line = json.dumps(event, separators=(",", ":"), ensure_ascii=False) + "\n"
        with self._lock:
            sys.stdout.write(line)
            sys.stdout.flush()


class Stop:
    """Whether, and by which signal, the program was asked to end."""

    def __init__(self) -> None:
        self.signal = 0
        self.on_signal: Callable[[], object] = lambda: None
        """Called by the handler."""

    def by_signals(self) -> AbstractContextManager[None]:
        """While inside, SIGINT and SIGTERM are noted; a second one interrupts."""
        return handled(self._end)

    def _end(self, number: int) -> None:
        if self.signal:
            raise KeyboardInterrupt
        self.signal = number
        self.on_signal()

    @property
    def exit_code(self) -> int:
        """0, or 128 and the signal's number."""
        return 128 + self.signal if self.signal else 0


def settings(file: Path | None, ours: Mapping[str, Any]) -> dict[str, Any]:
    """A file's settings under those of the command line. Java's (de)serialisers are passed over:
    these programs read and write text."""
    file_settings = read_settings(file) if file is not None else []
    kept = {plain(one.key): one.value for one in file_settings if plain(one.key) not in JAVA_ONLY}
    return {**kept, **ours}


def text(data: bytes | None) -> str | None:
    """A key or value as Java's StringDeserializer gives it."""
    return None if data is None else data.decode("utf-8", "replace")


def now_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def one_file(first: Path | None, second: Path | None) -> Path | None:
    """The settings file, whichever of its two options names it. Raises ConfigError for both."""
    if first is not None and second is not None:
        raise ConfigError("give the settings file once, as --command-config")
    return first or second
