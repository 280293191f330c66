"""A comparison as files: tables as JSON and CSV, plots as SVG and PNG, and one page with all of it.

Rules:
- Nothing here counts: every figure comes from `compare.Run`.
- The page is one file without scripts: the plots are SVG inside it.
- A run that did not settle is shown as such, never left out.
"""

# matplotlib's types are incomplete, so strict checking would report nothing else.
# pyright: basic
from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kohort.errors import KohortError
from kohort.simulator.history.compare import COLUMNS, DESIGNS, Run, by_design
from kohort.simulator.history.plan import MEANING, Kind

INK, MUTED, GRID = "#1d2733", "#68788a", "#e3e8ee"
COLOURS = {
    "zookeeper": "#b6447d",
    "server": "#e07a1f",
    "classic": "#2a6fdb",
    "cooperative": "#7a5cc9",
    "kip848": "#2e9e6b",
}
STYLE: Any = {
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
    "axes.spines.top": False,
    "axes.spines.right": False,
}

Draw = Callable[[Any, Sequence[Run]], None]


def need_plots() -> None:
    """Raise KohortError, saying what to do, when the plots' libraries are not installed."""
    try:
        import jinja2  # noqa: F401
        import matplotlib  # noqa: F401
    except ModuleNotFoundError as error:
        raise KohortError(
            f"the plots need {error.name}, which is not installed; install it with: "
            "pip install 'kohort[demo]', or leave the plots out with --no-plots"
        ) from error


def write_tables(runs: Sequence[Run], directory: Path) -> list[Path]:
    """`compare.json` and `compare.csv`: a row for each event of each run, and one for all."""
    directory.mkdir(parents=True, exist_ok=True)
    as_json, as_csv = directory / "compare.json", directory / "compare.csv"
    rows = [row for run in runs for row in run.rows()]
    seed = runs[0].seed if runs else None
    whole = {"schema": 1, "seed": seed, "rows": rows, "messages": _kinds(runs)}
    as_json.write_text(json.dumps(whole, indent=1) + "\n")
    out = io.StringIO()
    writer = csv.DictWriter(out, list(COLUMNS), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    as_csv.write_text(out.getvalue())
    return [as_json, as_csv]


def _kinds(runs: Sequence[Run]) -> list[dict[str, Any]]:
    return [
        {"design": run.design, "size": str(run.size), "by_kind": dict(run.total.by_kind)}
        for run in runs
    ]


def write_page(runs: Sequence[Run], directory: Path) -> list[Path]:
    """The plots, each as SVG and PNG, and `compare.html` with all of them and the table."""
    from jinja2 import Environment, PackageLoader, select_autoescape

    directory.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    plots: list[tuple[str, str, str]] = []
    for name, (title, text, draw, height) in PLOTS.items():
        if (svg := _plot(runs, draw, height, directory / name)) is not None:
            plots.append((title, text, svg))
            written += [directory / f"{name}.svg", directory / f"{name}.png"]
    environment = Environment(
        loader=PackageLoader("kohort.simulator.history", "templates"),
        autoescape=select_autoescape(),
    )
    page = directory / "compare.html"
    largest = _largest(runs)
    page.write_text(
        environment.get_template("compare.html").render(
            seed=runs[0].seed,
            designs=[DESIGNS[name] for name in by_design(runs)],
            runs=runs,
            largest=largest,
            meaning={kind.value: text for kind, text in MEANING.items()},
            plots=plots,
            colours=COLOURS,
        )
    )
    return [page, *written]


def _plot(runs: Sequence[Run], draw: Draw, height: float, path: Path) -> str | None:
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    with plt.rc_context(STYLE):
        figure = plt.figure(figsize=(15.6 if height > 4 else 7.6, height), layout="constrained")
        draw(figure, runs)
        if not figure.axes:
            plt.close(figure)
            return None
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None})
        figure.savefig(path.with_suffix(".png"), dpi=144)
        plt.close(figure)
    text = out.getvalue()
    svg = text[text.index("<svg") :]
    path.with_suffix(".svg").write_text(text)
    return svg


def _largest(runs: Sequence[Run]) -> list[Run]:
    most = max(run.size.members for run in runs)
    return [run for run in runs if run.size.members == most]


def _growth(
    axes: Any, runs: Sequence[Run], value: Callable[[Run], float | None], scale: str = "log"
) -> None:
    """A line for each design over the number of consumers, on a logarithmic axis."""
    for name, line in by_design(runs).items():
        points = [(run.size.members, value(run)) for run in line]
        known = [(x, y) for x, y in points if y]
        if not known:
            continue  # it does nothing of the kind
        axes.plot(
            [x for x, _ in known],
            [y for _, y in known],
            color=COLOURS[name],
            marker="o",
            markersize=4,
            linewidth=1.6,
            label=name,
        )
    members = sorted({run.size.members for run in runs})
    axes.set_xscale("log")
    axes.set_yscale(scale)
    if scale == "linear":
        axes.set_ylim(bottom=0)
    axes.set_xticks(members, [f"{count:,}" for count in members])
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(lambda y, _: _short(y))
    axes.set_xlabel("consumers at the start (ten partitions each)")


def _short(value: float) -> str:
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g} {unit}"
    return f"{value:g}"


def _messages(figure: Any, runs: Sequence[Run]) -> None:
    left, right = figure.subplots(1, 2)
    _growth(left, runs, lambda run: run.total.messages)
    left.set_title("messages, all events", fontsize=9, loc="left")
    left.legend(frameon=False)

    def of_join(run: Run) -> float | None:
        return next((f.messages for f in run.events if f.what == Kind.JOIN.value), None)

    _growth(right, runs, of_join)
    right.set_title("messages when one consumer joins", fontsize=9, loc="left")


