"""A transaction shard with its log and a virtual clock, as a shell would run it.

After every event the harness checks G9: live state == replay(log) == replay(compacted log).
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from typing import Any, NamedTuple

from kohort.errors import BrokerError, ErrorCode
from kohort.group.coordinator.state.effects import GroupRecord, RequestContext
from kohort.transactions.config import TransactionConfig
from kohort.transactions.effects import Markers, TransactionEffects
from kohort.transactions.records import Transaction, decode_record
from kohort.transactions.shard import TransactionShard
from kohort.wire import Message
from kohort.wire.messages.add_partitions_to_txn_request import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from kohort.wire.messages.end_txn_request import EndTxnRequest
from kohort.wire.messages.init_producer_id_request import InitProducerIdRequest
from kohort.wire.messages.init_producer_id_response import InitProducerIdResponse

WALL_MS = 1_700_000_000_000
T0, T1 = ("t", 0), ("t", 1)
BEFORE, KIP_890 = 4, 5
"""Versions of EndTxn; those of AddPartitionsToTxn are one less before KIP-890."""


class ProducerIdentity(NamedTuple):
    """What InitProducerId gave."""

    producer_id: int
    epoch: int


class Bench:
    """One `__transaction_state` partition: `shard`, `log`, `now_ms`, `answers` by token."""

    def __init__(self, **config: Any) -> None:
        self.config = TransactionConfig(**config)
        self.now_ms = 1_000
        self.log: list[GroupRecord] = []
        self.answers: dict[int, Any] = {}
        self.markers: list[Markers] = []
        """On their way; see `write_markers`."""
        self.decided: list[Markers] = []
        self.last = TransactionEffects()
        self.no_ids = False
        self.token = 0
        """Of the last request."""
        self._tokens, self._ids = count(1), count(100)
        self.shard = self.load()

    def _new_id(self) -> int:
        if self.no_ids:
            raise BrokerError(ErrorCode.KAFKA_STORAGE_ERROR)
        return next(self._ids)

    def load(
        self, log: Iterable[GroupRecord] | None = None, wall_offset_ms: int = WALL_MS
    ) -> TransactionShard:
        self.shard = TransactionShard(0, self.config, self._new_id, wall_offset_ms)
        for offset, record in enumerate(self.log if log is None else log):
            self.shard.replay(record, offset)
        self.markers = []
        self.took(self.shard.loaded(self.now_ms))
        return self.shard

    def failover(self, wall_offset_ms: int = WALL_MS) -> None:
        """The node dies: what waited is told, what was decided is taken up again."""
        for reply in self.shard.unload().replies:
            self.answers[reply.token] = reply.response  # type: ignore[index]
        self.load(wall_offset_ms=wall_offset_ms)

    def took(self, effects: TransactionEffects) -> TransactionEffects:
        """Append, replay, answer."""
        for record in effects.records:
            self.log.append(record)
            self.shard.replay(record, len(self.log) - 1)
        for reply in effects.replies:
            assert reply.token not in self.answers, "a request is answered once"
            self.answers[reply.token] = reply.response  # type: ignore[index]
        self.markers += effects.markers
        self.decided += effects.markers
        self.last = effects
        self.check()
        return effects

    def check(self) -> None:
        assert dict(self.shard.durable) == replayed(self.log)
        assert dict(self.shard.durable) == replayed(compacted(self.log))

    def ask(self, request: Message, version: int) -> Any:
        """The answer, or None while it waits."""
        token = self.token = next(self._tokens)
        context = RequestContext(token, version, "tester", "/127.0.0.1")
        self.took(self.shard.handle(request, context, self.now_ms))
        return self.answers.get(token)

    def write_markers(self) -> None:
        """Every marker on its way has arrived."""
        markers, self.markers = self.markers, []
        for each in markers:
            self.took(self.shard.ended(each))
            self.took(self.shard.markers_written(each, self.now_ms))

    def advance(self, ms: int) -> None:
        end = self.now_ms + ms
        while (due := self.shard.next_deadline()) is not None and due <= end:
            self.now_ms = max(self.now_ms, due)
            self.took(self.shard.tick(self.now_ms))
        self.now_ms = end

    def state(self, name: str = "tx") -> Transaction:
        return self.shard.durable[name]

    # Requests

    def init(
        self, name: str = "tx", identity: ProducerIdentity | None = None, timeout_ms: int = 60_000
    ) -> InitProducerIdResponse:
        request = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=timeout_ms)
        if identity is not None:
            request.producer_id, request.producer_epoch = identity
        return self.ask(request, 5)

    def initialized(self, name: str = "tx", **more: Any) -> ProducerIdentity:
        answer = self.init(name, **more)
        assert answer.error_code == 0, answer
        return ProducerIdentity(answer.producer_id, answer.producer_epoch)

    def add(
        self,
        identity: ProducerIdentity,
        *partitions: tuple[str, int],
        name: str = "tx",
        version: int = KIP_890,
        verify: bool = False,
    ) -> int:
        """The highest code."""
        one = AddPartitionsToTxnTransaction(
            transactional_id=name,
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            verify_only=verify,
            topics=[AddPartitionsToTxnTopic(name=t, partitions=[p]) for t, p in partitions],
        )
        answer = self.ask(AddPartitionsToTxnRequest(transactions=[one]), version - 1)
        topics = answer.results_by_transaction[0].topic_results
        return max(p.partition_error_code for t in topics for p in t.results_by_partition)

    def end(
        self, identity: ProducerIdentity, *, commit: bool, name: str = "tx", version: int = KIP_890
    ) -> Any:
        """The answer, or None while it waits for markers."""
        request = EndTxnRequest(
            transactional_id=name,
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            committed=commit,
        )
        return self.ask(request, version)

    def ended(self, identity: ProducerIdentity, **how: Any) -> ProducerIdentity:
        """An end whose markers arrive; who the producer is then."""
        waiting = set(self.answers)
        assert self.end(identity, **how) is None
        self.write_markers()
        (token,) = set(self.answers) - waiting
        answer = self.answers[token]
        assert answer.error_code == 0, answer
        return ProducerIdentity(answer.producer_id, answer.producer_epoch)


def replayed(log: Iterable[GroupRecord]) -> dict[str, Transaction]:
    found: dict[str, Transaction] = {}
    for record in log:
        decoded = decode_record(record)
        assert decoded is not None
        name, transaction = decoded
        if transaction is None:
            found.pop(name, None)
        else:
            found[name] = transaction
    return found


def compacted(log: list[GroupRecord]) -> list[GroupRecord]:
    last = {record.key: at for at, record in enumerate(log)}
    return [record for at, record in enumerate(log) if last[record.key] == at]
