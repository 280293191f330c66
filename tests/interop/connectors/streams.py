"""Scenarios of streams: restarts, limits, topics that change under them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tests.interop.connectors.world import Queries, World

Scenario = Callable[[World], None]
STREAMS: Final[dict[str, Scenario]] = {}
LOST: Final = "lost|gone|deleted|past the log's end|UnknownTopicOrPartition"


def scenario(function: Scenario) -> Scenario:
    STREAMS[function.__name__] = function
    return function


@scenario
def available_now(w: World) -> None:
    topic = w.filled()
    query = w.query(subscribe=topic, startingOffsets="earliest")
    query.run(sizes=True)
    query.run()


@scenario
def restarted(w: World) -> None:
    """It goes on where it was; startingOffsets count for the first run alone."""
    topic = w.filled()
    query = w.query(subscribe=topic, startingOffsets={topic: {"0": 4, "1": -2}})
    query.run()
    w.fill(topic, 5, 1)
    query.run(startingOffsets="earliest")


@scenario
def latest_without_a_batch(w: World) -> None:
    """The default. Records come between two runs, of which the first has nothing to read."""
    topic = w.filled()
    query = w.query(subscribe=topic)
    query.run()
    w.fill(topic, 3)
    query.run()


@scenario
def latest_after_a_batch(w: World) -> None:
    topic = w.filled()
    query = w.query(subscribe=topic, startingOffsets={topic: {"0": -1, "1": 5}})
    query.run()
    w.fill(topic, 3)
    query.run()


@scenario
def starting_past_the_end(w: World) -> None:
    topic = w.filled()
    w.query(subscribe=topic, startingOffsets={topic: {"0": 50, "1": 8}}).run(error=LOST)


@scenario
def starting_past_the_end_leniently(w: World) -> None:
    topic = w.filled()
    query = w.query(
        subscribe=topic, startingOffsets={topic: {"0": 50, "1": 8}}, failOnDataLoss="false"
    )
    query.run()
    w.fill(topic, 3, 1)
    query.run()


@scenario
def starting_time(w: World) -> None:
    query = w.query(subscribe=w.filled(), startingTimestamp="1005")
    query.run()


@scenario
def starting_time_past_all(w: World) -> None:
    query = w.query(subscribe=w.filled(), startingTimestamp="999999")
    query.run(error="timestamp|no offset")


@scenario
def limited(w: World) -> None:
    """maxOffsetsPerTrigger is shared out in proportion to what waits."""
    topic = w.topic(2)
    w.fill(topic, 30, 0)
    w.fill(topic, 10, 1)
    w.query(subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="8").run(sizes=True)


@scenario
def limited_below_one_each(w: World) -> None:
    topic = w.filled(4, partitions=4)
    w.query(subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="2").run(sizes=True)


@scenario
def at_least(w: World) -> None:
    """minOffsetsPerTrigger with AvailableNow."""
    topic = w.filled(10, partitions=1)
    query = w.query(subscribe=topic, startingOffsets="earliest", minOffsetsPerTrigger="6")
    query.run()
    w.fill(topic, 2)
    query.run()


@scenario
def divided(w: World) -> None:
    w.query(
        subscribe=w.filled(),
        startingOffsets="earliest",
        minPartitions="5",
        maxRecordsPerPartition="4",
    ).run(sizes=True)


@scenario
def headers(w: World) -> None:
    topic = w.topic()
    with w.producer() as producer:
        producer.send(topic, b"v", b"k", 0, 1_234, headers=[("h", b"x")])
        producer.send(topic, b"w", None, 0, 1_235)
    w.query(subscribe=topic, startingOffsets="earliest", includeHeaders="true").run()


@scenario
def more_partitions(w: World) -> None:
    """They are read from their beginning, also where the query began at the latest."""
    topic = w.filled(partitions=1)
    query = w.query(subscribe=topic, startingOffsets={topic: {"0": 8}})
    query.run()
    w.grow(topic, 3)
    w.fill(topic, 4, 2)
    query.run()


@scenario
def a_topic_that_fits_a_pattern(w: World) -> None:
    first = w.topic(name=f"{w.topic()}-fits-a")
    w.fill(first, 3)
    query = w.query(subscribePattern=f"{first[:-2]}-.*", startingOffsets="earliest")
    query.run()
    w.fill(w.topic(2, name=f"{first[:-2]}-b"), 4, 1)
    query.run()


@scenario
def deleted_records(w: World) -> None:
    topic = w.filled(partitions=1)
    query = w.query(subscribe=topic, startingOffsets="earliest")
    query.run()
    w.fill(topic, 10, first_ms=2_000)
    w.delete_records(topic, 15)
    query.run(error=LOST)
    query.run(failOnDataLoss="false")


@scenario
def deleted_topic(w: World) -> None:
    """One of two."""
    first, second = w.filled(), w.filled()
    query = w.query(subscribe=f"{first},{second}", startingOffsets="earliest")
    query.run()
    w.delete_topic(second)
    w.fill(first, 3)
    query.run(error=LOST)


@scenario
def deleted_topic_of_a_pattern(w: World) -> None:
    name = f"{w.topic()}-gone"
    first, second = w.topic(name=f"{name}-a"), w.topic(name=f"{name}-b")
    w.fill(first, 3)
    w.fill(second, 3)
    query = w.query(subscribePattern=f"{name}-.*", startingOffsets="earliest")
    query.run()
    w.delete_topic(second)
    w.fill(first, 3)
    query.run(error=LOST)
    query.run(failOnDataLoss="false")


@scenario
def recreated_with_fewer(w: World) -> None:
    topic = w.filled(partitions=1)
    query = w.query(subscribe=topic, startingOffsets="earliest")
    query.run()
    w.delete_topic(topic)
    w.topic(name=topic)
    w.fill(topic, 4, first_ms=5_000)
    query.run(error=LOST)


@scenario
def recreated_with_fewer_leniently(w: World) -> None:
    topic = w.filled(partitions=1)
    query = w.query(subscribe=topic, startingOffsets="earliest", failOnDataLoss="false")
    query.run()
    w.delete_topic(topic)
    w.topic(name=topic)
    w.fill(topic, 4, first_ms=5_000)
    query.run()


@scenario
def recreated_with_more(w: World) -> None:
    topic = w.filled(partitions=1)
    query = w.query(subscribe=topic, startingOffsets="earliest")
    query.run()
    w.delete_topic(topic)
    w.topic(name=topic)
    w.fill(topic, 14, first_ms=5_000)
    query.run(error=LOST)


@scenario
def a_topic_left_out(w: World) -> None:
    first, second = w.filled(), w.filled()
    query = w.query(subscribe=f"{first},{second}", startingOffsets="earliest")
    query.run()
    w.fill(first, 2)
    w.fill(second, 2)
    query.run(subscribe=first, error=LOST)


@scenario
def a_topic_left_out_leniently(w: World) -> None:
    first, second = w.filled(), w.filled()
    query = w.query(
        subscribe=f"{first},{second}", startingOffsets="earliest", failOnDataLoss="false"
    )
    query.run()
    w.fill(first, 2)
    w.fill(second, 2)
    query.run(subscribe=first)


@scenario
def a_topic_added(w: World) -> None:
    first, second = w.filled(), w.filled()
    query = w.query(subscribe=first, startingOffsets="earliest")
    query.run()
    w.fill(first, 2)
    query.run(subscribe=f"{first},{second}")


@scenario
def markers_at_the_end(w: World) -> None:
    topic = w.topic()
    with w.producer(transactional_id=topic) as producer:
        producer.init_transactions()
        for end in (producer.commit_transaction, producer.abort_transaction):
            producer.begin_transaction()
            producer.send(topic, b"one", None, 0, 1_000)
            producer.flush()
            end()
    committed = {"kafka.isolation.level": "read_committed"}
    query = w.query(subscribe=topic, startingOffsets="earliest", **committed)
    query.run()
    w.fill(topic, 2)
    query.run()


@scenario
def ending_in_a_stream(w: World) -> None:
    w.query(subscribe=w.filled(), endingOffsets="latest").run(error="ending|batch")
    w.query(subscribe=w.filled(), endingTimestamp="1005").run(error="ending|batch")


@scenario
def unknown_topic(w: World) -> None:
    topic = w.filled()
    w.query(subscribe=f"{topic},{topic}-misspelt", startingOffsets="earliest").run(error="misspelt")


@scenario
def with_a_group(w: World) -> None:
    """What is read is the same; what is committed in the group is not."""
    topic = w.filled()
    for make in ("kafka", "kohort"):
        group = f"{topic}-{make}"
        options = {"subscribe": topic, "startingOffsets": "earliest", "kafka.group.id": group}
        query = w.query(**options)

        def run(make: str = make, query: Queries = query, group: str = group) -> object:
            found = query.run_one(make, {}, False)
            with w.admin() as admin:
                there = admin.list_group_offsets(group)
            return found, sorted(p.offset for p in there.values())

        w.note(make, run)


@scenario
def aggregated(w: World) -> None:
    """A stateful query in complete mode, restarted."""
    topic = w.filled()

    def totals(make: str) -> list[tuple[int, int]]:
        frame = w.spark.readStream.format(make).options(
            **w.options(subscribe=topic, startingOffsets="earliest")
        )
        found: list[tuple[int, int]] = []

        def keep(part: object, _: int) -> None:
            found[:] = sorted(tuple(r) for r in part.collect())  # type: ignore[attr-defined]

        query = (
            frame.load()
            .groupBy("partition")
            .count()
            .writeStream.outputMode("complete")
            .foreachBatch(keep)
            .option("checkpointLocation", str(w.directory / f"total-{make}"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return found

    w.both(totals)
    w.fill(topic, 5)
    w.both(totals)
