"""Draw the figures of `docs/figures/` that the concept pages show.

python tools/draw_figures.py            write them
python tools/draw_figures.py --check    fail when one is not up to date

Colours are CSS variables: a browser's dark mode changes them in a file, the site's switch changes
them in a page (`tools/docs_hooks.py` puts the figures inline). Standard library only.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "docs" / "figures"
LIGHT = (
    "--ink:#1f2328;--soft:#57606a;--line:#8c959f;--back:#f6f8fa;--blue:#0969da;--green:#1a7f37;"
    "--orange:#bc4c00;--red:#cf222e;--violet:#8250df"
)
DARK = (
    "--ink:#e6edf3;--soft:#9da7b3;--line:#6e7681;--back:#161b22;--blue:#58a6ff;--green:#3fb950;"
    "--orange:#f0883e;--red:#ff7b72;--violet:#bc8cff"
)
HEAD = """<svg xmlns="http://www.w3.org/2000/svg" class="figure" viewBox="0 0 {w} {h}" role="img"
 aria-labelledby="{name}-title" font-family="system-ui, sans-serif" font-size="14">
<title id="{name}-title">{title}</title>
<style>svg.figure{{{light}}}@media(prefers-color-scheme:dark){{svg.figure{{{dark}}}}}</style>
<defs><marker id="{name}-tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7"
 orient="auto-start-reverse"><path d="M0 0L8 4L0 8z" fill="var(--line)"/></marker></defs>
