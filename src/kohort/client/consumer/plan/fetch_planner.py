"""What to fetch next, from which node, and what to make of the answer.

Rules:
- One order a node holds its fetchable partitions: all of which no records are known, and of those
  with records as many as may find room in the answer, the ones served longest ago first. A
  partition for which an order is under way is not asked for again (spec 4.3), and what is asked
  begins where its unread data ends, so answers can neither interleave nor be read twice.
- Each order costs both sides the same, so none goes out for little while the reader is busy: not
  before there is room for a large answer (a quarter of the budget).
- A partition with unread data is asked for ahead (ADR 0016) only where its log continues, and while
  unread data and orders together are few (`AHEAD_SETS` of one partition): with many partitions the
  next order goes out while the last one is read, over others; with one or two it would have to
  wait for the reader.
- Prefetch errors are ignored; the partition is fetched again once its buffer is drained.
- A node has `LANES` connections for orders. While some partition of the node has unread data an
  order waits at the broker for `QUICK_WAIT_MS` only, and one for nothing but partitions that have
  been read up leaves a connection free, so that a partition whose data has just been read never
  waits behind idle ones. Where both wait for such partitions, `SPARE` takes an order for others:
  a seek or a new assignment need not wait until a long poll is over. A partition keeps to its lane
  where that is free, and asks for the same size always, so that the lane's session need not be
  told (KIP-227).
- What is buffered (paused partitions too) and what orders may bring never exceeds the budget,
  except by the one batch that a broker always returns (KIP-74), and by one small order when paused
  partitions hold all of it, so that they cannot stop the others (F4, GL5).
- An answer for a partition counts only if the partition still has the stamp, the offset and the
  order it was asked with (C7, spec 4.4).
- `end`: a partition with a bound is not asked at or beyond it (retry topics, range reads).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from kohort.client.common.types import TopicPartition
from kohort.client.consumer.plan.positions import UNKNOWN, Phase, Position, Positions, Stamp
from kohort.errors import BrokerError, CorruptRecordError, ErrorCode
from kohort.lean import dataclass, field
from kohort.records import end_of_set

Records = bytes | bytearray | memoryview


class Elsewhere(Protocol):
    """A record set that is not here yet (`local_reads`). It counts as if it were."""

    end_offset: int
    """Where reading continues after it; -1: unknown."""

    def __len__(self) -> int: ...

    def read(self, *, whole: bool = False) -> tuple[Records, Elsewhere | None] | None:
        """Whole batches from the beginning (`whole`: all), and what is behind them.

        None: they have to be fetched again, the ordinary way.
        """
        ...


RecordSet = Records | Elsewhere

LANES = 2
SPARE = LANES
QUICK_WAIT_MS = 20
MIN_ORDER_BYTES = 16 * 1024
AHEAD_SETS = 3
LOCAL_TIMES = 4
"""What stays in the broker's files until it is decoded (ADR 0015) may be so much more: it leaves no
cache, and an answer costs the same Python on both sides however much it tells of."""


class FetchLimits(NamedTuple):
    """From the consumer's configuration; sizes in bytes, times in milliseconds."""

    fetch_max_bytes: int
    partition_max_bytes: int
    min_bytes: int
    max_wait_ms: int
    buffer_bytes: int
    backoff_ms: int
    replica_ms: int
    committed_only: bool = False
    order_least_bytes: int = 0
    """Few partitions may bring more than `partition_max_bytes` each, as long as that is less."""

    def part_bytes(self, partitions: int, *, local: bool = False) -> int:
        """The most of each partition in one answer, where so many are read."""
        least = self.order_least_bytes * (LOCAL_TIMES if local else 1)
        return max(self.partition_max_bytes, least // max(1, partitions))

    def order_bytes(self, *, local: bool = False) -> int:
        """The most of one order: others are to be on their way while it is read."""
        most = max(self.buffer_bytes // 4, self.part_bytes(1, local=local))
        return min(self.fetch_max_bytes, most)


class FetchPart(NamedTuple):
    """One partition in an order, with all that tells whether the answer is still wanted."""

    tp: TopicPartition
    stamp: Stamp
    offset: int
    leader_epoch: int
    max_bytes: int


class FetchOrder(NamedTuple):
    """One Fetch request to be sent. `lane` names the connection of the node it goes over."""

    token: int
    node: int
    lane: int
    parts: tuple[FetchPart, ...]
    max_bytes: int
    max_wait_ms: int
    idle: bool = False
    """All of it had been read up, so that it is probably waiting."""
    backlog: int = 0
    """How many of them are known to have records."""


class FetchResult(NamedTuple):
    """One partition of a Fetch answer. `records` is the record set as it came."""

    tp: TopicPartition
    error: int
    high_watermark: int
    last_stable: int
    log_start: int
    records: RecordSet
    preferred_replica: int = -1
    aborted: tuple[tuple[int, int], ...] = ()


@dataclass(slots=True)
class Fetched:
    """A partition's unread record set; `offset` is where reading it begins.

    `chunk` (a cursor over it), `held` (records that an iteration did not hand out) and `rest` (what
    is behind `records` and not here yet) belong to the reader.
    """

    records: RecordSet
    offset: int
    stamp: Stamp
    aborted: tuple[tuple[int, int], ...] = ()
    chunk: Any = None
    held: list[Any] = field(default_factory=list[Any])
    rest: Elsewhere | None = None
    size: int = 0


class Arrival(NamedTuple):
    """What an answer brought: partitions with data to read, and whether metadata is out of date."""

    ready: list[Position]
    stale_metadata: bool
    errors: list[tuple[TopicPartition, int]]


@dataclass
class FetchPlanner:
    """Decides orders and settles their answers; no clock, no socket."""

    positions: Positions
    limits: FetchLimits
    under_way: dict[int, FetchOrder] = field(default_factory=dict[int, FetchOrder])
    parked: bool = False
    needs_metadata: bool = False
    _next_token: int = 0
    _reserved: int = 0
    _local: set[int] = field(default_factory=set[int])
    """Nodes whose last answer with records has left some of them in its files."""
    _fits: dict[int, int] = field(default_factory=dict[int, int])
    """By node: of how many partitions with records to ask; none: of all."""

    # -- asking --------------------------------------------------------------------------------

    def plan(
        self, leader_of: Callable[[TopicPartition], int | None], now_ms: int
    ) -> list[FetchOrder]:
        """Every order that may go out now."""
        if self.parked or not self._worth_while():
            return []
        by_node, unread = self._fetchable(leader_of, now_ms)
        if not by_node:
            return []
        orders: list[FetchOrder] = []
        for node, positions in by_node.items():
            idle = all(map(self._read_up, positions))
            lane = self._lane(node, positions, hurry=node in unread, idle=idle)
            if lane is not None:
                hurry = node in unread or lane == SPARE
                order = self._order(node, lane, positions, hurry=hurry, idle=idle)
                if order is not None:
                    orders.append(order)
        return orders

    def _worth_while(self) -> bool:
        """Whether there is room for a large order; a reader that is busy need not get small ones.

        It comes back when it has read more, or all; paused partitions are not waited for.
        """
        limits = self.limits
        room = limits.buffer_bytes - self.positions.buffered_bytes - self._reserved
        if room >= min(limits.order_bytes(), limits.buffer_bytes // 4):
            return True
        if not all(order.idle for order in self.under_way.values()):
            return False
        return not any(p.buffer and not p.paused for p in self.positions)

    def _lane(
        self, node: int, positions: Sequence[Position], *, hurry: bool, idle: bool
    ) -> int | None:
        """The connection for an order, if one is free for such a one."""
        busy = {order.lane: order.idle for order in self.under_way.values() if order.node == node}
        free = [lane for lane in range(LANES) if lane not in busy]
        if not free:
            spare = not idle and SPARE not in busy and all(busy.values())
            return SPARE if spare else None
        if len(free) == 1:
            return None if hurry and idle else free[0]
        return _usual_lane(free, positions)

    def _fetchable(
        self, leader_of: Callable[[TopicPartition], int | None], now_ms: int
    ) -> tuple[dict[int, list[Position]], set[int]]:
        """Partitions to ask for by node, and the nodes some of whose partitions are unread."""
        by_node: dict[int, list[Position]] = {}
        unread: set[int] = set()
        local = bool(self._local)
        part_bytes = self.limits.part_bytes(len(self.positions), local=local)
        ahead = AHEAD_SETS * self.limits.part_bytes(1, local=local)
        ahead -= self.positions.buffered_bytes + self._reserved
        for position in self.positions:
            if position.phase is not Phase.FETCHING or position.paused:
                continue
            if position.in_flight is not None:
                continue
            node = self._node_of(position, leader_of, now_ms)
            if position.buffer is not None:
                if node is not None:
                    unread.add(node)
                if ahead < part_bytes or not self._goes_on(position):
                    continue
                ahead -= part_bytes
            if position.end is not None and position.fetch_offset >= position.end:
                continue
            if node is None:
                self.needs_metadata = True
            elif position.retry_at_ms <= now_ms:
                by_node.setdefault(node, []).append(position)
        return by_node, unread

    def _goes_on(self, position: Position) -> bool:
        """Whether the log continues after the unread data, of which there is not much."""
        if len(position.behind) > AHEAD_SETS - 2:
            return False
        return position.buffered_end > UNKNOWN and not self._read_up(position)

    def _read_up(self, position: Position) -> bool:
        """Whether all that was there at the last answer has been fetched."""
        end = position.high_watermark
        if self.limits.committed_only and position.last_stable >= 0:
            end = position.last_stable
        return UNKNOWN < end <= position.fetch_offset

    def _node_of(
        self, position: Position, leader_of: Callable[[TopicPartition], int | None], now_ms: int
    ) -> int | None:
        if position.replica is not None and now_ms < position.replica_until_ms:
            return position.replica
        position.replica = None
        return leader_of(position.tp)

    def _order(
        self, node: int, lane: int, positions: list[Position], *, hurry: bool, idle: bool
    ) -> FetchOrder | None:
        limits = self.limits
        room = limits.buffer_bytes - self.positions.buffered_bytes - self._reserved
        local = node in self._local
        part_bytes = limits.part_bytes(len(self.positions), local=local)
        most = min(limits.order_bytes(local=local), part_bytes * len(positions), room)
        least = min(MIN_ORDER_BYTES, part_bytes)
        if most < least:
            if not self._starved():
                return None
            most = least
        if idle:  # it will hardly bring much, and must not hold the room for others
            most = min(most, limits.part_bytes(1))
        positions.sort(key=lambda position: position.last_fetch_ms)
        positions, backlog = self._chosen(node, positions)
        self._next_token += 1
        token = self._next_token
        parts: list[FetchPart] = []
        for position in positions:
            position.in_flight, position.lane = token, lane
            parts.append(
                FetchPart(
                    position.tp,
                    position.stamp,
                    position.fetch_offset,
                    position.leader_epoch,
                    part_bytes,
                )
            )
        wait = min(QUICK_WAIT_MS, limits.max_wait_ms) if hurry else limits.max_wait_ms
        order = FetchOrder(token, node, lane, tuple(parts), most, wait, idle, backlog)
        self.under_way[token] = order
        self._reserved += most
        return order

    def _chosen(self, node: int, positions: list[Position]) -> tuple[list[Position], int]:
        """Those to ask for: of the ones known to have records only twice what an answer holds.

        The others would cost both sides as much and get nothing; they are the next ones' first.
        """
        chosen: list[Position] = []
        backlog, most = 0, self._fits.get(node, len(positions))
        for position in positions:
            if position.high_watermark > UNKNOWN and not self._read_up(position):
                if backlog == most:
                    continue
                backlog += 1
            chosen.append(position)
        return chosen, backlog

    def _starved(self) -> bool:
        """True when nothing is under way and only paused partitions have something to read."""
        return not self.under_way and all(p.buffer is None or p.paused for p in self.positions)

    # -- answers -------------------------------------------------------------------------------

    def arrived(self, token: int, results: Sequence[FetchResult], now_ms: int) -> Arrival:
        """Settle an order with its answer. Partitions that are not named had nothing new."""
        order = self._close(token)
        if order is None:
            return Arrival([], False, [])
        requested = {part.tp: part for part in order.parts}
        arrival = Arrival([], False, [])
        stale = False
        for result in results:
            part = requested.get(result.tp)
            position = self._still_wanted(part, order) if part is not None else None
            if position is None or part is None:
                continue
            position.in_flight = None
            if result.error:
                stale |= self._refused(position, part, result, order, now_ms)
                arrival.errors.append((result.tp, result.error))
            else:
                self._accepted(position, part, result, arrival.ready, now_ms)
        self._settle(order)
        self._learn(order, results)
        if not arrival.ready and order.max_wait_ms < self.limits.max_wait_ms:
            self.parked = any(p.buffer is not None and not p.paused for p in self.positions)
        return arrival._replace(stale_metadata=stale)

    def _learn(self, order: FetchOrder, results: Sequence[FetchResult]) -> None:
        """Whether this node's records can be read from its files, and how many an answer holds."""
        brought = [result.records for result in results if len(result.records)]
        if not brought:
            return
        node, fits = order.node, self._fits.get(order.node)
        if all(isinstance(records, Records) for records in brought):
            self._local.discard(node)
        else:
            self._local.add(node)
        if len(brought) < order.backlog:
            self._fits[node] = 2 * len(brought)
        elif fits is not None and order.backlog == fits:
            self._fits[node] = 2 * fits

    def failed(self, token: int, now_ms: int) -> None:
        """No answer (connection lost, timed out): ask again after a back-off."""
        order = self._close(token)
        if order is None:
            return
        for part in order.parts:
            position = self.positions.partitions.get(part.tp)
            # also where unread data was dropped meanwhile, and it would ask for less now
            if position is not None and position.in_flight == token:
                position.in_flight = None
                position.replica = None
                position.retry_at_ms = now_ms + self.limits.backoff_ms

    def polled(self) -> bool:
        """The reader is back; True if orders were held until then."""
        held, self.parked = self.parked, False
        return held

    def next_deadline(self, now_ms: int) -> int | None:
        """When the next back-off ends, or None. One that has ended waits for something else."""
        times = [
            p.retry_at_ms
            for p in self.positions
            if p.retry_at_ms > now_ms and p.phase is Phase.FETCHING and p.in_flight is None
        ]
        return min(times, default=None)

    # -- inside --------------------------------------------------------------------------------

    def _close(self, token: int) -> FetchOrder | None:
        order = self.under_way.pop(token, None)
        if order is not None:
            self._reserved -= order.max_bytes
        return order

    def _settle(self, order: FetchOrder) -> None:
        for part in order.parts:
            position = self.positions.partitions.get(part.tp)
            if position is not None and position.in_flight == order.token:
                position.in_flight = None
                self.positions.refusals.served(part.tp)

    def _still_wanted(self, part: FetchPart, order: FetchOrder) -> Position | None:
        position = self.positions.current(part.tp, part.stamp)
        if position is None or position.in_flight != order.token:
            return None
        return position if position.fetch_offset == part.offset else None

    def _accepted(
        self,
        position: Position,
        part: FetchPart,
        result: FetchResult,
        ready: list[Position],
        now_ms: int,
    ) -> None:
        ends = (result.high_watermark, result.last_stable)
        self.positions.ends_at(position, *ends, now_ms)
        position.log_start = max(position.log_start, result.log_start)
        position.retry_at_ms, position.last_fetch_ms = 0, now_ms
        self.positions.refusals.served(part.tp)
        self.positions.denials.served(position)
        if result.preferred_replica >= 0:
            position.replica = result.preferred_replica
            position.replica_until_ms = now_ms + self.limits.replica_ms
        size = len(result.records)
        if size:
            fetched = Fetched(result.records, part.offset, part.stamp, result.aborted)
            records = result.records
            here = isinstance(records, Records)
            end = end_of_set(records) if here else records.end_offset
            self.positions.store_buffer(position, fetched, size, end)
            ready.append(position)

    def _refused(
        self,
        position: Position,
        part: FetchPart,
        result: FetchResult,
        order: FetchOrder,
        now_ms: int,
    ) -> bool:
        """Decide about an error; True when it says that metadata is out of date."""
        error = result.error
        position.retry_at_ms = now_ms + self.limits.backoff_ms
        if position.buffer is not None and (
            error in FATAL_CODES or error in ONLY_AT_THE_POSITION_CODES
        ):
            position.buffered_end = UNKNOWN  # asked for again when all before it has been read
            return False
        if error == ErrorCode.OFFSET_OUT_OF_RANGE:
            if position.replica is not None and position.replica == order.node:
                position.replica = None
                return False
            log_start = result.log_start
            self.positions.out_of_range(part.tp, part.stamp, part.offset, log_start, now_ms)
            return False
        if error == ErrorCode.CORRUPT_MESSAGE and position.damaged_at != part.offset:
            position.damaged_at, position.replica = part.offset, None
            return False
        if error == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            self.positions.denials.note(position, _fatal(part, error), now_ms)
            return False
        if error in FATAL_CODES:
            self.positions.fail(part.tp, part.stamp, _fatal(part, error), now_ms)
            return False
        self.positions.refused(position, error, now_ms)
        if error in REPLICA_CODES:
            position.replica = None
        return error not in WAIT_CODES


def _usual_lane(free: Sequence[int], positions: Sequence[Position]) -> int:
    """The free lane that most of these went over last: its session knows them (KIP-227)."""
    usual = Counter(position.lane for position in positions)
    return max(free, key=lambda lane: (usual[lane], -lane))


# Wait and ask the same node again.
WAIT_CODES = frozenset({ErrorCode.OFFSET_NOT_AVAILABLE, ErrorCode.UNKNOWN_SERVER_ERROR})
# The follower that was preferred cannot serve; go back to the leader.
REPLICA_CODES = frozenset(
    {
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.OFFSET_NOT_AVAILABLE,
    }
)
# Decided when all records before the offset have been handed out.
ONLY_AT_THE_POSITION_CODES = frozenset(
    {ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.TOPIC_AUTHORIZATION_FAILED}
)
# Waiting cannot repair this; the partition stops and the caller gets the error.
FATAL_CODES = frozenset(
    {
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.UNSUPPORTED_VERSION,
        ErrorCode.INVALID_REQUEST,
    }
)


def _fatal(part: FetchPart, error: int) -> BrokerError | CorruptRecordError:
    name = f"{part.tp.topic}-{part.tp.partition}"
    if error == ErrorCode.CORRUPT_MESSAGE:
        return CorruptRecordError(
            f"the broker reports a damaged record in {name} at offset {part.offset}; "
            f"seek() past it to continue",
            topic=part.tp.topic,
            partition=part.tp.partition,
            offset=part.offset,
        )
    return BrokerError(error, f"fetching {name} from offset {part.offset}")
