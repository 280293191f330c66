"""Keeping a key's order although one of its records waits in a tier (`on_failure="hold_key"`).

Rules (W3):
- While a record of a key is in a tier, later records of the key follow it into the same tier, where
  they stand behind it, and fall due after it. Their attempt number stays as it is.
- A record of a tier is tried when no earlier one of its key is still under way; otherwise it
  follows the earlier one to wherever that has gone.
- Nothing of a source partition is begun before what waits in its tiers is known: whoever is
  assigned it reads them to their end first (`HoldScans`). So the tiers' partitions of the same
  number must be this member's too, which the range assignor sees to.
- In memory, within a bound. Past it the source partitions stand still until half of it has ended;
  when the tiers hold more than the bound at a start, they are worked on first, and then read again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from kohort.records import Record
from kohort.retry.headers import HeaderFault, parse

Key = tuple[str, bytes]
"""(source topic, key)."""
Place = tuple[int, int]
"""(partition, offset) of a record in its source topic: the order within a key."""
TopicPartition = tuple[str, int]

MAX_HELD: Final = 100_000


class KeyHolds:
    """Which records of which keys are in a tier, and in which one."""

    __slots__ = ("_count", "_full", "_keys", "most")

    def __init__(self, most: int = MAX_HELD) -> None:
        self._keys: dict[Key, dict[Place, str]] = {}
        self._count = 0
        self._full = False
        self.most = most

    def __len__(self) -> int:
        return self._count

    @property
    def full(self) -> bool:
        """Whether no more should be begun that may have to be held; until half has ended."""
        self._full = self._count >= self.most or (self._full and 2 * self._count > self.most)
        return self._full

    def scheduled(self, key: Key, place: Place, tier: str) -> None:
        """This record waits in `tier` now (it may have waited in another one before)."""
        held = self._keys.setdefault(key, {})
        self._count += place not in held
        held[place] = tier

    def ended(self, key: Key, place: Place) -> None:
        """This record is done, or in the failed topic: whoever waited for it may go on."""
        held = self._keys.get(key)
        if held is None or held.pop(place, None) is None:
            return
        self._count -= 1
        if not held:
            del self._keys[key]

    def behind(self, key: Key, place: Place) -> str | None:
        """The tier that a record has to follow into, None when nothing earlier is in its way."""
        held = self._keys.get(key)
        if held is None:
            return None
        earlier = [other for other in held if other < place]
        return held[max(earlier)] if earlier else None

    def forget(self, source: str, number: int, tier: str) -> None:
        """This tier's partition is somebody else's now: what waits there is not known any more."""
        for key in [key for key in self._keys if key[0] == source]:
            held = self._keys[key]
            gone = [place for place, where in held.items() if where == tier and place[0] == number]
            for place in gone:
                self.ended(key, place)


class Waiting(NamedTuple):
    """A record that waits in a tier: where its copy stands, its key, its first place."""

    offset: int
    key: bytes
    place: Place


class Scanned(NamedTuple):
    """What waits in a tier's partition. `whole` False: there was more than could be held."""

    tier: TopicPartition
    epoch: int
    waiting: Sequence[Waiting]
    whole: bool


def waiting_in(records: Iterable[Record], group: str) -> list[Waiting]:
    """What holds its key, among records of a tier."""
    found: list[Waiting] = []
    for record in records:
        if record.key is None:
            continue
        try:
            retry = parse(record.headers)
        except HeaderFault:
            continue  # it will go to the failed topic, and holds nothing
        if retry.group == group:
            origin = retry.origin
            found.append(Waiting(record.offset, record.key, (origin.partition, origin.offset)))
    return found


class HoldScans:
    """Which tiers have been read to their end, for the source partitions that wait for that.

    `tiers` names, for each source topic whose keys are held, its tiers.
    """

    def __init__(self, tiers: Mapping[str, Collection[str]]) -> None:
        self._tiers = {source: tuple(names) for source, names in tiers.items() if names}
        self._source = {name: source for source, names in self._tiers.items() for name in names}
        self._wanted: list[TopicPartition] = []
        self._known: set[TopicPartition] = set()
        self._partly: set[TopicPartition] = set()
        self._ours: set[TopicPartition] = set()

    def source_of(self, topic: str) -> str | None:
        """The source topic that a tier belongs to; None for what is no tier with held keys."""
        return self._source.get(topic)

    def family(self, key: TopicPartition) -> list[TopicPartition]:
        """A source partition and its tiers' partitions, of which this is one; or nothing."""
        source = self._source.get(key[0], key[0])
        if source not in self._tiers:
            return []
        return [(source, key[1]), *((tier, key[1]) for tier in self._tiers[source])]

    def assigned(self, key: TopicPartition) -> None:
        """A partition is ours: all tiers of its family that are ours are to be read (again)."""
        self._ours.add(key)
        for each in self.family(key)[1:]:
            if each in self._ours:
                self._want(each)

    def removed(self, key: TopicPartition) -> None:
        """A partition is no longer ours."""
        self._ours.discard(key)
        self._known.discard(key)
        self._partly.discard(key)
        self._wanted = [each for each in self._wanted if each != key]

    def again(self) -> None:
        """There is room now: read again what was read in part."""
        partly, self._partly = self._partly, set()
        for tier in sorted(partly):
            self._want(tier)

    def wanted(self) -> list[TopicPartition]:
        """The tiers to be read now; each is answered by `scanned`."""
        found, self._wanted = self._wanted, []
        return found

    def scanned(self, tier: TopicPartition, *, whole: bool) -> None:
        """A tier was read to its end, or as far as there was room."""
        if tier in self._ours:
            self._known.add(tier)
            (self._partly.discard if whole else self._partly.add)(tier)

    def why(self, key: TopicPartition) -> str:
        """Why nothing of a partition may be begun yet, in words; "" when something may be."""
        family = self.family(key)
        for tier in family[1:]:
            name = f"{tier[0]}-{tier[1]}"
            if tier not in self._ours:
                return (
                    f"waits until {name} is this member's too: hold_key needs the range assignor "
                    "in all members"
                )
            if tier not in self._known:
                return f"waits until {name} has been read, for keys that are held"
            if tier in self._partly and key == family[0]:
                return f"waits until {name} holds fewer records, since keys are held for them"
        return ""

    def _want(self, tier: TopicPartition) -> None:
        self._known.discard(tier)
        if tier not in self._wanted:
            self._wanted.append(tier)
