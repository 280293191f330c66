"""docs/spark.md is true: its blocks run, in order, against a real broker."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from tests.pages import ROOT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kohort.testing import Cluster

PAGE = ROOT / "docs" / "spark.md"
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE.read_text(), re.M | re.S)


def test_every_block_is_run() -> None:
    assert {language for language, _ in BLOCKS} == {"python"}


@pytest.mark.extended
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_the_blocks_run(spark: SparkSession, cluster: Cluster) -> None:
    """What a block leaves as `frame` or `orders` is a plan that Spark accepts."""
    for topic in ("flights", "orders"):
        cluster.create_topic(topic, partitions=4)
    names: dict[str, Any] = {"spark": spark}
    try:
        for number, (_, text) in enumerate(BLOCKS):
            source = text.replace("localhost:9092", cluster.bootstrap)
            exec(compile(source, f"{PAGE.name}, block {number + 1}", "exec"), names)
        assert names["orders"].columns[-2:] == ["_error", "_raw_value"]
        assert spark.sql("SELECT value FROM flights").count() == 1
        assert spark.sql("SELECT partition, count(*) FROM landings GROUP BY partition").count() == 1
        assert names["arrivals"].isStreaming
        assert not names["frame"].isStreaming
        assert names["frame"].where("partition = 3 AND offset >= 1000").count() == 0
    finally:
        spark.sql("DROP TABLE IF EXISTS flights")
        spark.sql("DROP VIEW IF EXISTS landings")
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
