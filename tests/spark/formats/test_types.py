"""Schemas as text and as Arrow types (spec 6.6)."""

from __future__ import annotations

import pytest

from kohort.errors import ConfigError

pa = pytest.importorskip("pyarrow")

TEXTS = (
    "`id`: BIGINT",
    "`a b`: STRUCT<`x`: INT, `y``z`: ARRAY<TIMESTAMP>>, `d`: DECIMAL(10,2)",
    "`m`: MAP<STRING, ARRAY<STRUCT<`k`: DOUBLE>>>, `n`: TIMESTAMP_NTZ, `b`: BINARY, `t`: DATE",
    "`i`: TINYINT, `j`: SMALLINT, `f`: FLOAT, `o`: BOOLEAN",
    "`e`: STRUCT<>, `l`: ARRAY<STRUCT<>>",
    "`s`: INTERVAL DAY TO SECOND, `l`: MAP<STRING, INTERVAL DAY TO SECOND>",
)


@pytest.mark.parametrize("text", TEXTS)
def test_a_schema_is_written_as_it_was_read(text: str) -> None:
    from kohort.spark.formats import ddl_of, parse_schema

    parsed = parse_schema(text)
    assert ddl_of(parsed) == f"STRUCT<{text}>"
    assert parse_schema(ddl_of(parsed)) == parsed


def test_spellings_of_ddl() -> None:
    from kohort.spark.formats import parse_schema

    plain = parse_schema("id BIGINT, name STRING, n DECIMAL(10, 0)")
    assert parse_schema("id long not null, name: string comment 'it''s, so', n DECIMAL") == plain


@pytest.mark.parametrize("text", TEXTS)
def test_the_json_of_a_spark_schema_is_the_same(text: str) -> None:
    """`df.schema.json()` of a schema and its DDL give one type."""
    types = pytest.importorskip("pyspark.sql.types")
    arrow = pytest.importorskip("pyspark.sql.pandas.types")
    from kohort.spark.formats import parse_schema

    parsed = parse_schema(text)
    spark = types.StructType(
        [types.StructField(f.name, arrow.from_arrow_type(f.type, True)) for f in parsed]
    )
    assert parse_schema(spark.json()) == parsed


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("", "character 1"),
        ("id", "character 3"),
        ("id FOO", "character 4"),
        ("a INTERVAL", r"expected INTERVAL DAY TO SECOND at character 11"),
        ("a INTERVAL YEAR TO MONTH", r"expected INTERVAL DAY TO SECOND at character 12"),
        ("a INTERVAL DAY TO HOUR", r"expected INTERVAL DAY TO SECOND at character 19"),
        ("a INTERVAL DAY, b INT", r"expected INTERVAL DAY TO SECOND at character 15"),
        ("id BIGINT,", "character 11"),
        ("a ARRAY<INT", "character 12"),
        ("a INT b", "character 7"),
        ("a DECIMAL(x)", "character"),
        ("a BIGINT, a INT", "twice"),
        ("a DECIMAL(40,2)", "38 digits"),
        ("a " + "ARRAY<" * 60, "nested deeper"),
        ('{"type": "struct"}', "Spark schema"),
        ('{"type": "struct", "fields": [{"name": "a", "type": "variant"}]}', "variant"),
        (
            '{"type": "struct", "fields": [{"name": "a", "type": "interval year to month"}]}',
            "interval year to month",
        ),
        ("ARRAY<INT>", "named columns"),
        ("STRUCT<>", "named columns"),
        ('{"type": "struct", "fields": []}', "named columns"),
    ],
)
def test_what_is_no_schema_is_refused_with_its_place(text: str, where: str) -> None:
    from kohort.spark.formats import parse_schema

    with pytest.raises(ConfigError, match=where):
        parse_schema(text)
