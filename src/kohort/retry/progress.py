"""How far a group's members have come, kept beside their results, with an epoch for each owner.

Rules (E3, invariants X1-X8):
- One row a partition: the lowest offset that is not done, and the snapshot of what is done beyond
  it. It moves in the transaction of the results, together with the ledger.
- The process that is assigned a partition takes its row over and raises its epoch. A former owner
  that is still at work finds another epoch, and its whole transaction is rolled back (zombies).
- No scheduled row may name a copy that its retry topic's reader has passed: scheduling checks the
  retry topic's row, and passing a copy that was not owed checks whether it is owed by now.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeVar

from kohort.errors import DataLossError, KohortError
from kohort.retry.ledger import Claim, LedgerRow, Place, Status
from kohort.retry.sql_statements import Params, Statement

T = TypeVar("T")
NOWHERE: Final = -1
PROGRESS_SCHEMA: Final = """CREATE TABLE IF NOT EXISTS kohort_progress (
        pipeline TEXT NOT NULL, topic TEXT NOT NULL, partition INTEGER NOT NULL,
        topic_id TEXT NOT NULL, epoch BIGINT NOT NULL, next_offset BIGINT NOT NULL,
        snapshot TEXT NOT NULL, updated_at BIGINT NOT NULL,
        PRIMARY KEY (pipeline, topic, partition))"""


_ROW: Final = (
    "SELECT topic_id, epoch, next_offset, snapshot FROM kohort_progress "
    "WHERE pipeline = ? AND topic = ? AND partition = ?"
)


class ProgressRow(NamedTuple):
    """A partition's row as it was taken over. `next_offset` -1: nothing has been done yet."""

    topic_id: str
    epoch: int
    next_offset: int
    snapshot: str


class ProgressMove(NamedTuple):
    """How far a partition is with this transaction, in the words of the owner of `epoch`.

    `before` is what its row says until then, offset and snapshot.
    """

    topic: str
    partition: int
    epoch: int
    before: tuple[int, str]
    next_offset: int
    snapshot: str


@dataclass(slots=True)
class Advance:
    """Everything that one batch of an app changes.

    Args:
        inert: the places of copies that are passed unrun, with the retry id of each.
    """

    pipeline: str
    now_ms: int
    moves: Sequence[ProgressMove]
    statements: list[Statement] = field(default_factory=list[Statement])
    claims: list[Claim] = field(default_factory=list[Claim])
    rows: list[LedgerRow] = field(default_factory=list[LedgerRow])
    inert: Mapping[Place, str] = field(default_factory=dict[Place, str])


@dataclass(frozen=True, slots=True)
class Advanced:
    """How an `Advance` has ended; all empty: it is committed.

    Args:
        fenced: partitions that another owner has taken over.
        overtaken: places of copies that their retry topic's reader had passed already.
        revived: places of copies that were taken for inert, and are owed by now.
        claim_lost: an attempt was ended by another copy of its record.
    """

    fenced: Sequence[tuple[str, int]] = ()
    overtaken: Sequence[Place] = ()
    revived: Sequence[Place] = ()
    claim_lost: bool = False

    @property
    def committed(self) -> bool:
        return not (self.fenced or self.overtaken or self.revived or self.claim_lost)


class LostRaceError(KohortError):
    """Another writer was faster: roll back. `how` says at what."""

    def __init__(self, how: Any) -> None:
        self.how = how
        super().__init__(str(how))


