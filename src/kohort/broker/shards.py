"""The shell of a coordinator's shard: its partition of an internal topic, and its timer.

Rules (DESIGN.md, "group, the coordinator's side"):
- Records are appended as one batch, replayed at once, and replies go when the log is durable up to
  where it ended then; replies without records wait for the same mark.
- A shard is loaded by replaying its partition from the start, a slice at a time, so that a long log
  does not stop the node. Until then requests are answered COORDINATOR_LOAD_IN_PROGRESS, heartbeats
  without an error.
- A failed append refuses its replies, unloads the shard, and loads a new one from the log.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from kohort.broker.env import Cancellable
from kohort.broker.log.log import Appended
from kohort.broker.log.txn_index import marker_of
from kohort.broker.partition import Partition
from kohort.errors import BrokerError, ProtocolError
from kohort.group.effects import Effects, GroupRecord, Reply, RequestContext
from kohort.records import BatchBuilder, BatchHeader, Chunk
from kohort.wire import Message

if TYPE_CHECKING:
    from kohort.broker.calls import Asker
    from kohort.broker.node import Node

log = logging.getLogger("kohort.broker")

_LOAD_SLICE_BATCHES = 500
_RELOAD_DELAY_MS = 1_000


class Shard(Protocol):
    """What a host needs of a coordinator's shard; see `GroupShard`."""

    partition: int

    def replay(self, record: GroupRecord, offset: int, producer_id: int = -1) -> None: ...

    def replay_marker(self, producer_id: int, committed: bool) -> None: ...

    def loaded(self, now_ms: int) -> Effects: ...

    def handle(self, request: Message, context: RequestContext, now_ms: int) -> Effects: ...

    def tick(self, now_ms: int) -> Effects: ...

    def next_deadline(self) -> int | None: ...

    def append_failed(self, effects: Effects, error_code: int) -> list[Reply]: ...

    def unload(self) -> Effects: ...


S = TypeVar("S", bound=Shard)


class ShardHost(ABC, Generic[S]):
    """One shard, its partition, and its timer."""

    def __init__(self, node: Node, partition: Partition) -> None:
        self._node = node
        self.partition = partition
        self.shard = self.new_shard()
        self.loaded = False
        self._held: deque[tuple[int, list[Reply]]] = deque()
        self._later: deque[tuple[int, Callable[[], object]]] = deque()
        self._timer: Cancellable | None = None
        self._timer_ms = -1
        self._closed = False
        self._load()

    # -- loading

    @abstractmethod
    def new_shard(self) -> S:
        """A shard that has seen nothing yet."""

    def _load(self) -> None:
        opened = self.partition.log
        if opened is None or opened.end.offset == opened.log_start_offset:
            self._ready()
        else:
            opened.pins += 1
            self._replay_some(self.shard, opened.batches())

    def _replay_some(self, shard: S, batches: Iterator[tuple[BatchHeader, memoryview]]) -> None:
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
        if self.partition.log is not None:
            self.partition.log.pins -= 1

    def _ready(self) -> None:
        self.loaded = True
        self.run(self.shard.loaded(self._node.env.now_ms()))

    # -- events

    def handle(self, request: Message, asker: Asker) -> None:
        """Give the shard a request; `asker` hears the answer."""
        context = RequestContext(asker, asker.api_version, asker.client_id, asker.client_host)
        self.run(self.shard.handle(request, context, self._node.env.now_ms()))

    def _tick(self) -> None:
        self._timer = None
        if not self._closed:
            self.run(self.shard.tick(self._node.env.now_ms()))

    # -- effects

    def run(self, effects: Effects) -> None:
        """Append, replay, and answer when it is durable."""
        if effects.records:
            self._append(effects)
        elif effects.replies:
            opened = self.partition.log
            self._hold(0 if opened is None else opened.active.next_offset, effects.replies)
        if self.loaded and not self._closed:
            self._arm()

    def _append(self, effects: Effects) -> None:
        batch = build_batch(effects, self._node.env.wall_ms())
        try:
            appended = self.partition.append(batch, BatchHeader(batch, 0), self._durable)
        except BrokerError as error:
            log.warning("%s-%d: an append failed: %s", *self.partition.key, error)
            self._start_again(effects, error.code)
            return
        producer_id = effects.producer.producer_id if effects.producer else -1
        for at, record in enumerate(effects.records):
            self.shard.replay(record, appended.base_offset + at, producer_id)
        self._hold(appended.last_offset + 1, effects.replies)

    def _start_again(self, effects: Effects, code: int) -> None:
        """What was to be written is not; drop the shard and read the log again, a little later."""
        held = [reply for _, replies in self._held for reply in replies]
        self._held.clear()
        self._later.clear()
        refused = self.shard.append_failed(Effects(replies=[*held, *effects.replies]), code)
        parked = self.shard.unload().replies
        self.loaded = False
        self._cancel_timer()
        env = self._node.env
        env.call_at(env.now_ms() + _RELOAD_DELAY_MS, self._reload)
        for reply in (*refused, *parked):
            answer(reply)

    def _reload(self) -> None:
        if not self._closed and not self.loaded and not self.partition.offline:
            self.shard = self.new_shard()
            self._load()

    def _hold(self, offset: int, replies: list[Reply]) -> None:
        if not replies:
            return
        self._held.append((offset, replies))
        self._release()

    def when_durable(self, do: Callable[[], object]) -> None:
        """Do something once all that has been appended is durable and its replies have gone."""
        opened = self.partition.log
        self._later.append((0 if opened is None else opened.active.next_offset, do))
        self._release()

    def _durable(self, result: Appended | BrokerError) -> None:
        if not isinstance(result, BrokerError):
            self._release()
        elif self.loaded:
            self._start_again(Effects(), result.code)

    def _release(self) -> None:
        end = self.partition.end_offset
        while self._held and self._held[0][0] <= end:
            for reply in self._held.popleft()[1]:
                answer(reply)
        while self._later and self._later[0][0] <= end:
            self._later.popleft()[1]()

    def _arm(self) -> None:
        deadline = self.shard.next_deadline()
        if self._timer is not None and deadline == self._timer_ms:
            return
        self._cancel_timer()
        if deadline is not None:
            self._timer_ms = deadline
            self._timer = self._node.env.call_at(deadline, self._tick)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def close(self) -> None:
        """Forget the shard; parked requests are told to look for another coordinator."""
        self._closed = True
        self._cancel_timer()
        for reply in self.shard.unload().replies:
            answer(reply)


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


def build_batch(effects: Effects, now_ms: int) -> memoryview:
    """One uncompressed batch of the records, as it is to stand in the log."""
    builder = BatchBuilder()
    for record in effects.records:
        builder.append(now_ms, record.key, record.value)
    producer = effects.producer
    if producer is None:
        return memoryview(bytearray(builder.build()))
    batch = builder.build(
        producer_id=producer.producer_id, producer_epoch=producer.producer_epoch, transactional=True
    )
    return memoryview(bytearray(batch))


def answer(reply: Reply) -> None:
    """Give a reply to whom it is for."""
    asker: Any = reply.token
    asker.answer(reply.response)
