"""The reconciliation of the flights demonstration as JSON and as a page with plots.

Rules:
- Nothing here counts: the figures come from `Facts`, which was read from the database and the
  topics. `Facts.problems` says which promise does not hold; an empty list is what we want.
- The page is one file without scripts: the plots are SVG inside it, in the console's colours, light
  and dark; each has a name for a screen reader and its figures in a table.
"""

# matplotlib's types are incomplete, so strict checking would report nothing else.
# pyright: basic
from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
from jinja2 import Environment, PackageLoader, select_autoescape
from markupsafe import escape
from matplotlib.axes import Axes

from kohort.demo.flights_outputs import Outputs

INK, MUTED, GRID = "#1d2733", "#68788a", "#e3e8ee"
THEMED = {INK: "var(--ink)", MUTED: "var(--muted)", GRID: "var(--line)"}
"""What a plot is drawn with, and the page's own colour that takes its place, light or dark."""
_ID = re.compile(r'(\bid="|href="#|url\(#)')
"""Where an SVG names or uses an id."""
FLIGHT, FAILED, MINUTES = "#2a6fdb", "#b6447d", "#2e9e6b"
"""A colour means the same in every plot: flights, what failed, minutes of delay."""
TOPICS = (FLIGHT, "#e07a1f")
RETRIES = ("#b79df0", "#7a5cc9", "#4b2f96", "#8a8f98")


@dataclass(frozen=True)
class Plot:
    """A plot, and its figures as a table."""

    title: str
    text: str
    svg: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Facts:
    """What the database and the topics say after a run.

    `failed` counts by reason; `arrivals` maps a topic to (day, records) in event time;
    `retries` maps a retry topic to (seconds since the start, copies scheduled); `loaded_over_time`
    is (seconds since the start, flights loaded in that second); `delay_by_carrier` is (carrier,
    mean minutes late, flights), `carriers` has their names; `about` is what this run was: its
    command, settings, versions and machine. `outputs` is None for the pipeline of row handlers,
    which has one.
    """

    inputs: int
    loaded: int
    failed: Mapping[str, int]
    duplicates: int
    retrying: int
    loaded_after_retry: int
    seconds: float
    arrivals: Mapping[str, Sequence[tuple[str, int]]] = field(default_factory=dict)
    retries: Mapping[str, Sequence[tuple[float, int]]] = field(default_factory=dict)
    loaded_over_time: Sequence[tuple[float, int]] = ()
    delay_by_carrier: Sequence[tuple[str, float, int]] = ()
    carriers: Mapping[str, str] = field(default_factory=dict)
    about: Mapping[str, str] = field(default_factory=dict)
    outputs: Outputs | None = None

    @property
    def failed_total(self) -> int:
        return sum(self.failed.values())

    @property
    def problems(self) -> list[str]:
        """Every broken promise, as text."""
        wrong: list[str] = []
        if self.inputs != self.loaded + self.failed_total:
            wrong.append(
                f"{self.inputs} inputs, but {self.loaded} loaded + {self.failed_total} failed "
                f"= {self.loaded + self.failed_total}"
            )
        if self.duplicates:
            wrong.append(f"{self.duplicates} inputs are there more than once")
        if self.retrying:
            wrong.append(f"{self.retrying} records still wait in a retry topic")
        if self.outputs is not None:
            wrong += self.outputs.problems(self.loaded)
        return wrong

    def as_json(self) -> dict[str, Any]:
        """The keys of `report.json`."""
        return {
            "inputs": self.inputs,
            "loaded": self.loaded,
            "failed": dict(self.failed),
            "failed_total": self.failed_total,
            "duplicates": self.duplicates,
            "retrying": self.retrying,
            "loaded_after_retry": self.loaded_after_retry,
            "loaded_after_retry_percent": round(100 * self.retry_share, 2),
            "seconds": round(self.seconds, 1),
            "about": dict(self.about),
            "reconciled": not self.problems,
            "problems": self.problems,
            **({} if self.outputs is None else {"outputs": self.outputs.as_json()}),
        }

    @property
    def first_loaded(self) -> float:
        """Seconds from the start until the first flight was loaded."""
        return min((second for second, _ in self.loaded_over_time), default=0.0)

    def carrier(self, code: str) -> str:
        """A carrier's code and name."""
        return f"{code} {self.carriers[code]}" if code in self.carriers else code

    @property
    def retry_share(self) -> float:
        return self.loaded_after_retry / self.loaded if self.loaded else 0.0


