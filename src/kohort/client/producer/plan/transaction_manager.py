"""A transactional producer's dealings with its coordinators. Pure; the producer locks around it.

Rules (KIP-98, KIP-360, KIP-447, KIP-890):
- One request at a time, in this order: producer id, partitions, offsets, the end. The end is asked
  for when everything of the transaction has come back.
- Where the cluster has `transaction.version` 2, partitions add themselves with their first record,
  and every end gives the next epoch. Elsewhere partitions are added before, and the epoch rises
  only after an abort that left sequences in doubt.
- Any refusal breaks the transaction: it can only be aborted. A code that is not known to be
  harmless is fatal; a request whose answer is lost is sent again, because each of them may be
  repeated.
- Repeated refusals are visible: see `refusals`.
- A call that ended without an outcome (a time-out, Ctrl-C, a cancel) may be made again, even if its
  work has been done meanwhile.
- A token is any object that a caller waits by; it comes back in `Settled` once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from kohort.client.cluster.client import ANY, Versioned
from kohort.client.cluster.find_coordinator import (
    GROUP,
    TRANSACTION,
    coordinator_in,
    find_coordinator,
)
from kohort.client.cluster.metadata import Node
from kohort.client.cluster.refusal_log import Refusals
from kohort.client.common.backoff import Backoff
from kohort.client.common.types import GroupMetadata, OffsetAndMetadata, TopicPartition
from kohort.client.producer.plan import transaction_requests as requests
from kohort.client.producer.plan.transaction_requests import Identity, Kind, Verdict
from kohort.client.producer.plan.transaction_table import (
    SENDING,
    TRANSITIONS,
    TxEvent,
    TxState,
    next_state,
)
from kohort.errors import (
    AbortableTransactionError,
    BrokerError,
    ClosedError,
    ErrorCode,
    FencedError,
    KohortError,
    ProtocolError,
    TransactionAbortedError,
    UsageError,
    fresh,
)
from kohort.wire import Message
from kohort.wire.messages.end_txn_response import EndTxnResponse
from kohort.wire.messages.find_coordinator_response import FindCoordinatorResponse
from kohort.wire.messages.init_producer_id_response import InitProducerIdResponse

_BUSY_MS: Final = 10
"""The coordinator is writing the markers of the transaction before; that does not take long."""
KIP_890_LEVEL: Final = 2
_STRANGE: Final = (ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.UNKNOWN_PRODUCER_ID)
"""The coordinator does not know the producer: it must be given an id again."""
FEATURE: Final = "transaction.version"


class Ask(NamedTuple):
    """A request to send."""

    kind: Kind
    target: int
    message: Message | Versioned


class Settled(NamedTuple):
    """A wait is over: well, or with an error."""

    token: Any
    error: KohortError | None


class _Offsets(NamedTuple):
    group: GroupMetadata
    offsets: Mapping[TopicPartition, OffsetAndMetadata]
    token: Any


class Transactions:
    """The transactions of one producer, one after the other."""

    def __init__(
        self,
        transactional_id: str,
        timeout_ms: int,
        backoff: Backoff,
        feature: Callable[[int, str], int],
        refusals: Refusals,
    ) -> None:
        self.state = TxState.NEW
        self.identity = Identity(transactional_id, -1, -1)
        self.kip_890 = False
        self.learned: Node | None = None
        """A coordinator's address, for the shell to take over."""
        self._timeout_ms = timeout_ms
        self._backoff = backoff
        self._feature = feature
        self._refusals = refusals
        self._name = f"transactional_id {transactional_id!r}"
        """The producer's name in `refusals`."""
        self.error: KohortError | None = None
        """What broke the transaction, or the producer."""
        self._coordinator: int | None = None
        self._groups: dict[str, int] = {}
        self._in_flight: Ask | None = None
        self._retry_at_ms = 0
        self._waiting: list[Any] = []
        self._undelivered: TxEvent | None = None
        """The call whose caller does not know yet that it was carried out."""
        self._forget_transaction()

    def _forget_transaction(self) -> None:
        self._offsets: deque[_Offsets] = deque()
        self._to_add: set[tuple[str, int]] = set()
        self._adding: set[tuple[str, int]] = set()
        self._added: set[tuple[str, int]] = set()
        self._groups_added: set[str] = set()
        self._begun = False  # the coordinator may know about it
        self._sure = False  # the coordinator has confirmed it
        self._renew = False  # sequences are in doubt: the next epoch starts over
        self._flushed = False

    def _move(self, event: TxEvent) -> None:
        self.state = next_state(self.state, event)

    # -- the user's calls: they raise, or change the state

    def _called(self, event: TxEvent, usage: str) -> None:
        if self.state is TxState.READY and event is self._undelivered:
            return
        if (self.state, event) in TRANSITIONS:
            self._move(event)
            self._undelivered = event
            return
        self.check_alive()
        if self.state is TxState.BROKEN:
            raise self.broken_error()
        raise UsageError(f"{event.value} while {self.state.value}; {usage}")

    def outcome_delivered(self) -> None:
        """The caller of the last call knows its outcome."""
        self._undelivered = None

    def check_alive(self) -> None:
        """Raise the fatal error, if there was one."""
        if self.state is TxState.DEAD:
            assert self.error is not None
            raise fresh(self.error)

    def broken_error(self) -> AbortableTransactionError:
        """Why the transaction can only be aborted."""
        broken = AbortableTransactionError(
            f"the transaction of {self.identity.transactional_id!r} cannot be committed: "
            f"{self.error}. Call abort_transaction(), then do its work again in a new one"
        )
        broken.__cause__ = self.error
        return broken

    def init(self, token: Any) -> list[Settled]:
        """`init_transactions`; `token` is settled when the producer has its id and epoch."""
        self._called(TxEvent.INIT_CALLED, "it is called once, before the first transaction")
        if self.state is TxState.READY:
            return [Settled(token, None)]
        self._waiting.append(token)
        return []

    def begin(self) -> None:
        """`begin_transaction`: no request is sent before there is something to write."""
        usage = "call init_transactions() first, and end one transaction before the next"
        self._called(TxEvent.BEGIN_CALLED, usage)

    def end(self, *, commit: bool) -> None:
        """`commit_transaction` or `abort_transaction`: nothing more is taken."""
        event = TxEvent.COMMIT_CALLED if commit else TxEvent.ABORT_CALLED
        self._called(event, "call begin_transaction() first, and end it by one of the two")

    def check_may_write(self) -> None:
        """Raise unless a transaction is open."""
        if self.state is TxState.OPEN:
            return
        self.check_alive()
        if self.state is TxState.BROKEN:
            raise self.broken_error()
        raise UsageError(
            f"this producer has a transactional_id and is not in a transaction ({self.state.value})"
            "; call begin_transaction() first"
        )

    def commit_offsets(
        self,
        group: GroupMetadata,
        wanted: Mapping[TopicPartition, OffsetAndMetadata],
        token: Any,
    ) -> None:
        """`send_offsets_to_transaction`; `token` is settled when the coordinator has them."""
        self.check_may_write()
        self._offsets.append(_Offsets(group, wanted, token))

    # -- the producer's records

    def admits(self, topic: str, partition: int) -> bool:
        """Whether a batch may go out now; if its partition must be added first, it will be."""
        if self.state not in SENDING:
            return False
        if self.kip_890 or (topic, partition) in self._added:
            return True
        self._to_add.add((topic, partition))
        return False

    def sent(self) -> None:
        """Batches of the transaction are on their way."""
        self._begun = True

    def failed(self, error: KohortError) -> list[Settled]:
        """A record was not stored: the transaction is broken."""
        self._renew = True
        if (self.state, TxEvent.FAILED) not in TRANSITIONS:
            return []
        return self._break(error)

    def dropped_in_doubt(self) -> None:
        """Batches that had been sent once were dropped by an abort."""
        self._renew = True

    def flushed(self, token: Any) -> list[Settled]:
        """Everything of the transaction has come back: the end may be asked for."""
        self.check_alive()
        if self.state is TxState.BROKEN:
            raise self.broken_error()
        if self.state is TxState.READY:  # it has ended between two calls for its end
            return [Settled(token, None)]
        self._waiting.append(token)
        self._flushed = True
        offsets_first = self.state is TxState.COMMITTING and bool(self._offsets)
        return [] if self._begun or self._renew or offsets_first else self._ended()

    # -- requests

    def next_request(self, now_ms: int) -> Ask | None:
        """What to send now; it is answered by `answered` before there is another."""
        if self._in_flight is not None or now_ms < self._retry_at_ms:
            return None
        self._retry_at_ms = 0
        self._in_flight = self._plan()
        return self._in_flight

    def next_deadline(self) -> int | None:
        """When `next_request` may have something after a failure."""
        return self._retry_at_ms if self._in_flight is None and self._retry_at_ms else None

    def _plan(self) -> Ask | None:
        who, state = self.identity, self.state
        if state is TxState.INITIALIZING:
            return self._at_coordinator(Kind.INIT, requests.init(who, self._timeout_ms))
        if state in SENDING and self._to_add:
            self._begun = True
            self._adding = set(self._to_add)
            message = requests.add_partitions(who, self._adding)
            return self._at_coordinator(Kind.ADD_PARTITIONS, message)
        if state in SENDING and self._offsets:
            return self._plan_offsets(self._offsets[0])
        if not self._flushed or state not in (TxState.COMMITTING, TxState.ABORTING):
            return None
        if self._begun:
            commit = state is TxState.COMMITTING
            message = requests.end(who, commit=commit, kip_890=self.kip_890)
            return self._at_coordinator(Kind.END, message)
        assert self._renew, "there is something left to do until the transaction has ended"
        return self._at_coordinator(Kind.INIT, requests.init(who, self._timeout_ms))

    def _plan_offsets(self, offsets: _Offsets) -> Ask:
        who, group_id = self.identity, offsets.group.group_id
        self._begun = True
        if not self.kip_890 and group_id not in self._groups_added:
            return self._at_coordinator(Kind.ADD_OFFSETS, requests.add_offsets(who, group_id))
        node_id = self._groups.get(group_id)
        if node_id is None:
            return Ask(Kind.FIND_GROUP, ANY, find_coordinator(group_id, GROUP))
        message = requests.offsets(who, offsets.group, offsets.offsets, kip_890=self.kip_890)
        return Ask(Kind.OFFSETS, node_id, message)

    def _at_coordinator(self, kind: Kind, message: Message | Versioned) -> Ask:
        if self._coordinator is None:
            name = self.identity.transactional_id
            return Ask(Kind.FIND_TRANSACTIONS, ANY, find_coordinator(name, TRANSACTION))
        return Ask(kind, self._coordinator, message)

    # -- answers

    def answered(self, ask: Ask, answer: Message | KohortError, now_ms: int) -> list[Settled]:
        """What came of a request."""
        if ask is not self._in_flight:
            return []
        self._in_flight = None
        self._retry_at_ms = 0
        if isinstance(answer, KohortError):
            return self._lost(ask, answer, now_ms)
        if isinstance(answer, FindCoordinatorResponse):
            return self._coordinator_found(ask, answer, now_ms)
        codes = requests.codes_in(answer)
        if codes:
            return self._refused(ask, codes[0], now_ms)
        self._backoff.succeeded()
        self._refusals.served(self._name)
        return self._done(ask, answer)

    def _lost(self, ask: Ask, error: KohortError, now_ms: int) -> list[Settled]:
        """No answer came. Everything here may be asked again."""
        if isinstance(error, ClosedError | ProtocolError) or not error.retriable:
            return self._die(error)
        self._forget_coordinator(ask.kind)
        self._retry_at_ms = now_ms + self._backoff.failed()
        return []

    def _forget_coordinator(self, kind: Kind) -> None:
        if kind is Kind.OFFSETS:
            self._groups.clear()
        elif kind not in (Kind.FIND_GROUP, Kind.FIND_TRANSACTIONS):
            self._coordinator = None

    def _coordinator_found(
        self, ask: Ask, answer: FindCoordinatorResponse, now_ms: int
    ) -> list[Settled]:
        name = self.identity.transactional_id
        if ask.kind is Kind.FIND_GROUP:
            if not self._offsets:
                return []
            name = self._offsets[0].group.group_id
        node = coordinator_in(answer, name)
        if isinstance(node, BrokerError):
            return self._refused(ask, node.code, now_ms)
        self.learned = node
        if ask.kind is Kind.FIND_GROUP:
            self._groups[name] = node.node_id
        else:
            self._coordinator = node.node_id
        return []

    def _refused(self, ask: Ask, code: int, now_ms: int) -> list[Settled]:
        verdict = requests.verdict(ask.kind, code)
        name = self.identity.transactional_id
        if verdict is Verdict.MOVED:
            self._forget_coordinator(ask.kind)
        if verdict in (Verdict.MOVED, Verdict.RETRY):
            busy = code == ErrorCode.CONCURRENT_TRANSACTIONS
            wait_ms = self._backoff.failed()
            self._refusals.note(self._name, code, now_ms)
            self._retry_at_ms = now_ms + (min(_BUSY_MS, wait_ms) if busy else wait_ms)
            return []
        if verdict is Verdict.FENCED:
            return self._die(FencedError(code, requests.fenced(name)))
        error = BrokerError(code, f"{ask.kind.value} of transactional_id {name!r}")
        unknown = ask.kind is Kind.END and code == ErrorCode.INVALID_TXN_STATE and not self._sure
        forgotten = ask.kind is Kind.END and code in _STRANGE
        if (unknown or forgotten) and self.state is TxState.ABORTING:
            # The coordinator never heard of the transaction, or knows the producer no more.
            self._renew = self._renew or forgotten
            return self._after_end()
        if verdict is Verdict.BROKEN and (self.state, TxEvent.FAILED) in TRANSITIONS:
            self._renew = self._renew or code in _STRANGE
            return self._break(error)
        if self.state is TxState.ABORTING and ask.kind not in (Kind.END, Kind.INIT):
            return []  # its purpose is given up anyway
        return self._die(error)

    def _done(self, ask: Ask, answer: Message) -> list[Settled]:
        if isinstance(answer, InitProducerIdResponse):
            return self._initialized(answer.producer_id, answer.producer_epoch)
        if ask.kind is Kind.ADD_PARTITIONS:
            self._sure = True
            self._added |= self._adding
            self._to_add -= self._adding
        elif ask.kind is Kind.ADD_OFFSETS and self._offsets:
            self._sure = True
            self._groups_added.add(self._offsets[0].group.group_id)
        elif ask.kind is Kind.OFFSETS and self._offsets:
            self._sure = True
            return [Settled(self._offsets.popleft().token, None)]
        elif isinstance(answer, EndTxnResponse):
            if self.kip_890 and answer.producer_id >= 0:
                name = self.identity.transactional_id
                self.identity = Identity(name, answer.producer_id, answer.producer_epoch)
                self._renew = False
            return self._after_end()
        return []

    def _initialized(self, producer_id: int, epoch: int) -> list[Settled]:
        assert self._coordinator is not None
        name = self.identity.transactional_id
        self.identity = Identity(name, producer_id, epoch)
        self.kip_890 = self._feature(self._coordinator, FEATURE) >= KIP_890_LEVEL
        if self.state is TxState.ABORTING:  # it was the new epoch after an abort
            return self._ended()
        self._move(TxEvent.INITIALIZED)
        return self._settle(None)

    def _after_end(self) -> list[Settled]:
        """The transaction has ended; before KIP-890 a new epoch may be needed."""
        self._begun = False
        return [] if self._renew else self._ended()

    def _ended(self) -> list[Settled]:
        self._move(TxEvent.ENDED)
        self.error = None
        dropped = self._drop_offsets(TransactionAbortedError("its transaction was aborted"))
        self._forget_transaction()
        return dropped + self._settle(None)

    def _break(self, error: KohortError) -> list[Settled]:
        if self.state is not TxState.BROKEN:
            self.error = error
        self._move(TxEvent.FAILED)
        self._refusals.served(self._name)
        self._flushed = False
        broken = self.broken_error()
        return self._drop_offsets(broken) + self._settle(broken)

    def _die(self, error: KohortError) -> list[Settled]:
        self._move(TxEvent.FATAL)
        self._refusals.forget(self._name)
        self.error = error
        return self._drop_offsets(error) + self._settle(error)

    def close(self, error: KohortError) -> list[Settled]:
        """The producer is closed."""
        return self._die(error)

    def _drop_offsets(self, error: KohortError) -> list[Settled]:
        dropped = [Settled(offsets.token, error) for offsets in self._offsets]
        self._offsets.clear()
        return dropped

    def _settle(self, error: KohortError | None) -> list[Settled]:
        waiting, self._waiting = self._waiting, []
        return [Settled(token, error) for token in waiting]
