"""TransactionShard: the coordinator of the transactions in one partition of `__transaction_state`.

Rules:
- Durable state changes in `replay` only. `handle`, `tick`, `markers_written` propose records; the
  shell appends them, replays them, and lets replies and markers go when they are durable. Nothing
  else may reach the shard in between.
- A transaction is decided by one record (PrepareCommit, PrepareAbort). From then on only its
  markers are missing: they are written again after every load until all are there.
- Soft state dies with the shard: who waits for the end of a transaction, timers, and the epoch that
  a producer had before its last one (which lets it repeat a lost InitProducerId, KIP-360).
- A fence raises the epoch by two: by one it would be what the fenced producer gets for its own next
  EndTxn (KIP-890).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from kohort.errors import BrokerError, ErrorCode
from kohort.group.coordinator.handlers.error_responses import append_code
from kohort.group.coordinator.state.effects import Effects, GroupRecord, Reply, RequestContext
from kohort.group.coordinator.state.timers import Timers
from kohort.transactions import queries
from kohort.transactions.config import TransactionConfig
from kohort.transactions.effects import Markers, TransactionEffects
from kohort.transactions.records import (
    EPOCH_LAST_ISSUED,
    EPOCH_MAX,
    KIP_890,
    NO_EPOCH,
    NO_PARTITIONS,
    NO_PRODUCER_ID,
    NO_TIME,
    Transaction,
    decode_record,
    transaction_record,
    transaction_tombstone,
)
from kohort.transactions.refusals import add_result, refusal_of, refused
from kohort.transactions.states import (
    ENDING,
    RequestKind,
    Step,
    TransactionEvent,
    TransactionState,
    answer,
    next_state,
)
from kohort.wire import Message
from kohort.wire.messages.add_partitions_to_txn_request import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTransaction,
)
from kohort.wire.messages.add_partitions_to_txn_response import AddPartitionsToTxnResponse
from kohort.wire.messages.describe_transactions_request import DescribeTransactionsRequest
from kohort.wire.messages.end_txn_request import EndTxnRequest
from kohort.wire.messages.end_txn_response import EndTxnResponse
from kohort.wire.messages.init_producer_id_request import InitProducerIdRequest
from kohort.wire.messages.init_producer_id_response import InitProducerIdResponse
from kohort.wire.messages.list_transactions_request import ListTransactionsRequest

REQUESTS: Final = frozenset(
    {
        InitProducerIdRequest,
        AddPartitionsToTxnRequest,
        EndTxnRequest,
        DescribeTransactionsRequest,
        ListTransactionsRequest,
    }
)
"""The requests that a shard answers."""
MAX_ID_BYTES = 8_192
KIP_890_ADD_FROM, KIP_890_END_FROM = 4, 5
_TIMEOUT, _WAIT, _SWEEP = "timeout", "wait", "sweep"
_SWEEP_KEY = (_SWEEP, "", "")


class TransactionShard:
    """The transaction coordinator of one `__transaction_state` partition, for one leader epoch.

    `new_producer_id` gives an id that was never assigned before, and may raise BrokerError.
    `wall_offset_ms` is what has to be added to `now_ms` to get wall-clock time; it may be set again
    at any time.
    """

    def __init__(
        self,
        partition: int,
        config: TransactionConfig,
        new_producer_id: Callable[[], int],
        wall_offset_ms: int = 0,
    ) -> None:
        self.partition = partition
        self.wall_offset_ms = wall_offset_ms
        self._config = config
        self._new_producer_id = new_producer_id
        self._durable: dict[str, Transaction] = {}
        self._timers = Timers()
        self._last_epochs: dict[str, int] = {}
        self._waiting: dict[str, list[Reply]] = {}
        self._state = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    @property
    def durable(self) -> Mapping[str, Transaction]:
        """What replaying the log has given, by transactional id; compares with `==`."""
        return self._durable

    # The log

    def replay(self, record: GroupRecord, offset: int, producer_id: int = NO_PRODUCER_ID) -> None:
        """Take in a record of the log. Raises DecodeError for bytes that are no such record, and
        then the shard must not be used.
        """
        del offset, producer_id  # the last record of an id says all; none is transactional
        decoded = decode_record(record)
        if decoded is None:
            return
        transactional_id, transaction = decoded
        if transaction is None:
            self._durable.pop(transactional_id, None)
        else:
            self._durable[transactional_id] = transaction

    def replay_marker(self, producer_id: int, committed: bool) -> None:
        """Nothing: no transaction writes to this topic."""

    def loaded(self, now_ms: int) -> TransactionEffects:
        """The log has been replayed to its end: from now on requests are answered."""
        out = TransactionEffects()
        self._state = ErrorCode.NONE
        for transactional_id, t in self._durable.items():
            if t.state is TransactionState.ONGOING:
                self._arm_timeout(transactional_id, t, now_ms)
            elif t.state in ENDING:
                out.markers.append(_markers(transactional_id, t))
        self._arm_sweep(now_ms)
        return out

    def unload(self) -> TransactionEffects:
        """This node no longer leads the partition: waiting clients are sent to the new
        coordinator."""
        out = TransactionEffects()
        self._state = ErrorCode.NOT_COORDINATOR
        for replies in self._waiting.values():
            out.replies += [refused(reply, int(self._state)) for reply in replies]
        self._waiting.clear()
        self._timers.clear()
        return out

    def append_failed(self, effects: Effects, error_code: int) -> list[Reply]:
        """The replies of effects whose records could not be written, with the error that clients
        are to see. The shard must then be unloaded, and a new one loaded from the log.
        """
        code = int(append_code(error_code))
        return [refused(reply, code) for reply in effects.replies]

    # Events

    def handle(self, request: Message, context: RequestContext, now_ms: int) -> TransactionEffects:
        """Answer one request. AddPartitionsToTxn comes in the form of v4, with one transaction.

        Raises TypeError for a request of a type that is not in `REQUESTS`.
        """
        out = TransactionEffects()
        if self._state:
            out.replies.append(Reply(context.token, refusal_of(request, int(self._state))))
            return out
        match request:
            case InitProducerIdRequest():
                self._init(request, context, now_ms, out)
            case AddPartitionsToTxnRequest():
                self._add(request.transactions[0], context, now_ms, out)
            case EndTxnRequest():
                self._end(request, context, now_ms, out)
            case DescribeTransactionsRequest():
                out.replies.append(Reply(context.token, queries.describe(self._durable, request)))
            case ListTransactionsRequest():
                listed = queries.list_transactions(self._durable, request, self._wall(now_ms))
                out.replies.append(Reply(context.token, listed))
            case _:
                name = type(request).__name__
                raise TypeError(f"{name} is not a transaction coordinator's request")
        return out

    def ended(self, markers: Markers) -> TransactionEffects:
        """Every partition has its marker, or is gone: answer the waiting requests. The decision
        contains the answer, so it need not wait for the record of the completion.
        """
        out = TransactionEffects()
        if self._ending(markers) is not None:
            self._timers.cancel((_WAIT, markers.transactional_id, ""))
            out.replies += self._waiting.pop(markers.transactional_id, [])
        return out

    def markers_written(self, markers: Markers, now_ms: int) -> TransactionEffects:
        """After `ended`: the transaction is complete."""
        out = TransactionEffects()
        known = self._ending(markers)
        if known is None:
            return out
        rotated = known.next_producer_id != NO_PRODUCER_ID
        self._propose(
            markers.transactional_id,
            known,
            TransactionEvent.MARKERS_WRITTEN,
            now_ms,
            out,
            producer_id=known.next_producer_id if rotated else known.producer_id,
            epoch=0 if rotated else known.epoch,
            previous_producer_id=known.producer_id if rotated else known.previous_producer_id,
            next_producer_id=NO_PRODUCER_ID,
            partitions=NO_PARTITIONS,
        )
        return out

    def _ending(self, markers: Markers) -> Transaction | None:
        """The transaction that waits for these markers, if there is one."""
        known = self._durable.get(markers.transactional_id)
        if self._state or known is None or known.state not in ENDING:
            return None
        who = (known.producer_id, known.epoch)
        return known if who == (markers.producer_id, markers.epoch) else None

    def next_deadline(self) -> int | None:
        """When `tick` has something to do, in the terms of `now_ms`; None for never."""
        return self._timers.next_deadline()

    def earliest(self) -> int | None:
        """A time that `next_deadline` is not before; costs nothing, and may be too early."""
        return self._timers.earliest()

    def tick(self, now_ms: int) -> TransactionEffects:
        """Do what is due, up to the first effects with records; `next_deadline` says whether more
        is due.
        """
        out = TransactionEffects()
        if self._state:
            return out
        while not out.records and (key := self._timers.pop_due(now_ms)) is not None:
            kind, transactional_id, _ = key
            if kind == _TIMEOUT:
                self._time_over(transactional_id, now_ms, out)
            elif kind == _WAIT:
                out.replies += self._waiting.pop(transactional_id, [])
            else:
                self._sweep(now_ms, out)
        return out

    # InitProducerId

    def _init(
        self,
        request: InitProducerIdRequest,
        context: RequestContext,
        now_ms: int,
        out: TransactionEffects,
    ) -> None:
        transactional_id = request.transactional_id or ""
        known = self._durable.get(transactional_id)
        try:
            code = self._fault_of_init(request, transactional_id, known)
            if not code:
                state = TransactionState.DEAD if known is None else known.state
                step = answer(RequestKind.INIT, state)
                if step is Step.FENCE:
                    assert known is not None
                    self._fence(transactional_id, known, now_ms, out)
                    code = ErrorCode.CONCURRENT_TRANSACTIONS
                elif step is Step.BEGIN:
                    code = self._begin(request, transactional_id, known, context, now_ms, out)
                else:
                    assert isinstance(step, ErrorCode)
                    code = step
        except BrokerError as error:  # no new producer id could be had
            code = ErrorCode(error.code)
        if code:
            out.replies.append(Reply(context.token, refusal_of(request, int(code))))

    def _fault_of_init(
        self, request: InitProducerIdRequest, transactional_id: str, known: Transaction | None
    ) -> ErrorCode:
        expected, epoch = request.producer_id, request.producer_epoch
        if not transactional_id or len(transactional_id.encode()) > MAX_ID_BYTES:
            return ErrorCode.INVALID_REQUEST
        if (expected == NO_PRODUCER_ID) != (epoch == NO_EPOCH):
            return ErrorCode.INVALID_REQUEST
        if not 0 < request.transaction_timeout_ms <= self._config.transaction_max_timeout_ms:
            return ErrorCode.INVALID_TRANSACTION_TIMEOUT
        if known is None:
            full = len(self._durable) >= self._config.transaction_shard_max_ids
            return ErrorCode.POLICY_VIOLATION if full else ErrorCode.NONE
        if known.state in ENDING:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        repeats_rotation = expected == known.previous_producer_id and epoch >= EPOCH_LAST_ISSUED
        if expected not in (NO_PRODUCER_ID, known.producer_id) and not repeats_rotation:
            return ErrorCode.PRODUCER_FENCED
        return ErrorCode.NONE

    def _begin(
        self,
        request: InitProducerIdRequest,
        transactional_id: str,
        known: Transaction | None,
        context: RequestContext,
        now_ms: int,
        out: TransactionEffects,
    ) -> ErrorCode:
        """Give the next epoch, or a new producer id when there is none left (KIP-360)."""
        expected = None if request.producer_id == NO_PRODUCER_ID else request.producer_epoch
        last: int | None = None
        if known is None:
            known = Transaction(NO_PRODUCER_ID, NO_EPOCH, 0)
            producer_id, epoch, previous = self._new_producer_id(), 0, NO_PRODUCER_ID
        elif known.exhausted and expected in (None, known.epoch):
            producer_id, epoch, previous = self._new_producer_id(), 0, known.producer_id
            last = expected
        else:
            producer_id, previous = known.producer_id, known.previous_producer_id
            if expected in (None, known.epoch):
                epoch, last = known.epoch + 1, expected
            elif expected == self._last_epochs.get(transactional_id):
                epoch, last = known.epoch, expected  # its last answer was lost
            else:
                return ErrorCode.PRODUCER_FENCED
        self._remember(transactional_id, last)
        self._propose(
            transactional_id,
            known,
            TransactionEvent.INITIALIZED,
            now_ms,
            out,
            producer_id=producer_id,
            epoch=epoch,
            previous_producer_id=previous,
            timeout_ms=request.transaction_timeout_ms,
            partitions=NO_PARTITIONS,
            started_ms=NO_TIME,
        )
        response = InitProducerIdResponse(producer_id=producer_id, producer_epoch=epoch)
        out.replies.append(Reply(context.token, response))
        return ErrorCode.NONE

    def _remember(self, transactional_id: str, last_epoch: int | None) -> None:
        if last_epoch is None:
            self._last_epochs.pop(transactional_id, None)
        else:
            self._last_epochs[transactional_id] = last_epoch

    # AddPartitionsToTxn

    def _add(
        self,
        transaction: AddPartitionsToTxnTransaction,
        context: RequestContext,
        now_ms: int,
        out: TransactionEffects,
    ) -> None:
        code, known = self._fault_of_producer(
            transaction.transactional_id, transaction.producer_id, transaction.producer_epoch
        )
        partitions = {(topic.name, p) for topic in transaction.topics for p in topic.partitions}
        code_of: Callable[[tuple[str, int]], int] = lambda _: int(code)  # noqa: E731
        if known is not None and not code:
            step = answer(
                RequestKind.VERIFY if transaction.verify_only else RequestKind.ADD, known.state
            )
            if step is Step.COMPARE:
                code_of = lambda tp: int(  # noqa: E731
                    ErrorCode.NONE if tp in known.partitions else ErrorCode.TRANSACTION_ABORTABLE
                )
            elif step is Step.ADD:
                kip_890 = context.api_version >= KIP_890_ADD_FROM
                self._grow(transaction.transactional_id, known, partitions, kip_890, now_ms, out)
            else:
                assert isinstance(step, ErrorCode)
                code = step
        response = AddPartitionsToTxnResponse(
            results_by_transaction=[add_result(transaction, code_of)]
        )
        out.replies.append(Reply(context.token, response))

    def _fault_of_producer(
        self, transactional_id: str, producer_id: int, epoch: int
    ) -> tuple[ErrorCode, Transaction | None]:
        known = self._durable.get(transactional_id)
        if not transactional_id:
            return ErrorCode.INVALID_REQUEST, None
        if known is None:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING, None
        if known.state in ENDING:  # the asker's epoch may be that of the next transaction already
            return ErrorCode.CONCURRENT_TRANSACTIONS, known
        if known.producer_id != producer_id:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING, known
        return (ErrorCode.PRODUCER_FENCED if known.epoch != epoch else ErrorCode.NONE), known

    def _grow(
        self,
        transactional_id: str,
        known: Transaction,
        partitions: set[tuple[str, int]],
        kip_890: bool,
        now_ms: int,
        out: TransactionEffects,
    ) -> None:
        ongoing = known.state is TransactionState.ONGOING
        if ongoing and partitions <= known.partitions:
            return
        grown = self._propose(
            transactional_id,
            known,
            TransactionEvent.PARTITIONS_ADDED,
            now_ms,
            out,
            partitions=known.partitions | partitions,
            started_ms=known.started_ms if ongoing else self._wall(now_ms),
            client_version=KIP_890 if kip_890 else 0,
        )
        if not ongoing:
            self._arm_timeout(transactional_id, grown, now_ms)

    # EndTxn

    def _end(
        self,
        request: EndTxnRequest,
        context: RequestContext,
        now_ms: int,
        out: TransactionEffects,
    ) -> None:
        transactional_id = request.transactional_id
        kip_890 = context.api_version >= KIP_890_END_FROM
        known = self._durable.get(transactional_id)
        if not transactional_id:
            step: ErrorCode | Step = ErrorCode.INVALID_REQUEST
        elif known is None:
            step = ErrorCode.INVALID_PRODUCER_ID_MAPPING
        else:
            step = _step_of_end_2(known, request) if kip_890 else _step_of_end(known, request)
        if isinstance(step, ErrorCode):
            out.replies.append(Reply(context.token, refusal_of(request, int(step))))
            return
        assert known is not None
        response = EndTxnResponse(producer_id=known.producer_id, producer_epoch=known.epoch)
        reply = Reply(context.token, response)
        if step is Step.AGAIN:
            out.replies.append(reply)
            return
        try:
            decided = self._decide(transactional_id, known, request.committed, kip_890, now_ms, out)
        except BrokerError as error:  # no new producer id could be had
            out.replies.append(refused(reply, error.code))
            return
        response.producer_id, response.producer_epoch = decided.producer_id, decided.epoch
        if decided.next_producer_id != NO_PRODUCER_ID:
            response.producer_id, response.producer_epoch = decided.next_producer_id, 0
        self._waiting.setdefault(transactional_id, []).append(reply)
        wait_ms = self._config.transaction_end_wait_ms
        self._timers.arm((_WAIT, transactional_id, ""), now_ms + wait_ms)

    def _decide(
        self,
        transactional_id: str,
        known: Transaction,
        committed: bool,
        kip_890: bool,
        now_ms: int,
        out: TransactionEffects,
    ) -> Transaction:
        """Commit or abort, by the client's wish."""
        rotates = kip_890 and known.exhausted
        event = TransactionEvent.COMMIT_DECIDED if committed else TransactionEvent.ABORT_DECIDED
        ongoing = known.state is TransactionState.ONGOING
        decided = self._propose(
            transactional_id,
            known,
            event,
            now_ms,
            out,
            epoch=known.epoch + 1 if kip_890 else known.epoch,
            next_producer_id=self._new_producer_id() if rotates else NO_PRODUCER_ID,
            started_ms=known.started_ms if ongoing else self._wall(now_ms),
            client_version=KIP_890 if kip_890 else 0,
        )
        if kip_890:
            self._remember(transactional_id, known.epoch)
        self._timers.cancel((_TIMEOUT, transactional_id, ""))
        out.markers.append(_markers(transactional_id, decided))
        return decided

    # Time

    def _fence(
        self, transactional_id: str, known: Transaction, now_ms: int, out: TransactionEffects
    ) -> None:
        """Abort an open transaction against the will of its producer."""
        decided = self._propose(
            transactional_id,
            known,
            TransactionEvent.FENCED,
            now_ms,
            out,
            epoch=min(known.epoch + 2, EPOCH_MAX),
            client_version=KIP_890,
        )
        self._remember(transactional_id, None)
        self._timers.cancel((_TIMEOUT, transactional_id, ""))
        out.markers.append(_markers(transactional_id, decided))

    def _arm_timeout(self, transactional_id: str, t: Transaction, now_ms: int) -> None:
        """Set the end of an open transaction, on the monotonic clock.

        The wall clock only says how old a transaction is that another coordinator began, and never
        makes it wait longer than its timeout: a wall clock that is set back would hold up
        read_committed readers until the old time comes round.
        """
        left_ms = t.started_ms + t.timeout_ms - self._wall(now_ms)
        due_ms = now_ms + min(max(left_ms, 0), t.timeout_ms)
        self._timers.arm((_TIMEOUT, transactional_id, ""), due_ms)

    def _time_over(self, transactional_id: str, now_ms: int, out: TransactionEffects) -> None:
        known = self._durable.get(transactional_id)
        if known is not None and known.state is TransactionState.ONGOING:
            self._fence(transactional_id, known, now_ms, out)

    def _arm_sweep(self, now_ms: int) -> None:
        interval = self._config.transaction_remove_expired_transaction_cleanup_interval_ms
        self._timers.arm(_SWEEP_KEY, now_ms + interval)

    def _sweep(self, now_ms: int, out: TransactionEffects) -> None:
        """Forget ids that were not used for long: some in one step."""
        before_ms = self._wall(now_ms) - self._config.transactional_id_expiration_ms
        self._arm_sweep(now_ms)
        for transactional_id, t in self._durable.items():
            if t.state in ENDING or t.state is TransactionState.ONGOING or t.updated_ms > before_ms:
                continue
            if len(out.records) >= self._config.transaction_sweep_max_records:
                self._timers.arm(_SWEEP_KEY, now_ms)
                return
            next_state(t.state, TransactionEvent.EXPIRED, transactional_id)
            self._remember(transactional_id, None)
            out.records.append(transaction_tombstone(transactional_id))

    def _wall(self, now_ms: int) -> int:
        return now_ms + self.wall_offset_ms

    def _propose(
        self,
        transactional_id: str,
        known: Transaction,
        event: TransactionEvent,
        now_ms: int,
        out: TransactionEffects,
        **changes: object,
    ) -> Transaction:
        """Put the record of what `event` leads to into the effects."""
        changes["state"] = next_state(known.state, event, transactional_id)
        proposed = known.but(updated_ms=self._wall(now_ms), **changes)
        out.records.append(transaction_record(transactional_id, proposed))
        return proposed


