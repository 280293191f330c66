"""How rows are printed: a table for people, JSON or CSV for programs.

Rules: column names are Kafka's own in tables (upper case), snake_case in JSON; no colour and no
boxes unless stdout is a terminal; JSON output is one object with `"schema": 1` and `rows`.
"""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar, cast

import click

FORMATS = ("table", "json", "jsonl", "csv")
F = TypeVar("F", bound=Callable[..., Any])


def output_option(function: F) -> F:
    """The `-o/--output` option that every listing command has."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice(FORMATS),
        default="table",
        show_default=True,
        help="Form of the output.",
    )(function)


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
    widths = [
        max(len(head), *(len(line[i]) for line in cells)) if cells else len(head)
        for i, head in enumerate(heads)
    ]
    right = [_all_numbers(row[column] for row in rows) for column in columns]
    lines = [_line(heads, widths, right), *(_line(line, widths, right) for line in cells)]
    if sys.stdout and sys.stdout.isatty():  # None: it was closed before we began
        lines[0] = click.style(lines[0], bold=True)
    return "\n".join(lines)


def _line(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    padded = (
        cell.rjust(width) if to_right else cell.ljust(width)
        for cell, width, to_right in zip(cells, widths, right, strict=True)
    )
    return "  ".join(padded).rstrip()


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


def _visible(character: str) -> str:
    return character if character.isprintable() else repr(character)[1:-1]


def _joined(value: Any) -> Any:
    """A list as Kafka writes one, `1,2,3`; anything else as it is."""
    if isinstance(value, list | tuple):
        return ",".join(str(part) for part in cast("Sequence[Any]", value))
    return value
