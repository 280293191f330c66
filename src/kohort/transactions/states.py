"""A transaction's states, its transitions, and what each request is answered in each state.

Rules:
- Two literal tables drive the code: `TRANSITIONS` through `next_state`, `ANSWERS`
  through `answer`. The diagram in `docs/diagrams/` is drawn from them.
- A transition that the table does not have is a bug of ours and raises.
- The rows hold once producer id and epoch are valid; errors in those are
  answered first (`INVALID_PRODUCER_ID_MAPPING`, then `PRODUCER_FENCED`).
- "KIP-890" rows are those of clients whose epoch rises with every transaction (EndTxn v5): there an
  epoch tells a retry from the end of the next transaction, so a retry has rows of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import Final

from kohort.errors import ErrorCode
from kohort.group.coordinator.state.transition_table import follow


class TransactionState(Enum):
    """State of a transactional id; the value is the name that ListTransactions shows."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"
    DEAD = "Dead"

    __hash__ = object.__hash__  # members are singletons; Enum's own hash is slow


class TransactionEvent(Enum):
    """What moves a transaction from state to state; the value labels the arrow in the diagram."""

    INITIALIZED = "a producer begins: InitProducerId"
    PARTITIONS_ADDED = "AddPartitionsToTxn, AddOffsetsToTxn, or the first record (KIP-890)"
    COMMIT_DECIDED = "EndTxn, commit"
    ABORT_DECIDED = "EndTxn, abort"
    FENCED = "the time is over, or another producer begins"
    MARKERS_WRITTEN = "every partition has its marker"
    EXPIRED = "not used for transactional.id.expiration.ms"

    __hash__ = object.__hash__


_S, _E = TransactionState, TransactionEvent

TRANSITIONS: Final[Mapping[tuple[TransactionState, TransactionEvent], TransactionState]] = {
    (_S.EMPTY, _E.INITIALIZED): _S.EMPTY,
    (_S.COMPLETE_COMMIT, _E.INITIALIZED): _S.EMPTY,
    (_S.COMPLETE_ABORT, _E.INITIALIZED): _S.EMPTY,
    (_S.EMPTY, _E.PARTITIONS_ADDED): _S.ONGOING,
    (_S.COMPLETE_COMMIT, _E.PARTITIONS_ADDED): _S.ONGOING,
    (_S.COMPLETE_ABORT, _E.PARTITIONS_ADDED): _S.ONGOING,
    (_S.ONGOING, _E.PARTITIONS_ADDED): _S.ONGOING,
    (_S.ONGOING, _E.COMMIT_DECIDED): _S.PREPARE_COMMIT,
    (_S.ONGOING, _E.ABORT_DECIDED): _S.PREPARE_ABORT,
    (_S.ONGOING, _E.FENCED): _S.PREPARE_ABORT,
    (_S.EMPTY, _E.ABORT_DECIDED): _S.PREPARE_ABORT,
    (_S.COMPLETE_COMMIT, _E.ABORT_DECIDED): _S.PREPARE_ABORT,
    (_S.COMPLETE_ABORT, _E.ABORT_DECIDED): _S.PREPARE_ABORT,
    (_S.PREPARE_COMMIT, _E.MARKERS_WRITTEN): _S.COMPLETE_COMMIT,
    (_S.PREPARE_ABORT, _E.MARKERS_WRITTEN): _S.COMPLETE_ABORT,
    (_S.EMPTY, _E.EXPIRED): _S.DEAD,
    (_S.COMPLETE_COMMIT, _E.EXPIRED): _S.DEAD,
    (_S.COMPLETE_ABORT, _E.EXPIRED): _S.DEAD,
}

ENDING: Final = frozenset({_S.PREPARE_COMMIT, _S.PREPARE_ABORT})
"""Decided, and the markers are on their way."""


def next_state(
    state: TransactionState, event: TransactionEvent, transactional_id: str
) -> TransactionState:
    """The state that `event` leads to. Raises AssertionError where the table has none."""
    return follow(TRANSITIONS, state, event, f"transactional id {transactional_id!r}")


