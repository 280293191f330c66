"""Records on their way out, gathered into batches by partition. Pure; the producer locks around it.

Rules:
- A partition has one open batch at most; when a record does not fit, the batch is closed and queues
  behind the earlier ones. Order within a partition is the order of `append`.
- An open batch is closed by `linger_ms`, by a flush, or when memory is short. Only a flush closes
  it while it could not leave yet, behind another batch of its partition or because its leader has
  the most requests in flight: until then it takes records (as Java's, which close when they leave),
  so that a slow broker gets few large batches instead of many small ones.
- A full batch that would only wait in line, because others have not been sent yet, keeps growing
  instead: large batches cost client and broker a fraction of many small ones (ADR 0013). While they
  wait, a partition's next batch begins with the size that its last one made use of.
- What a codec packs well may grow past `max_request_size`, because brokers count what is packed.
  How well it packs is known by topic from the batches before (`Packing`). One that turns out too
  large for a request all the same is split before it leaves (`Sender.hold_back`).
- A batch may be leased to one caller, who fills its builder without the producer's lock. It may be
  closed meanwhile, and then keeps its place in line; it is not sent, and its builder is nobody
  else's, before it was given back.
- Memory is counted by batch: `batch_size` when it is opened (more for a larger record, and when it
  grows), given back when its outcome is known. When `buffer_memory` would be passed, records are
  refused until half of it is free: filling and sending in turns is much faster than a crawl at the
  brim, where two threads hand the interpreter's lock to each other for every batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from kohort.client.common.config import ProducerConfig
from kohort.client.producer.plan.delivery import Delivery
from kohort.client.producer.plan.fast_send_choice import Slot
from kohort.errors import KohortError, RecordTooLargeError
from kohort.records import BatchBuilder, Compression

_BUILDERS_KEPT_MAX: Final = 64
_GROWN_MAX: Final = 64
"""How many times `batch_size` a batch may become while it waits."""
_GROWTH: Final = 4
_PACKED_TIMES: Final = 2
"""So many times as large as without a codec where records pack well."""
_PACKED_PART: Final = 0.9
"""That is when such a batch would be packed into so much of what one may have on its way."""
_GIVE_WAY_S: Final = 0.00002
"""Long enough for another thread to take the interpreter's lock."""
_GIVE_WAY_BYTE_S: Final = 0.0004 / (1 << 20)
NO_SEQUENCE: Final = -1

Add = Callable[[BatchBuilder], int]
"""Appends records to a builder; how many fitted, at least one into an empty builder."""


class Batch:
    """Records of one partition that travel together."""

    __slots__ = (
        "attempts",
        "builder",
        "count",
        "created_ms",
        "deadline_ms",
        "delivery",
        "error",
        "in_doubt",
        "leased",
        "ordinal",
        "payload",
        "queue",
        "reserved_bytes",
        "retry_at_ms",
        "sequence",
        "stamp",
    )

    def __init__(
        self, queue: PartitionQueue, builder: BatchBuilder, now_ms: int, deadline_ms: int
    ) -> None:
        self.queue = queue
        self.builder: BatchBuilder | None = builder
        self.delivery = Delivery(queue.topic, queue.partition)
        self.created_ms = now_ms
        self.deadline_ms = deadline_ms
        self.reserved_bytes = 0
        self.count = 0
        """Records in it; set when it is closed."""
        self.leased = False
        """True while its builder is being filled without the lock."""
        self.payload: bytes | bytearray | memoryview = b""
        """The batch as it goes over the wire; made when it is first sent."""
        self.attempts = 0
        self.error: KohortError | None = None
        """Why its last try came to nothing."""
        self.in_doubt = False
        """Whether an earlier try may have stored it: its answer was lost."""
        self.retry_at_ms = 0
        self.ordinal = 0
        """Its place among the batches of its partition."""
        self.sequence = NO_SEQUENCE
        self.stamp: tuple[int, int, int] | None = None
        """Producer id, epoch and sequence that the payload carries."""


class Packing:
    """How well a topic's records pack: the packed part of its batches, 1 until one was seen.

    It is worse at once when a batch is, and better by a sixteenth of the way with each that is.
    """

    __slots__ = ("_seen", "part")

    def __init__(self) -> None:
        self.part = 1.0
        self._seen = False

    def saw(self, before: int, after: int) -> None:
        """A batch of `before` bytes was packed into `after`."""
        part = min(1.0, after / before)
        self.part = max(part, self.part + (part - self.part) / 16) if self._seen else part
        self._seen = True


