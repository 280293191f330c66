"""A model of reading: whatever the broker, the network and the caller do, nothing is skipped.

Positions, planner and reader are driven together, without clock, socket or thread: orders are
answered late, partly, in any order, with errors or not at all; meanwhile the caller seeks, pauses,
gives up and takes partitions, leaves iterations half-way and changes between records and columns.
"""

from __future__ import annotations

import threading
from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from kohort.client.common.offset_reset import ResetPolicy
from kohort.client.common.types import TopicPartition
from kohort.client.consumer.fetch_reader import FetchReader
from kohort.client.consumer.plan.fetch_planner import (
    AHEAD_SETS,
    Fetched,
    FetchLimits,
    FetchOrder,
    FetchPlanner,
    FetchResult,
)
from kohort.client.consumer.plan.positions import Phase, Positions, Stamp
from kohort.errors import ErrorCode
from kohort.records import BatchBuilder, iter_batches, stamp
from tests.effort import examples
from tests.known import fake, known

PARTITIONS = 3
TPS = [TopicPartition("t", n) for n in range(PARTITIONS)]
LIMITS = FetchLimits(1 << 20, 4096, 1, 500, 12_288, 100, 60_000)
ERRORS = [
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.OFFSET_NOT_AVAILABLE,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.UNKNOWN_SERVER_ERROR,
]


class Log:
    """A partition's batches, some of them with holes after them as compaction leaves them."""

    def __init__(self, shape: list[tuple[int, int]]) -> None:
        self.batches: list[tuple[int, int, bytes]] = []
        self.offsets: list[int] = []
        at = 0
        for count, hole in shape:
            builder = BatchBuilder()
            for n in range(count):
                builder.append(0, None, b"%d" % (at + n))
            data = bytearray(builder.build())
            stamp(data, 0, at, 0)
            self.batches.append((at, at + count, bytes(data)))
            self.offsets.extend(range(at, at + count))
            at += count + hole
        self.end = at

    def read(self, offset: int, batches: int) -> bytes:
        """Whole batches from the one that holds `offset`, or from the next one."""
        found = [data for _, end, data in self.batches if end > offset]
        return b"".join(found[:batches])

    def end_of(self, data: bytes) -> int:
        """Where a set of whole batches ends."""
        return max(end for _, end, batch in self.batches if data.endswith(batch))

    def visible_from(self, offset: int) -> int | None:
        return next((at for at in self.offsets if at >= offset), None)


class InFile:
    """A record set that comes batch by batch when it is read (ADR 0015), or is gone then."""

    def __init__(self, log: Log, data: bytes, gone: bool) -> None:
        self.log, self.data, self.gone = log, data, gone
        self.end_offset = log.end_of(data)

    def __len__(self) -> int:
        return len(self.data)

    def read(self, *, whole: bool = False) -> tuple[bytes, InFile | None] | None:
        if self.gone:
            return None
        (size,) = [h.size for h in iter_batches(self.data)][:1]
        if whole or size == len(self.data):
            return self.data, None
        return self.data[:size], InFile(self.log, self.data[size:], size % 3 == 0)


