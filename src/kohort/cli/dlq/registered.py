"""All commands of `kohort dlq`: each module adds its own to the one group."""

from __future__ import annotations

from kohort.cli.dlq.commands import dlq
from kohort.cli.dlq.redrive import redrive
from kohort.cli.dlq.show import show_failed

COMMANDS = (dlq, redrive, show_failed)

__all__ = ["COMMANDS", "dlq"]
