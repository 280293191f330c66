"""Failpoints: tests watch a broker's work as it happens, and may answer by killing a node.

Rules:
- A tap is asked on the broker's thread, in the middle of the work, once for each moment; what it
  says is done before anything else happens. So a node can be stopped at one exact point.
- With no tap set a moment costs the look at an empty list.
- A tap that raises is a defect of its test: the error is kept for who waits for it, the broker goes
  on, and the tap is never asked again.

Shell: threads (a test waits for what the broker's thread sees).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from enum import StrEnum

from kohort.errors import KafkaTimeoutError
from kohort.group.coordinator.state.effects import GroupRecord
from kohort.lean import dataclass
from kohort.wire import Message


class Moment(StrEnum):
    """When a tap is asked."""

    RECEIVED = "received"
    """A request has come; nothing of it was done yet."""
    APPENDED = "appended"
    """A shard's records are in its log; no request has been answered yet."""
    ANSWERING = "answering"
    """An answer is about to be sent; those before it are on their way."""


class Verdict(StrEnum):
    """What is to be done about a moment."""

    PASS = "pass"
    KILL = "kill"
    """The node dies at this moment: its next action does not happen."""


@dataclass(frozen=True, slots=True)
class Event:
    """One moment. `message` is the request or the answer; `records` are what a shard appended."""

    moment: Moment
    node_id: int
    message: Message | None = None
    client_id: str = ""
    topic: str = ""
    partition: int = -1
    records: Sequence[GroupRecord] = ()


class Failpoint:
    """Waits for the `count`-th event that `matches`, and then does `verdict`, once."""

    def __init__(
        self,
        moment: Moment,
        matches: Callable[[Event], bool] = lambda event: True,
        *,
        count: int = 1,
        verdict: Verdict = Verdict.PASS,
    ) -> None:
        self.moment = moment
        self._matches = matches
        self._left = count
        self._verdict = verdict
        self._met = threading.Event()
        self.event: Event | None = None
        """The event that it waited for."""
        self.error: Exception | None = None
        """What `matches` raised."""

    def see(self, event: Event) -> Verdict:
        """Be asked; on the broker's thread."""
        if self._left <= 0 or event.moment is not self.moment:
            return Verdict.PASS
        try:
            matched = self._matches(event)
        except Exception as error:  # an error in a test's condition belongs to that test
            self._left, self.error = 0, error
            self._met.set()
            return Verdict.PASS
        if not matched:
            return Verdict.PASS
        self._left -= 1
        if self._left:
            return Verdict.PASS
        self.event = event
        self._met.set()
        return self._verdict

    def wait(self, timeout_s: float = 60.0) -> Event:
        """The event, once it has come; from any thread. Raises KafkaTimeoutError, or what `matches`
        raised."""
        if not self._met.wait(timeout_s):
            raise KafkaTimeoutError(f"nothing that the tap waits for came within {timeout_s} s")
        if self.error is not None:
            raise self.error
        assert self.event is not None
        return self.event


class Failpoints:
    """The failpoints that are set."""

    def __init__(self) -> None:
        self.set: list[Failpoint] = []
        """Looked at before an event is even made."""
        self.kill: Callable[[int], object] = lambda node_id: None
        """Ends a node at once."""

    def add(self, tap: Failpoint) -> None:
        """Ask it from now on."""
        self.set.append(tap)

    def remove(self, tap: Failpoint) -> None:
        """Ask it no longer."""
        if tap in self.set:
            self.set.remove(tap)

    def fatal(self, event: Event) -> bool:
        """Ask all of them; True when one of them has ended the node."""
        if Verdict.KILL not in [tap.see(event) for tap in self.set]:
            return False
        self.kill(event.node_id)
        return True
