"""Spark Declarative Pipelines over `format("kohort")`: a topic as a streaming table, and a view.

    kohort broker run &
    printf 'JFK\nLGA\nJFK\n' | kohort produce flights
    spark-pipelines run --spec examples/declarative/spark-pipeline.yml

Needs `pip install 'kohort[spark-connect]'`: spark-pipelines runs by Spark Connect.
"""

from __future__ import annotations

import os

from pyspark import pipelines
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

SERVERS = os.environ.get("KOHORT_BOOTSTRAP_SERVERS", "localhost:9092")


@pipelines.table
def departures() -> DataFrame:
    """Each record of the topic, once."""
    spark = SparkSession.active()
    options = {"kafka.bootstrap.servers": SERVERS, "subscribe": "flights"}
    records = spark.readStream.format("kohort").options(**options, startingOffsets="earliest")
    return records.load().select(F.col("value").cast("string").alias("origin"), "timestamp")


@pipelines.materialized_view
def departures_by_origin() -> DataFrame:
    """How many there were."""
    return SparkSession.active().table("departures").groupBy("origin").count()
