"""Hosting coordinators' shards: on the node that leads their partition of an internal topic.

Rules (DESIGN.md, "group, the coordinator's side"):
- Records are replayed at once, each with the offset that it is about to get; those of one turn of
  the loop are appended together, as one batch at its end, and those that come while a flush of the
  partition is in flight, when that has ended. Replies are sent when the log is durable up to their
  records; replies without records wait for everything replayed before them.
- A shard is loaded by replaying its partition from the start, a slice at a time, so that a long log
  does not stop the node. Until then requests are answered COORDINATOR_LOAD_IN_PROGRESS, heartbeats
  without an error.
- A failed append refuses its replies, unloads the shard, and loads a new one from the log. So does
  a failed flush, also one of another's append; there is nothing to load then (NOT_COORDINATOR).
- A shard belongs to one leader epoch of its partition. Elections and resignations count only when
  they are of a later epoch (G11), and nothing is appended for an epoch that is over (L11).
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from kohort.broker.base.env import Cancellable
from kohort.broker.fast_path.fast_path import FAST_PATH, Gathered, full_response
from kohort.broker.log.log import Appended
from kohort.broker.log.txn_index import marker_of
from kohort.broker.state.failpoints import Event, Moment
from kohort.broker.state.partition import Partition
from kohort.errors import BrokerError, ErrorCode, ProtocolError
from kohort.group.coordinator.state.effects import (
    Effects,
    GroupRecord,
    Producer,
    Reply,
    RequestContext,
)
from kohort.group.coordinator.state.routing import coordinator_partition
from kohort.lean import quick
from kohort.records import BatchBuilder, BatchHeader, Chunk
from kohort.wire import Message

if TYPE_CHECKING:
    from kohort.broker.base.request import Responder
    from kohort.broker.coordinator.services import HostServices
    from kohort.broker.state.topics import Topic

log = logging.getLogger("kohort.broker")

_LOAD_SLICE_BATCHES = 500
_RELOAD_DELAY_MS = 1_000
_NEAR_MAX = 16_384
_BATCH_RECORDS, _BATCH_BYTES = 1_000, 1 << 20
"""What ends a batch before the turn of the loop does."""


class Shard(Protocol):
    """What a host needs of a coordinator's shard; see `GroupShard`."""

    partition: int

    @property
    def wall_offset_ms(self) -> int: ...
    @wall_offset_ms.setter
    def wall_offset_ms(self, offset_ms: int) -> None: ...

    def replay(self, record: GroupRecord, offset: int, producer_id: int = -1) -> None: ...

    def replay_marker(self, producer_id: int, committed: bool) -> None: ...

    def loaded(self, now_ms: int) -> Effects: ...

    def handle(self, request: Message, context: RequestContext, now_ms: int) -> Effects: ...

    def tick(self, now_ms: int) -> Effects: ...

    def next_deadline(self) -> int | None: ...

    def earliest(self) -> int | None: ...

    def append_failed(self, effects: Effects, error_code: int) -> list[Reply]: ...

    def unload(self) -> Effects: ...


S = TypeVar("S", bound=Shard)


