"""The loops over single partitions: specification, and fallback where `_loops.pyx` is not compiled.

Rules:
- A `row` is one array of int32 over all partitions of some topics, one after the other: the place
  of the member that has each, or FREE. `spans` says where each topic starts and ends in it.
- Nothing here decides anything that does not look at every partition: who is to get how many is
  for `sticky_counts` to say, the worth of a claim for `claims`.
- Numbers may be of any kind that a user's assignor gives: what is no integer raises TypeError, and
  what no machine word holds may raise OverflowError.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, MutableMapping, Sequence
from collections.abc import Set as AbstractSet
from operator import index
from struct import Struct
from struct import error as struct_error
from typing import Final

from kohort.errors import DecodeError

FREE: Final = -1
"""It has no owner."""

DISPUTED: Final = -2
"""Two members claim it with equal right: it has no owner, and may not be assigned yet."""

TWICE, STRANGE = 1, 2
"""What `note` found: it has an owner already; no such partition, or of no topic of the member's."""

Spans = Mapping[str, tuple[int, int]]
_INT32 = Struct(">i")


def note(
    row: array[int],
    spans: Spans,
    who: int,
    partitions: Mapping[str, Sequence[int]],
    topics: AbstractSet[str] | None = None,
) -> int:
    """Write `who` into the empty entries of the row. Returns the problems found: TWICE | STRANGE.

    With `topics`, partitions of others are strange.
    """
    count = 0
    for topic, numbers in partitions.items():
        if topic not in spans or (topics is not None and topic not in topics):
            if len(numbers):
                count |= STRANGE
            continue
        start, stop = spans[topic]
        for number in numbers:
            at = start + index(number)
            if not start <= at < stop:
                count |= STRANGE
            elif row[at] == FREE:
                row[at] = who
            else:
                count |= TWICE
    return count


def tally(row: array[int], stretches: Sequence[tuple[int, int]], counts: array[int]) -> None:
    """Add to `counts` how many partitions of these stretches each member has."""
    for start, stop in stretches:
        for who in row[start:stop]:
            if who >= 0:
                counts[who] += 1


def keep(
    row: array[int], stretches: Sequence[tuple[int, int]], room: array[int]
) -> tuple[array[int], array[int]]:
    """Everybody keeps its first ones, as many as its `room`, which is lowered by them.

    Gives where the others are: those without an owner, and those that were now given up. Both are
    FREE then, and in order.
    """
    free, given_up = array("i"), array("i")
    for start, stop in stretches:
        for at in range(start, stop):
            who = row[at]
            if who < 0:
                free.append(at)
            elif room[who] > 0:
                room[who] -= 1
                continue
            else:
                given_up.append(at)
            row[at] = FREE
    return free, given_up


def deal(row: array[int], free: array[int], room: array[int], members: Sequence[int]) -> None:
    """One each in turn to the `members` that still have room, until `free` ends."""
    at, end = 0, len(free)
    active = [who for who in members if room[who] > 0]
    while active and at < end:
        for who in active[: end - at]:
            row[free[at]] = who
            room[who] -= 1
            at += 1
        active = [who for who in active if room[who] > 0]


def hand_out(
    row: array[int],
    spans: Spans,
    shares: Sequence[MutableMapping[str, Sequence[int]]],
) -> None:
    """Write the row, topic by topic, into each member's share: ascending tuples."""
    for topic, (start, stop) in spans.items():
        dealt: dict[int, list[int]] = {}
        for number, who in enumerate(row[start:stop]):
            if who < 0:
                continue
            if who in dealt:
                dealt[who].append(number)
            else:
                dealt[who] = [number]
        for who, numbers in dealt.items():
            shares[who][topic] = tuple(numbers)


