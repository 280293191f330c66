"""The two topics of remote processes: their names, and what they have to be like."""

from __future__ import annotations

import re
from typing import Final

from kohort.errors import ConfigError

STATUS_CONFIG: Final = {
    "cleanup.policy": "compact,delete",
    "retention.ms": "86400000",
    "segment.ms": "3600000",
    "min.cleanable.dirty.ratio": "0.1",
    "message.timestamp.type": "LogAppendTime",
}
"""One record a process, and none of one that has been gone for a day. Ages are by the broker's
clock: those of the processes may differ."""
COMMANDS_CONFIG: Final = {
    "cleanup.policy": "delete",
    "retention.ms": "3600000",
    "message.timestamp.type": "LogAppendTime",
}
_PREFIX: Final = re.compile(r"[A-Za-z0-9._-]{1,200}")


def checked_prefix(prefix: str) -> str:
    """The prefix. Raises ConfigError for one that topics cannot have."""
    if not _PREFIX.fullmatch(prefix):
        raise ConfigError(
            f"remote={prefix!r}: use letters, digits, dots, dashes and underscores; it begins the "
            "names of the topics PREFIX.status and PREFIX.commands"
        )
    return prefix


def status_topic(prefix: str) -> str:
    """Where processes say how they are."""
    return f"{prefix}.status"


def own_topics(prefix: str | None) -> list[str]:
    """Both topics of a prefix; none without one."""
    return [] if prefix is None else [status_topic(prefix), commands_topic(prefix)]


def commands_topic(prefix: str) -> str:
    """The topic of commands for them."""
    return f"{prefix}.commands"
