"""How rows are printed: a table for people, JSON or CSV for programs.

Rules:
- Column names are Kafka's own in tables (upper case), snake_case in JSON; JSON output is one object
  with `"schema": 1` and `rows`.
- On a terminal a table fits its width: long cells lose their middle, unless `-o wide` asks for all.
- Colour (states, lag, trouble) only on a terminal, and not with NO_COLOR set to anything.

Shell: the terminal's width.
"""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar, cast

import click

FORMATS = ("table", "wide", "json", "jsonl", "csv")
WIDE = "kohort.wide"
CELL_LEAST = 12
"""Characters that a shortened cell keeps at least."""
GOOD = ("stable", "ok", "healthy", "reading", "up", "reached", "shrinking")
BAD = ("dead", "failed", "stuck", "error", "offline", "unfit", "missing", "hanging", "gone")
DOUBTFUL = (
    "empty",
    "preparingrebalance",
    "completingrebalance",
    "assigning",
    "reconciling",
    "warning",
    "behind",
    "growing",
    "paused",
    "draining",
    "stopped",
)
STATES = ("state", "health", "trend")
TROUBLES = ("trouble", "error", "problem", "cure")
F = TypeVar("F", bound=Callable[..., Any])


def output_option(function: F) -> F:
    """The `-o/--output` option that every listing command has."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice(FORMATS),
        default="table",
        show_default=True,
        callback=_form,
        help="Form of the output; wide is a table that is never cut to the terminal.",
    )(function)


def _form(ctx: click.Context, parameter: click.Parameter, output: str) -> str:
    del parameter
    ctx.meta[WIDE] = output == "wide"
    return "table" if output == "wide" else output


def show(rows: Iterable[Mapping[str, Any]], columns: Sequence[str], output: str) -> None:
    """Print `rows` (dictionaries with the keys `columns`) in the chosen form."""
    listed = [{column: row.get(column) for column in columns} for row in rows]
    if output == "json":
        click.echo(json.dumps({"schema": 1, "rows": listed}, indent=2, default=str))
    elif output == "jsonl":
        for row in listed:
            click.echo(json.dumps(row, default=str))
    elif output == "csv":
        click.echo(as_csv(listed, columns), nl=False)
    else:
        click.echo(as_table(listed, columns))


def as_csv(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> str:
    """Comma-separated text with a header line; None is an empty cell."""
    import csv  # here, because `--help` must not pay for it

    out = io.StringIO()
    writer = csv.DictWriter(out, fieldnames=list(columns), lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: _joined(value) for key, value in row.items()} for row in rows)
    return out.getvalue()


def as_table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> str:
    """Aligned columns under Kafka-style headings; numbers to the right, None as a dash, truth as
    yes and no."""
    heads = [column.replace("_", "-").upper() for column in columns]
    cells = [[_cell(row[column]) for column in columns] for row in rows]
    right = [_all_numbers(row[column] for row in rows) for column in columns]
    shown = sys.stdout and sys.stdout.isatty()  # None: it was closed before we began
    context = click.get_current_context(silent=True)
    if shown and not (context and context.meta.get(WIDE)):
        from shutil import get_terminal_size  # it imports three compressions

        cells = fitted(heads, cells, right, get_terminal_size().columns)
    widths = [
        max(len(head), *(len(line[i]) for line in cells)) if cells else len(head)
        for i, head in enumerate(heads)
    ]
    head = _line(heads, widths, right)
    if not shown or os.environ.get("NO_COLOR"):
        return "\n".join([head, *(_line(line, widths, right) for line in cells)])
    lines = [
        _line(line, widths, right, [colour(*pair) for pair in zip(columns, line, strict=True)])
        for line in cells
    ]
    return "\n".join([click.style(head, bold=True), *lines])


def colour(column: str, cell: str) -> str | None:
    """The colour of a cell on a terminal; None for most."""
    if cell == "-":
        return None
    if column == "lag":
        return None if cell.strip() == "0" else "yellow"
    if column in TROUBLES:
        return "red" if column != "cure" else "yellow"
    if column not in STATES:
        return None
    state = cell.lower()
    for states, name in ((GOOD, "green"), (BAD, "red"), (DOUBTFUL, "yellow")):
        if state in states:
            return name
    return None


def fitted(
    heads: Sequence[str], cells: Sequence[list[str]], right: Sequence[bool], width: int
) -> list[list[str]]:
    """The cells, the widest text columns cut in their middle until a line has `width` characters.

    A line that cannot fit with `CELL_LEAST` characters in each stays too long: nothing is hidden.
    """
    widths = [max(len(h), *(len(line[i]) for line in cells), 0) for i, h in enumerate(heads)]
    limits = list(widths)
    while sum(limits) + 2 * (len(limits) - 1) > width:
        able = [
            i for i, n in enumerate(limits) if not right[i] and n > max(CELL_LEAST, len(heads[i]))
        ]
        if not able:
            break
        widest = max(able, key=lambda i: limits[i])
        limits[widest] -= 1
    return [[_cut(cell, limits[i]) for i, cell in enumerate(line)] for line in cells]


def _cut(cell: str, limit: int) -> str:
    if len(cell) <= limit:
        return cell
    tail = (limit - 1) // 2
    return f"{cell[: limit - 1 - tail]}…{cell[len(cell) - tail :]}"


def _line(
    cells: Sequence[str],
    widths: Sequence[int],
    right: Sequence[bool],
    colours: Sequence[str | None] | None = None,
) -> str:
    padded = [
        cell.rjust(width) if to_right else cell.ljust(width)
        for cell, width, to_right in zip(cells, widths, right, strict=True)
    ]
    padded[-1:] = [padded[-1].rstrip()] if padded else []
    styled = [
        click.style(cell, fg=one) if one else cell
        for cell, one in zip(padded, colours or [None] * len(padded), strict=True)
    ]
    return "  ".join(styled).rstrip()


def _all_numbers(values: Iterable[Any]) -> bool:
    known = [value for value in values if value is not None]
    return bool(known) and all(
        isinstance(value, int | float) and not isinstance(value, bool) for value in known
    )


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return printable(str(_joined(value)))


def printable(text: str) -> str:
    """Text that others have chosen (names of clients, topics, errors): it must not drive the
    terminal, so control characters are escaped."""
    return text if text.isprintable() else "".join(_visible(c) for c in text)


def printable_lines(text: str) -> list[str]:
    """The lines of such a text, for example of a stack."""
    return [printable(line) for line in text.splitlines()]


def remark(text: str) -> None:
    """Print an error, a warning or a remark on standard error; its lines stay lines."""
    click.echo("\n".join(printable_lines(text)), err=True)


def _visible(character: str) -> str:
    return character if character.isprintable() else repr(character)[1:-1]


def _joined(value: Any) -> Any:
    """A list as Kafka writes one, `1,2,3`; anything else as it is."""
    if isinstance(value, list | tuple):
        return ",".join(str(part) for part in cast("Sequence[Any]", value))
    return value
