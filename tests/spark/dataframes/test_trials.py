"""A row that a database refuses is tried by itself (`kohort.spark.dataframes.trials`)."""

# pyright: basic
from __future__ import annotations

from kohort.retry.sql_statements import Insert
from kohort.spark.dataframes import trials
from kohort.spark.dataframes.graph import TableTarget
from tests.known import fake


def test_a_table_may_have_columns_of_a_place() -> None:
    """An audit column `_offset` took the place of the record's offset: the row was tried without
    it, and a whole batch broke NOT NULL."""
    target = TableTarget("t", (), "append", None, ())
    place = dict(zip(fake(trials)._PLACE.values(), ("matches", 0, 7), strict=True))
    row = {"_topic": "a", "_partition": 1, "_offset": 41, "v": "x"}
    trial = fake(trials)._trial(target, {**place, **row})
    assert trial.place == ("matches", 0, 7)
    assert trial.effect == Insert("t", row)
