"""Forms of output: a table for people, JSON and CSV for programs; nothing drives the terminal."""

from __future__ import annotations

import json

import pytest

from kohort.cli.common.output import as_csv, as_table, show

ROWS = [
    {"group_id": "a\x1b[2J", "lag": 5, "isr": [1, 2], "host": None},
    {"group_id": "é", "lag": None, "isr": [], "host": None},
]
COLUMNS = ("group_id", "lag", "isr", "host")


def test_tables_have_kafka_headings_numbers_to_the_right_and_dashes() -> None:
    assert as_table(ROWS, COLUMNS).splitlines() == [
        "GROUP-ID  LAG  ISR  HOST",
        "a\\x1b[2J    5  1,2  -",
        "é           -       -",
    ]
    assert as_table([], COLUMNS) == "GROUP-ID  LAG  ISR  HOST"


def test_truth_is_yes_and_no_for_people_and_stays_what_it_is_for_programs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = [{"node": 1, "running": True}, {"node": 2, "running": False}]
    assert as_table(rows, ("node", "running")).splitlines()[1:] == ["   1  yes", "   2  no"]
    show(rows, ("node", "running"), "json")
    assert json.loads(capsys.readouterr().out)["rows"] == rows


def test_csv_keeps_what_is_not_known_empty() -> None:
    assert as_csv(ROWS[1:], COLUMNS) == "group_id,lag,isr,host\né,,,\n"


def test_json_is_one_object_with_a_schema(capsys: pytest.CaptureFixture[str]) -> None:
    show(ROWS, COLUMNS, "json")
    assert json.loads(capsys.readouterr().out) == {"schema": 1, "rows": ROWS}
    show(ROWS, COLUMNS, "jsonl")
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == ROWS