def _herd(figure: Any, runs: Sequence[Run]) -> None:
    left, right = figure.subplots(1, 2)
    _growth(left, runs, lambda run: run.total.notifications)
    left.set_title("watch notifications", fontsize=9, loc="left")
    _growth(right, runs, lambda run: run.total.failed_claims)
    right.set_title("claims that failed (zookeeper alone claims)", fontsize=9, loc="left")
    left.legend(frameon=False)


def _unread(figure: Any, runs: Sequence[Run]) -> None:
    left, right = figure.subplots(1, 2)
    _growth(left, runs, lambda run: run.total.unowned_s / run.size.partitions, "linear")
    left.set_title("seconds that a partition was not read, on average", fontsize=9, loc="left")
    left.legend(frameon=False)
    _growth(right, runs, lambda run: run.total.moved / run.size.partitions, "linear")
    right.set_title("times that a partition changed its owner, on average", fontsize=9, loc="left")


def _stable(figure: Any, runs: Sequence[Run]) -> None:
    """Time to stable by event; who did not settle gets a bar to the top, hatched."""
    axes = figure.subplots()
    chosen = _largest(runs)
    shown = [f.what for f in chosen[0].events if f.what not in _NO_TIME]
    most = max((f.settled_s or 0.0 for run in chosen for f in run.events), default=1.0)
    width = 0.8 / len(chosen)
    for place, run in enumerate(chosen):
        times = {f.what: f.settled_s for f in run.events}
        for x, what in enumerate(shown):
            time_s = times.get(what)
            axes.bar(
                x + (place - (len(chosen) - 1) / 2) * width,
                most * 1.15 if time_s is None else time_s,
                width * 0.9,
                color=COLOURS[run.design] if time_s is not None else "none",
                edgecolor=COLOURS[run.design],
                hatch=None if time_s is not None else "////",
                linewidth=0.6,
                label=run.design if x == 0 else None,
            )
    axes.set_xticks(range(len(shown)), [what.replace(" ", "\n") for what in shown])
    axes.grid(axis="x", visible=False)
    axes.set_ylabel("seconds until stable")
    axes.set_title(
        f"{chosen[0].size.members:,} consumers, {chosen[0].size.partitions:,} partitions; "
        "hatched: not stable before the next event",
        fontsize=9,
        loc="left",
    )
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, frameon=False, ncols=len(chosen), loc="outside lower center")


_NO_TIME = {Kind.CUT.value, Kind.DEPOSED.value}


def _owners(figure: Any, runs: Sequence[Run]) -> None:
    """Two owners at once, as seconds a partition: split brain beside zombies."""
    axes = figure.subplots()
    chosen = _largest(runs)
    names = [run.design for run in chosen]
    split = [run.total.split_s / run.size.partitions for run in chosen]
    fenced = [run.total.overlap_s / run.size.partitions for run in chosen]
    axes.barh(names, split, color="#c0392b", label="both may commit (split brain)")
    axes.barh(names, fenced, left=split, color="#b9c3cf", label="all but one are fenced (zombies)")
    for place, (one, both) in enumerate(zip(split, fenced, strict=True)):
        axes.annotate(
            f" {one:.3g} + {both:.3g}", (one + both, place), va="center", color=INK, fontsize=8
        )
    axes.invert_yaxis()
    axes.margins(x=0.14)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("seconds that a partition had two readers, on average")
    figure.legend(frameon=False, ncols=2, loc="outside upper left")


def _timeline(figure: Any, runs: Sequence[Run]) -> None:
    """For each design, the share of partitions that nobody read, second by second."""
    chosen = _largest(runs)
    every = figure.subplots(len(chosen), 1, sharex=True, sharey=True, squeeze=False)
    for axes, run in zip(every[:, 0], chosen, strict=True):
        share = [100 * count / run.size.partitions for count in run.unowned]
        axes.fill_between(
            range(1, len(share) + 1), share, step="pre", color=COLOURS[run.design], linewidth=0
        )
        axes.set_ylim(0, 105)
        axes.set_title(run.design, fontsize=9, loc="left")
        axes.set_yticks([0, 50, 100], ["0 %", "50 %", "100 %"])
        for event in run.events:
            axes.axvline(event.at_s, color=MUTED, linewidth=0.5, linestyle=":")
    for event in chosen[0].events:
        every[0, 0].annotate(
            event.what,
            (event.at_s, 105),
            rotation=35,
            fontsize=7,
            color=MUTED,
            annotation_clip=False,
            xytext=(0, 14),
            textcoords="offset points",
        )
    every[-1, 0].set_xlabel("seconds of virtual time")


PLOTS: Mapping[str, tuple[str, str, Draw, float]] = {
    "timeline": (
        "Who reads nothing, and when",
        "The share of partitions that nobody read (the most in each second), largest size.",
        _timeline,
        6.2,
    ),
    "messages": (
        "What it costs to agree",
        "Messages without heartbeats and pings. A straight line of slope 1 grows with the group, "
        "of slope 2 with its square.",
        _messages,
        3.3,
    ),
    "stable": (
        "How long until it is settled",
        "From the event to the last change of hands, largest size.",
        _stable,
        3.7,
    ),
    "unread": (
        "What it does to the partitions",
        "All events after the start.",
        _unread,
        3.3,
    ),
    "herd": (
        "The herd",
        "Every consumer is notified of everything, and acts on what it happens to see.",
        _herd,
        3.3,
    ),
    "owners": (
        "Two readers at once",
        "While a consumer or a coordinator is cut off and does not know it; largest size.",
        _owners,
        2.9,
    ),
}
