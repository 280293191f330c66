"""The shell of a producer's transactions: requests out, answers in, waits ended.

Rules:
- The producer's lock guards `Transactions` (pure) and the sender; futures are completed and
  requests sent outside of it.
- Users' threads change the state and post a drain; everything else is done on the network thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kohort.client.cluster.client import ClusterClient
from kohort.client.common.backoff import Backoff
from kohort.client.common.config import ProducerConfig
from kohort.client.common.future import Future
from kohort.client.common.types import GroupMetadata, OffsetAndMetadata, TopicPartition
from kohort.client.producer.plan.fast_send_choice import Guard
from kohort.client.producer.plan.sender import Outcome, Sender
from kohort.client.producer.plan.transaction_manager import Ask, Settled, Transactions
from kohort.client.producer.plan.transaction_requests import BEFORE_KIP_890
from kohort.client.producer.plan.transaction_table import TxState
from kohort.errors import ClosedError, KafkaTimeoutError, KohortError, TransactionAbortedError
from kohort.net import Timer
from kohort.wire import Message

OPEN_STATES = frozenset({TxState.OPEN, TxState.BROKEN})


class Transactional:
    """The transactions of one producer. `wake` posts a drain; the lock is held when called."""

    def __init__(
        self,
        config: ProducerConfig,
        cluster: ClusterClient,
        lock: Guard,
        sender: Sender,
        wake: Callable[[], None],
    ) -> None:
        assert config.transactional_id is not None
        self.transactional_id = config.transactional_id
        self._cluster = cluster
        self._lock = lock
        self._sender = sender
        self._wake = wake
        self._timer: Timer | None = None
        backoff = Backoff(config.retry_backoff_ms, config.retry_backoff_max_ms, cluster.uniform)
        self._tx = Transactions(
            config.transactional_id,
            config.transaction_timeout_ms,
            backoff,
            cluster.connections.feature,
            sender.refusals,
        )
        sender.become_transactional(self._tx.admits)

    # -- users' threads

    @property
    def is_open(self) -> bool:
        """Whether there is a transaction that was not ended."""
        return self._tx.state in OPEN_STATES

    def check_alive(self) -> None:
        """Raise the error that ended this producer, if there is one."""
        with self._lock:
            self._tx.check_alive()

    def init(self) -> Future[None]:
        """Ask for producer id and epoch."""
        future: Future[None] = Future()
        with self._lock:
            settled = self._tx.init(future)
            self._wake()
        settle(settled)
        return future

    def outcome_delivered(self) -> None:
        """The caller of `init` or `finish_end` has its outcome."""
        with self._lock:
            self._tx.outcome_delivered()

    def begin(self) -> None:
        """Open a transaction."""
        with self._lock:
            self._tx.begin()

    def start_end(self, *, commit: bool) -> None:
        """Take nothing more; an abort drops what was not sent."""
        with self._lock:
            self._tx.end(commit=commit)
            self._wake()

    def finish_end(self) -> Future[None]:
        """Everything has come back: tell the coordinator."""
        future: Future[None] = Future()
        with self._lock:
            settled = self._tx.flushed(future)
            self._wake()
        settle(settled)
        return future

    def commit_offsets(
        self, group: GroupMetadata, offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> Future[None]:
        """Put a group's offsets into the transaction."""
        future: Future[None] = Future()
        with self._lock:
            self._tx.commit_offsets(group, offsets, future)
            self._wake()
        return future

    def check_may_write(self) -> None:
        """Raise unless a transaction is open; the lock is held."""
        self._tx.check_may_write()

    def too_late(self, what: str) -> KafkaTimeoutError:
        """The error of a call (its name) without an answer in time, with what is known."""
        with self._lock:
            why = self._sender.refusals.longest(self._cluster.loop.now_ms())
        if not why and self._cluster.connections.is_cut_off:
            why = str(self._cluster.unreachable())
        return KafkaTimeoutError(
            f"{what} had no answer in time and continues; the same call again waits for its outcome"
            + (f". {why}" if why else "")
        )

    # -- the network thread

    @property
    def produce_at_most(self) -> int | None:
        """Before KIP-890, a version of Produce that adds no partitions."""
        return None if self._tx.kip_890 else BEFORE_KIP_890["produce"]

    def sent(self) -> None:
        """Batches are on their way; the lock is held."""
        self._tx.sent()

    def failed(self, error: KohortError) -> list[Settled]:
        """A batch was not stored; the lock is held."""
        if isinstance(error, TransactionAbortedError):
            return []
        return self._tx.failed(error)

    def drop_unsent(self) -> list[Outcome]:
        """The unsent and returned batches of a transaction that cannot be committed; the lock is
        held.
        """
        if self._tx.state is TxState.DEAD:
            assert self._tx.error is not None
            return self._sender.drop_unsent(self._tx.error)
        if self._tx.state not in (TxState.ABORTING, TxState.BROKEN):
            return []
        cause = "was aborted" if self._tx.error is None else f"has failed: {self._tx.error}"
        error = TransactionAbortedError(f"its transaction {cause}; the record was not stored")
        outcomes = self._sender.drop_unsent(error)
        if any(outcome.batch.attempts for outcome in outcomes):
            self._tx.dropped_in_doubt()
        return outcomes

    def pump(self) -> None:
        """Send the next request, if there is one."""
        if self._cluster.is_closed:
            return
        now_ms = self._cluster.loop.now_ms()
        with self._lock:
            ask = self._tx.next_request(now_ms)
            deadline_ms = self._tx.next_deadline()
        if ask is not None:
            self._cluster.request(
                ask.target, ask.message, lambda answer: self._answered(ask, answer), kind="group"
            )
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if deadline_ms is not None:
            self._timer = self._cluster.loop.call_at(deadline_ms, self.pump)

    def _answered(self, ask: Ask, answer: Message | KohortError) -> None:
        tx, sender = self._tx, self._sender
        with self._lock:
            settled = tx.answered(ask, answer, self._cluster.loop.now_ms())
            learned, tx.learned = tx.learned, None
            who = tx.identity
            if (who.producer_id, who.epoch) != (sender.producer_id, sender.producer_epoch):
                sender.take_identity(who.producer_id, who.epoch)
            self._wake()
        if learned is not None:
            self._cluster.connections.learn(learned)
        settle(settled)
        self.pump()

    def close(self, error: ClosedError) -> None:
        """End every wait."""
        if self._timer is not None:
            self._timer.cancel()
        with self._lock:
            settled = self._tx.close(error)
        settle(settled)


def settle(settled: list[Settled]) -> None:
    """End the waits of those who are served."""
    for future, error in settled:
        if error is None:
            future.set_result(None)
        else:
            future.set_error(error)
