"""A retry topic's partition without a leader holds up no other one (D2, D3)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kohort.errors import BrokerError, ErrorCode, KafkaTimeoutError
from kohort.processing.runtime.oldest_failures import CHECK_MS, OldestFailures
from kohort.processing.runtime.retry_topic_poller import PAUSE_AFTER_ERROR_MS, RetryTopicPoller
from kohort.records import Record
from kohort.retry.offset_queries import Stamped, TopicPartition
from tests.known import fake

RETRY = "orders.billing.retry.1m"
X, Y = (RETRY, 0), (RETRY, 1)
NOW_MS = 1_000_000


class Leaders:
    """A cluster where some partitions have no leader: who asks for one of them waits, in vain."""

    def __init__(self) -> None:
        self.missing: set[TopicPartition] = {X}
        self.refusal: Exception = KafkaTimeoutError("no offsets in time")
        self.waited = 0
        self.read_from: list[TopicPartition] = []

    def latest(self, wanted, timeout_s=None, *, partial=False) -> dict[TopicPartition, int]:
        if not partial:
            self._look(wanted)
        return {at: 3 for at in wanted if at not in self.missing}

    def by_time(self, wanted, timeout_s=None) -> dict[TopicPartition, Stamped]:
        self._look(wanted)
        return {at: Stamped(2, NOW_MS) for at in wanted}

    def read(self, at: TopicPartition, start: int) -> Iterator[list[Record]]:
        self._look([at])
        self.read_from.append(at)
        return iter(())

    def _look(self, wanted) -> None:
        if self.missing & set(wanted):
            self.waited += 1
            raise self.refusal


def poller(cluster: Leaders) -> tuple[RetryTopicPoller, dict[TopicPartition, int]]:
    """A poller with both partitions, and what it has opened."""
    opened: dict[TopicPartition, int] = {}
    gate = RetryTopicPoller({RETRY: 60_000}, 0, fake(cluster), lambda: NOW_MS, opened.update)
    gate.watch({X: 0, Y: 0})
    return gate, opened


@pytest.mark.parametrize(
    "refusal",
    [
        KafkaTimeoutError("no offsets in time"),
        BrokerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "asking for offsets"),
    ],
    ids=["no-leader", "refused"],
)
def test_a_partition_without_an_answer_closes_no_other_one(refusal) -> None:
    """All retries of the member stood still, and it waited a minute for each answer in vain."""
    cluster = Leaders()
    cluster.refusal = refusal
    gate, opened = poller(cluster)
    assert gate._look() == PAUSE_AFTER_ERROR_MS
    assert opened == {Y: 2}
    for _ in range(5):
        assert gate._look() == PAUSE_AFTER_ERROR_MS
    assert cluster.waited == 1, "nobody waits for it again"
    cluster.missing = set()
    gate._look()
    assert opened == {X: 2, Y: 2}
    cluster.missing = {Y}
    gate._gate.expire()
    gate._look()
    assert cluster.waited == 2, "all are asked for together again"


def test_where_no_leader_answers_nothing_opens(caplog) -> None:
    """It is logged now and then, and asked each second."""
    cluster = Leaders()
    cluster.missing = {X, Y}
    gate, opened = poller(cluster)
    for _ in range(5):
        assert gate._look() == PAUSE_AFTER_ERROR_MS
    assert opened == {}
    assert [each.levelname for each in caplog.records].count("WARNING") == 1
    cluster.missing = set()
    gate._look()
    assert opened == {X: 2, Y: 2}


def test_a_partition_without_an_answer_is_not_read_for_held_keys() -> None:
    """Each look waited for its end first, before it asked for the others."""
    cluster = Leaders()
    gate, _ = poller(cluster)
    gate._look()
    waited = cluster.waited
    for at in (X, Y):
        gate.scan(fake(at), 0, 1)
    gate._look()
    assert (cluster.waited, cluster.read_from) == (waited, [Y])
    cluster.missing = set()
    gate._look()
    assert cluster.read_from == [Y, X]


def test_dead_letter_topics_without_an_answer_are_asked_for_each_half_minute() -> None:
    """They were asked for each second, and every retry topic waited behind them."""
    cluster = Leaders()
    failures = OldestFailures(fake(cluster), {"orders": (RETRY, 2)})
    failures.assigned([("orders", 0)])
    for now_ms in range(1, CHECK_MS, 1_000):
        failures.ask(now_ms)
    assert cluster.waited == 1
    assert failures.oldest() == {}, "nobody knows whether there is one"
    cluster.missing = set()
    failures.ask(1 + CHECK_MS)
    assert failures.oldest() == {"orders": NOW_MS}
