"""What is to be known of subscribed topics that do not exist, or did not at first. Pure.

Rules:
- A wrong name must not be silent: the broker may create the topic (`allow_auto_create_topics`, as
  Kafka does), and then nothing would ever come.
- Each problem is logged once; it stays a concern of `health()` while the topic is subscribed to.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from kohort.client.cluster.metadata import ClusterMetadata
from kohort.client.common.types import TopicPartition
from kohort.config import format_elapsed
from kohort.errors import BrokerError, ErrorCode

TOPIC_ERRORS: Final = frozenset(
    {ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.INVALID_TOPIC_EXCEPTION}
)
"""Only the caller can mend these."""
TOPIC_ID_CODES: Final = frozenset({ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.INCONSISTENT_TOPIC_ID})
"""Metadata has another id for the topic than the broker."""
UNKNOWN_TOPIC_CODES: Final = TOPIC_ID_CODES | {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
"""The broker does not know a topic: it was deleted, or one of the two is behind."""
MISSING_MS: Final = 10_000
"""A partition that was just made is in every broker's metadata by then."""
_UNKNOWN: Final = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


class MissingTopics:
    """Remembers what has been logged about which topic."""

    def __init__(self, *, creates: bool) -> None:
        self._creates = creates
        self._reported: dict[str, str] = {}

    def look(self, names: Collection[str], metadata: ClusterMetadata) -> list[str]:
        """The new messages, now that this is known of these topics."""
        new: list[str] = []
        before, now = self._reported, dict[str, str]()
        for name in sorted(names):
            message = missing_topic(
                name,
                unknown=metadata.errors.get(name) == _UNKNOWN,
                exists=name in metadata.topics,
                before=before.get(name),
                creates=self._creates,
            )
            if message is not None:
                now[name] = message
                if message != before.get(name):
                    new.append(message)
        self._reported = now
        return new

    def concerns(self) -> tuple[str, ...]:
        """What holds of topics subscribed to at present."""
        return tuple(self._reported.values())


class MissingPartitions:
    """Assigned partitions that their topics do not have, and since when."""

    def __init__(self) -> None:
        self._since: dict[TopicPartition, tuple[int, int]] = {}

    def look(self, tps: Iterable[TopicPartition], metadata: ClusterMetadata, now_ms: int) -> None:
        """What metadata says of these."""
        before, self._since = self._since, {}
        for tp in tps:
            topic = metadata.topics.get(tp.topic)
            if topic is None or topic.damaged or tp.partition in topic.partitions:
                continue
            since_ms = before.get(tp, (now_ms, 0))[0]
            self._since[tp] = (since_ms, len(topic.partitions))

    def overdue(self, now_ms: int) -> BrokerError | None:
        """The error of one that has been missing for too long to be new."""
        for tp, (since_ms, count) in list(self._since.items()):
            if now_ms - since_ms >= MISSING_MS:
                return BrokerError(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    f"{tp} was assigned to this consumer for {format_elapsed(now_ms - since_ms)}, "
                    f"and topic {tp.topic!r} has {count} partitions; its number is wrong, or the "
                    "topic was created again with fewer",
                )
        return None


def missing_topic(
    name: str, *, unknown: bool, exists: bool, before: str | None, creates: bool
) -> str | None:
    """What to say of a subscribed topic that does not exist, or that came to; None: nothing.

    `before` is the last message about it, None when it has existed all along; `creates` is
    `allow_auto_create_topics`.
    """
    if unknown:
        if creates:
            return (
                f"topic {name!r} does not exist; the broker is asked to create it, if it may "
                "(allow_auto_create_topics). Is the name right?"
            )
        return f"topic {name!r} does not exist; it is read as soon as it does. Is the name right?"
    if before is not None and exists:
        return f"topic {name!r} did not exist when it was subscribed to, and does now"
    return before
