"""Options that name files: a `Path` when the command runs, without `pathlib` in its help.

Shell: files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from kohort.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path


class PathType(click.Path):
    """As `click.Path`, of which commands get a `pathlib.Path`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        from pathlib import Path  # it imports urllib and ipaddress

        return Path(str(super().convert(value, param, ctx)))


FILE: Final = PathType(exists=True, dir_okay=False)
"""A file that is there."""


def text_of(path: Path) -> str:
    """The text of a file, which may be secret.

    Raises:
        ConfigError: it cannot be read, or is not UTF-8; nothing of it is shown.
    """
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8; write it as plain text") from None