class PartitionQueue(Slot):
    """The batches of one partition, in order: in flight, closed, open."""

    __slots__ = (
        "bump",
        "closed",
        "identity",
        "in_flight",
        "next_sequence",
        "open",
        "ordinals",
        "packing",
        "partition",
        "recreated",
        "stored_id",
        "topic",
        "usual_bytes",
    )

    def __init__(self, topic: str, partition: int, packing: Packing) -> None:
        super().__init__()
        self.packing = packing
        """Its topic's."""
        self.topic = topic
        self.partition = partition
        self.open: Batch | None = None
        self.closed: deque[Batch] = deque()
        self.in_flight: list[Batch] = []
        self.next_sequence = 0
        """The sequence of the next batch that has none."""
        self.identity: tuple[int, int] | None = None
        """Producer id and epoch that its batches carry."""
        self.bump = False
        """True when the broker does not expect `next_sequence`: the next epoch starts over."""
        self.recreated = False
        """True when its topic was created again since what is in flight was sent."""
        self.stored_id = -1
        """The producer id of the last batch that the log is known to have stored; -1: of none."""
        self.ordinals = 0
        self.usual_bytes = 0
        """The size that its last batch grew to and made use of."""

    @property
    def busy(self) -> bool:
        """True while anything of this partition is not done."""
        return self.open is not None or bool(self.closed) or bool(self.in_flight)


