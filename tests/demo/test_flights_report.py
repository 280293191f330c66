"""The report: what it says when all adds up, and that it says so when it does not."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

import matplotlib.pyplot as plt

from kohort.demo.flights_report import Facts, _retries, _throughput, text_of, write_report

GOOD = Facts(
    inputs=336_776,
    loaded=327_674,
    failed={"unknown_airport": 7_602, "missing_weather": 1_500},
    duplicates=0,
    retrying=0,
    loaded_after_retry=32_000,
    seconds=93.4,
    arrivals={"flights": [("2013-01-01", 842), ("2013-01-02", 943)], "weather": [("a", 71)] * 2},
    retries={"2s": [(1.0, 5), (2.0, 7)]},
    loaded_over_time=[(1.0, 800), (2.0, 900)],
    delay_by_carrier=[("UA", 3.5, 1000), ("AS", -9.9, 700)],
    carriers={"UA": "United Air Lines Inc."},
    about={"Command": "kohort demo flights --dir <here>", "Machine": "2 cores"},
)


def test_report_json_has_the_promised_keys(tmp_path: Path) -> None:
    as_json, _ = write_report(GOOD, tmp_path)
    report = json.loads(as_json.read_text())
    promised = {"inputs", "loaded", "failed", "duplicates", "retrying", "loaded_after_retry"}
    assert promised | {"seconds"} <= report.keys()
    assert report["failed"] == {"unknown_airport": 7_602, "missing_weather": 1_500}
    assert report["reconciled"] is True


def test_report_page_shows_every_plot_and_runs_no_script(tmp_path: Path) -> None:
    _, as_html = write_report(GOOD, tmp_path)
    page = as_html.read_text()
    assert page.count("<svg") == 5
    assert "<script" not in page
    assert "336,776 in = 327,674 loaded + 7,602 failed (unknown airport)" in page


def test_every_plot_has_a_name_a_table_and_the_page_s_colours(tmp_path: Path) -> None:
    """For a screen reader, for whoever wants the figure, and for a dark screen."""
    _, as_html = write_report(GOOD, tmp_path, ["kohort console -b h:1 --store 'sqlite:///<x>'"])
    page = as_html.read_text()
    assert page.count('<svg role="img" aria-label="') == page.count("<details>") == 5
    assert "<td>UA United Air Lines Inc.</td>" in page
    assert "kohort demo flights --dir &lt;here&gt;" in page
    assert "2 cores" in page
    assert "prefers-color-scheme: dark" in page
    assert "#1d2733" not in page
    assert "&lt;x&gt;" in page
    assert "inputs a second" in page


def test_no_two_parts_of_the_page_have_one_id(tmp_path: Path) -> None:
    """Clip paths and marks are found by id: a plot would use those of another one."""
    page = write_report(GOOD, tmp_path)[1].read_text()
    ids = re.findall(r'\bid="([^"]*)"', page)
    assert len(ids) == len(set(ids)) > 20
    assert set(re.findall(r'(?:href="#|url\(#)([^")]*)', page)) <= set(ids)


def test_a_hostile_reason_is_shown_as_text(tmp_path: Path) -> None:
    _, as_html = write_report(replace(GOOD, failed={"<script>alert(1)</script>": 9102}), tmp_path)
    assert "<script>" not in as_html.read_text()


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"loaded": 327_673}, "= 336775"),
        ({"duplicates": 2}, "2 inputs are there more than once"),
        ({"retrying": 3}, "3 records still wait"),
    ],
)
def test_what_does_not_add_up_is_said(change: dict[str, int], problem: str, tmp_path: Path) -> None:
    facts = replace(GOOD, **change)  # pyright: ignore[reportArgumentType]
    assert problem in "\n".join(facts.problems)
    assert "DOES NOT ADD UP" in text_of(facts)
    as_json, as_html = write_report(facts, tmp_path)
    assert json.loads(as_json.read_text())["reconciled"] is False
    assert "verdict bad" in as_html.read_text()


def test_plots_of_the_run_share_their_time_axis() -> None:
    """Both begin at the start of the run and end at its end, whatever they show."""
    _, axes = plt.subplots(2)
    _retries(axes[0], GOOD)
    _throughput(axes[1], GOOD)
    assert axes[0].get_xlim() == axes[1].get_xlim() == (0, GOOD.seconds)


def test_a_day_is_new_york_s() -> None:
    """The last evening of the year is no day of its own."""
    import pyarrow as pa

    from kohort.demo.flights_run import _days

    evening = datetime(2014, 1, 1, 0, 30, tzinfo=UTC)
    batch = pa.record_batch({"timestamp": pa.array([evening], pa.timestamp("ms", "UTC"))})
    (day,) = _days(batch)
    assert datetime.fromtimestamp(day * 86_400, UTC).date() == date(2013, 12, 31)
