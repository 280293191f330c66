"""The fast path: frequent small requests, answered by compiled code.

Rules:
- Group requests (`_group_requests.pxi`) go to their shard at once, like all others; only decoding
  and answering are shorter (`GroupHost.try_fast`). Anything unusual takes the slow path.
- Produce requests of one turn of the loop are appended together. They wait until the turn has read
  everything that arrived, or until the node does anything else for a client (group requests
  excepted). To every client each request seems served when it arrived.
- The batches for one partition are one write to its log and share one flush. Each request gets its
  own answer, in its place on its connection.
- A request that turns out to be unusual (unknown topic, not led here, compacted topic, duplicate
  batch) takes the slow path, in its turn.
- The fast path serves authenticated and authorized clients. The slow path refuses others.
- Without the compiled module every request takes the slow path.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from kohort.acl import Operation, Resource
from kohort.broker.log.log import Appended
from kohort.broker.state.partition import Partition
from kohort.compiled import implementation, is_compiled
from kohort.errors import BrokerError

if TYPE_CHECKING:
    from kohort.broker.base.env import Env
    from kohort.broker.fast_path._fast_path import Entry, GroupCall
    from kohort.broker.security.authorizer import Authorizer
    from kohort.broker.state.topics import Topics
    from kohort.wire import Message

if TYPE_CHECKING or is_compiled("kohort.broker.fast_path._fast_path"):
    from kohort.broker.fast_path._fast_path import Gathered, Run, take
else:
    take = Gathered = None

__all__ = ["FAST_PATH", "FastPath", "Gathered", "full_response", "permits", "take"]

FAST_PATH = implementation("kohort.broker.fast_path._fast_path")
_BYTES_MAX: Final = 1 << 20
_PRODUCE: Final = 0
_OFFSET_COMMIT: Final = 8


class FastPathNode(Protocol):
    """What the fast path sees of its node."""

    env: Env
    topics: Topics

    def leads(self, partition: Partition) -> bool:
        """Whether this node leads a partition."""
        ...


class FastPath:
    """The fast path of one node."""

    def __init__(self, node: FastPathNode) -> None:
        self._node = node
        self.waiting: dict[bytes, Run] = {}
        """By topic and partition, as the requests name them, what is not appended yet."""
        self._runs: dict[Partition | bytes, Run] = {}
        """The same by the partition that is meant: a topic may be named by its name or its id."""

        self._bytes = 0

    def add(self, entry: Entry) -> None:
        """One more request, of which its connection knows. It is answered later, in any case."""
        self._bytes += entry.size
        if self._bytes > _BYTES_MAX:
            self.run()
            self._bytes = entry.size
        waiting = self.waiting
        if not waiting:
            self._node.env.call_soon(self.run)
        run = waiting.get(entry.target)
        if run is None:
            run = waiting[entry.target] = self._run_of(entry)
        run.add(entry)

    def run(self) -> None:
        """Append what waits."""
        if self.waiting:
            runs, self._runs, self.waiting, self._bytes = self._runs, {}, {}, 0
            for run in runs.values():
                self._append_all(run)

    def _run_of(self, entry: Entry) -> Run:
        key = self._partition(entry) or entry.target
        run = self._runs.get(key)
        if run is None:
            run = self._runs[key] = Run()
        return run

    def _append_all(self, run: Run) -> None:
        partition = self._partition(run.entries[0])
        if partition is None or not _is_usual(run, partition):
            _all_take_slow_path(run)
            return
        if all(entry.producer_id < 0 for entry in run.entries):
            self._append(partition, run)
            return
        try:
            producers = partition.open().producers  # made now, if these are its first records
        except BrokerError as error:
            _refuse_all(partition, run, error)
            return
        # A producer's batch is checked against its last one, which must have been appended.
        part = Run()
        writers: set[int] = set()
        for entry in run.entries:
            if entry.producer_id in writers:
                self._append(partition, part)
                part = Run()
                writers.clear()
            if entry.producer_id >= 0:
                if producers.check(entry) is not None:
                    self._append(partition, part)
                    part = Run()
                    writers.clear()
                    entry.peer.take_slow_path(entry)
                    continue
                writers.add(entry.producer_id)
            part.add(entry)
        self._append(partition, part)

    def _partition(self, entry: Entry) -> Partition | None:
        """The offset for an entry; None when the slow path must decide."""
        place = entry.place()
        if place is None:
            return None
        name, index = place
        topics = self._node.topics
        topic = topics.get(name) if isinstance(name, str) else topics.by_id(name)
        if topic is None or topic.internal or topic.config.compact:
            return None
        if not 0 <= index < len(topic.partitions):
            return None
        partition = topic.partitions[index]
        return partition if self._node.leads(partition) else None

    def _append(self, partition: Partition, run: Run) -> None:
        if not run.entries:
            return

        try:
            if not partition.append_run(run, partial(_answer, partition, run)):
                _all_take_slow_path(run)
        except BrokerError as error:
            _refuse_all(partition, run, error)


def _is_usual(run: Run, partition: Partition) -> bool:
    """Whether the topic accepts the largest batch, and the earliest and latest records."""
    config, now_ms = partition.topic.config, partition.topic.services.env.wall_ms()
    early = 0 <= run.base_timestamp < now_ms - config.timestamp_before_max_ms
    late = run.max_timestamp - now_ms > config.timestamp_after_max_ms
    return not early and not late and run.largest <= config.max_message_bytes


def _refuse_all(partition: Partition, run: Run, error: BrokerError) -> None:
    from kohort.broker.state.produce_refusal import hold_back_without_room

    for entry in run.entries:
        hold_back_without_room(partition, entry, error)
    _answer(partition, run, error)


def _answer(partition: Partition, run: Run, result: Appended | BrokerError) -> None:
    if isinstance(result, BrokerError):
        _refuse(run, partition, result)
    else:
        run.answers(partition.start_offset)
    for entry in run.entries:
        entry.peer.answered(entry)


def _all_take_slow_path(run: Run) -> None:
    for entry in run.entries:
        entry.peer.take_slow_path(entry)


def _refuse(run: Run, partition: Partition, error: BrokerError) -> None:
    from kohort.broker.state.produce_refusal import refused

    for entry in run.entries:
        entry.response = refused(partition, error)
        entry.answered = True


def permits(authorizer: Authorizer, node: FastPathNode, call: Entry | GroupCall) -> bool:
    """Whether a request may take the fast path, by the rules of `kohort.broker.authorization`.

    Its client is who sent it now: what waits in the fast path is not asked again.
    """
    peer = call.peer
    who, host = peer.principal, peer.address

    def may(operation: Operation, topic: str | bytes) -> bool:
        if isinstance(topic, bytes):
            known_topic = node.topics.by_id(topic)
            if known_topic is None:
                return False  # the general way knows what to say
            topic = known_topic.name
        return authorizer.may(who, host, operation, Resource.TOPIC, topic)

    if call.api == _PRODUCE:
        place = call.place()
        return place is not None and may(Operation.WRITE, place[0])
    if not authorizer.may(who, host, Operation.READ, Resource.GROUP, call.group_id):
        return False
    return call.api != _OFFSET_COMMIT or all(
        may(Operation.READ, name) for name in {offset[0] for offset in call.offsets}
    )


def full_response(call: GroupCall, answer: int | list[int]) -> Message:
    """An answer of the fast path as a message."""
    from kohort.group.coordinator.handlers.error_responses import committed
    from kohort.wire import decode_request
    from kohort.wire.messages.consumer_group_heartbeat_response import (
        ConsumerGroupHeartbeatResponse,
    )
    from kohort.wire.messages.heartbeat_response import HeartbeatResponse
    from kohort.wire.messages.offset_commit_request import OffsetCommitRequest

    request = decode_request(bytes(call.frame)).message
    if isinstance(request, OffsetCommitRequest):
        assert isinstance(answer, list)
        return committed(request, answer)
    assert isinstance(answer, int)
    if request.API_KEY == HeartbeatResponse.API_KEY:
        return HeartbeatResponse(error_code=answer)
    return ConsumerGroupHeartbeatResponse(
        member_id=call.member_id, member_epoch=call.epoch, heartbeat_interval_ms=answer
    )
