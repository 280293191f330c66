"""Dead letters carry their reasons under the names of other makes, as an option (issue I)."""

from __future__ import annotations

import struct

import pytest

from kohort.errors import ConfigError
from kohort.retry import headers as h
from kohort.retry.classify import describe
from kohort.retry.copies import Attempt, copy_for, redrive_copy
from kohort.retry.foreign_headers import MAKES, makes_of
from kohort.retry.headers import Origin
from kohort.retry.policy import RetryPolicy, RetryTopics

ORIGIN = Origin("orders", 3, 1_234, 1_700_000_000_000, 0, "")
USERS = [("kafka_dlt-original-topic", b"an older one"), ("trace", None)]


def attempt() -> Attempt:
    return Attempt(ORIGIN, 1, ("orders", 3, 1_234), b"k", b"v", USERS)


def topics(*makes: str, retries: str = "none") -> RetryTopics:
    return RetryTopics("orders", "billing", RetryPolicy.parse(retries), makes)


def test_names_and_types_are_those_of_the_makes() -> None:
    failure = describe(ValueError("bad amount"), permanent=False, reason="bad")
    copy, step = copy_for(attempt(), failure, topics=topics("spring", "connect"), now_ms=5)
    assert step is None
    found = dict(copy.headers[len(USERS) :])
    assert found["kafka_dlt-original-topic"] == b"orders"
    assert struct.unpack(">i", found["kafka_dlt-original-partition"] or b"") == (3,)
    assert struct.unpack(">q", found["kafka_dlt-original-offset"] or b"") == (1_234,)
    assert found["kafka_dlt-exception-fqcn"] == found[h.ERROR_CLASS]
    assert found["__connect.errors.partition"] == b"3"
    assert found["__connect.errors.exception.message"] == found[h.ERROR_MESSAGE] == b"bad amount"
    plain, _ = copy_for(attempt(), failure, topics=topics(), now_ms=5)
    assert not any(name.startswith("__connect") for name, _ in plain.headers)


def test_kafka_streams_names_hold_text_alone() -> None:
    """KIP-1034: the exception is its class and its message."""
    failure = describe(ValueError("bad amount"), permanent=False, reason="bad")
    copy, _ = copy_for(attempt(), failure, topics=topics("streams"), now_ms=5)
    found = {n.removeprefix("__streams.errors."): v for n, v in copy.headers if "streams" in n}
    assert found == {
        "stacktrace": b"",  # it was not raised
        "exception": b"ValueError: bad amount",
        "message": b"bad amount",
        "topic": b"orders",
        "partition": b"3",
        "offset": b"1234",
    }


def test_a_pipeline_has_the_option_of_an_app() -> None:
    """Every retry topic family of it carries the makes to the executors (issue 18)."""
    pytest.importorskip("pyspark")
    from kohort.spark import Pipeline

    pipeline = Pipeline("bills", store="sqlite:///x.db", dead_letter_headers=("spring", "streams"))
    pipeline.handler("orders", table="bills", key=["id"])(lambda record, store: {"id": 1})
    assert pipeline.topics["orders"].dead_letter_headers == ("spring", "streams")
    with pytest.raises(ConfigError, match="dead_letter_headers='flink'"):
        Pipeline("bills", store="sqlite:///x.db", dead_letter_headers="flink")


def test_a_retry_has_none_and_a_redrive_leaves_them_out() -> None:
    """The user's own headers stay as they were, those with such a name included (spec 5.3)."""
    failure = describe(ValueError("bad amount"), permanent=False, reason="bad")
    makes = tuple(MAKES)
    retried, step = copy_for(attempt(), failure, topics=topics(*makes, retries="1m 1m"), now_ms=5)
    assert step is not None
    assert [name for name, _ in retried.headers if name.startswith("kafka_dlt-")] == [USERS[0][0]]
    dead, _ = copy_for(attempt(), failure, topics=topics(*makes), now_ms=5)
    again = Attempt(ORIGIN, 0, ("dlt", 0, 0), b"k", b"v", dead.headers, h.parse(dead.headers))
    back = redrive_copy(again, topics=topics(*makes), redrive_id="r", now_ms=6)
    assert list(back.user_headers) == USERS


def test_another_make_is_refused() -> None:
    assert makes_of("spring") == ("spring",)
    assert makes_of(()) == ()
    with pytest.raises(ConfigError, match="spring, connect, streams"):
        makes_of(["connect", "flink"])
