"""The topics of the cluster as the coordinator sees them: an immutable image, by name and by id.

Rules:
- The shell gives it (`GroupShard.topics_changed`), before the load too and whenever a topic is
  made, deleted or grown; a shard never looks for itself.
- An image never changes: `with_topic` and `without` give the next one. So a group that decided by
  an image decided by all of it (B12).
- `topic_hash` and `metadata_hash` name what an assignor sees of the subscribed topics. A changed
  hash means that the group's epoch rises (KIP-848, KIP-1101).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from kohort.lean import dataclass

if TYPE_CHECKING:
    from hashlib import blake2b

NO_TOPICS_HASH: Final = 0
"""The metadata hash of a group that subscribes to nothing that exists."""


class TopicImage(NamedTuple):
    """A topic: its id (16 bytes), its name, how many partitions, and by partition the racks of its
    replicas (empty where they are not known)."""

    topic_id: bytes
    name: str
    partitions: int
    racks: tuple[frozenset[str], ...] = ()


@dataclass(frozen=True, slots=True)
class TopicsImage:
    """Every topic at one moment."""

    by_name: Mapping[str, TopicImage]
    by_id: Mapping[bytes, TopicImage]

    @classmethod
    def of(cls, topics: Iterable[TopicImage]) -> TopicsImage:
        """An image of these topics; of two with one name the last counts."""
        names = {topic.name: topic for topic in topics}
        return cls._made(names)

    @classmethod
    def _made(cls, names: dict[str, TopicImage]) -> TopicsImage:
        ids = {topic.topic_id: topic for topic in names.values()}
        return cls(MappingProxyType(names), MappingProxyType(ids))

    def with_topics(self, topics: Iterable[TopicImage]) -> TopicsImage:
        """The image after several were made."""
        return self._made({**self.by_name, **{topic.name: topic for topic in topics}})

    def with_topic(self, topic: TopicImage) -> TopicsImage:
        """The image after `topic` was made, grown, or made again under a new id."""
        return self._made({**self.by_name, topic.name: topic})

    def without(self, names: Iterable[str]) -> TopicsImage:
        """The image after these topics were deleted."""
        gone = set(names)
        return self._made({n: topic for n, topic in self.by_name.items() if n not in gone})


NO_TOPICS: Final = TopicsImage.of(())
"""A shard's view before the first update."""


def _digest(data: bytes) -> blake2b:
    from hashlib import blake2b  # brings OpenSSL along, and most starts need none

    return blake2b(data, digest_size=8)


@lru_cache(4_096)
def topic_hash(topic: TopicImage) -> int:
    """64 bits that differ when id, name, partition count or racks do."""
    digest = _digest(topic.topic_id)
    digest.update(f"{topic.partitions}:{topic.name}".encode())
    for racks in topic.racks:
        digest.update("\0".join(("", *sorted(racks))).encode() + b"\1")
    return int.from_bytes(digest.digest(), "big")


def metadata_hash(image: TopicsImage, subscribed: Iterable[str]) -> int:
    """A signed 64-bit hash of the subscribed topics that exist; the order does not matter."""
    known = sorted(name for name in set(subscribed) if name in image.by_name)
    if not known:
        return NO_TOPICS_HASH
    digest = _digest(b"")
    for name in known:
        digest.update(topic_hash(image.by_name[name]).to_bytes(8, "big"))
    return int.from_bytes(digest.digest(), "big", signed=True)


def by_name(
    topics: TopicsImage, partitions: Mapping[bytes, tuple[int, ...]]
) -> dict[str, tuple[int, ...]]:
    """The same partitions by name; topics and partitions that are gone are left out."""
    names: dict[str, tuple[int, ...]] = {}
    for topic_id, numbers in partitions.items():
        topic = topics.by_id.get(topic_id)
        if topic is None:
            continue
        if numbers[-1] < topic.partitions:
            names[topic.name] = numbers  # the common case; a thousand members pass here at once
        elif there := tuple(n for n in numbers if n < topic.partitions):
            names[topic.name] = there
    return names
