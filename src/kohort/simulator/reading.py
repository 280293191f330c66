"""What a simulated node answers about topics: fetches, offsets by time, ends of leader epochs.

Rules:
- A node that is not (or not yet) the leader in its own eyes refuses, and so does one whose epoch
  differs from the asker's (KIP-320).
- A fetch waits for data up to its time.
- Fetch sessions (KIP-227) are the broker's own machine. A request that comes a second time begins
  or ends one, too.
"""

from __future__ import annotations

from typing import Protocol

from kohort.broker.state.fetch_sessions import Fetching, FetchPart, FetchSessions
from kohort.errors import BrokerError, ErrorCode
from kohort.simulator.logs import TopicLog
from kohort.simulator.machine import Machine
from kohort.simulator.network import Asked
from kohort.simulator.schedule import Handle
from kohort.wire import Message
from kohort.wire.messages.fetch_request import FetchPartition, FetchRequest
from kohort.wire.messages.fetch_response import (
    FetchableTopicResponse,
    FetchResponse,
    PartitionData,
)
from kohort.wire.messages.list_offsets_request import ListOffsetsPartition, ListOffsetsRequest
from kohort.wire.messages.list_offsets_response import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from kohort.wire.messages.offset_for_leader_epoch_request import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
)
from kohort.wire.messages.offset_for_leader_epoch_response import (
    EpochEndOffset,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)

LATEST, EARLIEST = -1, -2
_BY_ID_FROM = 13


class FetchHooks(Protocol):
    """What hears of fetches: the checks."""

    def asked(self, asked: Asked, request: FetchRequest) -> None:
        """A fetch arrived."""
        ...

    def answered(self, node: ReadingNode, asked: Asked, response: FetchResponse) -> None:
        """A fetch is answered."""
        ...


class ReadingHooks(Protocol):
    """The checks, as far as reading uses them."""

    @property
    def fetches(self) -> FetchHooks: ...


class TopicLogs(Protocol):
    """The cluster, as far as reading uses it."""

    @property
    def names(self) -> dict[bytes, str]: ...
    @property
    def ids(self) -> dict[str, bytes]: ...
    def topic_log(self, topic: str | None, partition: int) -> TopicLog | None: ...
    def leads(self, node: ReadingNode, log: TopicLog) -> bool: ...


class ReadingWorld(Protocol):
    """The world, as far as reading uses it."""

    @property
    def cluster(self) -> TopicLogs: ...
    @property
    def checks(self) -> ReadingHooks: ...


class ReadingNode(Protocol):
    """A node that is asked for records."""

    machine: Machine
    number: int
    sessions: FetchSessions
    waits: dict[str, list[FetchWait]]

    @property
    def world(self) -> ReadingWorld: ...
    def answer(self, asked: Asked, response: Message) -> None: ...


def located(node: ReadingNode, topic: str | None, partition: int, epoch: int) -> TopicLog:
    """The partition, if this node leads it as far as it and the asker know. Raises BrokerError."""
    cluster = node.world.cluster
    log = cluster.topic_log(topic, partition)
    if log is None:
        raise BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if not cluster.leads(node, log):
        raise BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    if 0 <= epoch < log.epoch:
        raise BrokerError(ErrorCode.FENCED_LEADER_EPOCH)
    if epoch > log.epoch:
        raise BrokerError(ErrorCode.UNKNOWN_LEADER_EPOCH)
    return log


def fetch(node: ReadingNode, asked: Asked, request: FetchRequest) -> None:
    """Answer a fetch, or let it wait."""
    by_id = asked.api_version >= _BY_ID_FROM
    node.world.checks.fetches.asked(asked, request)
    fetching = node.sessions.begin(request, by_id, node.machine.now_ms())
    if isinstance(fetching, Fetching):
        FetchWait(node, asked, request, fetching).begin()
    else:
        _answer(node, asked, FetchResponse(error_code=fetching))


def _answer(node: ReadingNode, asked: Asked, response: FetchResponse) -> None:
    node.world.checks.fetches.answered(node, asked, response)
    node.answer(asked, response)


