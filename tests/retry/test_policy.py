"""Spec 5.3: the sequence, its retry topics, its topic names, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kohort.config import format_duration, parse_duration_ms
from kohort.errors import ConfigError
from kohort.retry.policy import MAX_TOPIC_NAME_CHARS, RetryPolicy, RetryTopics, topic_name


def test_default_makes_three_retry_topics_and_six_retries() -> None:
    """Spec 5.3: `5m 5m 30m 30m 30m 1h` is three topics and six retries, then failed."""
    policy = RetryPolicy.default()
    assert str(policy) == "5m 5m 30m 30m 30m 1h"
    assert policy.distinct_delays_ms == (300_000, 1_800_000, 3_600_000)
    steps = [policy.step(n) for n in range(1, 8)]
    assert [s and format_duration(s.delay_ms) for s in steps] == [
        "5m",
        "5m",
        "30m",
        "30m",
        "30m",
        "1h",
        None,
    ]


def test_walking_the_sequence_visits_each_retry_once() -> None:
    """R4: attempt k+1 follows k; the path has no cycle and ends."""
    policy, attempted, path = RetryPolicy.default(), 0, []
    while step := policy.next_step(attempted):
        path.append(format_duration(step.delay_ms))
        assert step.number == attempted + 1
        attempted = step.number
    assert path == ["5m", "5m", "30m", "30m", "30m", "1h"]


@pytest.mark.parametrize(
    ("attempted", "least", "number", "label"),
    [
        (0, "20m", 1, "30m"),
        (0, "45m", 1, "1h"),
        (0, "1h", 1, "1h"),
        (0, "1m", 1, "5m"),
        (5, "1m", 6, "1h"),
        (3, "2h", 4, "1h"),
        (6, "1s", None, None),
    ],
)
def test_retry_after_uses_up_one_attempt_and_chooses_a_retry_topic_that_is_long_enough(
    attempted: int, least: str, number: int | None, label: str | None
) -> None:
    """Spec 5.3: the number grows by one; the retry topic is the shortest that covers the wait."""
    step = RetryPolicy.default().next_step(attempted, parse_duration_ms(least))
    assert (step and step.number, step and format_duration(step.delay_ms)) == (number, label)


@pytest.mark.parametrize("text", ["0s", "5m 0s", "31d", "5x", "-5m", " ".join(["1s"] * 65)])
def test_refused_policies(text: str) -> None:
    with pytest.raises(ConfigError):
        RetryPolicy.parse(text)


def test_no_retries() -> None:
    for text in ("", "none"):
        assert RetryPolicy.parse(text).next_step(0) is None


def test_names_of_topics() -> None:
    topics = RetryTopics("flights", "loader", RetryPolicy.parse("2s,5s 5s"))
    assert topics.dead_letter == "flights.loader.dlt"
    assert topics.delays_ms == {
        "flights.loader.retry.0s": 0,
        "flights.loader.retry.2s": 2_000,
        "flights.loader.retry.5s": 5_000,
    }


@given(st.text(min_size=1, max_size=300), st.text(min_size=1, max_size=300))
def test_names_are_legal_and_never_shared_by_two_groups(one: str, two: str) -> None:
    """A group may be called anything; its topics are legal, and its own."""
    names = [topic_name("flights", group, "retry.5m") for group in (one, two)]
    for name in names:
        assert len(name) <= MAX_TOPIC_NAME_CHARS
        assert all(c.isascii() and (c.isalnum() or c in "._-") for c in name)
        assert name.endswith(".retry.5m")
    assert (names[0] == names[1]) == (one == two)


def test_a_group_is_needed() -> None:
    with pytest.raises(ConfigError, match="group"):
        RetryTopics("flights", "", RetryPolicy.default())
