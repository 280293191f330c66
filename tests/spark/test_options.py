"""Spec 6.7: the connector's option names, and what is refused before anything starts."""

from __future__ import annotations

import pytest

from kohort.errors import ConfigError
from kohort.spark.options import parse_sink, parse_source

BASE = {"kafka.bootstrap.servers": "b:1", "subscribe": "t"}


def test_names_of_the_jvm_connector_in_lower_case() -> None:
    """Spark lower-cases keys; `kafka.*` goes to the client."""
    found = parse_source(
        {
            "kafka.bootstrap.servers": "b:1",
            "subscribe": "a, b,a",
            "startingoffsets": "earliest",
            "maxoffsetspertrigger": "10",
            "failondataloss": "false",
            "includeheaders": "true",
            "kafka.group.id": "g",
            "kafka.fetch.max.bytes": "1000",
            "minpartitions": "4",
        },
        streaming=True,
    )
    assert found.topics == ("a", "b")
    assert found.client == {"bootstrap.servers": "b:1", "fetch.max.bytes": "1000"}
    assert (found.group, found.max_offsets, found.min_partitions) == ("g", 10, 4)
    assert (found.fail_on_data_loss, found.include_headers) == (False, True)
    assert found.shown_columns[-1] == "headers"


def test_starting_offsets() -> None:
    found = parse_source({**BASE, "startingOffsets": '{"t": {"0": 23, "1": -2}}'}, streaming=False)
    assert found.starting == {"t": {0: 23, 1: -2}}
    with_group = parse_source({**BASE, "group.id": "g"}, streaming=True)
    assert with_group.starting == "group"
    assert parse_source(BASE, streaming=False).starting == "earliest"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"startingOfsets": "earliest"}, "did you mean 'startingOffsets'"),
        ({"sasl.password.file": "f"}, "did you mean 'kafka.sasl.password.file'"),
        ({"kafka.auto.offset.reset": "earliest"}, "use startingOffsets"),
        ({"kafka.enable.auto.commit": "true"}, "publishes progress itself"),
        ({"assign": '{"t": [0]}'}, "exactly one of"),
        ({"startingOffsets": '{"t": {"0": -3}}'}, "not an offset"),
        ({"startingOffsets": '{"t": {"x": 1}}'}, "not an offset"),
        ({"startingOffsets": "soon"}, "neither a word"),
        ({"startingOffsets": "group"}, "needs group.id"),
        ({"endingOffsets": "latest"}, "has no end"),
        ({"endingOffsetsByTimestamp": '{"t": {"0": 5}}'}, "has no end"),
        ({"startingOffsetsByTimestamp": '{"t": {"0": -1}}'}, "t/0: -1 is not a time"),
        ({"startingOffsetsByTimestampStrategy": "earliest"}, "error or latest"),
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, "is more than"),
        ({"maxTriggerDelay": "soon"}, "is not a duration"),
        ({"kafka.fetch.max.byte": "1"}, "did you mean 'fetch.max.bytes'"),
        ({"kafka.linger.ms": "1"}, "is for a producer"),
        ({"kafka.receive.buffer.bytes": "1"}, "operating system sizes socket buffers. Leave it"),
        ({"maxOffsetsPerTrigger": "0"}, "at least 1"),
        ({"failOnDataLoss": "maybe"}, "true or false"),
        ({"columns": "value,size"}, "the columns are"),
    ],
)
def test_refused(options: dict[str, str], says: str) -> None:
    base = {**BASE, "startingOffsets": "earliest"}
    with pytest.raises(ConfigError, match=says):
        parse_source({**base, **options}, streaming=True)


def test_pattern_and_missing_servers() -> None:
    with pytest.raises(ConfigError, match="regular expression"):
        parse_source({"kafka.bootstrap.servers": "b:1", "subscribePattern": "("}, streaming=False)
    for text in (r"\p{Alpha}+", "[a-z&&[^b]]+", "(?<name>a)"):
        with pytest.raises(ConfigError, match="Python"):
            parse_source(
                {"kafka.bootstrap.servers": "b:1", "subscribePattern": text}, streaming=True
            )
    with pytest.raises(ConfigError, match="missing"):
        parse_source({"subscribe": "t"}, streaming=False)


def test_values_do_not_show_in_repr() -> None:
    """Passwords must not reach plans or logs."""
    found = parse_source({**BASE, "kafka.sasl.password": "secret"}, streaming=False)
    assert "secret" not in repr(found)


def test_sink() -> None:
    found = parse_sink({"kafka.bootstrap.servers": "b:1", "topic": "t"})
    assert found.topic == "t"
    assert parse_sink({"kafka.bootstrap.servers": "b:1", "topic": " t "}).topic == "t"
    with pytest.raises(ConfigError, match="option of the source"):
        parse_sink({"kafka.bootstrap.servers": "b:1", "subscribe": "t"})
    both = {"kafka.bootstrap.servers": "b:1", "kafka.fetch.min.bytes": "9", "topic": "t"}
    assert parse_sink(both).client["fetch.min.bytes"] == "9", "what a consumer knows is let pass"
    with pytest.raises(ConfigError, match=r"did you mean 'linger_ms'"):
        parse_sink({"kafka.bootstrap.servers": "b:1", "kafka.linger.m": "1"})


def test_times_and_limits_of_the_jvm_connector() -> None:
    found = parse_source(
        {
            **BASE,
            "startingOffsetsByTimestamp": '{"t": {"0": 5, "1": 6}}',
            "startingOffsetsByTimestampStrategy": "LATEST",
            "startingOffsets": "earliest",
            "minOffsetsPerTrigger": "3",
            "maxTriggerDelay": "2min",
            "kafkaConsumer.pollTimeoutMs": "5000",
        },
        streaming=True,
    )
    assert (found.starting_ms, found.latest_where_no_record) == ({"t": {0: 5, 1: 6}}, True)
    assert (found.min_offsets, found.max_delay_ms, found.poll_timeout_ms) == (3, 120_000, 5_000)
    default = parse_source(BASE, streaming=True)
    assert (default.starting, default.max_delay_ms) == ("latest", 900_000)
    one = parse_source(
        {**BASE, "startingTimestamp": "7", "startingOffsetsByTimestamp": "{}"}, streaming=True
    )
    assert one.starting_ms == 7, "one time wins, as in the connector"


def test_a_batch_read_ignores_the_limits_of_triggers(caplog: pytest.LogCaptureFixture) -> None:
    found = parse_source({**BASE, "maxOffsetsPerTrigger": "5"}, streaming=False)
    assert found.max_offsets is None
    assert "maxOffsetsPerTrigger is for streams" in caplog.text
    for starting in ("latest", '{"t": {"0": -1}}'):
        with pytest.raises(ConfigError, match="would be empty"):
            parse_source({**BASE, "startingOffsets": starting}, streaming=False)
    with pytest.raises(ConfigError, match="-1 is latest"):
        parse_source({**BASE, "endingOffsets": '{"t": {"0": -2}}'}, streaming=False)
