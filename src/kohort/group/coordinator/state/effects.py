"""What goes into a coordinator's shard and what comes out of it.

Rules:
- All of it is data: nothing here acts. The shell (the broker) appends, replays and answers.
- `Effects.records` are in the log in their order, as one batch, before any reply goes out.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import NamedTuple

from kohort.lean import dataclass, field
from kohort.wire import Message


class GroupRecord(NamedTuple):
    """One record of `__consumer_offsets`, byte for byte; a value of None is a tombstone."""

    key: bytes
    value: bytes | None


class RequestContext(NamedTuple):
    """Who asked, and how the answer finds its way back.

    `token` is the shell's; it comes back in the `Reply`. `client_id` is "" when the client sent
    none; `client_host` is shown by DescribeGroups and stored with the member. `hides` says of a
    topic whether who asked may not know of it; None: everybody may know of all.
    """

    token: Hashable
    api_version: int
    client_id: str
    client_host: str
    hides: Callable[[str], bool] | None = None


class Reply(NamedTuple):
    """The answer to the request that came with `token`."""

    token: Hashable
    response: Message


class Producer(NamedTuple):
    """The stamp of a transactional batch."""

    producer_id: int
    producer_epoch: int


# One `Effects` is made for every request, and `list[Reply]()` takes three times as long as these.


def _no_records() -> list[GroupRecord]:
    return []


def _no_replies() -> list[Reply]:
    return []


def _no_hints() -> list[tuple[str, str]]:
    return []


@dataclass(slots=True)
class Effects:
    """What is to be done: append `records`, replay them, answer `replies` once that is durable.

    `heartbeat_hints` names clients, by id and host, that should heartbeat now: members of a group
    that begins a rebalance. The shell may pass the hint on, or not.

    `producer` is set for the records of a transaction: the batch is to be appended as that
    producer's, transactional.
    """

    records: list[GroupRecord] = field(default_factory=_no_records)
    replies: list[Reply] = field(default_factory=_no_replies)
    producer: Producer | None = None
    heartbeat_hints: list[tuple[str, str]] = field(default_factory=_no_hints)
