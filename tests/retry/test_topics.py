"""A2: how retry topics are made, verified and, where we may not, asked for."""

from __future__ import annotations

import pytest

from kohort.errors import ConfigError
from kohort.retry.policy import RetryPolicy, RetryTopics
from kohort.retry.topics import (
    Existing,
    check_topics,
    creation_refused,
    other_retry_topics,
    plan_topics,
)

TOPICS = RetryTopics("flights", "loader", RetryPolicy.default())


def test_topics_are_made_for_the_gate() -> None:
    specs = {s.name: s for s in plan_topics(TOPICS, partitions=6)}
    assert list(specs) == [
        "flights.loader.retry.0s",
        "flights.loader.retry.5m",
        "flights.loader.retry.30m",
        "flights.loader.retry.1h",
        "flights.loader.dlt",
    ]
    for spec in specs.values():
        assert spec.partitions == 6
        assert spec.configs["message.timestamp.type"] == "LogAppendTime"
        assert spec.configs["cleanup.policy"] == "delete"
        assert int(spec.configs["max.message.bytes"]) == 1_048_588 + 65_536
    assert specs["flights.loader.dlt"].configs["retention.ms"] == "-1"
    assert specs["flights.loader.retry.1h"].configs["retention.ms"] == str(7 * 86_400_000)


def test_long_delays_outlive_their_retention() -> None:
    topics = RetryTopics("t", "g", RetryPolicy.parse("1d"))
    spec = plan_topics(topics, partitions=1)[1]
    assert spec.configs["retention.ms"] == str(24 * 86_400_000)


def test_existing_topics_are_verified() -> None:
    specs = plan_topics(TOPICS, partitions=2)
    fit = {s.name: Existing(4, dict(s.configs)) for s in specs}
    assert check_topics(specs, fit, bootstrap="b:1") == []
    missing = check_topics(specs, {}, bootstrap="b:1")
    assert missing == specs
    wrong = {"message.timestamp.type": "CreateTime", "retention.ms": "60000"}
    fit[specs[2].name] = Existing(4, {**specs[2].configs, **wrong})
    with pytest.raises(ConfigError, match=r"kafka-configs .*message\.timestamp\.type=LogAppend"):
        check_topics(specs, fit, bootstrap="b:1")


def test_commands_are_printed_when_creation_is_refused() -> None:
    specs = plan_topics(TOPICS, partitions=2, replication_factor=3)
    text = str(creation_refused(specs, bootstrap="b:1", reason="no right"))
    assert text.count("kafka-topics --bootstrap-server b:1 --create") == len(specs)
    assert "--replication-factor 3" in text
    assert "retention.ms=-1" in text


def test_retry_topics_of_delays_that_are_no_longer_named_are_known() -> None:
    """Spec 5.4: what waits in them is not to be forgotten; other groups' are none of ours."""
    ours = ["flights.loader.retry.2h", "flights.loader.retry.90m"]
    others = [
        "flights.loader2.retry.2h",
        "flights.loader.retry.tomorrow",
        "flights.loader.dlt",
        "flights",
        "flights.loader.retry.",
        "x.flights.loader.retry.2h",
        *TOPICS.delays_ms,
    ]
    delays_ms = [7_200_000, 5_400_000]
    assert other_retry_topics(TOPICS, [*ours, *others]) == dict(zip(ours, delays_ms, strict=True))
    long = RetryTopics("t" * 240, "g" * 40, RetryPolicy.parse("5m"))
    hours = [long.retry_topic(3_600_000), TOPICS.retry_topic(2 * 3_600_000)]
    assert list(other_retry_topics(long, hours)) == [long.retry_topic(3_600_000)]