def held(
    row: array[int], spans: Spans, who: int, partitions: Mapping[str, Sequence[int]]
) -> Mapping[str, Sequence[int]]:
    """`partitions` without those that another has, or that are DISPUTED."""
    rest: dict[str, Sequence[int]] = {}
    changed = False
    for topic, numbers in partitions.items():
        start = spans[topic][0]
        mine = [number for number in numbers if row[start + number] in (FREE, who)]
        if len(mine) < len(numbers):
            changed = True
        rest[topic] = numbers if len(mine) == len(numbers) else tuple(mine)
    return rest if changed else partitions


class PartitionReader:
    """Reads the array of (topic, array of int32) that subscriptions and assignments share.

    It keeps the names that it has read, so that members with the same topics share them.
    """

    def __init__(self) -> None:
        self._names: dict[bytes, str] = {}
        self._arrays: dict[int, Struct] = {}

    def read(self, data: bytes, at: int) -> tuple[dict[str, tuple[int, ...]], int]:
        """The array at byte `at`, and where it ends; raises DecodeError.

        Topics in order, numbers ascending, topics without partitions left out.
        """
        by_topic: dict[str, tuple[int, ...]] = {}
        end = len(data)
        topics, at = array_size(data, at, 6), at + 4
        tidy, last = True, ""
        for _ in range(topics):
            start = at + 2
            if start > end:
                raise DecodeError(f"it ends at byte {end}, within a name")
            at = start + (data[at] << 8 | data[at + 1])
            if at > end or at - start > 0x7FFF:
                raise DecodeError(f"a name that ends at byte {at} of {end}")
            name = self._name(data[start:at])
            size = array_size(data, at, 4)
            unpack = self._arrays.get(size) or self._arrays.setdefault(size, Struct(f">{size}i"))
            numbers: tuple[int, ...] = unpack.unpack_from(data, at + 4)
            at += 4 + 4 * size
            if size > 1:
                numbers = tuple(sorted(numbers))
            if name > last and size:
                last = name
                by_topic[name] = numbers
            else:
                tidy = False
                by_topic[name] = by_topic.get(name, ()) + numbers
        return (by_topic if tidy else _tidied(by_topic)), at

    def _name(self, raw: bytes) -> str:
        name = self._names.get(raw)
        if name is None:
            try:
                name = self._names[raw] = raw.decode()
            except UnicodeDecodeError as error:
                raise DecodeError(f"a topic's name: {error}") from None
        return name


def array_size(data: bytes, at: int, smallest: int) -> int:
    """An array's length at byte `at`; raises DecodeError if what follows cannot hold it."""
    try:
        size = int(_INT32.unpack_from(data, at)[0])
    except struct_error:
        raise DecodeError(f"it ends at byte {len(data)}, within a length") from None
    if not 0 <= size <= (len(data) - at - 4) // smallest:
        raise DecodeError(f"{size} elements at byte {at} of {len(data)}")
    return size


def _tidied(by_topic: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    return {topic: tuple(sorted(by_topic[topic])) for topic in sorted(by_topic) if by_topic[topic]}


class PartitionWriter:
    """Writes what `PartitionReader` reads; topics by name, those without partitions left out."""

    def __init__(self) -> None:
        self._names: dict[str, bytes] = {}
        self._arrays: dict[int, Struct] = {}

    def write(self, partitions: Mapping[str, Sequence[int]]) -> bytes:
        """The bytes; numbers in the order in which they come."""
        shown = [(topic, numbers) for topic, numbers in partitions.items() if len(numbers)]
        shown.sort()
        out = [_INT32.pack(len(shown))]
        names, arrays = self._names, self._arrays
        for topic, numbers in shown:
            size = len(numbers)
            if topic not in names:
                raw = topic.encode()
                names[topic] = len(raw).to_bytes(2, "big") + raw
            if size not in arrays:
                arrays[size] = Struct(f">{size + 1}i")
            try:
                out += (names[topic], arrays[size].pack(size, *numbers))
            except struct_error as error:
                raise TypeError(f"partitions of {topic!r}: {error}") from None
        return b"".join(out)
