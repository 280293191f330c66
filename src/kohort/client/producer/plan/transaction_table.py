"""The states of a transactional producer, as a table. The code follows it and refuses the rest.

Rules:
- What the user calls and what comes back from the coordinator are the only events.
- After an abortable error nothing but an abort is left; after a fatal one nothing at all.

The diagram in `docs/diagrams/` is drawn from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final

from kohort.group.coordinator.state.transition_table import follow


class TxState(Enum):
    """The state of a transactional producer; the value describes it."""

    NEW = "init_transactions was not called yet"
    INITIALIZING = "the coordinator is asked for producer id and epoch"
    READY = "no transaction is open"
    OPEN = "records and offsets go into the transaction"
    COMMITTING = "everything is sent, then the coordinator is asked to commit"
    ABORTING = "requests in flight come back, then the coordinator is asked to abort"
    BROKEN = "a part of the transaction failed: it can only be aborted"
    DEAD = "fenced, or refused permanently: create a new producer"

    __hash__ = object.__hash__


class TxEvent(Enum):
    """What moves a transactional producer."""

    INIT_CALLED = "init_transactions()"
    INITIALIZED = "producer id and epoch have come"
    BEGIN_CALLED = "begin_transaction()"
    COMMIT_CALLED = "commit_transaction()"
    ABORT_CALLED = "abort_transaction()"
    ENDED = "the coordinator has confirmed the end"
    FAILED = "a record, an offset or a request was refused"
    FATAL = "another producer has taken over, or authorization was lost"

    __hash__ = object.__hash__


_S, _E = TxState, TxEvent

TRANSITIONS: Final[Mapping[tuple[TxState, TxEvent], TxState]] = {
    (_S.NEW, _E.INIT_CALLED): _S.INITIALIZING,
    (_S.INITIALIZING, _E.INIT_CALLED): _S.INITIALIZING,
    (_S.INITIALIZING, _E.INITIALIZED): _S.READY,
    (_S.READY, _E.BEGIN_CALLED): _S.OPEN,
    (_S.OPEN, _E.COMMIT_CALLED): _S.COMMITTING,
    (_S.COMMITTING, _E.COMMIT_CALLED): _S.COMMITTING,
    (_S.OPEN, _E.ABORT_CALLED): _S.ABORTING,
    (_S.BROKEN, _E.ABORT_CALLED): _S.ABORTING,
    (_S.ABORTING, _E.ABORT_CALLED): _S.ABORTING,
    (_S.COMMITTING, _E.ENDED): _S.READY,
    (_S.ABORTING, _E.ENDED): _S.READY,
    (_S.OPEN, _E.FAILED): _S.BROKEN,
    (_S.COMMITTING, _E.FAILED): _S.BROKEN,
    (_S.BROKEN, _E.FAILED): _S.BROKEN,
    (_S.NEW, _E.FATAL): _S.DEAD,
    (_S.INITIALIZING, _E.FATAL): _S.DEAD,
    (_S.READY, _E.FATAL): _S.DEAD,
    (_S.OPEN, _E.FATAL): _S.DEAD,
    (_S.COMMITTING, _E.FATAL): _S.DEAD,
    (_S.ABORTING, _E.FATAL): _S.DEAD,
    (_S.BROKEN, _E.FATAL): _S.DEAD,
    (_S.DEAD, _E.FATAL): _S.DEAD,
}

SENDING: Final = frozenset({_S.OPEN, _S.COMMITTING})
"""Batches may go out."""


def next_state(state: TxState, event: TxEvent) -> TxState:
    """The state that `event` leads to. Raises AssertionError where the table has none."""
    return follow(TRANSITIONS, state, event, "a transactional producer")
