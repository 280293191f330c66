"""Scenarios of batch reads: where they begin and end, what a row has, what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tests.interop.connectors.world import World, wait_until

Scenario = Callable[[World], None]
READS: Final[dict[str, Scenario]] = {}
OFFSET: Final = "offset"


def scenario(function: Scenario) -> Scenario:
    READS[function.__name__] = function
    return function


def simple(name: str, error: str = "", **options: Any) -> None:
    """A read of a topic of 10 records in each of 2 partitions; T in an option is its name."""

    def run(w: World) -> None:
        topic = w.filled()
        all_options = {"subscribe": "T", **options}
        chosen = {k: v for k, v in all_options.items() if v is not None}
        named = {
            name: value.replace("T", topic) if isinstance(value, str) else {topic: value}
            for name, value in chosen.items()
        }
        w.read(error=error, **named)

    READS[name] = run


simple("everything")
simple("starting_earliest", startingOffsets="earliest")
simple("starting_by_partition", startingOffsets={"0": 3, "1": 7})
simple("starting_earliest_in_json", startingOffsets={"0": -2, "1": 9})
simple("ending_latest", endingOffsets="latest")
simple("ending_by_partition", endingOffsets={"0": 3, "1": 0})
simple("ending_latest_in_json", endingOffsets={"0": -1, "1": 2})
simple("between", startingOffsets={"0": 2, "1": -2}, endingOffsets={"0": 4, "1": 3})
simple("an_empty_range", startingOffsets={"0": 5, "1": 10}, endingOffsets={"0": 5, "1": 10})
simple("ending_earliest", endingOffsets="earliest", error="earliest|latest")
simple("ending_earliest_in_json", endingOffsets={"0": -2, "1": 1}, error="earliest|latest|-2")
simple("starting_latest", startingOffsets="latest", error="latest")
simple("starting_latest_in_json", startingOffsets={"0": -1, "1": 1}, error="latest|-1")
simple("starting_lacks_a_partition", startingOffsets={"0": 1}, error="partition")
simple("starting_names_one_too_many", startingOffsets={"0": 1, "1": 1, "2": 1}, error="partition")
simple("ending_lacks_a_partition", endingOffsets={"0": 1}, error="partition")
simple("starting_past_the_end", startingOffsets={"0": 50, "1": 0}, error="end")
simple(
    "starting_past_the_end_leniently",
    startingOffsets={"0": 50, "1": 0},
    failOnDataLoss="false",
    error="end",
)
simple("ending_past_the_end_leniently", endingOffsets={"0": 50, "1": 1}, failOnDataLoss="false")
simple("ending_past_the_end", endingOffsets={"0": 50, "1": 1}, error=OFFSET + "|lost")
simple(
    "inverted",
    startingOffsets={"0": 6, "1": 0},
    endingOffsets={"0": 2, "1": 1},
    error=OFFSET + "|range",
)
simple("no_json", startingOffsets="soon", error="json|topicA.*soon")
simple("starting_time", startingTimestamp="1004")
simple("ending_time", endingTimestamp="1004")
simple("between_times", startingTimestamp="1002", endingTimestamp="1005")
simple("ending_time_past_all", endingTimestamp="999999")
simple("starting_time_past_all", startingTimestamp="999999", error="timestamp|no offset")
simple(
    "starting_time_past_all_latest",
    startingTimestamp="999999",
    startingOffsetsByTimestampStrategy="latest",
)
simple("starting_times", startingOffsetsByTimestamp={"0": 1003, "1": 1008})
simple("ending_times", endingOffsetsByTimestamp={"0": 1003, "1": 1000})
simple("starting_times_lack_one", startingOffsetsByTimestamp={"0": 1003}, error="partition")
simple("a_time_wins", startingTimestamp="1006", startingOffsets={"0": 0, "1": 0})
simple(
    "one_time_wins_over_times",
    startingTimestamp="1006",
    startingOffsetsByTimestamp={"0": 1000, "1": 1000},
)
simple(
    "times_win_over_offsets",
    startingOffsetsByTimestamp={"0": 1008, "1": 1009},
    startingOffsets="earliest",
)
simple(
    "a_strategy_that_is_none",
    startingTimestamp="1",
    startingOffsetsByTimestampStrategy="best",
    error="strategy|BEST",
)
simple("assigned", subscribe=None, assign='{"T": [1]}')
simple("assigned_twice", subscribe=None, assign='{"T": [0, 1]}', startingOffsets={"0": 1, "1": 2})
simple("assigned_none_there", subscribe=None, assign='{"T": [7]}', error="partition")
simple("assigned_no_json", subscribe=None, assign="T", error="assign|json")
simple("a_pattern", subscribe=None, subscribePattern="T")
simple("a_pattern_without_a_topic", subscribe=None, subscribePattern="T-nobody.*")
simple("no_subscription", subscribe=None, error="subscribe")
simple("two_subscriptions", subscribePattern="T.*", error="subscribe")
simple("an_empty_subscription", subscribe="", error="subscribe|topic")
simple("headers_of_none", includeHeaders="true")
simple("divided", minPartitions="7")
simple("divided_by_count", maxRecordsPerPartition="3")
simple("limits_of_streams", maxOffsetsPerTrigger="3", minOffsetsPerTrigger="2")
simple("case_of_names", STARTINGOFFSETS="earliest", IncludeHeaders="true")
simple("a_misspelt_option", startingOffset="earliest", error="unknown option")
simple("a_misspelt_kafka_option", **{"kafka.fetch.max.byte": "99", "error": "fetch.max.byte"})
simple("no_boolean", failOnDataLoss="perhaps", error="boolean|true or false|input string")
simple("no_number", minPartitions="many", error="number|for input string|many")
for _name in (
    "auto.offset.reset",
    "key.deserializer",
    "value.deserializer",
    "enable.auto.commit",
    "interceptor.classes",
):
    simple(f"refused {_name}", error=_name, **{f"kafka.{_name}": "true"})


@scenario
def unknown_topic(w: World) -> None:
    """With another that is there."""
    topic = w.filled()
    w.read(subscribe=f"{topic},{topic}-misspelt", error="misspelt")


@scenario
def no_servers(w: World) -> None:
    topic = w.filled()
    w.both(
        lambda make: w.spark.read.format(make).option("subscribe", topic).load().collect(),
        error="bootstrap",
    )


@scenario
def two_topics(w: World) -> None:
    first, second = w.filled(3), w.filled(4, partitions=1)
    w.read(subscribe=f"{first}, {second}")


@scenario
def an_empty_topic(w: World) -> None:
    w.read(subscribe=w.topic(3))


@scenario
def every_column(w: World) -> None:
    topic = w.topic()
    with w.producer() as producer:
        producer.send(topic, b"v", b"k", 0, 1_234, headers=[("h", b"x"), ("h", None), ("", b"")])
        producer.send(topic, None, b"tombstone", 0, 1_235)
        producer.send(topic, b"", b"", 0, 1_236, headers=[])
        producer.send(topic, b"\x00\xff", None, 0, 1_237)
    w.read(subscribe=topic, includeHeaders="true")
    w.read("value", "offset", subscribe=topic)


@scenario
def append_time(w: World) -> None:
    topic = w.topic(message_timestamp_type="LogAppendTime")
    w.fill(topic, 3)
    w.read(subscribe=topic)


@scenario
def deleted_records(w: World) -> None:
    topic = w.filled()
    w.delete_records(topic, 4)
    w.read(subscribe=topic)


@scenario
def begins_at_a_deleted_record(w: World) -> None:
    topic = w.filled(partitions=1)
    w.delete_records(topic, 4)
    at = {topic: {"0": 2}}
    w.read(subscribe=topic, startingOffsets=at, error="lost|offset|gone")
    w.read(subscribe=topic, startingOffsets=at, failOnDataLoss="false")


@scenario
def all_deleted(w: World) -> None:
    topic = w.filled(partitions=1)
    w.delete_records(topic, 10)
    w.read(subscribe=topic)


@scenario
def transactions(w: World) -> None:
    topic = w.topic()
    with w.producer(transactional_id=topic) as producer:
        producer.init_transactions()
        for value, end in (
            ("kept", producer.commit_transaction),
            ("dropped", producer.abort_transaction),
        ):
            producer.begin_transaction()
            producer.send(topic, value.encode(), None, 0, 1_000)
            producer.flush()
            end()
        w.read(subscribe=topic, **{"kafka.isolation.level": "read_committed"})
        w.read(subscribe=topic)
        producer.begin_transaction()
        producer.send(topic, b"open", None, 0, 2_000)
        producer.flush()
        w.fill(topic, 2)
        w.read(subscribe=topic, **{"kafka.isolation.level": "read_committed"})
        w.read(subscribe=topic, **{"kafka.isolation.level": "read_uncommitted"})
        producer.abort_transaction()
    w.read(subscribe=topic, **{"kafka.isolation.level": "read_committed"})


@scenario
def a_range_of_markers(w: World) -> None:
    """It ends in a marker, and holds an aborted record and a marker alone."""
    topic = w.topic()
    with w.producer(transactional_id=topic) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"dropped", None, 0, 1_000)
        producer.flush()
        producer.abort_transaction()
    w.fill(topic, 2)
    committed = {"kafka.isolation.level": "read_committed"}
    for start, end in ((0, 2), (1, 2), (0, 3), (1, 4)):
        bounds = {"startingOffsets": {topic: {"0": start}}, "endingOffsets": {topic: {"0": end}}}
        w.read(subscribe=topic, **bounds, **committed)


@scenario
def gaps_of_compaction(w: World) -> None:
    topic = w.topic(
        cleanup_policy="compact",
        segment_bytes="16384",
        segment_ms="1",
        min_cleanable_dirty_ratio="0.01",
    )
    with w.producer() as producer:
        for n in range(60):
            producer.send(topic, b"x" * 1_000, f"k{n % 7}".encode(), 0, 1_000 + n)
            producer.flush()
    wait_until(lambda: len(w.written(topic)) < 60)
    wait_until(lambda: len(w.written(topic)) == len(w.written(topic)))
    w.read(subscribe=topic)
    w.read(subscribe=topic, startingOffsets={topic: {"0": 5}}, endingOffsets={topic: {"0": 30}})


@scenario
def a_schema_of_the_users(w: World) -> None:
    topic = w.filled()
    w.both(
        lambda make: (
            w.spark.read.format(make)
            .options(**w.options(subscribe=topic))
            .schema("value string")
            .load()
            .collect()
        ),
        error="schema",
    )


@scenario
def sql_over_a_read(w: World) -> None:
    topic = w.filled()

    def summed(make: str) -> list[tuple[int, ...]]:
        frame = w.spark.read.format(make).options(**w.options(subscribe=topic)).load()
        frame.createOrReplaceTempView("records")
        sql = "SELECT partition, count(*), max(offset) FROM records WHERE offset > 3 GROUP BY 1"
        return sorted(tuple(row) for row in w.spark.sql(sql).collect())

    w.both(summed)