"""


class Figure:
    """An SVG that grows by boxes, arrows and words; x and y in pixels from the top left."""

    def __init__(self, name: str, title: str, width: int, height: int) -> None:
        self.name = name
        head = HEAD.format(
            name=name, title=escape(title), w=width, h=height, light=LIGHT, dark=DARK
        )
        self.parts = [head]

    def box(
        self,
        x: float,
        y: float,
        w: float,
        h: float,
        words: str = "",
        colour: str = "line",
        *,
        full: bool = False,
        dashed: bool = False,
    ) -> None:
        """A rectangle with words in its middle; `full` fills it with its colour."""
        fill = f"var(--{colour})" if full else "var(--back)"
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self.parts.append(
            f'<rect x="{x}" y="{y}" width="{w}" height="{h}" rx="5" fill="{fill}" '
            f'fill-opacity="{0.22 if full else 1}" stroke="var(--{colour})"{dash}/>\n'
        )
        lines = words.split("\n")
        for number, line in enumerate(lines):
            middle = y + h / 2 + 5 + (number - (len(lines) - 1) / 2) * 17
            self.text(x + w / 2, middle, line, "middle")

    def text(
        self,
        x: float,
        y: float,
        words: str,
        anchor: str = "start",
        colour: str = "ink",
        *,
        bold: bool = False,
    ) -> None:
        """One line of words; `y` is its base line."""
        weight = ' font-weight="600"' if bold else ""
        self.parts.append(
            f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="var(--{colour})"{weight}>'
            f"{escape(words)}</text>\n"
        )

    def arrow(
        self,
        x1: float,
        y1: float,
        x2: float,
        y2: float,
        words: str = "",
        colour: str = "line",
        *,
        dashed: bool = False,
    ) -> None:
        """An arrow, with words above its middle."""
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self.parts.append(
            f'<path d="M{x1} {y1}L{x2} {y2}" stroke="var(--{colour})" fill="none" '
            f'stroke-width="1.5"{dash} marker-end="url(#{self.name}-tip)"/>\n'
        )
        if words:
            self.text((x1 + x2) / 2, (y1 + y2) / 2 - 7, words, "middle", "soft")

    def line(self, x1: float, y1: float, x2: float, y2: float, colour: str = "line") -> None:
        """A dashed line without a tip."""
        self.parts.append(
            f'<path d="M{x1} {y1}L{x2} {y2}" stroke="var(--{colour})" stroke-dasharray="4 4"/>\n'
        )

    def svg(self) -> str:
        """The whole file."""
        return "".join([*self.parts, "</svg>\n"])


def groups() -> Figure:
    """One topic, two groups."""
    f = Figure("groups", "Two consumer groups read one topic", 760, 300)
    f.text(20, 28, "topic orders", bold=True)
    for n in range(6):
        f.box(20, 42 + n * 41, 130, 32, f"partition {n}", "blue", full=True)
    f.text(330, 28, "group billing: three members share the partitions", bold=True)
    for m, name in enumerate(("member A", "member B", "member C")):
        y = 50 + m * 52
        f.box(400, y, 130, 40, name, "green", full=True)
        for n in (2 * m, 2 * m + 1):
            f.arrow(150, 58 + n * 41, 398, y + 12 + 16 * (n % 2))
    f.text(550, 75, "P0, P1", colour="soft")
    f.text(550, 127, "P2, P3", colour="soft")
    f.text(550, 179, "P4, P5", colour="soft")
    f.text(330, 238, "group audit: one member reads all, at its own pace", bold=True)
    f.box(400, 250, 130, 40, "member X", "violet", full=True)
    f.text(550, 275, "P0 to P5, own offsets", colour="soft")
    f.arrow(150, 275, 398, 272)
    return f


def _lane(f: Figure, y: float, name: str, bars: list[tuple[float, float, str, str]]) -> None:
    f.text(20, y + 18, name)
    for start, end, words, colour in bars:
        f.box(start, y, end - start, 26, words, colour, full=True)


def rebalance() -> Figure:
    """The same change under the three ways to rebalance."""
    f = Figure("rebalance", "Member C joins: what each protocol stops", 800, 470)
    join, done = 330, 470
    for top, head in (
        (0, "classic, eager: every member stops, all partitions are given out again"),
        (160, "classic, cooperative: only partitions that move stop"),
        (320, "consumer (KIP-848): the coordinator assigns, each member moves alone"),
    ):
        f.text(20, top + 24, head, bold=True)
    _lane(f, 36, "A", [(60, join, "P0 P1 P2", "blue"), (done, 780, "P0 P1", "blue")])
    _lane(f, 68, "B", [(60, join, "P3 P4 P5", "green"), (done, 780, "P3 P4", "green")])
    _lane(f, 100, "C", [(done, 780, "P2 P5", "violet")])
    f.text((join + done) / 2, 86, "nobody reads", "middle", "red")
    _lane(f, 196, "A", [(60, 370, "P0 P1 P2", "blue"), (370, 780, "P0 P1", "blue")])
    _lane(f, 228, "B", [(60, 370, "P3 P4 P5", "green"), (370, 780, "P3 P4", "green")])
    _lane(f, 260, "C", [(450, 780, "P2 P5", "violet")])
    f.text(444, 278, "P2 P5 wait", "end", "orange")
    _lane(f, 356, "A", [(60, 350, "P0 P1 P2", "blue"), (350, 780, "P0 P1", "blue")])
    _lane(f, 388, "B", [(60, 385, "P3 P4 P5", "green"), (385, 780, "P3 P4", "green")])
    _lane(f, 420, "C", [(365, 400, "P2", "violet"), (400, 780, "P2 P5", "violet")])
    for top in (36, 196, 356):
        f.line(join, top, join, top + 96, "red")
    f.text(join - 6, 465, "C joins", "end", "red")
    f.text(780, 465, "time", "end", "soft")
    f.arrow(420, 460, 740, 460)
    return f


def fetching() -> Figure:
    """Where a consumer is in a partition."""
    f = Figure("fetching", "A consumer's offsets in one partition, and its fetch loop", 780, 330)
    f.text(20, 28, "one partition", bold=True)
    spans = [
        (20, 260, "done", "green"),
        (260, 340, "in progress", "orange"),
        (340, 500, "fetched ahead", "blue"),
        (500, 640, "not fetched yet", "line"),
        (640, 750, "not replicated", "line"),
    ]
    for start, end, words, colour in spans:
        f.box(start, 60, end - start, 40, words, colour, full=True)
    for x, words, anchor in (
        (260, "committed offset", "end"),
        (340, "position", "middle"),
        (640, "high watermark", "middle"),
    ):
        f.line(x, 50, x, 118)
        f.text(x, 134, words, anchor, "soft")
    f.text(750, 50, "log end", "end", "soft")
    f.arrow(450, 158, 262, 158)
    f.arrow(450, 158, 638, 158)
    f.text(450, 178, "lag: high watermark minus committed offset", "middle")
    f.box(20, 230, 150, 56, "poll()\nyour code", "green", full=True)
    f.box(290, 230, 170, 56, "buffer of fetched\nrecords", "blue", full=True)
    f.box(590, 230, 160, 56, "leader of the\npartition", "line", full=True)
    f.arrow(290, 258, 172, 258, "records")
    f.arrow(590, 248, 462, 248, "batches")
    f.arrow(460, 274, 588, 274)
    f.text(525, 294, "next fetch, early", "middle", "soft")
    f.text(
        20,
        318,
        "The next request is on its way while your code works on the last answer.",
        colour="soft",
    )
    return f


def retries() -> Figure:
    """The way of a record that fails."""
    f = Figure("retries", "The path of a record through retry topics", 800, 330)
    f.box(20, 60, 130, 46, "topic\npayments", "blue", full=True)
    f.box(240, 60, 140, 46, "handler", "green", full=True)
    f.box(600, 60, 170, 46, "done: offset\ncommitted", "green", full=True)
    f.arrow(150, 83, 238, 83, "record")
    f.arrow(380, 83, 598, 83, "succeeds")
    f.text(
        20,
        36,
        "A failed record leaves its partition. The records behind it go on at once.",
        bold=True,
    )
    names = ("5m", "30m", "1h")
    for n, name in enumerate(names):
        f.box(150 + n * 155, 170, 130, 46, f"retry topic\n{name}", "orange", full=True)
    f.box(640, 170, 130, 46, "dead-letter\ntopic (DLT)", "red", full=True)
    f.arrow(280, 106, 220, 168)
    f.text(232, 144, "fails: attempt 1", "end", "soft")
    for n, words in enumerate(("2nd", "3rd", "4th")):
        f.arrow(280 + n * 155, 193, (303 if n == 0 else 303 + n * 155) if n < 2 else 638, 193)
        f.text(292 + n * 155, 232, words, "middle", "soft")
    f.arrow(360, 106, 660, 168, colour="red")
    f.text(530, 130, "Permanent: straight to the DLT", "start", "red")
    f.line(705, 216, 705, 290)
    f.line(705, 290, 85, 290)
    f.arrow(85, 290, 85, 108)
    f.text(395, 308, "redrive: back to its topic once the cause is gone", "middle")
    f.text(
        150,
        260,
        "each retry topic keeps a record until it is due, then the handler runs again",
        colour="soft",
    )
    return f


def exactly_once() -> Figure:
    """What one micro-batch commits."""
    f = Figure("exactly-once", "One micro-batch: everything commits in one transaction", 780, 290)
    f.box(20, 100, 140, 60, "Kafka\nrecords", "blue", full=True)
    f.box(230, 100, 150, 60, "Spark\nmicro-batch 42", "violet", full=True)
    f.arrow(160, 130, 228, 130)
    f.arrow(380, 130, 448, 130)
    f.box(450, 40, 310, 190, "", "green", dashed=True)
    f.text(605, 32, "one database transaction", "middle", "green", bold=True)
    for n, words in enumerate(
        (
            "rows of your table",
            "ledger: outcome of each record",
            "offsets the batch has read",
            "batch number 42",
        )
    ):
        f.box(470, 54 + n * 43, 270, 34, words, "green", full=True)
    f.text(20, 258, "A crash before the commit leaves nothing; Spark runs batch 42 again.")
    f.text(
        20, 280, "A crash after it: the batch number is there, so the second run writes nothing."
    )
    return f


FIGURES: tuple[Callable[[], Figure], ...] = (groups, rebalance, fetching, retries, exactly_once)


def stale() -> list[str]:
    """Names of the files that do not hold what would be drawn now."""
    drawn = [figure() for figure in FIGURES]
    paths = {f.name: TARGET / f"{f.name}.svg" for f in drawn}
    return [
        paths[f.name].name
        for f in drawn
        if not paths[f.name].exists() or paths[f.name].read_text() != f.svg()
    ]


def main() -> int:
    """Write them, or check them."""
    if "--check" in sys.argv:
        if names := stale():
            print(f"not up to date: {', '.join(names)}; run `make diagrams`", file=sys.stderr)
        return bool(names)
    TARGET.mkdir(exist_ok=True)
    for figure in FIGURES:
        drawn = figure()
        (TARGET / f"{drawn.name}.svg").write_text(drawn.svg())
    return 0


if __name__ == "__main__":
    sys.exit(main())
