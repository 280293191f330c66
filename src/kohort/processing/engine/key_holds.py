"""Keep a key's order while one of its records waits for a retry (`on_failure="hold_key"`).

Rules (W3):
- While a record of a key is in a retry topic, later records of the key follow it into the same
  retry topic, where they come after it, and fall due after it. Their attempt number does not
  change.
- A record of a retry topic is tried when no earlier one of its key is still under way; otherwise it
  follows the earlier one to its topic.
- No record of a source partition begins before the records in its retry topics are known: the
  member that is assigned it reads them to their end first (`HoldScans`). So it must also have the
  retry topics' partitions of the same number, which the range assignor ensures.
- In memory, within a bound. Past it the source partitions stop until half of it has ended;
  when the retry topics hold more than the bound at a start, they are worked on first, and then read
  again.
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
    """Which records of which keys are in a retry topic, and in which one."""

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

    def scheduled(self, key: Key, place: Place, retry_topic: str) -> None:
        """This record waits in `retry topic` now (it may have waited in another one before)."""
        held = self._keys.setdefault(key, {})
        self._count += place not in held
        held[place] = retry_topic

    def ended(self, key: Key, place: Place) -> None:
        """This record is done, or in the dead-letter topic: records that waited for it may
        continue."""
        held = self._keys.get(key)
        if held is None or held.pop(place, None) is None:
            return
        self._count -= 1
        if not held:
            del self._keys[key]

    def behind(self, key: Key, place: Place) -> str | None:
        """The retry topic that a record must follow into; None when nothing earlier blocks it."""
        held = self._keys.get(key)
        if held is None:
            return None
        earlier = [other for other in held if other < place]
        return held[max(earlier)] if earlier else None

    def forget(self, source: str, number: int, retry_topic: str) -> None:
        """Another member has this retry topic's partition: forget what waits there."""
        for key in [key for key in self._keys if key[0] == source]:
            held = self._keys[key]
            gone = [
                place
                for place, where in held.items()
                if where == retry_topic and place[0] == number
            ]
            for place in gone:
                self.ended(key, place)


class Waiting(NamedTuple):
    """A record that waits in a retry topic: its copy's position, its key, its origin."""

    offset: int
    key: bytes
    place: Place


class Scanned(NamedTuple):
    """What waits in a retry topic's partition. `whole` False: there was more than could be held."""

    retry_topic: TopicPartition
    epoch: int
    waiting: Sequence[Waiting]
    whole: bool


def waiting_in(records: Iterable[Record], group: str) -> list[Waiting]:
    """What holds its key, among records of a retry topic."""
    waiting: list[Waiting] = []
    for record in records:
        if record.key is None:
            continue
        try:
            retry = parse(record.headers)
        except HeaderFault:
            continue  # it will go to the dead-letter topic, and holds nothing
        if retry.group == group:
            origin = retry.origin
            waiting.append(Waiting(record.offset, record.key, (origin.partition, origin.offset)))
    return waiting


class HoldScans:
    """Which retry topics have been read to their end, for the source partitions that wait for that.

    `retry_topics` names, for each source topic whose keys are held, its retry topics.
    """

    def __init__(self, retry_topics: Mapping[str, Collection[str]] | None = None) -> None:
        self._retry_topics: dict[str, tuple[str, ...]] = {}
        self._source: dict[str, str] = {}
        self._wanted: list[TopicPartition] = []
        self._known: set[TopicPartition] = set()
        self._partly: set[TopicPartition] = set()
        self._ours: set[TopicPartition] = set()
        for source, names in (retry_topics or {}).items():
            self.add(source, names)

    def add(self, source: str, retry_topics: Collection[str]) -> None:
        """A source topic whose keys are held, and its retry topics."""
        if retry_topics:
            self._retry_topics[source] = tuple(retry_topics)
            self._source |= dict.fromkeys(retry_topics, source)

    def source_of(self, topic: str) -> str | None:
        """The source topic of a retry topic; None for a topic without held keys."""
        return self._source.get(topic)

    def family(self, key: TopicPartition) -> list[TopicPartition]:
        """A source partition and its retry topics' partitions, of which this is one; or nothing."""
        source = self._source.get(key[0], key[0])
        if source not in self._retry_topics:
            return []
        return [
            (source, key[1]),
            *((retry_topic, key[1]) for retry_topic in self._retry_topics[source]),
        ]

    def assigned(self, key: TopicPartition) -> None:
        """A partition is ours: read all retry topics of its family that are ours (again)."""
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
        for retry_topic in sorted(partly):
            self._want(retry_topic)

    def wanted(self) -> list[TopicPartition]:
        """The retry topics to be read now; each is answered by `scanned`."""
        partitions, self._wanted = self._wanted, []
        return partitions

    def scanned(self, retry_topic: TopicPartition, *, whole: bool) -> None:
        """A retry topic was read to its end, or as far as there was room."""
        if retry_topic in self._ours:
            self._known.add(retry_topic)
            (self._partly.discard if whole else self._partly.add)(retry_topic)

    def why(self, key: TopicPartition) -> str:
        """Why no record of a partition may begin yet, as text; "" when one may."""
        family = self.family(key)
        for retry_topic in family[1:]:
            name = f"{retry_topic[0]}-{retry_topic[1]}"
            if retry_topic not in self._ours:
                return (
                    f"waits until {name} is this member's too: hold_key needs the range assignor "
                    "in all members"
                )
            if retry_topic not in self._known:
                return f"waits until {name} has been read, for keys that are held"
            if retry_topic in self._partly and key == family[0]:
                return f"waits until {name} holds fewer records, since keys are held for them"
        return ""

    def _want(self, retry_topic: TopicPartition) -> None:
        self._known.discard(retry_topic)
        if retry_topic not in self._wanted:
            self._wanted.append(retry_topic)
