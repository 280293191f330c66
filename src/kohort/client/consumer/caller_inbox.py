"""The work of the caller's thread: rebalance steps, callbacks and errors, in order.

The network thread puts them here; `poll` and the other calls take them. `attention` says that there
is something beside records.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from kohort.client.consumer.rebalance_steps import AssignStep, RevokeStep, Stage, Step
from kohort.client.consumer.setup import flat
from kohort.errors import KohortError
from kohort.group.member.effects import Assign, Revoke


class CallerInbox:
    """One consumer's. `notify` wakes a caller that waits; any thread may call it."""

    def __init__(self, notify: Callable[[], None]) -> None:
        self.notify = notify
        self.steps: deque[Step] = deque()
        self.callbacks: deque[tuple[Callable[..., Any], tuple[Any, ...]]] = deque()
        self.errors: deque[KohortError] = deque(maxlen=100)
        self.attention = False

    def attend(self) -> None:
        """Let the caller look here before it takes records."""
        self.attention = True
        self.notify()

    def rebalance(self, step: Revoke | Assign) -> None:
        """Hand a step of the member to the caller's thread."""
        if isinstance(step, Revoke):
            if step.lost:
                self.lose()
            partitions = flat(step.partitions)
            self.steps.append(RevokeStep(step.token, partitions, step.lost, step.reason))
        else:
            added, assignment = flat(step.added), flat(step.assignment)
            self.steps.append(AssignStep(step.token, added, assignment, step.generation))
        self.attend()

    def lose(self) -> None:
        """The generation is gone: partitions still to be revoked have another owner by now (C6)."""
        for step in self.steps:
            if isinstance(step, RevokeStep) and step.stage is Stage.BEGIN:
                step.lost = True

    def call_back(self, fn: Callable[..., Any], *args: Any) -> None:
        """Have a user's function called inside the caller's next call."""
        self.callbacks.append((fn, args))
        self.attend()

    def report(self, error: KohortError) -> None:
        """Have the next poll raise this once."""
        self.errors.append(error)
        self.attend()
