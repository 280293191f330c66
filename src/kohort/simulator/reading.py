"""What a simulated node answers about topics: fetches, offsets by time, ends of leader epochs.

Rules: a node that is not (or not yet) the leader in its own eyes refuses, and so does one whose
epoch differs from the asker's (KIP-320). A fetch waits for data up to its time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kohort.errors import BrokerError, ErrorCode
from kohort.simulator.logs import TopicLog
from kohort.simulator.schedule import Handle
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

if TYPE_CHECKING:
    from kohort.simulator.hosting import Asked
    from kohort.simulator.node import SimNode

LATEST, EARLIEST = -1, -2
_BY_ID_FROM = 13


def located(node: SimNode, topic: str | None, partition: int, epoch: int) -> TopicLog:
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


class FetchWait:
    """One fetch, until it is answered."""

    def __init__(self, node: SimNode, asked: Asked, request: FetchRequest) -> None:
        self._node = node
        self._asked = asked
        self._request = request
        self._timer: Handle | None = None
        self._watched: list[str] = []
        self._done = False

    def begin(self) -> None:
        """Answer at once if there is something, else wait."""
        response, enough = self._look()
        if enough or self._request.max_wait_ms <= 0:
            self._node.answer(self._asked, response)
            return
        machine = self._node.machine
        self._timer = machine.at(machine.now_ms() + self._request.max_wait_ms, self._finish)
        for topic in response.responses:
            name = self._name(topic)
            for part in topic.partitions:
                key = f"{name}-{part.partition_index}"
                self._watched.append(key)
                self._node.waits.setdefault(key, []).append(self)

    def progressed(self) -> None:
        """A partition has more, or another leader."""
        if not self._done:
            response, enough = self._look()
            if enough:
                self._end(response)

    def _finish(self) -> None:
        if not self._done:
            self._end(self._look()[0])

    def _end(self, response: FetchResponse) -> None:
        self._done = True
        if self._timer is not None:
            self._timer.cancel()
        for key in self._watched:
            waits = self._node.waits.get(key, [])
            if self in waits:
                waits.remove(self)
        self._node.answer(self._asked, response)

    def _name(self, topic: FetchableTopicResponse) -> str | None:
        if self._asked.api_version >= _BY_ID_FROM:
            return self._node.world.cluster.names.get(bytes(topic.topic_id))
        return topic.topic

    def _look(self) -> tuple[FetchResponse, bool]:
        topics: list[FetchableTopicResponse] = []
        size, failed, room = 0, False, self._request.max_bytes
        for wanted in self._request.topics:
            found = FetchableTopicResponse(topic=wanted.topic, topic_id=wanted.topic_id)
            name = self._name(found)
            for part in wanted.partitions:
                data = self._data(name, part, min(room, part.partition_max_bytes))
                records = data.records
                length = len(records) if isinstance(records, bytes) else 0
                if length and size and length > room:
                    data.records, length = b"", 0
                size, room = size + length, max(0, room - length)
                failed = failed or bool(data.error_code)
                found.partitions.append(data)
            topics.append(found)
        enough = failed or size >= self._request.min_bytes
        return FetchResponse(responses=topics), enough

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


def list_offsets(node: SimNode, request: ListOffsetsRequest) -> ListOffsetsResponse:
    """The ends of partitions."""

    def answer(topic: str, part: ListOffsetsPartition) -> ListOffsetsPartitionResponse:
        found = ListOffsetsPartitionResponse(partition_index=part.partition_index)
        try:
            log = located(node, topic, part.partition_index, part.current_leader_epoch)
        except BrokerError as error:
            found.error_code = error.code
            return found
        found.offset = log.end if part.timestamp == LATEST else log.start
        found.leader_epoch = log.epoch if part.timestamp == LATEST else log.epoch_at(log.start)
        return found

    return ListOffsetsResponse(
        topics=[
            ListOffsetsTopicResponse(
                name=topic.name, partitions=[answer(topic.name, part) for part in topic.partitions]
            )
            for topic in request.topics
        ]
    )


def offsets_for_epochs(
    node: SimNode, request: OffsetForLeaderEpochRequest
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
