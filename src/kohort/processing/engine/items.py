"""One record on its way through the workers: specification, and fallback where `_items.pyx` is not
compiled.

Rules:
- An item is made for each record that is read: what makes them does so for many at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from kohort.retry.registering import refuse_returned

if TYPE_CHECKING:
    from kohort.processing.engine.output import Output
    from kohort.records import Record
    from kohort.retry.copies import Attempt
    from kohort.retry.handling import Lookup


P = TypeVar("P")
"""The origin of a record: the engine's `Partition`, or its substitute in a worker's process."""


class Item(Generic[P]):
    """One record on its way through the workers."""

    __slots__ = ("attempt", "lane", "offset", "partition", "record", "settled", "tries")

    def __init__(
        self,
        record: Record,
        partition: P,
        lane: Hashable | None,
        attempt: Attempt | None = None,
    ) -> None:
        self.record = record
        self.offset = record.offset
        """The offset that this copy was read at."""
        self.partition = partition
        self.lane = lane
        self.attempt = attempt
        """What its headers say, for a record of a retry topic; made on failure for the others."""
        self.tries = 0
        """How often it was tried in place, without leaving memory."""
        self.settled = False
        """Exactly once: what becomes of it is decided and waits for a transaction."""

    def __repr__(self) -> str:
        return f"Item({self.record!r}, tries={self.tries})"


def offsets_and_size(records: Sequence[Record]) -> tuple[list[int], int]:
    """Every record's offset, and how many bytes they are together."""
    return [record.offset for record in records], sum([record.size for record in records])


def in_one_lane(records: Sequence[Record], partition: P, lane: Hashable | None) -> list[Item[P]]:
    """An item for each record, all of one lane (None: of none)."""
    return [Item(record, partition, lane) for record in records]


def by_key(records: Sequence[Record], partition: P, topic: str) -> list[Item[P]]:
    """An item for each record; its lane is (topic, key), or none for a null key."""
    return [
        Item(record, partition, None if (key := record.key) is None else (topic, key))
        for record in records
    ]


def offsets_of(items: Sequence[Item[Any]]) -> tuple[list[int], int]:
    """Every item's offset, and how many bytes their records are together."""
    return [item.offset for item in items], sum([item.record.size for item in items])


def of_one_partition(items: Sequence[Item[Any]]) -> bool:
    """Whether all of them were read from the same partition."""
    first = items[0].partition
    return all(item.partition is first for item in items)


def take_done(unfinished: set[int], offsets: Iterable[int]) -> tuple[int, int]:
    """Remove done records from a set; how many of these were in it, and the highest, or -1."""
    news = unfinished.intersection(offsets)
    unfinished -= news
    return len(news), max(news, default=-1)


Lanes = dict[Hashable, deque[Item[Any]] | None]
"""The followers of a lane's first record; None while there never was one."""


def enter_lanes(lanes: Lanes, items: Iterable[Item[Any]], ready: deque[Item[Any]]) -> int:
    """Put records behind those of their lane, or among the ready ones; how many have to wait."""
    waiting = 0
    for item in items:
        lane = item.lane
        if lane is None:
            ready.append(item)
        elif lane not in lanes:
            lanes[lane] = None
            ready.append(item)
        else:
            followers = lanes[lane]
            if followers is None:
                followers = lanes[lane] = deque()
            followers.append(item)
            waiting += 1
    return waiting


def leave_lanes(
    lanes: Lanes, items: Iterable[Item[Any]], kept: Container[Hashable], ready: deque[Item[Any]]
) -> int:
    """The lanes of these continue, once each, but for the `kept` ones; how many need wait no
    more."""
    begun = 0
    for lane in dict.fromkeys(item.lane for item in items):
        if lane is None or lane in kept:
            continue
        if followers := lanes[lane]:
            ready.append(followers.popleft())
            begun += 1
        else:
            del lanes[lane]
    return begun


class Shown:
    """What a handler is shown of a record: the fields of `Received`, one for each record."""

    __slots__ = ("_attempt", "_lookups", "_source", "data", "outputs")

    def __init__(
        self,
        record: Record,
        attempt: Attempt | None = None,
        lookups: Callable[[], Lookup] | None = None,
        data: Any = None,
    ) -> None:
        self._source = record
        self._attempt = attempt
        self._lookups = lookups
        self.data = data
        self.outputs: list[Output] | None = None


View = TypeVar("View", bound=Shown)


def run_plain(
    items: Sequence[Item[Any]],
    start: int,
    function: Callable[[Any], object],
    view: type[View],
    lookups: Callable[[], Lookup] | None,
) -> tuple[int, View | None, Exception | None]:
    """Call a handler for each record from `start` on, until a result needs more than a count.

    Where it stopped: at a record that raised or sends something, with the record it was called with
    and its error, after which the next one may begin; at the first of another handler; or at the
    end.
    Raises UsageError for a handler that returned something, which is not used.
    """
    route = items[start].partition.route
    for index in range(start, len(items)):
        item = items[index]
        if item.partition.route is not route:
            return index, None, None
        record = item.record
        shown = view(record, item.attempt, lookups, record.value)
        try:
            returned = function(shown)
        except Exception as error:  # the handler is the user's, and may raise anything
            return index, shown, error
        if returned is not None:
            refuse_returned(route.topic, returned)
        if shown.outputs is not None:
            return index, shown, None
    return len(items), None, None