def _step_of_end(known: Transaction, request: EndTxnRequest) -> ErrorCode | Step:
    """EndTxn from clients before KIP-890: the epoch does not change."""
    if known.producer_id != request.producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if known.epoch != request.producer_epoch:
        return ErrorCode.PRODUCER_FENCED
    return answer(RequestKind.COMMIT if request.committed else RequestKind.ABORT, known.state)


def _step_of_end_2(known: Transaction, request: EndTxnRequest) -> ErrorCode | Step:
    """The end as of KIP-890: a retry is known by its epoch."""
    epoch = request.producer_epoch
    rotated = known.previous_producer_id == request.producer_id and known.epoch == 0
    retry = (rotated and epoch == EPOCH_LAST_ISSUED) or (
        known.producer_id == request.producer_id and epoch + 1 == known.epoch < EPOCH_MAX
    )
    if retry:
        return answer(
            RequestKind.COMMIT_2_RETRY if request.committed else RequestKind.ABORT_2_RETRY,
            known.state,
        )
    kind = RequestKind.COMMIT_2 if request.committed else RequestKind.ABORT_2
    if known.state in ENDING:
        return answer(kind, known.state)
    if known.producer_id != request.producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if known.epoch != epoch:
        return ErrorCode.PRODUCER_FENCED
    return answer(kind, known.state)


def _markers(transactional_id: str, decided: Transaction) -> Markers:
    committed = decided.state is TransactionState.PREPARE_COMMIT
    return Markers(
        transactional_id,
        decided.producer_id,
        decided.epoch,
        committed,
        tuple(sorted(decided.partitions)),
    )