class ShardHost(ABC, Generic[S]):
    """One shard, its partition, and its timer, for one leader epoch."""

    def __init__(self, node: HostServices, partition: Partition) -> None:
        self._node = node
        self.partition = partition
        self.epoch = partition.leader_epoch
        self.loaded = False
        self._batch: list[GroupRecord] = []
        """Replayed, and to be appended when the turn ends or the flush under way."""
        self._batch_bytes = 0
        self._refused = False
        """Whether the last append failed: on a full disk each does, and one is logged."""
        self._flushing = 0
        """Appends that are not known to be durable yet."""
        self._held: deque[tuple[int, list[Reply]]] = deque()
        self._later: deque[tuple[int, Callable[[], object]]] = deque()
        self._timer: Cancellable | None = None
        self._timer_ms = -1
        self._closed = False
        self._pinned = False
        self.shard = self.new_shard()
        self._load()

    @abstractmethod
    def new_shard(self) -> S:
        """A shard that has seen nothing yet."""

    # -- loading

    def _load(self) -> None:
        shard = self.shard
        self._node.nodes.loading.pass_on(lambda: self._begin_load(shard))

    def _begin_load(self, shard: S) -> None:
        if self._closed or shard is not self.shard:
            return
        opened = self.partition.log
        if opened is None or opened.end.offset == opened.log_start_offset:
            self._ready()
        else:
            opened.pins += 1
            self._pinned = True
            self._replay_some(shard, opened.batches())

    def _replay_some(self, shard: S, batches: Iterator[tuple[BatchHeader, memoryview]]) -> None:
        """Replay a slice; nothing is appended meanwhile (see `Coordinators.takes_markers`)."""
        if self._closed or shard is not self.shard:
            return
        try:
            for count, (header, batch) in enumerate(batches, 1):
                replay_batch(self.partition.topic.name, shard, header, batch)
                if count >= _LOAD_SLICE_BATCHES:
                    self._node.env.call_soon(self._replay_some, shard, batches)
                    return
        except (ProtocolError, OSError, BrokerError) as error:
            self._unpin()
            self.partition.fail(f"its records cannot be replayed: {error}")
            shard.unload()
            return
        self._unpin()
        self._ready()

    def _unpin(self) -> None:
        if self._pinned and self.partition.log is not None:
            self.partition.log.pins -= 1
        self._pinned = False

    def _ready(self) -> None:
        """Decide nothing before all replayed records are durable: only the previous leader learns
        about its last flush.
        """
        if self.partition.end_offset < self._end():
            self.partition.waiters[self] = None
            if self.partition.offline:  # they never will be
                self.progressed()
            return
        self.loaded = True
        self.run(self.shard.loaded(self._node.env.now_ms()))

    def progressed(self) -> None:
        """More of the partition is durable, or it has failed."""
        waiters = self.partition.waiters
        if self.partition.offline:
            waiters.pop(self, None)
            if self._closed:
                self._refuse_held(ErrorCode.KAFKA_STORAGE_ERROR)
            else:  # as in Kafka: what it answered would wait for ever for what it has replayed
                self._start_again(Effects(), ErrorCode.KAFKA_STORAGE_ERROR)
        elif self._closed:
            self._release()
            if not self._held:
                waiters.pop(self, None)
        elif self.partition.end_offset >= self._end():
            waiters.pop(self, None)
            if self.loaded:
                self._release()
            else:
                self._ready()

    # -- events

    def handle(self, request: Message, responder: Responder) -> None:
        """Give the shard a request; `responder` hears the answer."""
        who = (
            responder,
            responder.api_version,
            responder.client_id,
            responder.client_host,
            responder.hides,
        )
        context: RequestContext = quick(RequestContext, who)
        self.run(self.shard.handle(request, context, self._node.env.now_ms()))

    def takes_marker(self) -> bool:
        """Whether a marker may be appended to the partition now: after all that was replayed."""
        return self.loaded and self._write()

    def marker_written(self, producer_id: int, committed: bool) -> None:
        """The log contains a marker (see `Coordinators.takes_markers`)."""
        if not self._closed:
            # Its flush is another's: what is answered meanwhile is held, and waits for it, too.
            self.partition.waiters[self] = None
            self.shard.replay_marker(producer_id, committed)
            self._arm()

    def _tick(self) -> None:
        self._timer = None
        if not self._closed:
            self.run(self.shard.tick(self._node.env.now_ms()))

    # -- effects

    def run(self, effects: Effects) -> None:
        """Replay, append, and answer when it is durable."""
        if self._closed:  # unloaded: all that it says is that it is not the coordinator
            for reply in effects.replies:
                answer(reply)
            return
        if effects.records:
            if effects.producer is not None or self._node.failpoints.set:
                self._append_alone(effects)
            else:
                self._append_later(effects.records, effects.replies)
        elif effects.replies:
            if self._at_rest():
                for token, response in effects.replies:
                    responder: Any = token
                    responder.answer(response)
            else:
                self._hold(self._end(), effects.replies)
        if effects.heartbeat_hints:
            self._node.heartbeat_hints.notify(effects.heartbeat_hints)
        if self.loaded and not self._closed:
            self._arm()

    def _at_rest(self) -> bool:
        """Whether all that is known is durable; of a shard that is not loaded nothing is known, and
        what it answers rests on nothing (its partition may be offline, and never flushed again)."""
        opened = self.partition.log
        return not self.loaded or not (
            self._held
            or self._batch
            or (opened is not None and opened.segments[-1].next_offset > opened.high.offset)
        )

    def _append_later(self, records: list[GroupRecord], replies: list[Reply]) -> None:
        """With everything else of this turn, or that comes while a flush is under way: it could not
        be flushed sooner."""
        batch, replay, at = self._batch, self.shard.replay, self._end()
        if not batch and not self._flushing:
            self._node.env.call_soon(self._write)
        size = self._batch_bytes
        for record in records:
            replay(record, at, -1)
            at += 1
            key, value = record
            size += len(key) + (0 if value is None else len(value))
        self._batch_bytes = size
        batch += records
        if replies:  # nothing of the batch is durable before it is written
            self._held.append((at, replies))
        if len(batch) >= _BATCH_RECORDS or size >= _BATCH_BYTES:
            self._write()

    def _append_alone(self, effects: Effects) -> None:
        """As a producer's batch, or one that a tap is to see by itself."""
        if not self._write():
            for reply in self.shard.append_failed(effects, ErrorCode.KAFKA_STORAGE_ERROR):
                answer(reply)
            return
        producer = effects.producer
        try:
            appended = self._append(effects.records, producer)
        except BrokerError as error:
            self._start_again(effects, error.code)
            return
        producer_id = -1 if producer is None else producer.producer_id
        self._replay(effects.records, appended.base_offset, producer_id)
        failpoints, me = self._node.failpoints, self._node.node_id
        if failpoints.set:
            event = Event(
                Moment.APPENDED, me, None, "", *self.partition.key, records=effects.records
            )
            if failpoints.fatal(event):
                return
        self._hold(appended.last_offset + 1, effects.replies)

    def _replay(self, records: Sequence[GroupRecord], offset: int, producer_id: int) -> None:
        for at, record in enumerate(records, offset):
            self.shard.replay(record, at, producer_id)

    def _write(self) -> bool:
        """Append what was replayed; False when that failed, and the shard has been dropped."""
        records, self._batch, self._batch_bytes = self._batch, [], 0
        if not records:
            return True
        try:
            self._append(records, None)
        except BrokerError as error:
            self._start_again(Effects(), error.code)
            return False
        return True

    def _append(self, records: list[GroupRecord], producer: Producer | None) -> Appended:
        """Append one batch. Raises BrokerError."""
        partition, now_ms = self.partition, self._node.env.wall_ms()
        try:
            self._flushing += 1
            if partition.leader_epoch != self.epoch:  # L11; its resignation is on its way
                raise BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            if FAST_PATH == "cython" and producer is None:
                appended = partition.append_run(Gathered(records, now_ms), self._durable)
                if appended is not None:
                    self._refused = False
                    return appended
            batch = build_batch(records, producer, now_ms)
            appended = partition.append(batch, BatchHeader(batch, 0), self._durable)
        except BrokerError as error:
            self._flushing -= 1
            if not self._refused:
                log.warning("%s-%d: an append failed: %s", *partition.key, error)
            self._refused = True
            raise
        self._refused = False
        return appended

    def _start_again(self, effects: Effects, code: int) -> None:
        """The append failed; drop the shard and read the log again, a little later."""
        self._batch, self._batch_bytes = [], 0
        replies = [*self._take_held(), *effects.replies]
        refused = self.shard.append_failed(Effects(replies=replies), code)
        parked = self.shard.unload().replies
        self.loaded = False
        self._cancel_timer()
        env = self._node.env
        env.call_at(env.now_ms() + _RELOAD_DELAY_MS, self._reload)
        for reply in (*refused, *parked):
            answer(reply)

    def _take_held(self) -> list[Reply]:
        held = [as_message(reply) for _, replies in self._held for reply in replies]
        self._held.clear()
        self._later.clear()
        return held

    def _refuse_held(self, code: int) -> None:
        for reply in self.shard.append_failed(Effects(replies=self._take_held()), code):
            answer(reply)

    def _reload(self) -> None:
        if not self._closed and not self.loaded and not self.partition.offline:
            self.shard = self.new_shard()
            self._load()

    def _hold(self, offset: int, replies: list[Reply]) -> None:
        """Answer when everything replayed below an offset is durable."""
        if not self._held and offset <= self.partition.end_offset:
            for token, response in replies:
                responder: Any = token
                responder.answer(response)
        elif replies:
            self._held.append((offset, replies))
            self._release()

    def when_durable(self, do: Callable[[], object]) -> None:
        """Do something once all that has been appended is durable and its replies have gone."""
        self._later.append((self._end(), do))
        self._release()

    def _end(self) -> int:
        """The end of what was replayed."""
        opened = self.partition.log
        end = 0 if opened is None else opened.segments[-1].next_offset
        return end + len(self._batch)

    def _durable(self, result: Appended | BrokerError) -> None:
        self._flushing -= 1
        if not isinstance(result, BrokerError):
            self._release()
            if not self._flushing and self._batch:
                self._write()
        elif self._closed:
            self._refuse_held(result.code)
        elif self.loaded:
            self._start_again(Effects(), result.code)

    def _release(self) -> None:
        end = self.partition.end_offset
        while self._held and self._held[0][0] <= end:
            for token, response in self._held.popleft()[1]:
                responder: Any = token
                responder.answer(response)
        while self._later and self._later[0][0] <= end:
            self._later.popleft()[1]()

    def _arm(self) -> None:
        # A timer that comes too early finds nothing to do and is set again. Every heartbeat moves a
        # deadline later: a new timer for each would cost as much as the rest of the heartbeat.
        if self._timer is not None:
            earliest = self.shard.earliest()
            if earliest is None or earliest >= self._timer_ms:
                return
            self._cancel_timer()
        deadline = self.shard.next_deadline()
        if deadline is not None:
            self._timer_ms = deadline
            self._timer = self._node.env.call_at(deadline, self._tick)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def close(self) -> None:
        """Forget the shard; waiting clients have to find another coordinator.

        Its appended records are in the log, which the next leader continues, so its replies are
        valid.
        """
        self._write()
        self._closed = True
        self._cancel_timer()
        if not self._held:  # else they may wait for the flush of a marker
            self.partition.waiters.pop(self, None)
        self._unpin()
        for reply in self.shard.unload().replies:
            answer(reply)

    def abandon(self) -> None:
        """The node has died. Its connections are cut; others that wait hear that it is gone."""
        self._batch = []
        self.close()
        self._refuse_held(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self.partition.waiters.pop(self, None)


H = TypeVar("H", bound="ShardHost[Any]")


class CoordinatorShards(ABC, Generic[H]):
    """The shards of one kind that a node hosts."""

    topic: str
    """The internal topic whose partitions hold the shards."""

    def __init__(self, node: HostServices) -> None:
        self._node = node
        self._hosts: dict[int, H] = {}
        self._near: dict[str, H] = {}
        """By key, so that its hash is not reckoned again; forgotten whenever a host goes."""
        self._ended = False

    def begin(self) -> None:
        """Load the shards of the partitions that this node leads."""
        topic = self._node.topics.get(self.topic)
        for partition in topic.partitions if topic is not None else ():
            if partition.leader == self._node.node_id:
                self.elected(partition)

    @abstractmethod
    def new_host(self, partition: Partition) -> H:
        """A host for the shard of a partition."""

    @abstractmethod
    def make_topic(self) -> Topic:
        """The internal topic, made if it is not there. Raises BrokerError."""

    @abstractmethod
    def refuse(self, request: Message, responder: Responder, code: ErrorCode) -> None:
        """Answer that says an error code and nothing else."""

    # -- who coordinates

    def partition_of(self, key: str) -> Partition:
        """The partition that a group, or a transactional id, lives in. Raises BrokerError."""
        topic = self._node.topics.get(self.topic) or self.make_topic()
        return topic.partitions[coordinator_partition(key, len(topic.partitions))]

    def host_of(self, key: str) -> H:
        """The shard that a key lives in. Raises BrokerError: NOT_COORDINATOR if it is not here."""
        partition = self.partition_of(key)
        host = self._hosts.get(partition.index)
        if host is None:
            if self._ended or partition.leader != self._node.node_id:
                raise BrokerError(ErrorCode.NOT_COORDINATOR)
            host = self._hosts[partition.index] = self.new_host(partition)
        return host

    def host_near(self, key: str) -> H | None:
        """The same where the shard is here and has been used, at the price of a look."""
        host = self._near.get(key)
        if host is None:
            topic = self._node.topics.get(self.topic)
            if topic is None:
                return None
            host = self._hosts.get(coordinator_partition(key, len(topic.partitions)))
            if host is not None:
                if len(self._near) >= _NEAR_MAX:
                    self._near.clear()
                self._near[key] = host
        return host

    def host_at(self, index: int) -> H | None:
        """The shard of a partition, where it is here and has been used."""
        return self._hosts.get(index)

    def hosts(self) -> list[H]:
        """Every shard that has been used."""
        return list(self._hosts.values())

    def handle(self, key: str, request: Message, responder: Responder) -> None:
        """A request about one key, answered by its shard."""
        try:
            host = self.host_of(key)
        except BrokerError as error:
            self.refuse(request, responder, coordinator_code(error))
        else:
            host.handle(request, responder)

    # -- elections

    def elected(self, partition: Partition) -> None:
        """This node leads a partition from now on: load its shard."""
        host = self._hosts.get(partition.index)
        if host is not None:
            if host.epoch >= partition.leader_epoch:
                return
            host.close()
        self._near.clear()
        self._hosts[partition.index] = self.new_host(partition)

    def resigned(self, partition: Partition) -> None:
        """Another node leads a partition from now on."""
        host = self._hosts.get(partition.index)
        if host is not None and host.epoch < partition.leader_epoch:
            del self._hosts[partition.index]
            self._near.clear()
            host.close()

    # -- everything

    def set_wall_offset(self, offset_ms: int) -> None:
        """The wall clock may have been set since the shards were made."""
        for host in self.hosts():
            host.shard.wall_offset_ms = offset_ms

    def abandon(self) -> None:
        """The node has died."""
        self._ended = True
        for host in self.hosts():
            host.abandon()
        self._hosts.clear()
        self._near.clear()

    def close(self) -> None:
        """Send everybody away."""
        self._ended = True
        for host in self.hosts():
            host.close()


def coordinator_code(error: BrokerError) -> ErrorCode:
    """The error code for a client when there is no shard for its group here."""
    elsewhere = error.code == ErrorCode.NOT_COORDINATOR
    return ErrorCode.NOT_COORDINATOR if elsewhere else ErrorCode.COORDINATOR_NOT_AVAILABLE


def replay_batch(topic: str, shard: Shard, header: BatchHeader, batch: memoryview) -> None:
    """Replay one stored batch, or the marker that it is."""
    if header.is_control:
        marker = marker_of(batch)
        if marker is not None:
            shard.replay_marker(header.producer_id, marker.committed)
        return
    producer_id = header.producer_id if header.is_transactional else -1
    chunk = Chunk(topic, shard.partition, batch, header.base_offset)
    while not chunk.exhausted:
        for record in chunk.next_records(1_000):
            if record.key is not None:
                shard.replay(GroupRecord(record.key, record.value), record.offset, producer_id)


def build_batch(
    records: Sequence[GroupRecord], producer: Producer | None, now_ms: int
) -> memoryview:
    """One uncompressed batch of the records, as the log will store it."""
    builder = BatchBuilder()
    for record in records:
        builder.append(now_ms, record.key, record.value)
    if producer is None:
        return memoryview(bytearray(builder.build()))
    batch = builder.build(
        producer_id=producer.producer_id, producer_epoch=producer.producer_epoch, transactional=True
    )
    return memoryview(bytearray(batch))


def as_message(reply: Reply) -> Reply:
    """A reply with its answer as a message, also where the fast path uses another form."""
    if isinstance(reply.response, Message):
        return reply
    call: Any = reply.token
    return Reply(call, full_response(call, reply.response))


def answer(reply: Reply) -> None:
    """Give a reply to whom it is for."""
    responder: Any = reply.token
    responder.answer(reply.response)
