"""Incremental fetch sessions (KIP-227): each fetcher's last request, and the last reported state.

Rules:
- A session is made by a full fetch of epoch 0, if there is a slot; an id of 0 says that there was
  none, and the fetcher keeps naming everything. Epoch -1 asks for no session and ends one.
- An incremental fetch must come with the epoch after the last one's; then the partitions it names
  are added or altered, the forgotten ones are removed, and the rest is unchanged.
- An incremental answer names a partition only if it has records, an error or another replica to
  ask, or if its end, stable end or start has changed since the last report. After an error a
  partition is reported again. Partitions that had records go to the end of the row, so that none
  starves.
- When all slots are taken, a session unused for `eviction_ms` gives way to any; one that was made
  that long ago, to a larger one. Slots and the partitions of all sessions together are bounded.
- A session uses either names or ids for topics (Fetch 13 and later), throughout its life.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sized
from typing import TYPE_CHECKING, Any, Final, cast

from kohort.errors import ErrorCode
from kohort.lean import dataclass

if TYPE_CHECKING:
    from kohort.wire.messages.fetch_request import FetchPartition, FetchRequest
    from kohort.wire.messages.fetch_response import PartitionData

NO_SESSION: Final = 0
FIRST_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
PARTITIONS_MAX: Final = 200_000
"""Partitions of all sessions of a node; each takes up to half a kilobyte."""
_INT32_MAX: Final = (1 << 31) - 1
_NOT_REPORTED: Final = -1

Key = tuple[str | bytes, int]


class FetchPart:
    """One partition of a fetch, and its last report in the session. `found` is the handler's."""

    __slots__ = (
        "found",
        "reported_end",
        "reported_stable",
        "reported_start",
        "request",
        "topic",
        "topic_id",
    )

    def __init__(self, topic: str, topic_id: bytes, request: FetchPartition) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.request = request
        self.reported_end = self.reported_stable = self.reported_start = _NOT_REPORTED
        self.found: Any = None

    def has_reported(self, end: int, stable: int, start: int) -> bool:
        """Whether the last answer reported the same."""
        return (
            self.reported_end == end
            and self.reported_stable == stable
            and self.reported_start == start
        )

    def report(self, data: PartitionData) -> bool:
        """Whether an incremental answer has to name the partition; remembers what it says."""
        changed = (
            data.error_code != 0
            or _has_records(data)
            or not self.has_reported(
                data.high_watermark, data.last_stable_offset, data.log_start_offset
            )
            or data.preferred_read_replica >= 0
        )
        self.reported_end = _NOT_REPORTED if data.error_code else data.high_watermark
        self.reported_stable, self.reported_start = data.last_stable_offset, data.log_start_offset
        return changed


@dataclass(slots=True, eq=False)
class FetchSession:
    """One session; `epoch` is what its next request must carry."""

    session_id: int
    by_id: bool
    parts: dict[Key, FetchPart]
    created_ms: int
    used_ms: int
    epoch: int = 1


class Fetching:
    """One fetch: its partitions in the order in which they are served.

    `session` is set for an incremental one; `wants_session` for one that would like to have one.
    """

    __slots__ = ("_epoch", "by_id", "parts", "session", "wants_session")

    def __init__(
        self,
        parts: dict[Key, FetchPart],
        by_id: bool,
        session: FetchSession | None,
        wants_session: bool,
    ) -> None:
        self.parts = parts
        self.by_id = by_id
        self.session = session
        self.wants_session = wants_session
        self._epoch = 0 if session is None else session.epoch

    @property
    def overtaken(self) -> bool:
        """True when a later request of the same session has come meanwhile."""
        return self.session is not None and self.session.epoch != self._epoch

    def select(self, answers: Iterable[tuple[FetchPart, PartitionData]]) -> list[_Answer]:
        """What of the answers is sent."""
        if self.session is None:
            selected = list(answers)
            if self.wants_session:
                for part, data in selected:
                    part.report(data)
            return selected
        selected = [(part, data) for part, data in answers if part.report(data)]
        parts = self.parts
        for part, data in selected:
            if _has_records(data):
                key = _key(part.topic, part.topic_id, part.request.partition, self.by_id)
                if parts.pop(key, None) is not None:
                    parts[key] = part
        return selected


_Answer = tuple[FetchPart, "PartitionData"]


