"""All commands of `kohort failed`: each module adds its own to the one group."""

from __future__ import annotations

from kohort.cli.dlq import redrive as failed_redrive
from kohort.cli.dlq import show as failed_show
from kohort.cli.dlq.commands import failed

COMMANDS = (failed, failed_redrive.redrive, failed_show.show_failed)

__all__ = ["COMMANDS", "failed"]
