"""Forms of output: a table for people, JSON and CSV for programs; nothing drives the terminal."""

from __future__ import annotations

import json

import pytest

from kohort.cli.common.output import as_csv, as_table, colour, fitted, show

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


def test_a_table_is_cut_to_the_terminal_in_the_middle_of_its_widest_text() -> None:
    """Beginnings and ends stay, numbers stay whole, and nothing goes below a dozen characters."""
    heads, right = ["GROUP", "LAG", "CONSUMER-ID"], [False, True, False]
    cells = [["billing", "1234567", "audit-1-55c5c509-a8ed-41e3-ac3d-02a8d76a843a"]]
    assert fitted(heads, cells, right, 100) == cells
    assert fitted(heads, cells, right, 40) == [["billing", "1234567", "audit-1-55c…a8d76a843a"]]
    assert fitted(heads, cells, right, 5) == [["billing", "1234567", "audit-…a843a"]]


def test_states_and_lag_have_colours() -> None:
    assert [colour("state", s) for s in ("Stable", "Empty", "Dead", "Other", "-")] == [
        "green",
        "yellow",
        "red",
        None,
        None,
    ]
    assert [colour("lag", s) for s in ("0", "7", "-")] == [None, "yellow", None]
    assert colour("topic", "dead") is None


def test_colour_is_for_terminals_without_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.delenv("NO_COLOR", raising=False)
    row = [{"group": "g", "state": "Stable"}]
    assert as_table(row, ("group", "state")).splitlines()[1] == "g      \x1b[32mStable\x1b[0m"
    monkeypatch.setenv("NO_COLOR", "1")
    assert as_table(row, ("group", "state")).splitlines()[1] == "g      Stable"