class FetchSessions:
    """The sessions of one node. `new_id` gives random positive numbers below 2^31."""

    def __init__(
        self,
        slots: int,
        eviction_ms: int,
        new_id: Callable[[], int],
        partitions_max: int = PARTITIONS_MAX,
    ) -> None:
        self._slots = slots
        self._eviction_ms = eviction_ms
        self._new_id = new_id
        self._partitions_max = partitions_max
        self._sessions: dict[int, FetchSession] = {}  # the one unused for longest comes first
        self._partitions = 0

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def partitions(self) -> int:
        """Of all sessions."""
        return self._partitions

    def begin(self, request: FetchRequest, by_id: bool, now_ms: int) -> Fetching | ErrorCode:
        """Take a fetch in; an error is the whole answer's."""
        if request.session_epoch in (FIRST_EPOCH, FINAL_EPOCH):
            self._end(request.session_id)
            wants = request.session_epoch == FIRST_EPOCH
            return Fetching(_parts_of(request, by_id), by_id, None, wants)
        session = self._sessions.get(request.session_id)
        if session is None:
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        if session.epoch != request.session_epoch:
            return ErrorCode.INVALID_FETCH_SESSION_EPOCH
        if session.by_id != by_id:
            return ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
        self._update(session, request)
        if not session.parts:
            self._end(session.session_id)
            return Fetching({}, by_id, None, False)
        if self._partitions > self._partitions_max:
            self._end(session.session_id)
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        session.epoch = 1 if session.epoch == _INT32_MAX else session.epoch + 1
        session.used_ms = now_ms
        self._sessions[session.session_id] = self._sessions.pop(session.session_id)
        return Fetching(session.parts, by_id, session, False)

    def keep(self, fetching: Fetching, now_ms: int) -> int:
        """The session id to answer with: that of the fetch, or of a session made for it now."""
        if fetching.session is not None:
            return fetching.session.session_id
        if not fetching.wants_session:
            return NO_SESSION
        size = len(fetching.parts)
        if len(self._sessions) >= self._slots and not self._evict(size, now_ms):
            return NO_SESSION
        if self._partitions + size > self._partitions_max:
            return NO_SESSION
        session_id = self._new_id()
        while session_id in self._sessions or session_id == NO_SESSION:
            session_id = self._new_id()
        session = FetchSession(session_id, fetching.by_id, fetching.parts, now_ms, now_ms)
        self._sessions[session_id] = session
        self._partitions += size
        return session_id

    def _update(self, session: FetchSession, request: FetchRequest) -> None:
        parts, before = session.parts, len(session.parts)
        for key, part in _parts_of(request, session.by_id).items():
            known = parts.get(key)
            if known is None:
                parts[key] = part
            else:
                known.request = part.request
        for topic in request.forgotten_topics_data:
            for index in topic.partitions:
                parts.pop(_key(topic.topic, topic.topic_id, index, session.by_id), None)
        self._partitions += len(parts) - before

    def _end(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._partitions -= len(session.parts)

    def _evict(self, size: int, now_ms: int) -> bool:
        """Make room for a session of this size, if one must give way to it."""
        oldest = next(iter(self._sessions.values()), None)
        if oldest is None:
            return False
        if now_ms - oldest.used_ms > self._eviction_ms:
            self._end(oldest.session_id)
            return True
        aged = [s for s in self._sessions.values() if now_ms - s.created_ms > self._eviction_ms]
        smallest = min(aged, key=lambda s: (len(s.parts), s.session_id), default=None)
        if smallest is None or len(smallest.parts) >= size:
            return False
        self._end(smallest.session_id)
        return True


def _has_records(data: PartitionData) -> bool:
    """Whether it brings records, or says where they are (ADR 0015)."""
    return len(cast("Sized | None", data.records) or b"") > 0 or bool(data.unknown_tags)


def _key(topic: str, topic_id: bytes, index: int, by_id: bool) -> Key:
    return (bytes(topic_id) if by_id else topic), index


def _parts_of(request: FetchRequest, by_id: bool) -> dict[Key, FetchPart]:
    return {
        _key(topic.topic, topic.topic_id, part.partition, by_id): FetchPart(
            topic.topic, bytes(topic.topic_id), part
        )
        for topic in request.topics
        for part in topic.partitions
    }
