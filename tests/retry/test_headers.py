"""R5, A2: what a copy carries, and that nothing coming back is trusted."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kohort.config import format_duration
from kohort.retry import headers as h
from kohort.retry.classify import Disposition, Permanent, RetryAfter, Temporary, stated
from kohort.retry.copies import (
    Attempt,
    copy_for,
    due_ms,
    is_stub,
    ladder,
    omitted_value,
    read_attempt,
    redrive_copy,
)
from kohort.retry.headers import Header, HeaderFault, Origin, RetryHeaders
from kohort.retry.policy import RetryPolicy, RetryTopics

POLICY = RetryPolicy.parse("5m 5m 30m")
TOPICS = RetryTopics("flights", "loader", POLICY)
user_header = st.tuples(
    st.text(max_size=20).filter(lambda k: k not in h.RESERVED), st.none() | st.binary(max_size=40)
)
texts = st.text(max_size=3000)


def attempt(
    headers: list[Header] | None = None, number: int = 0, previous: RetryHeaders | None = None
) -> Attempt:
    origin = Origin("flights", 3, 41, 1_000, 0, "id")
    return Attempt(origin, number, ("flights", 3, 41), b"k", b"v", headers or [], previous)


def reread(copy_headers: list[Header], topic: str, delay_ms: int, offset: int = 7) -> Attempt:
    return read_attempt(
        topic, 3, offset, b"k", b"v", copy_headers, policy=POLICY, delay_ms=delay_ms, group="loader"
    )


@given(st.lists(user_header, max_size=8), texts, texts)
def test_user_headers_survive_every_hop(headers: list[Header], reason: str, message: str) -> None:
    """R5: duplicates, order and nulls of the user's headers are kept over all hops."""
    now, current = 10_000, attempt(headers)
    for expected in ("5m", "5m", "30m"):
        failure = stated(reason or "x", permanent=False, message=message)
        copy, step = copy_for(current, failure, topics=TOPICS, now_ms=now)
        assert step is not None
        assert format_duration(step.delay_ms) == expected
        assert list(copy.user_headers) == headers
        assert (copy.key, copy.value) == (b"k", b"v")
        names = [k for k, _ in copy.retry.encode()]
        assert len(names) == len(set(names))
        current = reread(copy.headers, copy.topic, step.delay_ms)
        assert current.origin == attempt().origin
        assert current.previous is not None
        assert current.previous.first_failed_at_ms == 10_000
        now += 1_000_000
    copy, step = copy_for(current, stated("x", permanent=False), topics=TOPICS, now_ms=now)
    assert step is None
    assert copy.dead_letter
    assert copy.topic == "flights.loader.dlt"
    assert copy.retry.disposition is Disposition.EXHAUSTED
    assert list(copy.user_headers) == headers


def test_headers_of_the_source_topic_are_ignored() -> None:
    """A2: a service that copies headers onto its output cannot smuggle an attempt number in."""
    copy, step = copy_for(
        attempt([("retry_number", b"3"), ("retry_x", b"mine"), ("a", None)]),
        stated("r", permanent=False),
        topics=TOPICS,
        now_ms=1,
    )
    assert step is not None
    assert step.number == 1
    assert [v for k, v in copy.headers if k == "retry_number"] == [b"1"]
    assert list(copy.user_headers) == [("retry_x", b"mine"), ("a", None)]


def good() -> dict[str, bytes | None]:
    copy, _ = copy_for(attempt(), stated("r", permanent=False), topics=TOPICS, now_ms=5)
    return dict(copy.headers)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("retry_number", None),
        ("retry_number", b""),
        ("retry_number", b"x"),
        ("retry_number", b"0"),
        ("retry_number", b"4"),
        ("retry_number", b"-1"),
        ("retry_number", b"9" * 30),
        ("retry_number", "１".encode()),
        ("retry_id", b"a/1/2"),
        ("retry_group", b"other"),
        ("retry_delay_ms", b"2000"),
        ("retry_origin_offset", b"-5"),
        ("retry_disposition", b"pardoned"),
        ("retry_error_message", b"x" * 2000),
        ("retry_origin_topic", b"\xff"),
    ],
)
def test_bad_headers_in_a_retry_topic_are_faults(key: str, value: bytes | None) -> None:
    """A2: missing, unparsable, out of range: a fault that sends the record to failed."""
    changed = {**good(), key: value}
    with pytest.raises(HeaderFault):
        reread(list(changed.items()), "flights.loader.retry.5m", 300_000)


def test_doubled_and_missing_headers_are_faults() -> None:
    for key in ("retry_number", "retry_timestamp", "retry_id", "retry_group"):
        kept = [(k, v) for k, v in good().items() if k != key]
        for bad in (kept, [*good().items(), (key, good()[key])]):
            with pytest.raises(HeaderFault):
                reread(bad, "flights.loader.retry.5m", 300_000)


@given(st.lists(st.tuples(st.sampled_from(sorted(h.RESERVED)), st.none() | st.binary(max_size=60))))
def test_only_one_error_comes_out_of_any_headers(headers: list[Header]) -> None:
    with contextlib.suppress(HeaderFault):
        h.parse(headers)


