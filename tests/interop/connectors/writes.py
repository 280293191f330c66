"""Scenarios of the sinks: columns, modes, what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tests.interop.connectors.world import World

Scenario = Callable[[World], None]
WRITES: Final[dict[str, Scenario]] = {}
HEADERS: Final = "array<struct<key:string,value:binary>>"


def scenario(function: Scenario) -> Scenario:
    WRITES[function.__name__] = function
    return function


@scenario
def values_as_strings(w: World) -> None:
    w.write(w.frame("value string, partition int", ("a", 0), ("b", 1), ("", 0), (None, 1)))


@scenario
def every_column(w: World) -> None:
    schema = f"key binary, value binary, partition int, headers {HEADERS}"
    w.write(w.frame(schema, (b"k", b"v", 1, [("h", b"x"), ("h", None)]), (None, b"", 0, None)))


@scenario
def headers_asked_for(w: World) -> None:
    schema = f"value string, partition int, headers {HEADERS}"
    w.write(w.frame(schema, ("v", 0, [("h", b"x")])), includeHeaders="true")
    w.write(w.frame(schema, ("v", 0, [("h", b"x")])), includeHeaders="false")


@scenario
def partition_by_key(w: World) -> None:
    w.write(w.frame("key string, value string", *((f"k{n}", str(n)) for n in range(30))))


@scenario
def other_columns(w: World) -> None:
    w.write(w.frame("value string, partition int, offset long, other int", ("a", 0, 9, 1)))


@scenario
def case_of_columns(w: World) -> None:
    w.write(w.frame("VALUE string, Partition int", ("a", 1)), error="value")


@scenario
def topic_of_the_row(w: World) -> None:
    for make in ("kafka", "kohort"):
        topics = [w.topic(2), w.topic(2)]
        data = [(topics[n % 2], str(n), n % 2) for n in range(4)]
        frame = w.frame("topic string, value string, partition int", *data)

        def write(make: str = make, frame: Any = frame, topics: list[str] = topics) -> Any:
            frame.write.format(make).options(**w.sink()).mode("append").save()
            return [w.written(topic) for topic in topics]

        w.note(make, write)


@scenario
def the_option_wins(w: World) -> None:
    w.write(w.frame("topic string, value string, partition int", ("nowhere", "a", 0)))


@scenario
def no_topic(w: World) -> None:
    w.write(w.frame("value string", ("a",)), topic=None, error="topic")


@scenario
def a_topic_that_is_null(w: World) -> None:
    w.write(w.frame("topic string, value string", (None, "a")), topic=None, error="topic|null")


@scenario
def no_value(w: World) -> None:
    w.write(w.frame("key string, partition int", ("a", 0)), error="value")


@scenario
def neither_key_nor_value(w: World) -> None:
    w.write(w.frame("other string", ("a",)), error="value")


@scenario
def a_value_of_another_type(w: World) -> None:
    w.write(w.frame("value int", (1,)), error="value|type|binary|string")


@scenario
def a_key_of_another_type(w: World) -> None:
    w.write(w.frame("key int, value string", (1, "a")), error="key|type|binary|string")


@scenario
def a_partition_of_another_type(w: World) -> None:
    w.write(w.frame("value string, partition string", ("a", "0")), error="partition|type|int")


@scenario
def a_partition_that_is_not_there(w: World) -> None:
    w.write(
        w.frame("value string, partition int", ("a", 9)),
        error="partition|9|metadata",
        **{"kafka.max.block.ms": "3000"},
    )


@scenario
def a_negative_partition(w: World) -> None:
    w.write(w.frame("value string, partition int", ("a", -3)), error="partition|-3")


@scenario
def overwrite(w: World) -> None:
    w.write(w.frame("value string", ("a",)), mode="overwrite", error="overwrite|mode|truncate")


@scenario
def ignore(w: World) -> None:
    w.write(w.frame("value string", ("a",)), mode="ignore", error="ignore|mode")


@scenario
def no_mode(w: World) -> None:
    w.write(w.frame("value string, partition int", ("a", 0)), mode="", error="mode")


@scenario
def refused_serializer(w: World) -> None:
    w.write(w.frame("value string", ("a",)), error="serializer", **{"kafka.key.serializer": "x"})


@scenario
def compressed(w: World) -> None:
    frame = w.frame("value string, partition int", *(("x" * 500, n % 2) for n in range(50)))
    for codec in ("gzip", "snappy", "lz4", "zstd"):
        w.write(frame, **{"kafka.compression.type": codec})


@scenario
def an_empty_frame(w: World) -> None:
    w.write(w.frame("value string"))


def streamed(w: World, mode: str, error: str = "", grouped: bool = False) -> None:
    """A copy of a topic by each connector, in two runs; what is in the target then."""
    topic = w.filled(5)
    for make in ("kafka", "kohort"):
        target = w.topic(2)

        def run(make: str = make, target: str = target) -> Any:
            options = w.options(subscribe=topic, startingOffsets="earliest")
            frame = w.spark.readStream.format(make).options(**options).load()
            shown = frame.select("value", "partition")
            if grouped:
                counted = frame.groupBy("partition").count()
                shown = counted.selectExpr("CAST(count AS STRING) AS value", "partition")
            query = (
                shown.writeStream.format(make)
                .options(**w.sink(topic=target))
                .outputMode(mode)
                .option("checkpointLocation", str(w.directory / target))
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()
            return w.written(target)

        w.note(make, run, error)
        w.note(make, run, error)


@scenario
def stream_append(w: World) -> None:
    streamed(w, "append")


@scenario
def stream_update(w: World) -> None:
    streamed(w, "update", "update", grouped=True)


@scenario
def stream_complete(w: World) -> None:
    streamed(w, "complete", "complete", grouped=True)
