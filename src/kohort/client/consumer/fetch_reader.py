"""Handing out what has been fetched: on the caller's thread, without asking the network thread.

Rules:
- Data is decoded here, when it is asked for, and never before: what is buffered stays as compact as
  it came.
- A position moves exactly when its records are handed out, or past invisible records (C3, CL3).
- Data whose partition has been revoked, seeked or stopped since is dropped; a paused partition's
  stays (spec 4.4, C10).
- Partitions are served in the order in which their data came, each to the end of its data.
- The lock protects the positions; decoding runs outside of it. Only the caller's thread, which is
  one at a time, takes data out.
- A damaged record set is fetched once more before its partition stops (F6); others are read on.
- A record set read to its end is given back before its last records are handed out, so that the
  next one is on its way while the caller works (spec 4.2).
- An iteration that was not closed is closed by the collector, on any thread and inside any lock:
  `end_piece` waits for no lock. What it could not do the next call does.

Shell: threads.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Collection
from threading import Lock

from kohort.client.consumer.plan.fetch_planner import Fetched, Records
from kohort.client.consumer.plan.positions import UNKNOWN, Phase, Position, Positions
from kohort.errors import CorruptRecordError
from kohort.lean import dataclass
from kohort.records import Chunk, Columns, Record

ENOUGH_DRAINED_BYTES = 256 * 1024
ENOUGH_COLUMN_BYTES = 256 * 1024  # pieces taken together are copied together


@dataclass(slots=True, eq=False)
class Piece:
    """Records of one partition, taken out one by one by an iteration.

    For each record that it hands out, the iteration sets the position's `offset` behind it.
    """

    position: Position
    fetched: Fetched
    records: list[Record]
    next_offset: int
    next_epoch: int
    """Of the leader that wrote the records before `next_offset`, markers included (KIP-320)."""


class FetchReader:
    """The caller's end of the fetch buffer."""

    def __init__(
        self,
        positions: Positions,
        lock: Lock,
        *,
        check_crcs: bool,
        attend: Callable[[], None] = lambda: None,
    ) -> None:
        """`attend` is called when a partition has stopped or has to be fetched again."""
        self.consumed: dict[str, list[int]] = {}
        """By topic: records returned, and bytes of the sets that were read to the end, as
        received."""
        self.reached_bound = False
        """A position came to its bound without records, so there may be nothing to wait for."""
        self._drained_bytes = self._drained_sets = 0  # since the last report to the network thread
        self._positions = positions
        self._lock = lock
        self._check_crcs = check_crcs
        self._attend = attend
        self._ready: deque[Position] = deque()
        self._touched: list[Position] = []
        self._piece: Piece | None = None

    @property
    def empty(self) -> bool:
        """True when there is nothing to hand out; cheap, and may be wrong for a moment."""
        return not self._ready

    @property
    def wants_more(self) -> bool:
        """True when it is time to ask for more: all has been read, or much and a third of it.

        A third, because each order costs the same Python on both sides however much it brings; and
        then one third is read while another is on its way and one is being ordered.
        """
        if not self._ready:
            return self._drained_bytes > 0
        much = self._drained_bytes >= ENOUGH_DRAINED_BYTES
        return much and 2 * self._drained_sets >= len(self._ready)

    def room_announced(self) -> None:
        """The network thread knows that there is room."""
        self._drained_bytes = self._drained_sets = 0

    def queue(self, position: Position) -> None:
        """This partition has data that may be handed out (again). Under the lock."""
        if position.buffer is not None and not position.queued:
            position.queued = True
            self._ready.append(position)

    # -- from the caller's thread ----------------------------------------------------------------

    def acknowledge(self, now_ms: int) -> None:
        """The caller has processed the records of the last call (C4)."""
        if self._touched:
            with self._lock:
                self._positions.acknowledge(self._touched, now_ms)
            self._touched = []

    def take(self, most: int) -> list[Record]:
        """Up to `most` records that are here already; empty when there are none."""
        out: list[Record] = []
        self._settle()
        while len(out) < most:
            head = self._head()
            if head is None:
                break
            position, fetched = head
            chunk = self._chunk(position, fetched)
            records = _held(fetched, most - len(out))
            try:
                records = records or chunk.next_records(most - len(out))
            except CorruptRecordError as error:
                if out:
                    break
                self._damaged(position, fetched, error)
                continue
            offset = fetched.held[0].offset if fetched.held else chunk.position
            epoch = records[-1].leader_epoch if fetched.held else chunk.leader_epoch
            if not self._moved(position, fetched, offset, epoch):
                continue
            if records:
                position.timestamp_ms = records[-1].timestamp
                self._count(position, len(records))
            else:
                self._check_bound(position)
            if out:
                out.extend(records)
            else:
                out = records
        return out

    def take_columns(
        self, most: int, enough: int, columns: Collection[str], max_bytes: int
    ) -> list[Columns]:
        """Up to `most` rows as columns; stops when there are `enough`, in rows or in bytes."""
        out: list[Columns] = []
        rows = size = 0
        self._settle()
        while rows < enough and size < ENOUGH_COLUMN_BYTES:
            head = self._head(with_copies=not out)
            if head is None:
                break
            position, fetched = head
            if fetched.held:  # records that an iteration left: read the set again from there
                fetched.held, fetched.chunk, fetched.offset = [], None, position.offset
            chunk = self._chunk(position, fetched)
            try:
                piece = chunk.next_columns(most - rows, columns, max_bytes=max_bytes)
            except CorruptRecordError as error:
                if out:
                    break
                self._damaged(position, fetched, error)
                continue
            epoch = chunk.leader_epoch
            if not self._moved(position, fetched, chunk.position, epoch):
                continue
            if piece is None:
                self._check_bound(position)
                continue
            out.append(piece)
            rows += piece.rows
            size += piece.bytes
            self._count(position, piece.rows)
        return out

    # -- for an iteration, which hands out one by one --------------------------------------------

    def take_piece(self, most: int) -> Piece | None:
        """Records of one partition; the iteration moves the position record by record."""
        self._settle()
        while (head := self._head()) is not None:
            position, fetched = head
            chunk = self._chunk(position, fetched)
            records = _held(fetched, most)
            try:
                records = records or chunk.next_records(most)
            except CorruptRecordError as error:
                self._damaged(position, fetched, error)
                continue
            offset = fetched.held[0].offset if fetched.held else chunk.position
            if records:
                same = records[0].leader_epoch == records[-1].leader_epoch
                position.offset_epoch = records[0].leader_epoch if same else UNKNOWN
                self._piece = Piece(position, fetched, records, offset, chunk.leader_epoch)
                return self._piece
            self._moved(position, fetched, offset, chunk.leader_epoch)
        return None

    def end_piece(self, piece: Piece, *, dealt_with: bool) -> None:
        """The iteration is through with this piece, or gives it up.

        `dealt_with`: its caller came back for another record; else the last one counts as open.
        """
        position = piece.position
        if self._piece is not piece or position.buffer is not piece.fetched:
            return
        used = bisect_left(piece.records, position.offset, key=_offset)
        self._count(position, used)
        if dealt_with:
            position.acked, position.acked_epoch = position.offset, position.offset_epoch
        elif used:
            last = piece.records[used - 1].offset
            position.acked, position.acked_epoch = max(position.acked, last), position.offset_epoch
        if self._lock.acquire(blocking=False):
            try:
                self._end_piece()
            finally:
                self._lock.release()

    def leave_piece(self) -> None:
        """End the piece of an iteration that was left and not closed: its last record is open.

        asyncio closes an async generator that a `break` has left only some time later.
        """
        if self._piece is not None:
            self.end_piece(self._piece, dealt_with=False)

    def _settle(self) -> None:
        """End the piece that an iteration has left."""
        if self._piece is not None:
            with self._lock:
                self._end_piece()

    def _end_piece(self) -> None:
        """What an iteration did not hand out stays where it was (C9). Under the lock."""
        piece, self._piece = self._piece, None
        if piece is None:
            return
        position, fetched = piece.position, piece.fetched
        if position.buffer is not fetched:
            return
        used = bisect_left(piece.records, position.offset, key=_offset)
        fetched.held = piece.records[used:] + fetched.held
        if not fetched.held:
            self._advance(position, fetched, piece.next_offset, piece.next_epoch)
        else:
            self.queue(position)

    def _count(self, position: Position, records: int, size: int = 0) -> None:
        """For the metrics."""
        counts = self.consumed.get(position.tp.topic)
        if counts is None:
            counts = self.consumed[position.tp.topic] = [0, 0]
        counts[0] += records
        counts[1] += size

    # -- inside ----------------------------------------------------------------------------------

    def _head(self, *, with_copies: bool = True) -> tuple[Position, Fetched] | None:
        """The partition to read from next, with its records here.

        Without copies: None, if it has much, because it would be copied to go with others.
        """
        while (first := self._first()) is not None:
            position, fetched = first
            if not with_copies and fetched.size >= ENOUGH_COLUMN_BYTES:
                return None
            if fetched.chunk is not None or self._brought(position, fetched):
                return first
        return None

    def _brought(self, position: Position, fetched: Fetched) -> bool:
        """Read what is still in the broker's file (ADR 0015); False: it is to be fetched again."""
        records = fetched.records
        if isinstance(records, Records):
            return True
        # Who begins in the middle cannot tell where an aborted transaction has ended.
        batches = records.read(whole=bool(fetched.aborted))
        if batches is not None:
            fetched.records, fetched.rest = batches
            return True
        with self._lock:
            if position.buffer is fetched:
                self._positions.forget_buffer(position)
                self._drained_bytes += len(records)
                self._drained_sets += 1
        return False

    def _first(self) -> tuple[Position, Fetched] | None:
        """The partition whose turn it is. Drops what is stale, sets aside what must wait."""
        ready = self._ready
        if not ready:
            return None
        with self._lock:
            while ready:
                position = ready[0]
                fetched: Fetched | None = position.buffer
                if fetched is not None and position.phase is Phase.FETCHING and not position.paused:
                    return position, fetched
                ready.popleft()
                position.queued = False
        return None

    def _chunk(self, position: Position, fetched: Fetched) -> Chunk:
        chunk: Chunk | None = fetched.chunk
        if chunk is None:
            records = fetched.records
            assert isinstance(records, Records), "`_head` has brought them"
            chunk = fetched.chunk = Chunk(
                position.tp.topic,
                position.tp.partition,
                records,
                fetched.offset,
                end_offset=position.end,
                aborted=fetched.aborted or None,
                check_crc=self._check_crcs,
            )
        return chunk

    def _moved(self, position: Position, fetched: Fetched, offset: int, epoch: int) -> bool:
        """Advance the position to `offset`; False when its data was dropped meanwhile."""
        with self._lock:
            if position.buffer is not fetched:
                return False
            self._advance(position, fetched, offset, epoch)
            return True

    def _advance(self, position: Position, fetched: Fetched, offset: int, epoch: int) -> None:
        """Under the lock: move the position, and give the buffer back at its end."""
        self._positions.advance(position, offset, epoch)
        self._touched.append(position)
        if fetched.held:
            return
        rest = fetched.rest
        if fetched.chunk is None or fetched.chunk.exhausted:
            if rest is not None and (position.end is None or offset < position.end):
                self._drained_bytes += len(fetched.records)
                self._count(position, 0, len(fetched.records))
                fetched.records, fetched.rest, fetched.chunk = rest, None, None
                fetched.offset = offset
                self._positions.resize_buffer(position, len(rest))
                return
            if position.in_flight is None:  # else the next order goes out when this one comes
                self._drained_bytes += max(1, len(fetched.records))
                self._drained_sets += 1
            self._count(position, 0, len(fetched.records))
            self._positions.release_buffer(position)
            if self._ready and self._ready[0] is position:
                self._ready.popleft()
                position.queued = False
                self.queue(position)  # what was fetched ahead has its turn after the others
        else:
            left = 0 if rest is None else len(rest)
            self._positions.resize_buffer(position, fetched.chunk.bytes + left)

    def _check_bound(self, position: Position) -> None:
        if position.end is not None and position.offset >= position.end:
            self.reached_bound = True

    def _damaged(self, position: Position, fetched: Fetched, error: CorruptRecordError) -> None:
        """Fetch these records once more: they may have been damaged on their way.

        When they come damaged again, the partition stops there; the caller may seek past it (F6).
        """
        with self._lock:
            if position.buffer is not fetched:
                return
            if position.damaged_at == position.offset:
                self._positions.fail(position.tp, position.stamp, error, position.entered_ms)
            else:
                position.damaged_at = position.offset
                self._positions.forget_buffer(position)
            self._drained_bytes += max(1, len(fetched.records))
            self._drained_sets += 1
        self._attend()


def _held(fetched: Fetched, most: int) -> list[Record]:
    """Records that an ended iteration left, which come before the chunk is read on."""
    if not fetched.held:
        return []
    records, fetched.held = fetched.held[:most], fetched.held[most:]
    return records


def _offset(record: Record) -> int:
    return record.offset