class Reading(RuleBasedStateMachine):
    """What is handed out, against what must be."""

    orders = Bundle("orders")

    @initialize(
        shape=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 3)), min_size=1, max_size=12)
    )
    def start(self, shape: list[tuple[int, int]]) -> None:
        self.log = Log(shape)
        self.positions = Positions(ResetPolicy.parse("earliest"))
        self.planner = FetchPlanner(self.positions, LIMITS)
        self.lock = threading.Lock()
        self.reader = FetchReader(self.positions, self.lock, check_crcs=True)
        self.now = 0
        self.epoch = 0
        self.expected: dict[TopicPartition, int] = {}
        self.checks: list[tuple[TopicPartition, Stamp]] = []
        self.piece = None

    # -- ownership -------------------------------------------------------------------------------

    @rule(n=st.integers(0, PARTITIONS - 1), offset=st.integers(0, 30))
    def take_over(self, n: int, offset: int) -> None:
        tp = TPS[n]
        if tp in self.positions:
            return
        (position,) = self.positions.add([tp], self.now)
        self.positions.committed_found(tp, position.stamp, offset, 0, self.now)
        self.expected[tp] = offset

    @rule(n=st.integers(0, PARTITIONS - 1))
    def give_up(self, n: int) -> None:
        self.positions.remove([TPS[n]])
        self.expected.pop(TPS[n], None)

    # -- the caller ------------------------------------------------------------------------------

    @rule(n=st.integers(0, PARTITIONS - 1), offset=st.integers(0, 60))
    def seek(self, n: int, offset: int) -> None:
        if TPS[n] in self.positions:
            self.positions.seek(TPS[n], offset, -1, self.now)
            self.expected[TPS[n]] = offset

    @rule(n=st.integers(0, PARTITIONS - 1), paused=st.booleans())
    def pause(self, n: int, paused: bool) -> None:
        if TPS[n] not in self.positions:
            return
        if paused:
            self.positions.pause([TPS[n]])
        else:
            for position in self.positions.resume([TPS[n]]):
                self.reader.queue(position)

    @rule(most=st.integers(1, 12))
    def take(self, most: int) -> None:
        self.reader.acknowledge(0)
        records = self.reader.take(most)
        assert len(records) <= most
        for record in records:
            self.handed_out(TopicPartition(record.topic, record.partition), record.offset)
        self.planner.polled()

    @rule(most=st.integers(1, 12), max_bytes=st.integers(50, 500))
    def take_columns(self, most: int, max_bytes: int) -> None:
        self.reader.acknowledge(0)
        for piece in self.reader.take_columns(most, most, {"offset"}, max_bytes):
            offsets = memoryview(known(piece.offset)).cast("B").cast("q")[: piece.rows]
            for offset in offsets:
                self.handed_out(TopicPartition(piece.topic, piece.partition), offset)
        self.planner.polled()

    @rule(count=st.integers(0, 6), most=st.integers(1, 8), back=st.booleans())
    def iterate(self, count: int, most: int, back: bool) -> None:
        self.reader.acknowledge(0)
        piece = self.reader.take_piece(most)
        if piece is None:
            return
        for record in piece.records[:count]:
            piece.position.offset = record.offset + 1
            self.handed_out(piece.position.tp, record.offset)
        self.reader.end_piece(piece, dealt_with=back or count == 0)
        self.planner.polled()

    def handed_out(self, tp: TopicPartition, offset: int) -> None:
        """C1, C2, C10: owned, not paused, the very next visible one."""
        assert tp in self.positions
        position = self.positions.get(tp)
        assert not position.paused
        assert position.phase is Phase.FETCHING
        assert offset == self.log.visible_from(self.expected[tp]), "skipped, or came twice"
        self.expected[tp] = offset + 1

    # -- the network -----------------------------------------------------------------------------

    @rule(target=orders)
    def ask(self) -> list[FetchOrder]:
        return self.plan()

    def plan(self) -> list[FetchOrder]:
        self.now += 100
        orders = self.planner.plan(lambda tp: tp.partition % 2, self.now)
        for order in orders:
            for part in order.parts:
                position = self.positions.get(part.tp)
                unread = [s for s in (position.buffer, *position.behind) if s is not None]
                ends = [position.offset, *map(self.end_of, unread)]
                assert part.offset == ends[-1], "unread data is asked for again (spec 4.3)"
                assert [s.offset for s in unread[1:]] == ends[1:-1], "there is a gap"
                assert len(unread) < AHEAD_SETS
        return orders

    def end_of(self, unread: Fetched) -> int:
        last = unread.rest or unread.records
        return last.end_offset if isinstance(last, InFile) else self.log.end_of(bytes(fake(last)))

    @rule(
        orders=orders,
        batches=st.integers(0, 5),
        errors=st.lists(st.sampled_from([0, 0, 0, *ERRORS]), min_size=3, max_size=3),
        leave_out=st.integers(0, 5),
        there=st.sampled_from([None, None, False, True]),
    )
    def arrive(
        self,
        orders: list[FetchOrder],
        batches: int,
        errors: list[int],
        leave_out: int,
        there: bool | None,
    ) -> None:
        self.answer(orders, batches, errors, leave_out, there)

    def answer(
        self,
        orders: list[FetchOrder],
        batches: int,
        errors: list[int],
        leave_out: int,
        there: bool | None = None,
    ) -> None:
        """In any order, at any time, perhaps twice; `there`: in files, which may be gone."""

        def records(offset: int) -> bytes | InFile:
            data = self.log.read(offset, batches)
            return data if there is None or not data else InFile(self.log, data, there)

        for order in orders:
            results = [
                FetchResult(part.tp, code, 10**6, 10**6, 0, b"" if code else records(part.offset))
                for number, (part, code) in enumerate(zip(order.parts, errors, strict=False))
                if number != leave_out
            ]
            for position in self.planner.arrived(order.token, results, self.now).ready:
                self.reader.queue(position)

    @rule(
        n=st.integers(0, PARTITIONS - 1),
        what=st.sampled_from(["seek", "own anew", "bound"]),
        offset=st.integers(0, 60),
        batches=st.integers(1, 3),
        most=st.integers(1, 9),
    )
    def race(self, n: int, what: str, offset: int, batches: int, most: int) -> None:
        """The answer comes after the caller has moved on (C7): B38, B51, B52 in one."""
        orders = self.plan()
        if what == "seek":
            self.seek(n, offset)
        elif what == "own anew" and TPS[n] in self.positions:
            self.give_up(n)
            self.take_over(n, offset)
        elif TPS[n] in self.positions:
            self.positions.bound(TPS[n], None)
        self.answer(orders, batches, [0, 0, 0], 5)
        self.take(most)

    @rule(orders=orders)
    def lose(self, orders: list[FetchOrder]) -> None:
        for order in orders:
            self.planner.failed(order.token, self.now)

    @rule(n=st.integers(0, PARTITIONS - 1))
    def new_leader(self, n: int) -> None:
        self.epoch += 1
        self.positions.leader_moved(TPS[n], self.epoch, can_validate=True, now_ms=self.now)
        if TPS[n] in self.positions:
            self.checks.append((TPS[n], self.positions.get(TPS[n]).stamp))

    @rule()
    def validate(self) -> None:
        checks, self.checks = self.checks, []
        for tp, stamp_then in checks:
            self.positions.validated(tp, stamp_then, self.now)
        for position in self.positions:
            if position.phase is Phase.FETCHING:
                self.reader.queue(position)

    def teardown(self) -> None:
        """GL5: reading goes on to the end wherever it stood, past partitions that stay paused."""
        if not hasattr(self, "log"):
            return
        self.read_up()
        for n in range(PARTITIONS):
            self.pause(n, False)
        self.read_up()

    def read_up(self) -> None:
        left: list[TopicPartition] = []
        for _ in range(100):
            self.validate()
            self.plan()
            self.answer(list(self.planner.under_way.values()), 2, [0, 0, 0], 5)
            self.take(12)
            reading = [p.tp for p in self.positions if not p.paused]
            left = [tp for tp in reading if self.log.visible_from(self.expected[tp]) is not None]
            if not left:
                return
        raise AssertionError(f"reading of {left} has stopped")

    # -- always ----------------------------------------------------------------------------------

    @invariant()
    def positions_are_where_reading_stands(self) -> None:
        """C3: last handed out + 1, or past what nobody can see."""
        for tp, expected in getattr(self, "expected", {}).items():
            position = self.positions.get(tp)
            visible = self.log.visible_from(expected)
            assert expected <= position.offset or position.offset == expected
            assert position.offset <= (self.log.end if visible is None else visible) or (
                position.offset == expected
            )
            assert position.acked <= position.offset, "C4"

    @invariant()
    def budget_holds(self) -> None:
        """F4: one batch more than the budget at the most."""
        if hasattr(self, "positions"):
            total = sum(position.buffered_bytes for position in self.positions)
            assert total == self.positions.buffered_bytes
            phases = Counter(position.phase for position in self.positions)
            assert +self.positions.counts == phases
            assert self.planner._reserved >= 0
            assert bool(self.planner.under_way) or self.planner._reserved == 0


Reading.TestCase.settings = settings(
    max_examples=examples(120), stateful_step_count=40, deadline=None
)
TestReading = Reading.TestCase
