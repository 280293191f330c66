"""A2: retry topics take what their source topic takes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import pytest

from kohort.errors import BrokerError, ErrorCode
from kohort.retry.offset_queries import TopicView
from kohort.retry.policy import RetryPolicy, RetryTopics
from kohort.retry.preparing import ensure_topics, look_at_all
from kohort.retry.topics import ROOM_FOR_HEADERS_BYTES, TopicSpec

TOPICS = RetryTopics("orders", "billing", RetryPolicy.parse("1s"))


@dataclass
class Cluster:
    """A source topic of large messages."""

    refusal: BrokerError | None = None
    there: dict[str, dict[str, str | None]] = field(
        default_factory=lambda: {"orders": {"max.message.bytes": "8000000"}}
    )
    asked: list[str] = field(default_factory=list)

    def topics(self) -> dict[str, TopicView]:
        return {name: TopicView("", 3) for name in self.there}

    def describe(self, names: Sequence[str]) -> dict[str, dict[str, str | None]]:
        self.asked += names
        if self.refusal is not None and "orders" in names:
            raise self.refusal
        return {name: self.there[name] for name in names}

    def create(self, specs: Iterable[TopicSpec]) -> None:
        self.there |= {spec.name: {**spec.configs} for spec in specs}

    def sizes(self) -> set[str | None]:
        """Of the topics that were made."""
        return {c["max.message.bytes"] for name, c in self.there.items() if name != "orders"}


def test_copies_of_a_topics_largest_messages_fit_into_its_retry_topics() -> None:
    cluster = Cluster()
    (state, *_) = look_at_all("app", {"orders": TOPICS}, cluster, bootstrap="x")
    size = str(8_000_000 + ROOM_FOR_HEADERS_BYTES)
    assert f"max.message.bytes={size}" in state.command
    ensure_topics("app", {"orders": TOPICS}, cluster, bootstrap="x")
    assert cluster.sizes() == {size}


def test_a_source_is_asked_about_only_when_topics_are_to_be_made() -> None:
    """A program may have no right to read its configuration."""
    cluster = Cluster()
    ensure_topics("app", {"orders": TOPICS}, cluster, bootstrap="x")
    cluster.asked.clear()
    ensure_topics("app", {"orders": TOPICS}, cluster, bootstrap="x")
    assert set(cluster.asked) == {*TOPICS.delays_ms, TOPICS.dead_letter}


def test_a_source_whose_configuration_may_not_be_read_has_retry_topics_all_the_same() -> None:
    cluster = Cluster(BrokerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "orders"))
    ensure_topics("app", {"orders": TOPICS}, cluster, bootstrap="x")
    assert cluster.sizes() == {str(1_048_588 + ROOM_FOR_HEADERS_BYTES)}
    away = Cluster(BrokerError(ErrorCode.NOT_CONTROLLER, "later"))
    with pytest.raises(BrokerError, match="later"):
        ensure_topics("app", {"orders": TOPICS}, away, bootstrap="x")
