"""Issue 17: topics as tables of SQL: `CREATE TABLE ... USING kohort`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from kohort.errors import ConfigError
from kohort.spark.options import options_to_keep, options_to_write

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from kohort.testing import Cluster

SERVERS = {"option.kafka.bootstrap.servers": "b:1", "kafka.bootstrap.servers": "b:1"}


def test_only_a_table_keeps_its_options() -> None:
    """Spark passes them twice when the table is created, and once for everything else."""
    assert options_to_keep({"kafka.bootstrap.servers": "b:1", "subscribe": "t"}) is None
    options = {**SERVERS, "option.Subscribe": "t", "subscribe": "t", "provider": "kohort"}
    assert options_to_keep(options) == {"kafka.bootstrap.servers": "b:1", "subscribe": "t"}
    properties = {"kafka.bootstrap.servers": "b:1", "provider": "kohort", "owner": "ada"}
    assert options_to_keep(properties) == {"kafka.bootstrap.servers": "b:1"}


@pytest.mark.parametrize(
    ("option", "value", "remedy"),
    [
        ("kafka.sasl.password", "secret", r"name a file that holds it \(kafka.sasl.password.file"),
        ("kafka.sasl.jaas.config", "x required;", "CREATE TEMPORARY VIEW"),
        ("kafka.ssl.key.password", "secret", "CREATE TEMPORARY VIEW"),
        (
            "schemaRegistry",
            "http://ada:secret@host",
            "schemaregistry can be read: use CREATE",
        ),
    ],
)
def test_a_catalog_keeps_no_secret(option: str, value: str, remedy: str) -> None:
    with pytest.raises(ConfigError, match=remedy) as error:
        options_to_keep({**SERVERS, f"option.{option}": value})
    assert value not in str(error.value)
    options_to_keep({**SERVERS, "option.kafka.sasl.password.file": "/run/password"})


def test_what_insert_takes_of_the_options_of_a_read() -> None:
    kept = {"kafka.bootstrap.servers": "b:1", "subscribe": "t", "startingoffsets": "earliest"}
    assert options_to_write(kept) == {"kafka.bootstrap.servers": "b:1", "topic": "t"}
    assert options_to_write(kept | {"topic": "u"})["topic"] == "u"
    assert "topic" not in options_to_write(kept | {"subscribe": "t,u"})


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_a_topic_is_a_table(
    spark: SparkSession,
    cluster: Cluster,
    topic: Callable[..., str],
    produce: Callable[..., None],
    tmp_path: Path,
) -> None:
    """It is read, restricted, written and streamed by its name alone."""
    name = topic(2)
    produce(name, *((n % 2, None, b"%d" % n) for n in range(20)))
    plain = {"kafka.bootstrap.servers": cluster.bootstrap, "subscribe": name}
    spark.sql(f"""
        CREATE TABLE {name} USING kohort OPTIONS (
            'kafka.bootstrap.servers' '{cluster.bootstrap}', 'subscribe' '{name}')
    """)
    try:
        columns = spark.read.format("kohort").options(**plain).load().schema
        assert spark.table(name).schema.simpleString() == columns.simpleString()
        assert not any(each.metadata for each in columns), "a read of its own keeps nothing"
        counted = spark.sql(f"SELECT partition, count(*) AS n FROM {name} GROUP BY 1 ORDER BY 1")
        assert [tuple(row) for row in counted.collect()] == [(0, 10), (1, 10)]
        later = '{"%s": {"0": 7, "1": 9}}' % name  # noqa: UP031 -- braces of JSON
        rest = spark.sql(f"SELECT * FROM {name} WITH ('startingOffsets' = '{later}')")
        assert rest.count() == 4
        spark.sql(f"INSERT INTO {name} (key, value) VALUES (X'6B', X'76')")
        spark.table(name).where("key IS NOT NULL").writeTo(name).append()
        assert spark.table(name).where("key = X'6B' AND value = X'76'").count() == 2
        query = (
            spark.readStream.option("startingOffsets", "earliest")
            .table(name)
            .writeStream.format("memory")
            .queryName(f"read_{name}")
            .option("checkpointLocation", str(tmp_path))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        assert spark.table(f"read_{name}").count() == 22
        with pytest.raises(Exception, match=r'mode\("overwrite"\) would delete'):
            spark.sql(f"INSERT OVERWRITE {name} (key, value) VALUES (X'6B', X'76')")
    finally:
        spark.sql(f"DROP TABLE IF EXISTS {name}")
        spark.catalog.dropTempView(f"read_{name}")


@pytest.mark.extended
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_tables_that_could_keep_no_options(
    spark: SparkSession, cluster: Cluster, topic: Callable[..., str]
) -> None:
    """With columns of its own one is refused when it is read; of a query, when it is created."""
    name = topic(1)
    plain = {"kafka.bootstrap.servers": cluster.bootstrap, "subscribe": name}
    options = ", ".join(f"'{key}' '{value}'" for key, value in plain.items())
    properties = ", ".join(f"'{key}' = '{value}'" for key, value in plain.items())
    one = "SELECT X'6B' AS key, X'76' AS value"
    try:
        spark.sql(f"CREATE TABLE of_properties USING kohort TBLPROPERTIES ({properties})")
        assert spark.table("of_properties").count() == 0
        spark.sql(
            f"CREATE TABLE of_columns (key BINARY, value BINARY) USING kohort OPTIONS ({options})"
        )
        with pytest.raises(Exception, match="this table keeps no options"):
            spark.table("of_columns").count()
        with pytest.raises(Exception, match="this table keeps no options"):
            spark.sql(f"CREATE TABLE of_a_query USING kohort OPTIONS ({options}) AS {one}")
        assert not spark.catalog.tableExists("of_a_query")
        assert spark.table("of_properties").count() == 0, "nothing was written"
    finally:
        for table in ("of_properties", "of_columns", "of_a_query"):
            spark.sql(f"DROP TABLE IF EXISTS {table}")
