"""The requests of one connection: waiting to be sent, then in flight in order. Pure.

Rules:
- Answers come in the order of the requests (a broker handles one request a connection at a time),
  so an answer with another correlation id than the oldest one's means that the stream is broken.
- A request that waits beyond its deadline fails alone. One in flight beyond it takes the connection
  with it, because its late answer would be mistaken for the next one's.
- The number of waiting requests is bounded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from kohort.errors import KohortError, ProtocolError, UsageError
from kohort.wire import Message

Done = Callable[[Message | KohortError], object]
"""Called once with the answer or the error, on the network thread."""

Build = Callable[[int], Message | None]
"""Makes the request for the version that was picked, as it leaves; None when there is nothing to
send any more. Then `done` is not called."""

WAITING_MAX: Final = 20_000
_ID_MAX: Final = 2**31 - 1


class PendingRequest:
    """A request on its way; `done` is called exactly once, unless `build` makes nothing of it."""

    __slots__ = (
        "answer",
        "api",
        "at_most",
        "build",
        "correlation_id",
        "deadline_ms",
        "done",
        "routed",
        "sent_bytes",
        "sent_ms",
        "version",
    )

    def __init__(
        self,
        api: type[Message],
        answer: type[Message] | None,
        build: Build,
        done: Done,
        deadline_ms: int,
        *,
        at_most: int | None = None,
        routed: bool = False,
    ) -> None:
        self.api = api
        self.answer = answer
        """The class of the answer; None when the broker will not answer (`acks=0`)."""
        self.build = build
        self.done = done
        self.deadline_ms = deadline_ms
        self.at_most = at_most
        self.routed = routed
        """True when any broker will do, so that another may be tried."""
        self.version = -1
        self.correlation_id = -1
        self.sent_ms = 0
        self.sent_bytes = 0


class Pipeline:
    """The bookkeeping of one connection's requests."""

    __slots__ = ("_last_id", "in_flight", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[PendingRequest] = deque()
        self.in_flight: deque[PendingRequest] = deque()
        self._last_id = 0

    def __len__(self) -> int:
        return len(self.waiting) + len(self.in_flight)

    def add(self, request: PendingRequest) -> None:
        """Put a request at the end of the line; UsageError when the line is too long."""
        if len(self.waiting) >= WAITING_MAX:
            raise UsageError(
                f"{WAITING_MAX} requests wait for one broker already; wait for answers before "
                f"asking more"
            )
        self.waiting.append(request)

    def next_id(self) -> int:
        """A correlation id for a request outside the line (the handshake)."""
        self._last_id = (self._last_id + 1) & _ID_MAX
        return self._last_id

    def sent(self, request: PendingRequest, version: int) -> int:
        """The first waiting request goes out in `version`; its correlation id."""
        request.version = version
        request.correlation_id = self.next_id()
        if request.answer is not None:
            self.in_flight.append(request)
        return request.correlation_id

    def answered(self, correlation_id: int) -> PendingRequest:
        """The request that an answer belongs to; ProtocolError when it is not the oldest's."""
        if not self.in_flight or self.in_flight[0].correlation_id != correlation_id:
            expected = self.in_flight[0].correlation_id if self.in_flight else "none"
            raise ProtocolError(
                f"an answer has correlation id {correlation_id}, expected {expected}"
            )
        return self.in_flight.popleft()

    def expire(self, now_ms: int) -> tuple[list[PendingRequest], list[PendingRequest]]:
        """Take out what is overdue: (waiting, in flight). The latter breaks the connection."""
        waiting = [r for r in self.waiting if r.deadline_ms <= now_ms]
        if waiting:
            self.waiting = deque(r for r in self.waiting if r.deadline_ms > now_ms)
        in_flight = [r for r in self.in_flight if r.deadline_ms <= now_ms]
        if in_flight:
            self.in_flight = deque(r for r in self.in_flight if r.deadline_ms > now_ms)
        return waiting, in_flight

    def next_deadline(self) -> int | None:
        """The earliest deadline of all."""
        deadlines = [r.deadline_ms for r in self.in_flight]
        deadlines.extend(r.deadline_ms for r in self.waiting)
        return min(deadlines, default=None)

    def take_all(self) -> tuple[list[PendingRequest], list[PendingRequest]]:
        """Take out everything: (waiting, in flight)."""
        waiting, in_flight = list(self.waiting), list(self.in_flight)
        self.waiting.clear()
        self.in_flight.clear()
        return waiting, in_flight
