"""The client's side of an incremental fetch session (KIP-227). Pure.

What a Fetch has to say, and what its answer means.

Rules:
- One session a connection: a lane of a node has one order on its way at a time, so requests and
  answers of a session come in pairs, and its epoch is the number of the pair.
- After every request the session at the broker holds exactly the partitions of the order (F1): new
  and changed ones are named, unneeded ones are forgotten, the rest is implied.
- After anything that may have come between the two ends (no answer, an error, a broker that has
  dropped the session, another way of naming topics) a full request names everything and ends the
  old session.
- Fields that the broker leaves out keep their last value. A partition that was lost and assigned
  again gets them once more, because its new position does not know them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from kohort.client.common.types import TopicPartition
from kohort.client.consumer.plan.fetch_planner import FetchPart, FetchResult
from kohort.client.consumer.plan.positions import Stamp
from kohort.errors import ErrorCode
from kohort.wire import ZERO_UUID

NO_SESSION: Final = 0
FIRST_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
SESSIONS_FROM: Final = 7
TOPIC_IDS_FROM: Final = 13
SESSION_ERRORS: Final = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)
_INT32_MAX: Final = (1 << 31) - 1


class Ask(NamedTuple):
    """What a Fetch says beside its limits; `forgotten` is topic, id of the topic, partition."""

    session_id: int
    epoch: int
    parts: Sequence[FetchPart]
    forgotten: Sequence[tuple[str, bytes, int]]


class _Known:
    """A partition of the session: as requested, and as last reported."""

    __slots__ = ("part", "reported", "stamp", "topic_id")

    def __init__(self, part: FetchPart, topic_id: bytes) -> None:
        self.part = part
        self.topic_id = topic_id
        self.stamp: Stamp | None = None
        self.reported: FetchResult | None = None
        """Without records; None: nothing that would still hold."""


class FetchSession:
    """The session of one connection."""

    __slots__ = ("_by_id", "_epoch", "_known", "_retold", "_session_id")

    def __init__(self) -> None:
        self._session_id = NO_SESSION
        self._epoch = FIRST_EPOCH
        self._by_id: bool = False
        self._known: dict[TopicPartition, _Known] = {}
        self._retold: list[_Known] = []
        """Partitions of the request whose position does not know the last reported values."""

    @property
    def partitions(self) -> set[TopicPartition]:
        """What the broker's session holds, as far as this end knows."""
        return set(self._known)

    def ask(
        self, parts: Sequence[FetchPart], topic_id: Callable[[str], bytes], version: int
    ) -> Ask:
        """What the next request says, to fetch exactly these."""
        if version < SESSIONS_FROM:
            self._session_id, self._epoch = NO_SESSION, FIRST_EPOCH
            return Ask(NO_SESSION, FINAL_EPOCH, parts, ())
        by_id = version >= TOPIC_IDS_FROM
        self._retold = []
        if not by_id:
            topic_id = _no_id
        if self._epoch == FIRST_EPOCH or by_id != self._by_id:
            self._epoch, self._by_id = FIRST_EPOCH, by_id
            self._known = {p.tp: _Known(p, topic_id(p.tp.topic)) for p in parts}
            return Ask(self._session_id, FIRST_EPOCH, parts, ())
        before = self._known
        named: list[FetchPart] = []
        now: dict[TopicPartition, _Known] = {}
        forgotten: list[tuple[str, bytes, int]] = []
        for part in parts:
            tp = part.tp
            known, wanted_id = before.pop(tp, None), topic_id(tp.topic)
            if known is not None and known.topic_id != wanted_id:
                forgotten.append((tp.topic, known.topic_id, tp.partition))
                known = None
            if known is None:
                known = _Known(part, wanted_id)
                named.append(part)
            elif _altered(known.part, part):
                named.append(part)
            if known.reported is not None and known.stamp != part.stamp:
                self._retold.append(known)
            known.part = part
            now[tp] = known
        forgotten += [(tp.topic, k.topic_id, tp.partition) for tp, k in before.items()]
        self._known = now
        return Ask(self._session_id, self._epoch, named, forgotten)

    def answered(
        self, error: int, session_id: int, results: Iterable[FetchResult]
    ) -> list[FetchResult] | None:
        """What the answer means for the partitions; None: ask again, with a new session."""
        if error:
            again = error in SESSION_ERRORS and self._epoch != FIRST_EPOCH
            self.lost()
            if error == ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
                self._session_id = NO_SESSION
            return None if again else []
        all_results = list(results)
        if session_id == NO_SESSION:
            self._session_id, self._epoch = NO_SESSION, FIRST_EPOCH
            return all_results
        incremental = self._epoch != FIRST_EPOCH
        self._session_id = session_id
        self._epoch = 1 if self._epoch == _INT32_MAX else self._epoch + 1
        self._remember(all_results)
        if incremental:
            all_results += self._unreported()
        return all_results

    def end(self) -> int:
        """The session that the broker has and need not keep; `NO_SESSION` if there is none."""
        session_id, self._session_id = self._session_id, NO_SESSION
        self.lost()
        return session_id

    def lost(self) -> None:
        """The request or its answer may have been lost: start over, and end the old session."""
        self._epoch = FIRST_EPOCH

    def _remember(self, results: Iterable[FetchResult]) -> None:
        for result in results:
            known = self._known.get(result.tp)
            if known is None:  # not requested: client and broker disagree
                self.lost()
                continue
            known.stamp = known.part.stamp
            known.reported = None if result.error else FetchResult(*result[:5], b"")

    def _unreported(self) -> list[FetchResult]:
        """For who took a partition meanwhile: what its end and start were, and still are."""
        unreported: list[FetchResult] = []
        for known in self._retold:
            if known.stamp != known.part.stamp and known.reported is not None:
                known.stamp = known.part.stamp
                unreported.append(known.reported)
        return unreported


def _altered(requested: FetchPart, part: FetchPart) -> bool:
    return (
        requested.offset != part.offset
        or requested.leader_epoch != part.leader_epoch
        or requested.max_bytes != part.max_bytes
    )


def _no_id(_: str) -> bytes:
    return ZERO_UUID
