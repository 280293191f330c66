"""A2: the ladder for copies that are too large, and waiting for every answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from kohort.client.common.types import RecordMetadata
from kohort.errors import BrokerError, ErrorCode, KafkaTimeoutError, RecordTooLargeError
from kohort.retry.classify import stated
from kohort.retry.copies import Attempt, Copy, copy_for, is_stub
from kohort.retry.headers import Origin
from kohort.retry.policy import RetryPolicy, RetryTopics
from kohort.spark import publisher
from kohort.spark.publisher import CopyPublisher

TOPICS = RetryTopics("t", "g", RetryPolicy.parse("5m"))


@dataclass
class FakeProducer:
    """Takes records of at most so many bytes; refuses as the broker or as the client does."""

    most: int = 10_000
    refuse_early: bool = False
    broken: bool = False
    taken: list[tuple[Any, ...]] = field(default_factory=list)
    closed: bool = False

    def send(
        self, topic: str, value: bytes | None, key: bytes | None, partition: int, headers: Any
    ) -> Any:
        size = len(value or b"") + sum(len(v or b"") for _, v in headers)
        if size > self.most and self.refuse_early:
            raise RecordTooLargeError("too large")
        return Answer(self, topic, value, partition, list(headers), size)

    def close(self) -> None:
        self.closed = True


@dataclass
class Answer:
    producer: FakeProducer
    topic: str
    value: bytes | None
    partition: int
    headers: list[Any]
    size: int

    def result(self) -> RecordMetadata:
        if self.producer.broken:
            raise KafkaTimeoutError("nobody answers")
        if self.size > self.producer.most:
            raise BrokerError(ErrorCode.MESSAGE_TOO_LARGE)
        self.producer.taken.append((self.topic, self.partition, self.value, self.headers))
        return RecordMetadata(self.topic, self.partition, len(self.producer.taken) - 1, 0)


def copies(*values: bytes) -> list[Copy]:
    made: list[Copy] = []
    for offset, value in enumerate(values):
        origin = Origin("t", 5, offset, 1)
        attempt = Attempt(origin, 0, ("t", 5, offset), b"k", value, [])
        failure = stated("bad", permanent=True, message="m" * 500)
        made.append(copy_for(attempt, failure, topics=TOPICS, now_ms=1)[0])
    return made


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeProducer:
    made = FakeProducer()
    monkeypatch.setattr(publisher, "producer_for", lambda config: made)
    return made


@pytest.mark.parametrize("early", [True, False])
def test_too_large_goes_down_the_ladder(fake: FakeProducer, early: bool) -> None:
    fake.refuse_early = early
    fake.most = 1_200
    places = CopyPublisher({}, {TOPICS.dead_letter: 3}).publish(
        copies(b"small", b"x" * 900, b"y" * 5_000)
    )
    assert [(p.topic, p.partition) for p in places] == [(TOPICS.dead_letter, 2)] * 3
    by_offset = dict(enumerate(fake.taken))
    small, no_message, stub = (by_offset[p.offset] for p in places)
    assert "retry_error_message" in dict(small[3])
    assert (no_message[2], "retry_error_message" in dict(no_message[3])) == (b"x" * 900, False)
    assert stub[2] is None
    assert is_stub(stub[3])


def test_not_even_a_stub(fake: FakeProducer) -> None:
    fake.most = 10
    with pytest.raises(RecordTooLargeError, match="not even a stub of t/5/0"):
        CopyPublisher({}, {TOPICS.dead_letter: 1}).publish(copies(b"v"))


def test_another_error_ends_the_task(fake: FakeProducer) -> None:
    """R2: nothing is written down before every copy is acknowledged."""
    fake.broken = True
    with pytest.raises(KafkaTimeoutError):
        CopyPublisher({}, {TOPICS.dead_letter: 1}).publish(copies(b"a", b"b"))
