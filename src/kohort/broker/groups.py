"""The shell of the group coordinator: `GroupShard`s over the partitions of `__consumer_offsets`.

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
from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any
from uuid import UUID

from kohort.broker.config import OFFSETS_TOPIC
from kohort.broker.env import Cancellable
from kohort.broker.log.log import Appended
from kohort.broker.partition import Partition
from kohort.errors import BrokerError, ErrorCode, ProtocolError
from kohort.group.effects import Effects, GroupRecord, Reply, RequestContext
from kohort.group.refusals import refusal_of
from kohort.group.routing import coordinator_partition
from kohort.group.shard import GroupShard
from kohort.group.topics import TopicsImage
from kohort.records import BatchBuilder, BatchHeader, Chunk
from kohort.wire import Message

if TYPE_CHECKING:
    from kohort.broker.calls import Asker
    from kohort.broker.node import Node

log = logging.getLogger("kohort.broker")

_LOAD_SLICE_BATCHES = 500
_RELOAD_DELAY_MS = 1_000
_COMMIT_MARKER = 1


class ShardHost:
    """One shard, its partition, and its timer."""

    def __init__(self, node: Node, partition: Partition) -> None:
        self._node = node
        self.partition = partition
        self.shard: GroupShard = self._new_shard()
        self.loaded = False
        self._held: deque[tuple[int, list[Reply]]] = deque()
        self._timer: Cancellable | None = None
        self._timer_ms = -1
        self._closed = False
        self._load()

    # -- loading

    def _new_shard(self) -> GroupShard:
        env = self._node.env
        shard = GroupShard(
            self.partition.index,
            self._node.config.group_config(),
            lambda: str(UUID(bytes=env.new_uuid())),
            env.wall_ms() - env.now_ms(),
        )
        shard.topics_changed(self._node.topics.image, env.now_ms())
        return shard

    def _load(self) -> None:
        opened = self.partition.log
        if opened is None or opened.end.offset == opened.log_start_offset:
            self._ready()
        else:
            opened.pins += 1
            self._replay_some(self.shard, opened.batches())

    def _replay_some(
        self, shard: GroupShard, batches: Iterator[tuple[BatchHeader, memoryview]]
    ) -> None:
        if self._closed or shard is not self.shard:
            return
        try:
            for count, (header, batch) in enumerate(batches, 1):
                replay_batch(shard, header, batch)
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

    def topics_deleted(self, names: Iterable[str]) -> None:
        """Topics are gone, and so are their offsets."""
        self.run(self.shard.topics_deleted(names, self._node.env.now_ms()))

    def topics_changed(self, image: TopicsImage) -> None:
        """Topics were made, deleted or grown."""
        self.run(self.shard.topics_changed(image, self._node.env.now_ms()))

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
        refused = self.shard.append_failed(Effects(replies=[*held, *effects.replies]), code)
        parked = self.shard.unload().replies
        self.loaded = False
        self._cancel_timer()
        env = self._node.env
        env.call_at(env.now_ms() + _RELOAD_DELAY_MS, self._reload)
        for reply in (*refused, *parked):
            _answer(reply)

    def _reload(self) -> None:
        if not self._closed and not self.loaded and not self.partition.offline:
            self.shard = self._new_shard()
            self._load()

    def _hold(self, offset: int, replies: list[Reply]) -> None:
        if not replies:
            return
        self._held.append((offset, replies))
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
                _answer(reply)

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
            _answer(reply)


class Groups:
    """The coordinator of every group."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._hosts: dict[int, ShardHost] = {}
        topic = node.topics.get(OFFSETS_TOPIC)
        for partition in topic.partitions if topic is not None else ():
            self._hosts[partition.index] = ShardHost(node, partition)

    def host_of(self, group_id: str) -> ShardHost:
        """The shard that a group lives in. Raises BrokerError."""
        topic = self._node.offsets_topic()
        index = coordinator_partition(group_id, len(topic.partitions))
        host = self._hosts.get(index)
        if host is None:
            host = self._hosts[index] = ShardHost(self._node, topic.partitions[index])
        return host

    def hosts(self) -> list[ShardHost]:
        """Every shard that has been used."""
        return list(self._hosts.values())

    def handle(self, group_id: str, request: Message, asker: Asker) -> None:
        """A request about one group, answered by its shard."""
        try:
            host = self.host_of(group_id)
        except BrokerError:
            context = RequestContext(asker, asker.api_version, asker.client_id, asker.client_host)
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE
            asker.answer(refusal_of(request, context, code))
            return
        host.handle(request, asker)

    def set_wall_offset(self, offset_ms: int) -> None:
        """The wall clock may have been set since the shards were made."""
        for host in self.hosts():
            host.shard.wall_offset_ms = offset_ms

    def topics_deleted(self, names: Iterable[str]) -> None:
        """Offsets of deleted topics go too."""
        for host in self.hosts():
            host.topics_deleted(names)

    def topics_changed(self) -> None:
        """Topics were made, deleted or grown: every shard gets the new image."""
        image = self._node.topics.image
        for host in self.hosts():
            host.topics_changed(image)

    def close(self) -> None:
        """Send everybody away."""
        for host in self.hosts():
            host.close()


def replay_batch(shard: GroupShard, header: BatchHeader, batch: memoryview) -> None:
    """Replay one stored batch, or the marker that it is."""
    if header.is_control:
        marker = int.from_bytes(_control_key(batch)[2:4], "big")
        shard.replay_marker(header.producer_id, marker == _COMMIT_MARKER)
        return
    producer_id = header.producer_id if header.is_transactional else -1
    chunk = Chunk(OFFSETS_TOPIC, shard.partition, batch, header.base_offset)
    while not chunk.exhausted:
        for record in chunk.next_records(1_000):
            if record.key is not None:
                shard.replay(GroupRecord(record.key, record.value), record.offset, producer_id)


def _control_key(batch: memoryview) -> bytes:
    """The key of a control batch's one record: version and type, two bytes each (KIP-98)."""
    # After the header: length, attributes, two deltas (one byte each), then the key's length.
    return bytes(batch[61 + 5 : 61 + 5 + 4])


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


def _answer(reply: Reply) -> None:
    asker: Any = reply.token
    asker.answer(reply.response)