class Progress(ABC):
    """The part of a store that keeps the progress of apps."""

    share_lock = ""
    """What a SELECT needs to hold a row as it is until the transaction ends."""

    @abstractmethod
    def _transaction(self) -> AbstractContextManager[Any]: ...

    @abstractmethod
    def _sql(self, sql: str) -> str: ...

    @abstractmethod
    def _again(self, run: Callable[[], T]) -> T: ...

    @abstractmethod
    def _written(
        self, parts: Sequence[Statement], write: Callable[[Sequence[Statement]], T]
    ) -> T: ...

    @abstractmethod
    def _close_claims(self, cursor: Any, change: Advance) -> None: ...

    @abstractmethod
    def query(self, sql: str, params: Params = ()) -> list[tuple[Any, ...]]: ...

    def take_over(
        self, pipeline: str, topic: str, topic_id: str, partition: int, now_ms: int
    ) -> ProgressRow:
        """Become the owner of a partition: its row, with an epoch of its own."""
        return self._again(lambda: self._take_over(pipeline, topic, topic_id, partition, now_ms))

    def _take_over(
        self, pipeline: str, topic: str, topic_id: str, partition: int, now_ms: int
    ) -> ProgressRow:
        with self._transaction() as cursor:
            cursor.execute(
                self._sql(
                    "INSERT INTO kohort_progress VALUES (?, ?, ?, ?, 1, ?, '', ?) "
                    "ON CONFLICT (pipeline, topic, partition) DO UPDATE "
                    "SET epoch = kohort_progress.epoch + 1, updated_at = excluded.updated_at"
                ),
                (pipeline, topic, partition, topic_id, NOWHERE, now_ms),
            )
            cursor.execute(self._sql(_ROW), (pipeline, topic, partition))
            return ProgressRow(*cursor.fetchone())

    def advance(self, change: Advance, done_at: Callable[[int, str, int], bool]) -> Advanced:
        """Do all of `change` or nothing. `done_at(next_offset, snapshot, offset)` reads a row.

        Raises ConstraintError when a statement broke a constraint, StoreBusyError.
        """
        return self._written(change.statements, lambda parts: self._advance(change, parts, done_at))

    def _advance(
        self,
        change: Advance,
        parts: Sequence[Statement],
        done_at: Callable[[int, str, int], bool],
    ) -> Advanced:
        try:
            with self._transaction() as cursor:
                self._move_all(cursor, change)
                self._close_claims(cursor, change)
                self._look_for_overtaken(cursor, change, done_at)
                self._look_for_revived(cursor, change)
                for statement in parts:
                    cursor.executemany(self._sql(statement.sql), statement.rows)
        except LostRaceError as lost:
            return lost.how if isinstance(lost.how, Advanced) else Advanced(claim_lost=True)
        return Advanced()

    def _move_all(self, cursor: Any, change: Advance) -> None:
        fenced: list[tuple[str, int]] = []
        for move in sorted(change.moves):
            cursor.execute(
                self._sql(
                    "UPDATE kohort_progress SET next_offset = ?, snapshot = ?, updated_at = ? "
                    "WHERE pipeline = ? AND topic = ? AND partition = ? AND epoch = ? "
                    "AND next_offset = ? AND snapshot = ?"
                ),
                (
                    move.next_offset,
                    move.snapshot,
                    change.now_ms,
                    change.pipeline,
                    move.topic,
                    move.partition,
                    move.epoch,
                    *move.before,
                ),
            )
            if cursor.rowcount != 1:
                self._check_epoch(cursor, change.pipeline, move)
                fenced.append((move.topic, move.partition))
        if fenced:
            raise LostRaceError(Advanced(fenced=fenced))

    def _check_epoch(self, cursor: Any, pipeline: str, move: ProgressMove) -> None:
        """Raise when the row is still ours and yet not as we left it."""
        cursor.execute(self._sql(_ROW), (pipeline, move.topic, move.partition))
        row = cursor.fetchone()
        if row is not None and row[1] == move.epoch:
            raise KohortError(
                f"the progress of {move.topic}-{move.partition} in the store is not as this "
                f"program left it ({row[2]}, not {move.before[0]}): a transaction whose answer was "
                "lost went through late, or a person changed it. Restart: it continues there"
            )

    def progress(self, pipeline: str, topic: str, partition: int) -> ProgressRow | None:
        """A partition's current row; None before it had an owner."""
        rows = self.query(_ROW, (pipeline, topic, partition))
        return ProgressRow(*rows[0]) if rows else None

    def _look_for_overtaken(
        self, cursor: Any, change: Advance, done_at: Callable[[int, str, int], bool]
    ) -> None:
        rows = [*change.rows, *(c.moved for c in change.claims if c.moved is not None)]
        rows += [c.failed for c in change.claims if c.failed is not None]
        places = {r.place for r in rows if r.status is Status.SCHEDULED and r.place is not None}
        known: dict[tuple[str, int], tuple[int, str] | None] = {}
        overtaken: list[Place] = []
        for place in sorted(places, key=lambda p: (p.topic, p.partition, p.offset)):
            at = (place.topic, place.partition)
            if at not in known:
                cursor.execute(
                    self._sql(
                        "SELECT next_offset, snapshot FROM kohort_progress "
                        f"WHERE pipeline = ? AND topic = ? AND partition = ? {self.share_lock}"
                    ),
                    (change.pipeline, *at),
                )
                known[at] = cursor.fetchone()
            row = known[at]
            if row is not None and done_at(row[0], row[1], place.offset):
                overtaken.append(place)
        if overtaken:
            raise LostRaceError(Advanced(overtaken=overtaken))

    def _look_for_revived(self, cursor: Any, change: Advance) -> None:
        revived: list[Place] = []
        for place, retry_id in change.inert.items():
            cursor.execute(
                self._sql(
                    "SELECT retry_id FROM kohort_ledger WHERE pipeline = ? AND dest = ? "
                    "AND copy_partition = ? AND copy_offset = ? AND status = 'scheduled'"
                ),
                (change.pipeline, place.topic, place.partition, place.offset),
            )
            row = cursor.fetchone()
            if row is None:
                continue
            if row[0] != retry_id:
                raise DataLossError(
                    f"{place.topic}-{place.partition} has lost records: at offset {place.offset} "
                    f"it holds a copy of {retry_id}, and the ledger names that place for {row[0]}, "
                    "which waits for another try. The cluster has lost what it had acknowledged (a "
                    "power cut with durability os, an unclean leader election). To continue "
                    f"without {row[0]}, delete its row with status 'scheduled' from kohort_ledger; "
                    "its value is at its origin"
                )
            revived.append(place)
        if revived:
            raise LostRaceError(Advanced(revived=revived))
