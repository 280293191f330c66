"""Spec 6.7: predicates of a batch read become seeks."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kohort.errors import ConfigError
from kohort.spark.offsets import Range
from kohort.spark.options import parse_source
from kohort.spark.pushdown import Seeks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kohort.testing import Cluster

SPANS = [Range("a", 0, 0, 10), Range("a", 1, 5, 20), Range("b", 0, 0, 3)]
COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "EqualTo": lambda a, b: a == b,
    "GreaterThan": lambda a, b: a > b,
    "GreaterThanOrEqual": lambda a, b: a >= b,
    "LessThan": lambda a, b: a < b,
    "LessThanOrEqual": lambda a, b: a <= b,
    "In": lambda a, b: a in b,
}
numbers = st.integers(-2, 25)
predicates = st.lists(
    st.tuples(
        st.sampled_from([k for k in COMPARE if k != "In"]),
        st.sampled_from(["offset", "partition"]),
        numbers,
    )
    | st.tuples(st.just("In"), st.just("partition"), st.tuples(numbers, numbers))
    | st.tuples(st.just("In"), st.just("topic"), st.just(("a", "c")))
    | st.tuples(st.just("EqualTo"), st.just("topic"), st.sampled_from("ab")),
    max_size=4,
)


def rows(spans: list[Range]) -> set[tuple[str, int, int]]:
    return {(s.topic, s.partition, o) for s in spans for o in range(s.start, s.end)}


@given(predicates)
def test_what_is_read_is_what_the_predicates_leave(found: list[tuple[str, str, Any]]) -> None:
    """Whatever is taken from Spark is answered exactly."""
    seeks = Seeks()
    taken = [each for each in found if seeks.take(*each)]
    assert taken == found
    expected = {
        row
        for row in rows(SPANS)
        if all(
            COMPARE[kind](row[("topic", "partition", "offset").index(column)], value)
            for kind, column, value in found
        )
    }
    assert rows(seeks.spans(SPANS, lambda _: {})) == expected


def test_a_lower_bound_of_time_moves_the_start_and_stays_sparks() -> None:
    seeks = Seeks()
    at = datetime(2026, 1, 1, tzinfo=UTC)
    assert not seeks.take("GreaterThanOrEqual", "timestamp", at)
    assert not seeks.take("LessThan", "timestamp", at)
    asked: dict[tuple[str, int], int] = {}

    def first_at(times: dict[tuple[str, int], int]) -> dict[tuple[str, int], int]:
        asked.update(times)
        return {("a", 0): 4, ("a", 1): -1, ("b", 0): 0}

    left = seeks.spans(SPANS, first_at)
    assert left == [Range("a", 0, 4, 10), Range("b", 0, 0, 3)]
    assert set(asked.values()) <= {int(at.timestamp() * 1000), int(at.timestamp() * 1000) - 1}


def test_what_is_not_ours_stays_sparks() -> None:
    seeks = Seeks()
    assert seeks.take("IsNotNull", "offset", None)
    for kind, column, value in (
        ("IsNotNull", "key", None),
        ("EqualTo", "value", b"x"),
        ("EqualNullSafe", "topic", "a"),
        ("EqualTo", "topic", None),
        ("StringStartsWith", "topic", "a"),
        ("Not", "", None),
    ):
        assert not seeks.take(kind, column, value)
    assert seeks.spans(SPANS, lambda _: {}) == SPANS


def test_a_stream_pushes_nothing() -> None:
    with pytest.raises(ConfigError, match="pushFilters is for batch reads"):
        parse_source(
            {"kafka.bootstrap.servers": "b:1", "subscribe": "t", "pushFilters": "true"},
            streaming=True,
        )


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_a_view_of_sql_seeks_by_its_predicates(
    spark: SparkSession, cluster: Cluster, topic: Callable[..., str], produce: Callable[..., None]
) -> None:
    """`CREATE TEMPORARY VIEW ... USING kohort`: Spark leaves the predicates to the source."""
    name = topic(2)
    produce(name, *((n % 2, None, b"%d" % n) for n in range(20)))
    setting = "spark.sql.python.filterPushdown.enabled"
    spark.conf.set(setting, "true")
    try:
        reader = spark.read.format("kohort").options(
            **{"kafka.bootstrap.servers": cluster.bootstrap, "subscribe": name}, pushFilters="true"
        )
        read = reader.load().where("partition = 0 AND offset < 2")
        assert sorted(bytes(r.value) for r in read.collect()) == [b"0", b"2"]
        spark.sql(f"""
            CREATE TEMPORARY VIEW {name} USING kohort OPTIONS (
                'kafka.bootstrap.servers' '{cluster.bootstrap}', 'subscribe' '{name}',
                'pushFilters' 'true')
        """)
        frame = spark.sql(
            f"SELECT CAST(value AS STRING) AS v FROM {name} WHERE partition = 1 AND offset >= 7"
        )
        assert sorted(r.v for r in frame.collect()) == ["15", "17", "19"]
        jvm_frame: Any = frame._jdf
        plan = jvm_frame.queryExecution().executedPlan().toString()
        assert "Filter (" not in plan, plan
        later = spark.sql(f"SELECT * FROM {name} WHERE timestamp >= '2999-01-01'")
        assert later.count() == 0
    finally:
        spark.sql(f"DROP VIEW IF EXISTS {name}")
        spark.conf.unset(setting)


@pytest.mark.spark
def test_spark_pushes_predicates_and_nothing_else(spark: SparkSession) -> None:
    """`count(*)`, limits and columns: docs/spark.md says that Spark does not push them (yet)."""
    jvm: Any = spark._jvm
    package = "org.apache.spark.sql.execution.datasources.v2.python"
    builder = jvm.java.lang.Class.forName(f"{package}.PythonScanBuilder")
    offered = {each.getSimpleName() for each in builder.getInterfaces()}
    assert offered == {"SupportsPushDownFilters"}, "use what is new, and mend docs/spark.md"
