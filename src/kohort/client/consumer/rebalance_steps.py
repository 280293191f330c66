"""What the network thread asks of the caller's thread, in order, inside `poll`.

Rules:
- A step remembers its progress: if a poll ends meanwhile (time-out, wakeup, cancel), the next one
  continues it. No commit is sent twice and no listener called twice (B39, B44, C9).
- No record is handed out while a step is open (B47, C1).
"""

from __future__ import annotations

import enum
from typing import Any

from kohort.client.common.types import TopicPartition
from kohort.lean import dataclass


class Stage(enum.Enum):
    """How far a step has come."""

    BEGIN = "nothing has been done"
    COMMITTING = "the commit before giving up is under way"
    LISTENER = "the listener is to be called"
    DRAINING = "commits made by the listener are under way"
    DONE = "confirmed"


@dataclass(eq=False)
class RevokeStep:
    """Give up partitions. `lost`: others may own them already, so nothing is committed."""

    token: int
    partitions: tuple[TopicPartition, ...]
    lost: bool
    reason: str
    stage: Stage = Stage.BEGIN
    commit: Any = None
    give_up_ms: int = 0


@dataclass(eq=False)
class AssignStep:
    """Take partitions: `added` are new, `assignment` is everything owned from now on."""

    token: int
    added: tuple[TopicPartition, ...]
    assignment: tuple[TopicPartition, ...]
    generation: int
    stage: Stage = Stage.BEGIN


Step = RevokeStep | AssignStep
