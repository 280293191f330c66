"""Hidden columns, verdicts and typed values: column expressions that Spark evaluates.

Rules:
- Every row carries its input as it was read (`ORIGIN`): place, time, key, value and headers byte
  for byte, and the attempt number. A copy for a retry topic is made of nothing else.
- `VERDICT` is null for a row that passes; the first verdict wins.
- Values are decoded where they are fetched (`kohort.spark.formats.rows`). One that does not decode
  is a verdict, not an error. So is a null value, which has no columns; a tombstone of Debezium's
  is no row.
"""

# pyspark's types are incomplete, so strict checking would report nothing else.
# pyright: basic
from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from kohort.errors import UsageError
from kohort.retry import headers as h
from kohort.retry.classify import clean_reason
from kohort.retry.copies import OMITTED_VALUE, UNDECODABLE
from kohort.spark.formats import NULL_VALUE, ROW_ERROR, ROWS
from kohort.spark.plans.logical import LostOriginError, carried

ORIGIN: Final = "_kohort"
VERDICT: Final = "_kohort_verdict"
HIDDEN: Final = (ORIGIN, VERDICT)
HEADERS_TYPE: Final = "array<struct<key: string, value: binary>>"
RAW_SCHEMA: Final = (
    "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, "
    f"timestampType int, headers {HEADERS_TYPE}"
)
RAW: Final = (
    "topic",
    "partition",
    "offset",
    "timestamp",
    "timestampType",
    "key",
    "value",
    "headers",
)
DEBEZIUM: Final = "debezium"
"""The form of values of which tombstones are no rows."""
VERDICT_TYPE: Final = "struct<permanent: boolean, reason: string, message: string>"
TIMES: Final = "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"
"""How times are written into intermediate topics: to the microsecond, as Spark keeps them."""
JSON_OPTIONS: Final = {
    "timestampFormat": TIMES,
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
"""How `to_json` writes rows; without a format of its own TIMESTAMP_NTZ keeps milliseconds only."""
Transform = Callable[[DataFrame], DataFrame]


def with_origin(raw: DataFrame, retry_topics: Collection[str]) -> DataFrame:
    """`ORIGIN`, of the columns of `format("kohort")`, and what was decoded of the values."""
    number = F.expr(
        f"try_cast(CAST(try_element_at(filter(headers, x -> x.key = '{h.NUMBER}'), 1).value "
        "AS STRING) AS INT)"
    )
    attempt = F.lit(0)
    if retry_topics:
        attempt = F.when(F.col("topic").isin(*retry_topics), F.coalesce(number, attempt))
        attempt = attempt.otherwise(F.lit(0))
    decoded = [name for name in (ROWS, ROW_ERROR) if name in raw.columns]
    return raw.select(F.struct(*RAW, attempt.alias("attempt")).alias(ORIGIN), *decoded)


def typed(rows: DataFrame, source: str, form: str) -> DataFrame:
    """The columns of the values of a source, and the hidden ones.

    Args:
        rows: as `with_origin` makes them, of this source.
        source: its name.
        form: what its values are, one of `COLUMN_FORMATS`.
    """
    value, key = F.col(f"{ORIGIN}.value"), F.col(f"{ORIGIN}.key")
    omitted = F.when(_is_stub(), _verdict(True, UNDECODABLE, F.lit(OMITTED_VALUE)))
    if form == "bytes":
        return rows.select(key.alias("key"), value.alias("value"), ORIGIN, omitted.alias(VERDICT))
    if form == "text":
        no_text = ~F.is_valid_utf8(value.cast("string"))
        broken = F.when(value.isNull(), _verdict(True, UNDECODABLE, F.lit(NULL_VALUE))).when(
            no_text, _verdict(True, UNDECODABLE, F.lit("the value is not UTF-8"))
        )
        texts = (key.cast("string").alias("key"), value.cast("string").alias("value"))
        return rows.select(*texts, ORIGIN, broken.alias(VERDICT))
    error = F.col(ROW_ERROR)  # a look at the value would copy it
    broken = F.when(error.isNotNull(), _verdict(True, UNDECODABLE, error))
    if form == DEBEZIUM:
        rows = rows.where(value.isNotNull() | _is_stub())
        broken = F.coalesce(omitted, broken)
    return rows.select(f"{ROWS}.{source}.*", ORIGIN, broken.alias(VERDICT))


def _is_stub() -> Column:
    """Whether a row is a copy that had to leave its value behind."""
    origin = F.col(ORIGIN)
    marked = F.exists(origin["headers"], lambda header: header["key"] == h.VALUE_OMITTED)
    return F.coalesce((origin["attempt"] > 0) & origin["value"].isNull() & marked, F.lit(False))


def reject(condition: Column, reason: str, message: Column | str | None = None) -> Transform:
    """A transformation for `.transform`: rows where `condition` is true can never succeed.

    They go to the dead-letter topic with the reason, and none of their input's rows is loaded.

    Args:
        condition: a boolean column expression; null counts as false.
        reason: a short stable word; failures are counted by it.
        message: text for people, constant or a string column; default the reason.
    """
    return _judged(condition, reason, message, permanent=True)


def retry(condition: Column, reason: str, message: Column | str | None = None) -> Transform:
    """A transformation for `.transform`: rows where `condition` is true may succeed later.

    Their input waits in the retry topics and enters the same steps again; after the last retry it
    goes to the dead-letter topic. Arguments as `reject`.
    """
    return _judged(condition, reason, message, permanent=False)


def attempt() -> Column:
    """The number of the retry that a row belongs to; 0 for the first try."""
    return F.col(f"{ORIGIN}.attempt")


def source_partition() -> Column:
    """The partition of the record that a row comes from, as it was read."""
    return F.col(f"{ORIGIN}.partition")


def as_records(frame: DataFrame, key: tuple[str, ...], timestamp: str | None = None) -> DataFrame:
    """Rows as records of a topic: its own `value` (and `key`), else JSON of all columns.

    Args:
        frame: rows, with or without hidden columns.
        key: the columns of which the record's key is made: one as text, several as JSON.
        timestamp: the column with the records' timestamps, which stays beside the value.
    """
    shown = visible(frame)
    if "value" in shown.columns and not key:
        return shown
    value = F.to_json(F.struct(*map(quoted, shown.columns)), JSON_OPTIONS)
    times = [] if timestamp is None else [F.col(quoted(timestamp)).alias(timestamp)]
    if not key:
        return shown.select(value.alias("value"), *times)
    first = F.col(quoted(key[0])).cast("string")
    whole = first if len(key) == 1 else F.to_json(F.struct(*map(quoted, key)))
    return shown.select(whole.alias("key"), value.alias("value"), *times)


def forwarded(frame: DataFrame) -> DataFrame:
    """Rows as records of an intermediate topic, under the key of their input."""
    names = [c for c in frame.columns if c not in HIDDEN]
    key = F.col(f"{ORIGIN}.key") if ORIGIN in frame.columns else F.lit(None).cast("binary")
    value = F.to_json(F.struct(*map(quoted, names)), JSON_OPTIONS)
    return frame.select(key.alias("key"), value.alias("value"))


def taken_up(raw: DataFrame, schema: StructType) -> DataFrame:
    """The rows of an intermediate topic, as `forwarded` wrote them."""
    options = {"mode": "FAILFAST", "timestampFormat": TIMES}
    row = F.from_json(F.col("value").cast("string"), schema, options)
    return raw.select(row.alias("row")).select("row.*")


def quoted(name: str) -> str:
    """A column's name, quoted for an expression."""
    return "`" + name.replace("`", "``") + "`"


def visible(frame: DataFrame) -> DataFrame:
    """The frame without hidden columns."""
    return frame.drop(*HIDDEN)


def passing(frame: DataFrame) -> DataFrame:
    """The rows without a verdict."""
    return frame.where(F.col(VERDICT).isNull())


def failing(frame: DataFrame) -> DataFrame:
    """Hidden columns of the rows with a verdict."""
    return frame.where(F.col(VERDICT).isNotNull()).select(*HIDDEN)


def _judged(
    condition: Column, reason: str, message: Column | str | None, *, permanent: bool
) -> Transform:
    name = "reject" if permanent else "retry"
    if not isinstance(reason, str) or not reason:
        raise UsageError(f"{name}: the reason is a short text such as 'bad_price', not {reason!r}")
    text = F.lit(reason) if message is None else message
    text = F.lit(text) if isinstance(text, str) else text

    def judged(frame: DataFrame) -> DataFrame:
        try:
            frame = carried(frame, HIDDEN)
        except LostOriginError as lost:
            raise LostOriginError(f"{name}(..., {reason!r}): {lost}") from None
        found = F.when(condition, _verdict(permanent, clean_reason(reason), text))
        return frame.withColumn(VERDICT, F.coalesce(F.col(VERDICT), found))

    return judged


def _verdict(permanent: bool, reason: str, message: Column) -> Column:
    return F.struct(
        F.lit(permanent).alias("permanent"),
        F.lit(reason).alias("reason"),
        message.cast("string").alias("message"),
    ).cast(VERDICT_TYPE)