def text_of(facts: Facts) -> str:
    """The reconciliation for a terminal."""
    lines = [f"{facts.inputs:>9,} inputs", f"{facts.loaded:>9,} loaded"]
    lines.append(
        f"{facts.loaded_after_retry:>9,}   of them after a retry ({100 * facts.retry_share:.1f} %)"
    )
    for reason, count in sorted(facts.failed.items(), key=lambda item: -item[1]):
        lines.append(f"{count:>9,} failed: {reason}")
    lines.append(f"{facts.duplicates:>9,} duplicates")
    lines.append(f"{facts.retrying:>9,} left in a retry topic")
    if (outputs := facts.outputs) is not None:
        lines.append(f"{outputs.rows:>9,} rows in flights")
        lines.append(
            f"{outputs.groups:>9,} groups in delays_by_hour, {outputs.mismatches} of them unlike "
            f"the data set's; {outputs.flights:,} flights, {outputs.dep_delay_sum:,} min"
        )
        lines.append(
            f"{outputs.records:>9,} records in topic departures, {outputs.duplicates} of them twice"
        )
    lines.append("")
    lines += [f"DOES NOT ADD UP: {problem}" for problem in facts.problems] or [
        f"{facts.inputs:,} in = {facts.loaded:,} loaded + {facts.failed_total:,} failed: "
        "each input once and only once"
    ]
    return "\n".join(lines)


def write_report(facts: Facts, directory: Path, commands: Sequence[str] = ()) -> tuple[Path, Path]:
    """Write `report.json` and `report.html` into `directory`; returns both paths.

    Args:
        facts: what the database and the topics say.
        directory: where to write.
        commands: what shows more, in a shell.
    """
    directory.mkdir(parents=True, exist_ok=True)
    as_json, as_html = directory / "report.json", directory / "report.html"
    as_json.write_text(json.dumps(facts.as_json(), indent=2) + "\n")
    environment = Environment(
        loader=PackageLoader("kohort.demo", "templates"), autoescape=select_autoescape()
    )
    page = environment.get_template("report.html").render(
        facts=facts, plots=plots_of(facts), commands=commands
    )
    as_html.write_text(page)
    return as_json, as_html


def plots_of(facts: Facts) -> list[Plot]:
    """Every plot that there is data for."""
    loaded = [count for _, count in facts.loaded_over_time]
    drawn = [
        (
            "Arrivals",
            "Records a day (New York time), by event time, as in the topics.",
            _arrivals,
            ("Topic", "Records", "Days"),
            [
                (topic, f"{sum(n for _, n in days):,}", f"{len(days):,}")
                for topic, days in facts.arrivals.items()
            ],
        ),
        (
            "Retries by retry topic",
            "Copies put into each retry topic, by second of the run.",
            _retries,
            ("Retry topic", "Copies"),
            [(topic, f"{sum(n for _, n in points):,}") for topic, points in facts.retries.items()],
        ),
        (
            "Failures by reason",
            "What ended in the dead-letter topic, by the ledger.",
            _failures,
            ("Reason", "Records"),
            [(reason, f"{count:,}") for reason, count in facts.failed.items()],
        ),
        (
            "Throughput",
            "Flights loaded into the database, by second of the run.",
            _throughput,
            ("Flights", "Most in a second", "First loaded after"),
            [(f"{sum(loaded):,}", f"{max(loaded):,}", f"{facts.first_loaded:.0f} s")]
            if loaded
            else [],
        ),
        (
            "Delay by carrier",
            "Mean arrival delay of the loaded flights, in minutes.",
            _delays,
            ("Carrier", "Minutes late", "Flights"),
            [
                (facts.carrier(code), f"{late:.1f}", f"{count:,}")
                for code, late, count in facts.delay_by_carrier
            ],
        ),
    ]
    return [
        Plot(title, text, _named(_draw(draw, facts), f"{title}. {text}", f"plot{n}-"), head, rows)
        for n, (title, text, draw, head, rows) in enumerate(drawn)
        if rows
    ]


