"""What a consumer reads: topics, a pattern, or partitions it chose itself. Never two of them.

Rules (spec 4.1): `subscribe` and `assign` exclude each other until `unsubscribe`. A pattern is
matched here, as a whole, against the names of all topics; internal ones are left out by default.
A `SubscriptionPattern` is matched by the broker (KIP-848), with all of its topics.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from kohort.client.common.arguments import shown
from kohort.client.common.types import TopicPartition
from kohort.errors import UsageError
from kohort.lean import dataclass

if TYPE_CHECKING:
    from kohort.client.cluster.metadata import ClusterMetadata

_LEGAL = re.compile(r"[a-zA-Z0-9._-]{1,249}")


@dataclass(frozen=True, slots=True)
class SubscriptionPattern:
    """Topics by an expression that the broker matches, in RE2 syntax, against whole names.

    For `subscribe` with `group_protocol=consumer`. The consumer needs no metadata of all topics for
    it, and the members of a group cannot disagree on what it matches. `re.compile(...)` instead is
    matched by the consumer itself, in either protocol.
    """

    pattern: str

    def __post_init__(self) -> None:
        if not self.pattern:
            raise UsageError("a SubscriptionPattern must not be empty; '.*' matches every topic")


@dataclass(frozen=True)
class Subscription:
    """One of the four, or nothing."""

    topics: frozenset[str] = frozenset()
    pattern: re.Pattern[str] | None = None
    remote: SubscriptionPattern | None = None
    partitions: frozenset[TopicPartition] = frozenset()

    def __bool__(self) -> bool:
        return self.by_group or bool(self.partitions)

    @property
    def by_group(self) -> bool:
        """True when the group decides which partitions are read."""
        return bool(self.topics) or self.pattern is not None or self.remote is not None

    def matches(self, metadata: ClusterMetadata, *, exclude_internal: bool) -> frozenset[str]:
        """The topics that this subscription names at present."""
        if self.pattern is None:
            return self.topics
        return frozenset(
            name
            for name, topic in metadata.topics.items()
            if self.pattern.fullmatch(name) and not (exclude_internal and topic.is_internal)
        )


Topics = Iterable[str] | re.Pattern[str] | SubscriptionPattern
"""What `subscribe` takes."""


def by_topics(topics: Topics, now: Subscription) -> Subscription:
    """A subscription by names, or by one pattern; UsageError for anything else."""
    if now.partitions:
        raise UsageError(
            "this consumer has partitions from assign(); subscribe() and assign() exclude each "
            "other: call unsubscribe() first, or use a second consumer"
        )
    if isinstance(topics, re.Pattern):
        return Subscription(pattern=topics)
    if isinstance(topics, SubscriptionPattern):
        return Subscription(remote=topics)
    if isinstance(topics, str):
        raise UsageError(
            f"subscribe() takes a list of topics; write subscribe([{topics!r}]), or pass "
            "re.compile(...) for a pattern"
        )
    if isinstance(topics, bytes) or not isinstance(topics, Iterable):
        raise UsageError(f"subscribe() takes a list of topics or a pattern, not {shown(topics)}")
    names = frozenset(topics)
    for name in names:
        if not isinstance(name, str) or not _LEGAL.fullmatch(name) or name in (".", ".."):
            raise UsageError(
                f"{name!r} is no topic name: letters, digits, '.', '_' and '-', at most 249"
            )
    if not names:
        raise UsageError("subscribe() was given no topic; to read nothing, call unsubscribe()")
    return Subscription(topics=names)


def by_partitions(tps: Iterable[TopicPartition], now: Subscription) -> Subscription:
    """A fixed choice of partitions; UsageError beside a subscription."""
    if now.by_group:
        raise UsageError(
            "this consumer has a subscription; subscribe() and assign() exclude each other: call "
            "unsubscribe() first, or use a second consumer"
        )
    chosen = frozenset(tps)
    for tp in chosen:
        if not _LEGAL.fullmatch(tp.topic):
            raise UsageError(f"{tp!r} is not a partition of a topic")
    return Subscription(partitions=chosen)
