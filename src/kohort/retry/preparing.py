"""Making the retry topics of a program that starts, or saying exactly what is wrong with them.

Rules (A2):
- Missing ones are created, the others verified, at every start; the source topics are left alone.
- They take what their source topic takes, where its configuration may be read.
- Several processes of a program may start, and create, at once: who comes second is content.
- Where topics may not be created, the error holds every command that creates them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

from kohort.errors import BrokerError, ErrorCode
from kohort.retry.offset_queries import TopicPartition, TopicView
from kohort.retry.policy import RetryTopics
from kohort.retry.topics import (
    DEFAULT_MAX_MESSAGE_BYTES,
    Existing,
    TopicSpec,
    TopicState,
    check_topics,
    creation_refused,
    left_behind,
    look_at_topics,
    most_bytes,
    other_retry_topics,
    plan_topics,
)
from kohort.setting_keys import nearest


class TopicPort(Protocol):
    """What is asked of a cluster about its topics."""

    def topics(self) -> dict[str, TopicView]: ...
    def describe(self, names: Sequence[str]) -> dict[str, dict[str, str | None]]: ...
    def create(self, specs: Iterable[TopicSpec]) -> None: ...


def ensure_topics(
    who: str, topics: Mapping[str, RetryTopics], port: TopicPort, *, bootstrap: str
) -> None:
    """Create the retry topics of `topics` (by source topic) that are missing; verify the others.

    Raises BrokerError for a source topic that does not exist, ConfigError for unfit retry topics.
    """
    specs, existing = _found(who, topics, port)
    missing = check_topics(specs, existing, bootstrap=bootstrap)
    if not missing:
        return
    try:
        port.create(missing)
    except BrokerError as error:
        if error.code == ErrorCode.TOPIC_ALREADY_EXISTS:
            _create_others(missing, port, bootstrap)
        elif error.retriable:
            raise
        else:
            raise creation_refused(missing, bootstrap=bootstrap, reason=str(error)) from error


def look_at_all(
    who: str, topics: Mapping[str, RetryTopics], port: TopicPort, *, bootstrap: str
) -> list[TopicState]:
    """The state of every retry topic; nothing is created. Raises BrokerError for a lost source."""
    specs, existing = _found(who, topics, port)
    return look_at_topics(specs, existing, bootstrap=bootstrap)


class LeftPort(Protocol):
    """What is asked of a cluster about what waits in a topic."""

    def earliest(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]: ...
    def latest(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]: ...
    def committed(
        self, group: str, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, int]: ...


def look_for_left(
    topics: Mapping[str, RetryTopics], views: Mapping[str, TopicView], port: LeftPort
) -> list[TopicState]:
    """Retry topics in which records of these groups wait, and which their policies do not read."""
    states: list[TopicState] = []
    for names in topics.values():
        for name, delay_ms in other_retry_topics(names, views).items():
            count = views[name].partitions
            parts = [(name, number) for number in range(count)]
            done, firsts = port.committed(names.group, parts), port.earliest(parts)
            ends = port.latest(parts)
            waiting = sum(max(0, ends[at] - max(firsts[at], done.get(at, 0))) for at in parts)
            if waiting:
                states.append(left_behind(names, name, delay_ms, count, waiting))
    return states


def _found(
    who: str, topics: Mapping[str, RetryTopics], port: TopicPort
) -> tuple[list[TopicSpec], dict[str, Existing]]:
    views = port.topics()
    specs = plan_all(who, topics, views)
    if any(spec.name not in views for spec in specs):
        specs = plan_all(who, topics, views, largest_messages(topics, port))
    described = port.describe([s.name for s in specs if s.name in views])
    return specs, {
        name: Existing(views[name].partitions, configs) for name, configs in described.items()
    }


def largest_messages(sources: Iterable[str], port: TopicPort) -> dict[str, int]:
    """What the source topics take, of those whose configurations may be read."""
    found: dict[str, int] = {}
    for source in sources:
        try:
            found |= most_bytes(port.describe([source]))
        except BrokerError as error:
            if error.retriable:
                raise
    return found


def _create_others(missing: Sequence[TopicSpec], port: TopicPort, bootstrap: str) -> None:
    """Another process of the program creates them at the same time: each that it has not yet."""
    for spec in missing:
        try:
            port.create([spec])
        except BrokerError as error:
            if error.code == ErrorCode.TOPIC_ALREADY_EXISTS:
                continue
            if error.retriable:
                raise
            raise creation_refused([spec], bootstrap=bootstrap, reason=str(error)) from error


def plan_all(
    who: str,
    topics: Mapping[str, RetryTopics],
    views: Mapping[str, TopicView],
    largest: Mapping[str, int] = MappingProxyType({}),
) -> list[TopicSpec]:
    """All retry topics of a program. Raises BrokerError for a source topic that is not there.

    Args:
        largest: the largest batches that source topics take; Kafka's default where it is unknown.
    """
    specs: list[TopicSpec] = []
    for topic, names in topics.items():
        if topic not in views:
            near = nearest(topic, views)
            hint = f" Did you mean {near!r}?" if near else ""
            raise BrokerError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"{who} reads topic {topic!r}, which does not exist; nothing was started.{hint} "
                f"`kohort topic create {topic}` makes it",
            )
        specs += plan_topics(
            names,
            partitions=views[topic].partitions,
            source_max_message_bytes=largest.get(topic, DEFAULT_MAX_MESSAGE_BYTES),
        )
    return specs
