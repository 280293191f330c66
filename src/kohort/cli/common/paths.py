"""Options that name files: a `Path` when the command runs, without `pathlib` in its help."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from pathlib import Path


class PathType(click.Path):
    """As `click.Path`, of which commands get a `pathlib.Path`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        from pathlib import Path  # it imports urllib and ipaddress

        return Path(str(super().convert(value, param, ctx)))


FILE: Final = PathType(exists=True, dir_okay=False)
"""A file that is there."""