class Accumulator:
    """All partitions' batches."""

    def __init__(self, config: ProducerConfig) -> None:
        self._batch_bytes = min(config.batch_size, config.max_request_size)
        # What no codec can make smaller it makes a little larger; brokers have the same limit.
        room = config.max_request_size - config.max_request_size // 64
        self._grown_bytes_max = min(_GROWN_MAX * config.batch_size, room)
        self.batch_bytes_max = config.max_request_size
        """The most that a batch has on its way, and that one of a single record has at all."""
        self._memory_max = config.buffer_memory
        self._linger_ms = config.linger_ms
        self._delivery_ms = config.delivery_timeout_ms
        self._compression = Compression.parse(config.compression_type)
        self.compresses = self._compression is not Compression.NONE
        self._level = config.compression_level
        self._builders: list[BatchBuilder] = []
        self._lingering: deque[Batch] = deque()
        self._held: deque[Batch] = deque()
        """Open batches that have lingered long enough and could only queue."""
        self._packings: dict[str, Packing] = {}
        self.queues: dict[tuple[str, int], PartitionQueue] = {}
        self.memory_bytes = 0
        """Reserved by batches that are not done."""
        self.opened_bytes = 0
        """What the batch that was opened last began with."""
        self.full = False
        """True from a refusal until half of the memory is free."""
        self.ready: dict[PartitionQueue, None] = {}
        """The queues with closed batches, the longest waiting first."""

    @property
    def give_way_s(self) -> float:
        """How long the thread that has started a batch should sleep.

        Who is far ahead of the network thread writes to memory that no cache holds, and both are
        slower. So from a quarter of the memory on it goes the slower, the further it is ahead.
        """
        quarters = self.memory_bytes * 4 / self._memory_max
        if quarters <= 1:
            return 0.0
        return max(_GIVE_WAY_S, self.opened_bytes * _GIVE_WAY_BYTE_S * quarters)

    def queue(self, topic: str, partition: int) -> PartitionQueue:
        """The queue of a partition, made if need be."""
        queue = self.queues.get((topic, partition))
        if queue is None:
            packing = self._packings.setdefault(topic, Packing())
            queue = self.queues[topic, partition] = PartitionQueue(topic, partition, packing)
        return queue

    def add(self, queue: PartitionQueue, add: Add, now_ms: int) -> tuple[Batch, int] | None:
        """Let `add` put records into the open batch, or into a new one when none fits.

        Returns the batch and how many were added; None when there is no memory for a new batch.
        Raises RecordTooLargeError for a record that no request could carry.
        """
        appended = self.add_to_open(queue, add)
        if appended is not None:
            return appended
        batch = self.open_batch(queue, now_ms)
        if batch is None:
            return None
        assert batch.builder is not None
        try:
            added = add(batch.builder)
            if self.too_large(batch.builder):
                self.check_size(batch.builder.size, queue)
        except BaseException:  # any error in the record: an empty batch must not go out
            self._discard(batch)
            raise
        self._account(batch)
        return batch, added

    def add_to_open(self, queue: PartitionQueue, add: Add) -> tuple[Batch, int] | None:
        """The same with the open batch alone: None when nothing fits, and then it is closed."""
        batch = queue.open
        if batch is None:
            return None
        if not batch.leased:
            assert batch.builder is not None
            added = add(batch.builder)
            if not added and self._grow(batch):
                added = add(batch.builder)
            if added:
                return batch, added
        self.close_batch(batch)
        return None

    def lease(self, queue: PartitionQueue, now_ms: int) -> Batch | None:
        """The open batch, or a new one, for one caller to fill alone; None when memory is short.

        The caller adds to its builder without the lock, and calls `give_back` with it.
        """
        batch = queue.open
        if batch is not None and batch.leased:
            self.close_batch(batch)  # later records queue behind it
            batch = None
        if batch is None:
            batch = self.open_batch(queue, now_ms)
        if batch is not None:
            batch.leased = True
            queue.builder = None
        return batch

    def give_back(self, batch: Batch, added: int) -> bool:
        """The caller has added so many records. False when the batch is not there any more.

        Then nothing is in it, or one record that no request could carry (`check_size` says so).
        """
        batch.leased = False
        builder, queue = batch.builder, batch.queue
        if builder is None:  # given up meanwhile
            return True
        if not len(builder) or self.too_large(builder):
            self._discard(batch)
            return False
        self._account(batch)
        if queue.open is not batch:
            self._settle(batch)
        elif added or self._grow(batch):
            queue.builder = builder
        else:
            self.close_batch(batch)
        return True

    def open_batch(self, queue: PartitionQueue, now_ms: int) -> Batch | None:
        """A new open batch, or None when memory is short. The first batch of all always gets in."""
        if self.memory_bytes and (
            self.full or self.memory_bytes + self._batch_bytes > self._memory_max
        ):
            self.full = True
            return None
        builder = self.new_builder()
        batch = Batch(queue, builder, now_ms, now_ms + self._delivery_ms)
        batch.reserved_bytes = self._batch_bytes
        if self.ready:
            larger = min(queue.usual_bytes, self._grown_max(queue))
            if larger > self._batch_bytes and self.memory_bytes + larger <= self._memory_max:
                builder.max_bytes = batch.reserved_bytes = larger
        self.memory_bytes += batch.reserved_bytes
        self.opened_bytes = batch.reserved_bytes
        queue.open = batch
        queue.builder, queue.delivery = builder, batch.delivery
        self._lingering.append(batch)
        return batch

    def _grow(self, batch: Batch) -> bool:
        """Let a full batch become larger, if it would have to wait and there is memory enough."""
        builder = batch.builder
        assert builder is not None
        now = builder.max_bytes
        larger = min(now * _GROWTH, self._grown_max(batch.queue))
        more = larger - batch.reserved_bytes
        short = self.full or self.memory_bytes + more > self._memory_max
        if not self.ready or larger <= now or more <= 0 or short:
            return False
        builder.max_bytes = larger
        batch.reserved_bytes += more
        self.memory_bytes += more
        return True

    def _grown_max(self, queue: PartitionQueue) -> int:
        """How large a batch may become while it waits."""
        packs = self.compresses and queue.packing.part * _PACKED_TIMES < _PACKED_PART
        return self._grown_bytes_max * _PACKED_TIMES if packs else self._grown_bytes_max

    def packed(self, batch: Batch, builder: BatchBuilder, before: int) -> None:
        """A batch of `before` bytes has its payload, or none if that failed; `builder` is free."""
        # Small ones pack less well and say little of large ones.
        if self.compresses and batch.payload and before * _GROWTH > self._grown_bytes_max:
            batch.queue.packing.saw(before, len(batch.payload))
        self.keep(builder)

    def grow_no_more(self) -> None:
        """A broker takes no batches as large as these."""
        self._grown_bytes_max = 0

    def new_builder(self) -> BatchBuilder:
        """An empty builder, used before if one is at hand."""
        if self._builders:
            builder = self._builders.pop()
            builder.max_bytes = self._batch_bytes
            return builder
        builder = BatchBuilder(self._compression, self._batch_bytes, level=self._level)
        builder.alone_bytes = self.batch_bytes_max
        return builder

    def _discard(self, batch: Batch) -> None:
        """Take back a batch that got no record."""
        queue = batch.queue
        if queue.open is batch:
            queue.open = queue.builder = queue.delivery = None
        else:
            queue.closed.remove(batch)
            if not queue.closed:
                self.ready.pop(queue, None)
        self.memory_bytes -= batch.reserved_bytes
        batch.reserved_bytes = 0
        self._keep(batch)

    def close_batch(self, batch: Batch) -> None:
        """No more records: put it in line."""
        assert batch.queue.open is batch
        self._settle(batch)
        queue = batch.queue
        batch.ordinal = queue.ordinals = queue.ordinals + 1
        queue.open = queue.builder = queue.delivery = None
        queue.closed.append(batch)
        self.ready[queue] = None

    def _settle(self, batch: Batch) -> None:
        """The batch's memory is known, unless it is leased; memory it did not need is free."""
        builder = batch.builder
        assert builder is not None
        batch.count = len(builder)
        used = builder.size * _GROWTH > builder.max_bytes
        batch.queue.usual_bytes = builder.max_bytes if used else 0
        unused = batch.reserved_bytes - builder.size
        if not batch.leased and builder.max_bytes > self._batch_bytes and unused > 0:
            batch.reserved_bytes -= unused
            self.memory_bytes -= unused

    def close_due(
        self, now_ms: int, in_line: Callable[[PartitionQueue], bool], *, everything: bool = False
    ) -> list[PartitionQueue]:
        """Close the batches that have lingered long enough (any, when memory is short), or all.

        Those for which `in_line` is true stay open until they could leave.
        """
        closed: list[PartitionQueue] = []
        waiting = self._lingering
        waiting.extendleft(reversed(self._held))
        self._held.clear()
        while waiting:
            batch = waiting[0]
            if batch.queue.open is batch:
                due = everything or self.full or now_ms >= batch.created_ms + self._linger_ms
                if not due:
                    break
                if not everything and in_line(batch.queue):
                    self._held.append(batch)
                else:
                    self.close_batch(batch)
                    closed.append(batch.queue)
            waiting.popleft()
        return closed

    def close_overdue(self, now_ms: int) -> None:
        """Close the batches that are open at their deadline, so that they can be given up."""
        for line in (self._held, self._lingering):
            while line and line[0].deadline_ms <= now_ms:
                batch = line.popleft()
                if batch.queue.open is batch:
                    self.close_batch(batch)

    @property
    def holds(self) -> bool:
        """True when `close_due` has left open a batch that could only queue."""
        return bool(self._held)

    def next_linger_ms(self) -> int | None:
        """When `close_due` has something to do, if nothing leaves before."""
        for line in (self._held, self._lingering):
            while line and line[0].queue.open is not line[0]:
                line.popleft()
        lingers = self._lingering[0].created_ms + self._linger_ms if self._lingering else None
        if not self._held:
            return lingers
        over = self._held[0].deadline_ms
        return over if lingers is None else min(over, lingers)

    def release(self, batch: Batch) -> None:
        """The outcome is known: give the memory back."""
        self.memory_bytes -= batch.reserved_bytes
        batch.reserved_bytes = 0
        batch.payload = b""
        if self.full and self.memory_bytes <= self._memory_max // 2:
            self.full = False
        self._keep(batch)

    def _account(self, batch: Batch) -> None:
        """A single large record takes more than a batch's share."""
        assert batch.builder is not None
        if batch.builder.size > batch.reserved_bytes:
            self.memory_bytes += batch.builder.size - batch.reserved_bytes
            batch.reserved_bytes = batch.builder.size

    def too_large(self, builder: BatchBuilder) -> bool:
        """True when the addition is one record that no request could carry."""
        return len(builder) == 1 and builder.size > self.batch_bytes_max

    def check_size(self, size: int, queue: PartitionQueue) -> None:
        if size > self.batch_bytes_max:
            raise RecordTooLargeError(
                f"a record for {queue.topic}-{queue.partition} takes {size} bytes and "
                f"max_request_size is {self.batch_bytes_max}; raise it here and "
                f"max.message.bytes on the topic, or send less"
            )

    def _keep(self, batch: Batch) -> None:
        builder, batch.builder = batch.builder, None
        if builder is not None and not batch.leased:
            self.keep(builder)

    def keep(self, builder: BatchBuilder) -> None:
        """A builder that is free may serve another batch."""
        # One that grew for a large record would hold that memory for ever.
        if len(self._builders) < _BUILDERS_KEPT_MAX and builder.size <= 2 * self._batch_bytes:
            builder.clear()
            self._builders.append(builder)