class RequestKind(Enum):
    """The rows of the answer table."""

    INIT = "InitProducerId"
    ADD = "AddPartitionsToTxn, AddOffsetsToTxn"
    VERIFY = "AddPartitionsToTxn, verify only"
    COMMIT = "EndTxn, commit"
    ABORT = "EndTxn, abort"
    COMMIT_2 = "EndTxn, commit (KIP-890)"
    ABORT_2 = "EndTxn, abort (KIP-890)"
    COMMIT_2_RETRY = "EndTxn, commit again (KIP-890)"
    ABORT_2_RETRY = "EndTxn, abort again (KIP-890)"

    __hash__ = object.__hash__


class Step(Enum):
    """What a request leads to where it is not simply answered with an error code."""

    BEGIN = auto()
    """The producer gets its id and the next epoch."""
    FENCE = auto()
    """The open transaction is aborted with a higher epoch; the asker comes again
    (CONCURRENT_TRANSACTIONS)."""
    ADD = auto()
    """The partitions belong to the transaction from now on."""
    COMPARE = auto()
    """Each partition is answered whether it belongs to the transaction (TRANSACTION_ABORTABLE)."""
    COMMIT = auto()
    """The decision is written, then the markers."""
    ABORT = auto()
    """The decision is written, then the markers."""
    ABORT_NOTHING = auto()
    """As an abort, of a transaction without partitions: it only raises the epoch."""
    AGAIN = auto()
    """What was answered the first time."""

    __hash__ = object.__hash__


Answer = ErrorCode | Step
_BUSY = ErrorCode.CONCURRENT_TRANSACTIONS
_WRONG = ErrorCode.INVALID_TXN_STATE
_NOT_IN = ErrorCode.TRANSACTION_ABORTABLE
_GONE = ErrorCode.INVALID_PRODUCER_ID_MAPPING
_FENCED = ErrorCode.PRODUCER_FENCED


def _row(*answers: Answer) -> Mapping[TransactionState, Answer]:
    return dict(zip(_S, answers, strict=True))


# fmt: off
ANSWERS: Final[Mapping[RequestKind, Mapping[TransactionState, Answer]]] = {
    #                                 Empty          Ongoing        PrepareCommit  PrepareAbort
    #                                 CompleteCommit CompleteAbort  Dead
    RequestKind.INIT:            _row(Step.BEGIN,    Step.FENCE,    _BUSY,         _BUSY,
                                      Step.BEGIN,    Step.BEGIN,    Step.BEGIN),
    RequestKind.ADD:             _row(Step.ADD,      Step.ADD,      _BUSY,         _BUSY,
                                      Step.ADD,      Step.ADD,      _GONE),
    RequestKind.VERIFY:          _row(_NOT_IN,       Step.COMPARE,  _BUSY,         _BUSY,
                                      _NOT_IN,       _NOT_IN,       _GONE),
    RequestKind.COMMIT:          _row(_WRONG,        Step.COMMIT,   _BUSY,         _WRONG,
                                      Step.AGAIN,    _WRONG,        _GONE),
    RequestKind.ABORT:           _row(_WRONG,        Step.ABORT,    _WRONG,        _BUSY,
                                      _WRONG,        Step.AGAIN,    _GONE),
    RequestKind.COMMIT_2:        _row(_WRONG,        Step.COMMIT,   _BUSY,         _BUSY,
                                      _WRONG,        _WRONG,        _GONE),
    RequestKind.ABORT_2:         _row(Step.ABORT_NOTHING, Step.ABORT, _BUSY,       _BUSY,
                                      Step.ABORT_NOTHING, Step.ABORT_NOTHING, _GONE),
    RequestKind.COMMIT_2_RETRY:  _row(_FENCED,       _FENCED,       _BUSY,         _BUSY,
                                      Step.AGAIN,    _WRONG,        _GONE),
    RequestKind.ABORT_2_RETRY:   _row(_FENCED,       _FENCED,       _BUSY,         _BUSY,
                                      _WRONG,        Step.AGAIN,    _GONE),
}
# fmt: on


def answer(kind: RequestKind, state: TransactionState) -> Answer:
    """What `kind` is answered, or leads to, in `state` (Dead: the id is not known)."""
    return ANSWERS[kind][state]
