"""A record that a handler sends on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kohort.retry.headers import Header


class Output(NamedTuple):
    """One record to be produced. `partition` None leaves it to the key."""

    topic: str
    value: bytes | None
    key: bytes | None = None
    partition: int | None = None
    headers: Sequence[Header] = ()
    timestamp_ms: int | None = None
