"""Exactly once into Kafka: outputs, copies and offsets in one transaction (KIP-98, KIP-447).

Rules (E2, E3):
- The offsets go with the group's present generation: a member that its group has left behind is
  refused, and its transaction aborted (zombies).
- Whether a commit whose answer was lost has happened is not guessed: a new producer of the same
  transactional id ends what is open, and then the group's committed offsets tell: those of
  partitions that are still ours, since the next owner of another one may have committed further.
- To be fenced is no reason to end: a transaction that took too long is aborted by its coordinator,
  which fences its producer. Of two programs with one instance id the group itself ends the older.
- Readers of the outputs, and of the retry topics, read committed records only.

Shell: threads, the clock.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from kohort.client.common.completion import steady_s
from kohort.client.common.types import GroupMetadata, OffsetAndMetadata
from kohort.client.common.types import TopicPartition as Partition
from kohort.client.producer.plan.fast_send_choice import RecordFuture
from kohort.client.producer.producer import Producer
from kohort.errors import (
    AbortableTransactionError,
    ClosedError,
    FencedError,
    KafkaTimeoutError,
    KohortError,
    TransactionAbortedError,
)
from kohort.processing.engine.exactly_once_engine import Batch, Verdict
from kohort.processing.engine.partition_state import Item
from kohort.processing.engine.state import TopicPartition
from kohort.processing.engine.tracker import Commit
from kohort.processing.runtime.publishing import Sends, is_unfit
from kohort.processing.runtime.runner import Start
from kohort.processing.runtime.transactor import Judged, Transactor

log = logging.getLogger("kohort.processing")

INIT_TIMEOUT_S: Final = 30.0
PATIENCE_S: Final = 60.0
"""For the other calls that wait for a coordinator."""

Committed = Callable[[Sequence[TopicPartition]], dict[TopicPartition, OffsetAndMetadata | None]]
"""The group's stable committed offsets."""