@given(not_before=st.integers(0, 10**13), append=st.integers(0, 10**12), skew=st.integers(0, 5000))
def test_due_is_never_early_and_late_by_the_allowance_at_most(
    not_before: int, append: int, skew: int
) -> None:
    """R3, D2: the header is clamped to append + delay + allowance; a wild clock changes nothing."""
    copy, _ = copy_for(attempt(), stated("r", permanent=False), topics=TOPICS, now_ms=not_before)
    tried = reread(copy.headers, "flights.loader.retry.5m", 300_000)
    due = due_ms(tried, append, 300_000, skew)
    assert append + 300_000 <= due <= append + 300_000 + skew


def test_ladder_ends_in_a_stub_that_says_where_the_value_is() -> None:
    """A2: too large: without the stack, without the message, then the origin's coordinates."""
    try:
        raise Permanent("bad", "m" * 50)
    except Permanent as error:
        from kohort.retry.classify import Classifier

        failure = Classifier().classify(error)
    copy, _ = copy_for(attempt([("big", b"x" * 9000)]), failure, topics=TOPICS, now_ms=1)
    rungs = list(ladder(copy))
    assert len(rungs) == 4
    assert "retry_error_stack" in dict(rungs[0].headers)
    assert "retry_error_stack" not in dict(rungs[1].headers)
    assert "retry_error_message" not in dict(rungs[2].headers)
    stub = rungs[3]
    assert stub.value is None
    assert is_stub(stub.headers)
    assert not stub.user_headers
    assert dict(stub.headers)["retry_value_omitted"] == b"1"
    assert stub.retry.origin == copy.retry.origin
    assert stub.retry.reason == "bad"


def test_a_stub_that_fails_again_leaves_a_stub() -> None:
    """A2: without the mark its dead letter had the value null, and a redrive sent that."""
    copy, _ = copy_for(attempt(), stated("r", permanent=False), topics=TOPICS, now_ms=1)
    *_, stub = ladder(copy)
    again = reread(stub.headers, "flights.loader.retry.5m", 300_000)
    again.value = None
    failed, _ = copy_for(again, stated("r", permanent=True), topics=TOPICS, now_ms=2)
    assert is_stub(failed.headers)
    assert failed.omitted_bytes == stub.omitted_bytes == 1
    assert [rung.omitted_bytes for rung in ladder(failed)][-1] == 1
    again.value = b"its value"
    sent = redrive_copy(again, topics=TOPICS, redrive_id="x", now_ms=3)
    assert not is_stub(sent.headers)
    again.value = None  # as its editor wants it
    sent = redrive_copy(again, topics=TOPICS, redrive_id="x", now_ms=3)
    assert not is_stub(sent.headers)


@pytest.mark.parametrize(
    ("headers", "omitted"), [([("k", b"v")], None), ([("big", b"x" * 9_000)], 0)]
)
def test_the_smallest_copy_of_a_tombstone(headers: list[Header], omitted: int | None) -> None:
    """A2: its null is its value. Only headers that had to be dropped are still at the origin."""
    tombstone = attempt(headers)
    tombstone.value = None
    copy, _ = copy_for(tombstone, stated("r", permanent=False), topics=TOPICS, now_ms=1)
    *_, smallest = ladder(copy)
    assert smallest.omitted_bytes == omitted
    assert is_stub(smallest.headers) == (omitted is not None)
    again = reread(smallest.headers, "flights.loader.retry.5m", 300_000)
    again.value = None
    assert (omitted_value(again) is None) == (omitted is None)


def test_redrive_starts_a_new_round() -> None:
    """A2: the group's own entry topic, number 0, one more redrive, the same identity."""
    failed, _ = copy_for(attempt(), stated("r", permanent=True), topics=TOPICS, now_ms=5)
    again = redrive_copy(
        attempt(list(failed.headers), previous=failed.retry),
        topics=TOPICS,
        redrive_id="a",
        now_ms=9,
    )
    assert again.topic == "flights.loader.retry.0s"
    tried = reread(again.headers, again.topic, 0)
    assert (tried.number, tried.redrive_count, tried.origin) == (0, 1, attempt().origin)


@pytest.mark.parametrize(("target", "number"), [("0s", 0), ("5m", 2)])
def test_a_round_has_a_first_failure_of_its_own(target: str, number: int) -> None:
    """Also one that begins in a retry topic; a retry of it keeps the time."""
    failed, _ = copy_for(attempt(), stated("r", permanent=True), topics=TOPICS, now_ms=5)
    topic = f"flights.loader.retry.{target}"
    sent = redrive_copy(
        attempt(list(failed.headers), previous=failed.retry),
        topics=TOPICS,
        redrive_id="a",
        now_ms=9,
        topic=topic,
        number=number,
    )
    tried = reread(sent.headers, topic, TOPICS.delays_ms[topic])
    copy, step = copy_for(tried, stated("r", permanent=False), topics=TOPICS, now_ms=20)
    assert step is not None
    assert copy.retry.first_failed_at_ms == 20
    tried = reread(copy.headers, copy.topic, step.delay_ms)
    copy, _ = copy_for(tried, stated("r", permanent=True), topics=TOPICS, now_ms=30)
    assert copy.retry.first_failed_at_ms == 20


def test_retry_after_is_temporary_and_carries_its_delay() -> None:
    assert RetryAfter("10m", "later").min_delay_ms == 600_000
    assert Temporary("x").retriable
    assert not Permanent("x").retriable
