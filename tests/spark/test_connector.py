"""Spec 6.7: every option of Spark's Kafka connector is accepted, mapped or refused by name."""

from __future__ import annotations

import re

import pytest

from kohort.errors import ConfigError
from kohort.spark.connector import JAVAS_OWN, NO_EFFECT, REFUSED
from kohort.spark.options import KNOWN, parse_sink, parse_source
from tests.pages import ROOT

PAGE = ROOT / "docs" / "spark.md"
OFFSETS = '{"t": {"0": 1}}'
SOURCE = {
    "startingOffsets": OFFSETS,
    "startingTimestamp": "1",
    "startingOffsetsByTimestamp": OFFSETS,
    "startingOffsetsByTimestampStrategy": "error",
    "failOnDataLoss": "true",
    "includeHeaders": "true",
    "minPartitions": "2",
    "maxRecordsPerPartition": "10",
    "kafkaConsumer.pollTimeoutMs": "512",
    "fetchOffset.numRetries": "3",
    "fetchOffset.retryIntervalMs": "10",
    "groupIdPrefix": "p",
    "kafka.group.id": "g",
}
STREAM = {"maxOffsetsPerTrigger": "9", "minOffsetsPerTrigger": "2", "maxTriggerDelay": "15m"}
BATCH = {"endingOffsets": OFFSETS, "endingTimestamp": "9", "endingOffsetsByTimestamp": OFFSETS}
CONNECTORS = (
    {"kafka.bootstrap.servers", "subscribe", "subscribePattern", "assign", "topic"}
    | SOURCE.keys()
    | STREAM.keys()
    | BATCH.keys()
)
"""The options of `KafkaSourceProvider` of Spark 4, with a value that the connector takes."""


def rows() -> dict[str, tuple[str, str]]:
    """The page's table: what is done with each option, and the words for it."""
    table = PAGE.read_text().split("## Every option")[1].split("\n## ")[0]
    lines = re.findall(r"^\| `([^`]+)` \| [^|]+ \| ([^|]+) \| ?(.*) ?\|$", table, re.MULTILINE)
    return {name: (fate.strip(), words.strip()) for name, fate, words in lines}


def test_the_page_has_every_option() -> None:
    aliases = {"kafka.group.id", "kafka.*"}
    refused = {f"kafka.{name}" for name in REFUSED}
    assert rows().keys() == {*KNOWN, *NO_EFFECT, *refused, *aliases}
    assert rows().keys() >= CONNECTORS


def test_the_page_says_what_is_done() -> None:
    for name, (fate, words) in rows().items():
        assert (fate == "no effect") == (name in NO_EFFECT), name
        assert (fate == "refused") == (name.removeprefix("kafka.") in REFUSED), name
        assert (fate == "own") == (name not in CONNECTORS | {"kafka.*"} and fate != "refused"), name
        if fate == "refused":
            assert words.replace("`", "") in REFUSED[name.removeprefix("kafka.")], name
        if fate == "no effect":
            assert words.replace("`", "") == NO_EFFECT[name], name
        if fate == "differs":
            assert words, name


@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("streaming", [False, True])
def test_every_option_of_the_connector_is_taken(*, streaming: bool, lower: bool) -> None:
    """As the user writes it, and as Spark hands it over; one at a time and all at once."""
    taken = SOURCE | (STREAM if streaming else BATCH)
    for options in [taken, *({name: value} for name, value in taken.items())]:
        source_options = {"kafka.bootstrap.servers": "b:1", "subscribe": "t", **options}
        parse_source(
            {n.lower() if lower else n: v for n, v in source_options.items()}, streaming=streaming
        )


def test_what_is_refused_says_what_to_do() -> None:
    for name, reason in REFUSED.items():
        with pytest.raises(ConfigError, match=re.escape(reason)):
            parse_source(
                {"kafka.bootstrap.servers": "b:1", "subscribe": "t", f"kafka.{name}": "x"},
                streaming=True,
            )
    for name, reason in JAVAS_OWN.items():
        with pytest.raises(ConfigError, match=re.escape(f"{reason}. Leave it out")):
            parse_sink({"kafka.bootstrap.servers": "b:1", f"kafka.{name}": "x"})
