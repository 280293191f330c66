"""All commands of `kohort failed`: each module adds its own to the one group."""

from __future__ import annotations

from kohort.cli import failed_redrive, failed_show
from kohort.cli.failed import failed

COMMANDS = (failed, failed_redrive.redrive, failed_show.show_failed)

__all__ = ["COMMANDS", "failed"]