class KafkaTransactor(Transactor):
    """Transactions of one producer at a time.

    Args:
        connect: makes a producer with the transactional id.
        partitions: how many partitions a topic has.
        committed: asks for the group's committed offsets, when a commit is in doubt.
    """

    def __init__(
        self,
        connect: Callable[[], Producer],
        partitions: Callable[[str], int],
        committed: Committed,
        *,
        now_s: Callable[[], float] = steady_s,
    ) -> None:
        super().__init__()
        self._connect = connect
        self._partitions = partitions
        self._committed = committed
        self._now_s = now_s
        self._producer: Producer | None = None
        self._stopping = threading.Event()

    def stop(self, timeout_s: float) -> None:
        """As `Transactor.stop`; a commit that has no answer is left to its next owner to find."""
        self._stopping.set()
        super().stop(timeout_s)

    def take_over(self, starts: Mapping[TopicPartition, Start]) -> dict[TopicPartition, Start]:
        """As `Transactor.take_over`, without a wait: the thread knows no more than the group."""
        return self._take_over(starts)

    def _take_over(self, starts: Mapping[TopicPartition, Start]) -> dict[TopicPartition, Start]:
        return dict(starts)  # the group's own offsets are the truth

    def _judge(self, items: Sequence[Item]) -> Judged:
        everything = frozenset(range(len(items)))  # committed records of a retry topic are owed
        return Judged(items, everything, frozenset())

    def _close(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            try:
                producer.close(0)
            except KohortError as error:
                log.debug("the transactional producer was closed with %s", error)

    # -- one batch -------------------------------------------------------------------------------

    def _commit_batch(self, batch: Batch, member: GroupMetadata) -> Verdict:
        try:
            producer = self._ready()
            producer.begin_transaction()
        except KohortError as error:
            self._close()
            return Verdict(batch, error)
        sent: list[tuple[int, RecordFuture]] = []
        try:
            verdict = self._fill(producer, batch, member, sent)
            if verdict is not None:
                return verdict
            self._commit(producer)
        except AbortableTransactionError as error:
            return self._aborted(producer, batch, error, sent)
        except KohortError as error:  # final for this producer, and the commit may have happened
            return self._in_doubt(batch, error)
        return Verdict(batch)

    def _ready(self) -> Producer:
        if self._producer is None:
            producer = self._connect()
            try:
                producer.init_transactions(INIT_TIMEOUT_S)
            except BaseException:  # any error: this producer is no longer usable
                producer.close(0)
                raise
            self._producer = producer
            self._sends = Sends(producer, self._partitions, self._now_s)
        return self._producer

    def _fill(
        self,
        producer: Producer,
        batch: Batch,
        member: GroupMetadata,
        sent: list[tuple[int, RecordFuture]],
    ) -> Verdict | None:
        """Records and offsets; a verdict when one of them was refused before it was even sent."""
        assert self._sends is not None, "made with the producer"
        refused: dict[int, KohortError] = {}
        for index, publication in enumerate(batch.publications):
            for output in publication.outputs:
                error = self._sends.refusal(output.topic)
                if error is None and not refused:
                    try:
                        sent.append((index, self._sends.send(publication, output)))
                    except (AbortableTransactionError, FencedError, ClosedError):
                        raise
                    except KohortError as failure:
                        error = failure
                if error is not None:
                    refused[index] = error
                    break
        if refused:
            return self._aborted(producer, batch, next(iter(refused.values())), sent, refused)
        producer.send_offsets_to_transaction(_offsets(batch.commits), member, PATIENCE_S)
        return None

    def _commit(self, producer: Producer) -> None:
        while True:
            try:
                producer.commit_transaction(PATIENCE_S)
                return
            except KafkaTimeoutError as error:
                if self._stopping.is_set():
                    raise
                log.warning("a transaction is being committed for long: %s", error)

    # -- what was not committed -------------------------------------------------------------------

    def _aborted(
        self,
        producer: Producer,
        batch: Batch,
        error: KohortError,
        sent: Sequence[tuple[int, RecordFuture]],
        refused: Mapping[int, KohortError] | None = None,
    ) -> Verdict:
        """Abort, and find out whose records were refused."""
        try:
            producer.abort_transaction(PATIENCE_S)
        except KohortError as worse:
            log.warning("a transaction could not be aborted (%s); a new producer will", worse)
            self._close()
        reasons = dict(refused or {})
        for at, future in sent:
            refusal = future.error() if future.done else None
            if refusal is not None and not isinstance(refusal, TransactionAbortedError):
                reasons.setdefault(at, refusal)
        unfit = {at: each for at, each in reasons.items() if is_unfit(each)}
        later = {
            at
            for at, each in reasons.items()
            if at not in unfit and not isinstance(each, (AbortableTransactionError, FencedError))
        }
        cause = next(iter(reasons.values()), error.__cause__ or error)
        if not isinstance(cause, KohortError):
            cause = error
        return Verdict(batch, cause, unfit=unfit, refused=later)

    def _in_doubt(self, batch: Batch, error: KohortError) -> Verdict:
        """End what is open with a new producer, then look at what is committed."""
        self._close()
        while not self._stopping.is_set():
            try:
                self._ready()
                committed = self._committed(list(batch.commits))
            except KohortError as worse:
                log.warning("whether a transaction was committed is not known yet (%s)", worse)
                self._close()
                self._stopping.wait(1)
                continue
            return Verdict(batch, None if _is_committed(batch, committed) else error)
        return Verdict(batch, error)


def _is_committed(
    batch: Batch, committed: Mapping[TopicPartition, OffsetAndMetadata | None]
) -> bool:
    """Whether the offsets of a batch are what is committed; of a batch of others, anything goes."""
    return all(
        (at := committed.get(key)) is not None
        and (at.offset, at.metadata) == (batch.commits[key].offset, batch.commits[key].metadata)
        for key in batch.still_owned()
    )


def _offsets(commits: Mapping[TopicPartition, Commit]) -> dict[Partition, OffsetAndMetadata]:
    return {
        Partition(*key): OffsetAndMetadata(commit.offset, commit.metadata)
        for key, commit in commits.items()
    }
