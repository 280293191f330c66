"""Notes what clients ask of committed offsets and what they are answered, from their connections.

Rules:
- It only listens: a world with it goes as one without it.
- A request is an operation of its own, one that its client repeats is another. It begins when its
  client's process sends it and ends when the answer arrives there.
- A transaction's commits begin with the first EndTxn that commits it, and are done with the first
  good answer.
- REFUSED are answers by which the coordinator has appended nothing. All other errors leave both
  possible.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Final

from kohort.client.common.types import TopicPartition
from kohort.errors import ErrorCode
from kohort.simulator.system.history import Fate, History, Kind, Operation
from kohort.wire import (
    ZERO_UUID,
    Message,
    decode_body,
    decode_request_header,
    decode_response,
    response_class,
    response_correlation_id,
)
from kohort.wire.messages.delete_topics_request import DeleteTopicsRequest
from kohort.wire.messages.delete_topics_response import DeleteTopicsResponse
from kohort.wire.messages.end_txn_request import EndTxnRequest
from kohort.wire.messages.end_txn_response import EndTxnResponse
from kohort.wire.messages.offset_commit_request import OffsetCommitRequest
from kohort.wire.messages.offset_commit_response import OffsetCommitResponse
from kohort.wire.messages.offset_fetch_request import OffsetFetchRequest
from kohort.wire.messages.offset_fetch_response import OffsetFetchResponse
from kohort.wire.messages.sync_group_request import SyncGroupRequest
from kohort.wire.messages.sync_group_response import SyncGroupResponse
from kohort.wire.messages.txn_offset_commit_request import TxnOffsetCommitRequest

REFUSING: Final = frozenset(
    {
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.FENCED_MEMBER_EPOCH,
        ErrorCode.STALE_MEMBER_EPOCH,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    }
)
_RECORDED: Final = {
    one.API_KEY.to_bytes(2, "big")
    for one in (
        OffsetCommitRequest,
        OffsetFetchRequest,
        TxnOffsetCommitRequest,
        EndTxnRequest,
        DeleteTopicsRequest,
        SyncGroupRequest,
    )
}
Offsets = dict[TopicPartition, int | None]
Producer = tuple[str, int, int]
"""Transactional id, producer id, epoch."""


@dataclass
class _Ending:
    """One transaction that its producer has asked to commit."""

    operations: list[Operation]
    asked: int = 0
    """How many EndTxn have no answer yet, or have none that decides."""


@dataclass
class _Pending:
    """A request without an answer yet; `operation` is what it begins."""

    request: Message
    version: int
    operation: Operation
    ending: _Ending | None = None


@dataclass
class Recorder:
    """Listens to the connections of all clients of a world.

    Args:
        history: where operations go.
        now_ms: the world's clock.
        topic: the name of a topic, by its id; None for an id that none has had.
        partitions: how many partitions a topic has.
        notes_generations: whether all groups are of the classic protocol.
    """

    history: History
    now_ms: Callable[[], int]
    topic: Callable[[bytes], str | None]
    partitions: Callable[[str], int]
    notes_generations: bool
    _place: int = 0
    _pending: dict[tuple[int, int], _Pending] = field(
        default_factory=dict[tuple[int, int], _Pending]
    )
    _staged: dict[Producer, dict[str, Offsets]] = field(
        default_factory=dict[Producer, dict[str, Offsets]]
    )
    _ending: dict[Producer, _Ending] = field(default_factory=dict[Producer, _Ending])
    _names: dict[bytes, str] = field(default_factory=dict[bytes, str])

    def sent(self, connection: int, who: str, frame: bytes) -> None:
        """A client sends a request."""
        if frame[:2] not in _RECORDED:
            return
        head = decode_request_header(frame)
        request = decode_body(frame, head)
        self._place += 1
        begun = Operation(who, "", Kind.FETCH, {}, self._place, self.now_ms())
        pending = _Pending(request, head.api_version, begun)
        if isinstance(request, OffsetCommitRequest):
            self._commit(pending, request)
        elif isinstance(request, TxnOffsetCommitRequest):
            self._stage(request)
            return
        elif isinstance(request, EndTxnRequest):
            self._end(pending, request)
        elif isinstance(request, DeleteTopicsRequest):
            self._delete(pending, request)
        self._pending[connection, head.correlation_id] = pending

    def received(self, connection: int, frame: bytes) -> None:
        """An answer arrives at its client."""
        pending = self._pending.pop((connection, response_correlation_id(frame)), None)
        if pending is None:
            return
        self._place += 1
        kind = response_class(pending.request.API_KEY)
        answer = decode_response(kind, pending.version, frame)[1]
        self._answered(pending, answer)

    def _answered(self, pending: _Pending, answer: Message) -> None:
        request, operation = pending.request, pending.operation
        if isinstance(answer, OffsetCommitResponse):
            codes = {
                TopicPartition(self._name(topic), part.partition_index): part.error_code
                for topic in answer.topics
                for part in topic.partitions
            }
            self._decided(operation, codes)
        elif isinstance(answer, OffsetFetchResponse):
            self._fetched(operation, request, answer)
        elif isinstance(answer, EndTxnResponse):
            self._ended(pending, answer.error_code)
        elif isinstance(answer, DeleteTopicsResponse):
            codes = {str(one.name): one.error_code for one in answer.responses}
            self._decided(operation, {at: codes.get(at.topic, -1) for at in operation.offsets})
        elif isinstance(answer, SyncGroupResponse):
            self._synced(request, answer)

    def _synced(self, request: Message, answer: SyncGroupResponse) -> None:
        assert isinstance(request, SyncGroupRequest), "what was asked"
        if self.notes_generations and answer.error_code == ErrorCode.NONE:
            self.history.stable.append((request.group_id, request.generation_id, self._place))

    # -- commits

    def _commit(self, pending: _Pending, request: OffsetCommitRequest) -> None:
        pending.operation = replace(
            pending.operation,
            group=request.group_id,
            kind=Kind.COMMIT,
            offsets=self._offsets(request.topics),
            member=request.member_id,
            epoch=request.generation_id_or_member_epoch,
        )
        self.history.operations.append(pending.operation)

    def _decided(self, operation: Operation, codes: dict[TopicPartition, int]) -> None:
        """Partitions that were answered otherwise than the first become an operation apart."""
        fates: dict[Fate, Offsets] = {}
        for place, offset in operation.offsets.items():
            code = codes.get(place, int(ErrorCode.UNKNOWN_SERVER_ERROR))
            fates.setdefault(_fate(code), {})[place] = offset
        for number, (fate, offsets) in enumerate(fates.items()):
            one = operation if number == 0 else replace(operation)
            one.offsets, one.fate = offsets, fate
            one.done = None if fate is Fate.UNKNOWN else self._place
            one.done_ms = -1 if fate is Fate.UNKNOWN else self.now_ms()
            if number > 0:
                self.history.operations.append(one)

    def _offsets(self, topics: Iterable[Any]) -> Offsets:
        return {
            TopicPartition(self._name(topic), part.partition_index): part.committed_offset
            for topic in topics
            for part in topic.partitions
        }

    def _name(self, topic: Any) -> str:
        """A topic of a request or an answer: newer versions carry its id alone."""
        if topic.name or topic.topic_id == ZERO_UUID:
            return str(topic.name)
        return self._name_of(topic.topic_id)

    def _name_of(self, topic_id: bytes) -> str:
        """Also of a topic that is deleted meanwhile."""
        name = self._names.get(topic_id) or self.topic(topic_id) or topic_id.hex()
        return self._names.setdefault(topic_id, name)

    # -- transactions

    def _stage(self, request: TxnOffsetCommitRequest) -> None:
        producer = request.transactional_id, request.producer_id, request.producer_epoch
        self._ending.pop(producer, None)  # the producer is in its next transaction
        staged = self._staged.setdefault(producer, {}).setdefault(request.group_id, {})
        for topic in request.topics:
            for part in topic.partitions:
                place = TopicPartition(topic.name, part.partition_index)
                staged[place] = part.committed_offset

    def _end(self, pending: _Pending, request: EndTxnRequest) -> None:
        producer = request.transactional_id, request.producer_id, request.producer_epoch
        staged = self._staged.pop(producer, None)
        if not request.committed:
            self._ending.pop(producer, None)
            return
        if staged is not None:
            operations = [
                replace(pending.operation, group=group, kind=Kind.TRANSACTION, offsets=offsets)
                for group, offsets in staged.items()
            ]
            self.history.operations += operations
            self._ending[producer] = _Ending(operations)
        pending.ending = self._ending.get(producer)
        if pending.ending is not None:
            pending.ending.asked += 1

    def _ended(self, pending: _Pending, code: int) -> None:
        ending = pending.ending
        if ending is None:
            return
        fate = _fate_of_end(code)
        if fate is Fate.REFUSED and ending.asked > 1:
            return  # an earlier one may have committed
        for one in ending.operations:
            if fate is not Fate.UNKNOWN and one.fate is Fate.UNKNOWN:
                one.fate, one.done, one.done_ms = fate, self._place, self.now_ms()

    # -- others

    def _delete(self, pending: _Pending, request: DeleteTopicsRequest) -> None:
        names = [*request.topic_names]
        names += [one.name or self._name_of(one.topic_id) for one in request.topics]
        places = [TopicPartition(name, n) for name in names for n in range(self.partitions(name))]
        gone: Offsets = dict.fromkeys(places)
        pending.operation = replace(pending.operation, kind=Kind.DELETE, offsets=gone)
        self.history.operations.append(pending.operation)

    def _fetched(self, operation: Operation, request: Message, answer: OffsetFetchResponse) -> None:
        assert isinstance(request, OffsetFetchRequest), "what was asked"
        groups: list[tuple[str, int, list[Any]]] = [
            (g.group_id, g.error_code, list(g.topics)) for g in answer.groups
        ]
        if not groups:
            groups = [(request.group_id, answer.error_code, list(answer.topics))]
        for group, code, topics in groups:
            shown = {
                TopicPartition(self._name(topic), part.partition_index): (
                    part.committed_offset if part.committed_offset >= 0 else None
                )
                for topic in topics
                for part in topic.partitions
                if part.error_code == ErrorCode.NONE
            }
            if code == ErrorCode.NONE and shown:
                self.history.operations.append(
                    replace(
                        operation,
                        group=group,
                        offsets=shown,
                        done=self._place,
                        done_ms=self.now_ms(),
                        fate=Fate.DONE,
                    )
                )


def _fate(code: int) -> Fate:
    if code == ErrorCode.NONE:
        return Fate.DONE
    return Fate.REFUSED if code in REFUSING else Fate.UNKNOWN


def _fate_of_end(code: int) -> Fate:
    """Of EndTxn: who is fenced commits nothing any more, unless an earlier request has."""
    if code in {ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED}:
        return Fate.REFUSED
    return _fate(code)