def _named(svg: str, name: str, prefix: str) -> str:
    """An SVG that a screen reader announces as one picture, in the page's colours.

    Its ids begin with a prefix: matplotlib uses the same ones in each plot.
    """
    svg = _ID.sub(rf"\1{prefix}", svg)
    for colour, themed in THEMED.items():
        svg = svg.replace(colour, themed)
    return svg.replace("<svg ", f'<svg role="img" aria-label="{escape(name)}" ', 1)


def _draw(draw: Any, facts: Facts) -> str:
    style: Any = {
        "font.family": "sans-serif",
        "font.size": 9,
        "text.color": INK,
        "axes.edgecolor": GRID,
        "axes.labelcolor": MUTED,
        "xtick.color": MUTED,
        "ytick.color": MUTED,
        "axes.grid": True,
        "grid.color": GRID,
        "axes.axisbelow": True,
        "svg.fonttype": "none",
        "svg.hashsalt": "kohort",
        "figure.facecolor": "none",
        "savefig.facecolor": "none",
        "axes.facecolor": "none",
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
    with plt.rc_context(style):
        figure, axes = plt.subplots(figsize=(7.2, 2.9), layout="constrained")
        draw(axes, facts)
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None})
        plt.close(figure)
    text = out.getvalue()
    return text[text.index("<svg") :]


def _thousands(axes: Axes) -> None:
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")


def _arrivals(axes: Axes, facts: Facts) -> None:
    for colour, (topic, days) in zip(TOPICS, facts.arrivals.items(), strict=False):
        xs = range(len(days))
        axes.plot(xs, [count for _, count in days], color=colour, linewidth=1, label=topic)
        step = max(1, len(days) // 12)
        axes.set_xticks([*xs][::step], [day[5:] for day, _ in days][::step])
    axes.set_ylabel("records a day")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, ncols=2, loc="center right")
    _thousands(axes)


def _retries(axes: Axes, facts: Facts) -> None:
    for colour, (retry_topic, points) in zip(RETRIES, facts.retries.items(), strict=False):
        seconds, counts = _every_second(points)
        axes.step(
            seconds,
            counts,
            where="mid",
            color=colour,
            linewidth=1.2,
            label=f"retry topic {retry_topic}",
        )
    _run_time(axes, facts)
    axes.set_ylabel("copies a second")
    axes.legend(frameon=False)
    _thousands(axes)


def _run_time(axes: Axes, facts: Facts) -> None:
    """One time axis for all plots of the run: from its start to its end."""
    axes.set_xlim(0, max(1.0, facts.seconds))
    axes.set_xlabel("seconds since the start")


def _every_second(points: Sequence[tuple[float, int]]) -> tuple[list[float], list[int]]:
    """A series with its quiet seconds as zeros, so that a line is not drawn across them."""
    counts: dict[int, int] = {}
    for second, count in points:
        counts[round(second)] = counts.get(round(second), 0) + count
    seconds = range(min(counts) - 1, max(counts) + 2)
    return [float(second) for second in seconds], [counts.get(second, 0) for second in seconds]


def _failures(axes: Axes, facts: Facts) -> None:
    ordered = sorted(facts.failed.items(), key=lambda item: item[1])
    bars = axes.barh([reason for reason, _ in ordered], [count for _, count in ordered])
    for bar in bars:
        bar.set_color(FAILED)
    axes.bar_label(bars, [f"{count:,}" for _, count in ordered], padding=4, color=INK)
    axes.grid(axis="y", visible=False)
    axes.margins(x=0.12)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")


def _throughput(axes: Axes, facts: Facts) -> None:
    seconds, counts = _every_second(facts.loaded_over_time)
    axes.fill_between(seconds, counts, color=FLIGHT, alpha=0.25, step="mid", linewidth=0)
    axes.step(seconds, counts, where="mid", color=FLIGHT, linewidth=1.2)
    _run_time(axes, facts)
    axes.set_ylabel("flights a second")
    axes.set_ylim(bottom=0)
    _thousands(axes)


def _delays(axes: Axes, facts: Facts) -> None:
    ordered = sorted(facts.delay_by_carrier, key=lambda row: -row[1])
    axes.bar([code for code, _, _ in ordered], [m for _, m, _ in ordered], color=MINUTES)
    axes.axhline(0, color=MUTED, linewidth=0.8)
    axes.set_ylabel("minutes")
    axes.grid(axis="x", visible=False)
