"""Screens as HTML, and as JSON: one view, two forms. Jinja2 escapes everything.

Rules: JSON of others may hold half a surrogate pair, which UTF-8 has not: it is shown as an escape.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import cache
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from kohort import __version__

if TYPE_CHECKING:
    from jinja2 import Environment

    from kohort.console.screens.desk import Screen

AREAS: Final = (
    ("groups", "/groups", "Groups"),
    ("dlq", "/dlq", "Dead letters"),
    ("retries", "/retries", "Retries"),
    ("processes", "/processes", "Processes"),
    ("pipelines", "/pipelines", "Pipelines"),
    ("topics", "/topics", "Topics"),
    ("record", "/record", "Find a record"),
    ("cluster", "/cluster", "Cluster"),
)
SCHEMA: Final = 1


@cache
def environment() -> Environment:
    """The templates, with escaping on."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    env = Environment(
        loader=PackageLoader("kohort.console"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.globals["link"] = link  # pyright: ignore[reportUnknownMemberType]
    env.filters["commas"] = with_commas  # pyright: ignore[reportUnknownMemberType]
    return env


def with_commas(number: int | float) -> str:
    """A number with its thousands apart."""
    return f"{number:,}"


def link(path: str, query: dict[str, Any] | None = None, **changes: Any) -> str:
    """A path with a query; empty values are left out."""
    parameters = {**(query or {}), **changes}
    values = {k: v for k, v in parameters.items() if v not in ("", None)}
    text = urlencode(values, errors="backslashreplace")
    return f"{path}?{text}" if text else path


def as_html(screen: Screen, page: dict[str, Any], *, fragment: bool) -> str:
    """A screen as a page, or only the part of it that lives.

    Args:
        screen: what is shown.
        page: what is around it: path, query, time, form token, ...
        fragment: True for a live update.
    """
    layout = "fragment.html" if fragment else "page.html"
    template = environment().get_template(screen.template)
    text = template.render(
        layout=layout, screen=screen, view=screen.view, areas=AREAS, version=__version__, **page
    )
    return text.encode("utf-8", "backslashreplace").decode()


def as_json(screen: Screen, page: dict[str, Any]) -> str:
    """A screen as JSON with the same figures."""
    whole: dict[str, Any] = {
        "schema": SCHEMA,
        "sampled_ms": page["sampled_ms"],
        "troubles": page["troubles"],
        "command": screen.command,
        **asdict(screen.view),
    }
    return json.dumps(whole, indent=2, default=str)