class FetchWait:
    """One fetch, until it is answered."""

    def __init__(
        self, node: ReadingNode, asked: Asked, request: FetchRequest, fetching: Fetching
    ) -> None:
        self._node = node
        self._asked = asked
        self._request = request
        self._fetching = fetching
        self._found: list[tuple[FetchPart, PartitionData]] = []
        self._timer: Handle | None = None
        self._watched: list[str] = []
        self._done = False

    def begin(self) -> None:
        """Answer at once if there is something, else wait."""
        if self._is_enough() or self._request.max_wait_ms <= 0:
            self._answer()
            return
        machine = self._node.machine
        self._timer = machine.at(machine.now_ms() + self._request.max_wait_ms, self._finish)
        for part in self._fetching.parts.values():
            key = f"{self._name(part)}-{part.request.partition}"
            self._watched.append(key)
            self._node.waits.setdefault(key, []).append(self)

    def progressed(self) -> None:
        """A partition has more, or another leader."""
        if not self._done and self._is_enough():
            self._end()

    def _finish(self) -> None:
        if not self._done:
            self._is_enough()
            self._end()

    def _end(self) -> None:
        self._done = True
        if self._timer is not None:
            self._timer.cancel()
        for key in self._watched:
            waits = self._node.waits.get(key, [])
            if self in waits:
                waits.remove(self)
        self._answer()

    def _answer(self) -> None:
        fetching = self._fetching
        if fetching.overtaken:
            code = int(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
            _answer(self._node, self._asked, FetchResponse(error_code=code))
            return
        topics: dict[tuple[str, bytes], FetchableTopicResponse] = {}
        for part, data in fetching.select(self._found):
            key = part.topic, part.topic_id
            topic = topics.setdefault(key, FetchableTopicResponse(topic=key[0], topic_id=key[1]))
            topic.partitions.append(data)
        session_id = self._node.sessions.keep(fetching, self._node.machine.now_ms())
        response = FetchResponse(session_id=session_id, responses=list(topics.values()))
        _answer(self._node, self._asked, response)

    def _name(self, part: FetchPart) -> str | None:
        if self._fetching.by_id:
            return self._node.world.cluster.names.get(part.topic_id)
        return part.topic

    def _is_enough(self) -> bool:
        """Look for data; True when there is enough, or an error to tell."""
        self._found = []
        size, failed, room = 0, False, self._request.max_bytes
        for part in self._fetching.parts.values():
            asked = part.request
            data = self._data(self._name(part), asked, min(room, asked.partition_max_bytes))
            records = data.records
            length = len(records) if isinstance(records, bytes) else 0
            if length and size and length > room:
                data.records, length = b"", 0
            size, room = size + length, max(0, room - length)
            failed = failed or bool(data.error_code)
            self._found.append((part, data))
        return failed or size >= self._request.min_bytes

    def _data(self, name: str | None, part: FetchPartition, room: int) -> PartitionData:
        try:
            log = located(self._node, name, part.partition, part.current_leader_epoch)
        except BrokerError as error:
            return PartitionData(
                partition_index=part.partition,
                error_code=error.code,
                high_watermark=-1,
                records=b"",
            )
        data = PartitionData(
            partition_index=part.partition,
            high_watermark=log.end,
            last_stable_offset=log.end,
            log_start_offset=log.start,
            records=b"",
        )
        try:
            data.records = log.read(part.fetch_offset, room)
        except BrokerError as error:
            data.error_code = error.code
        return data


def list_offsets(node: ReadingNode, request: ListOffsetsRequest) -> ListOffsetsResponse:
    """The ends of partitions."""

    def answer(topic: str, part: ListOffsetsPartition) -> ListOffsetsPartitionResponse:
        response = ListOffsetsPartitionResponse(partition_index=part.partition_index)
        try:
            log = located(node, topic, part.partition_index, part.current_leader_epoch)
        except BrokerError as error:
            response.error_code = error.code
            return response
        response.offset = log.end if part.timestamp == LATEST else log.start
        response.leader_epoch = log.epoch if part.timestamp == LATEST else log.epoch_at(log.start)
        return response

    return ListOffsetsResponse(
        topics=[
            ListOffsetsTopicResponse(
                name=topic.name, partitions=[answer(topic.name, part) for part in topic.partitions]
            )
            for topic in request.topics
        ]
    )


def offsets_for_epochs(
    node: ReadingNode, request: OffsetForLeaderEpochRequest
) -> OffsetForLeaderEpochResponse:
    """Where leader epochs ended."""

    def answer(topic: str, part: OffsetForLeaderPartition) -> EpochEndOffset:
        try:
            log = located(node, topic, part.partition, part.current_leader_epoch)
        except BrokerError as error:
            return EpochEndOffset(partition=part.partition, error_code=error.code)
        epoch, end = log.epoch_end(part.leader_epoch)
        return EpochEndOffset(partition=part.partition, leader_epoch=epoch, end_offset=end)

    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=[answer(topic.topic, part) for part in topic.partitions],
            )
            for topic in request.topics
        ]
    )
