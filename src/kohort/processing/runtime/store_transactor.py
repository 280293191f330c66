"""Exactly once into a SQL database: rows, ledger and progress in one database transaction.

Rules (E2, E3):
- Copies and outputs are acknowledged before the transaction, so that the ledger can name the place
  of each copy. What a crash leaves behind in between, no ledger row backs: it is inert.
- A row that breaks a constraint is its record's permanent failure, and no other's.
- Outputs (`record.send`) are not in the transaction: at least once. For outputs alone, use "kafka".
- A database that cannot be had is waited for; one that was put back in time ends the program.

Shell: threads.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from kohort.client.common.completion import steady_s
from kohort.client.common.types import GroupMetadata
from kohort.client.producer.plan.fast_send_choice import RecordFuture
from kohort.client.producer.producer import Producer
from kohort.errors import DataLossError, KohortError
from kohort.processing.engine.exactly_once_engine import Batch, Verdict, attempt_of
from kohort.processing.engine.outbox import Publication
from kohort.processing.engine.partition_state import Item
from kohort.processing.engine.snapshot import SnapshotError, decode
from kohort.processing.engine.state import TopicPartition
from kohort.processing.runtime.publishing import Sends, is_unfit
from kohort.processing.runtime.repeated_warning import Complaint
from kohort.processing.runtime.runner import Start, StoppedError
from kohort.processing.runtime.transactor import Judged, Transactor
from kohort.retry import ledger as books
from kohort.retry.classify import Disposition, Failure, describe
from kohort.retry.fenced import CONSTRAINT_REASON
from kohort.retry.ledger import Entries, Place
from kohort.retry.ledger import Verdict as Word
from kohort.retry.progress import NOWHERE, Advance, Advanced, ProgressMove, ProgressRow
from kohort.retry.sql_statements import statements
from kohort.retry.store import ConstraintError, Store, StoreBusyError
from kohort.retry.unreadable import REASON as UNREADABLE_REASON

log = logging.getLogger("kohort.processing")

ROUNDS: Final = 5
BY_STORE: Final = "kohort-store"
"""The metadata of the group's commits: the store is the truth, they only tell of it."""


class StoreTransactor(Transactor):
    """Batches into one store, under the name of a group.

    Args:
        topic_ids: of every topic, as text; empty where brokers have none.
        now_ms: the wall clock.
        now_s: a steady clock.
    """

    def __init__(
        self,
        group: str,
        store: Store,
        producer: Producer,
        partitions: Callable[[str], int],
        topic_ids: Mapping[str, str],
        now_ms: Callable[[], int],
        *,
        now_s: Callable[[], float] = steady_s,
    ) -> None:
        super().__init__()
        self._group = group
        self._store = store
        self._sends = Sends(producer, partitions, now_s)
        self._topic_ids = topic_ids
        self._now_ms = now_ms
        self._rows: dict[TopicPartition, ProgressRow] = {}
        """As this program left them."""
        self._away = Complaint()
        self._stopping = threading.Event()

    def stop(self, timeout_s: float) -> None:
        """As `Transactor.stop`."""
        self._stopping.set()
        super().stop(timeout_s)

    def _close(self) -> None:
        self._store.close()

    def _is_stopped_while_away(self, what: str, *about: object) -> bool:
        """Log what waits, now and again, and wait a second; True when this is to end."""
        if self._away.is_due(str(about[-1]), self._now_ms()):
            log.warning(what, *about)
        return self._stopping.wait(1)

    def _is_there(self) -> None:
        if self._away.is_over():
            log.warning("the store can be used again")

    # -- ownership -------------------------------------------------------------------------------

    def _take_over(self, starts: Mapping[TopicPartition, Start]) -> dict[TopicPartition, Start]:
        return {key: self._own(key, committed) for key, committed in starts.items()}

    def _own(self, key: TopicPartition, committed: Start) -> Start:
        topic_id = self._topic_ids.get(key[0], "")
        while True:
            try:
                row = self._store.take_over(self._group, key[0], topic_id, key[1], self._now_ms())
                break
            except StoreBusyError as error:
                away = self._is_stopped_while_away("%s-%d waits for the store: %s", *key, error)
                if away or self._is_stopped():
                    raise StoppedError((key,), error) from error
        self._is_there()
        self._rows[key] = row
        self._check(key, row, topic_id, committed)
        if row.next_offset == NOWHERE:  # the group may have been at work without a store before
            return committed
        return Start(row.next_offset, row.snapshot)

    def _check(
        self, key: TopicPartition, row: ProgressRow, topic_id: str, committed: Start
    ) -> None:
        if topic_id and row.topic_id and row.topic_id != topic_id:
            raise DataLossError(
                f"topic {key[0]} was deleted and created again ({row.topic_id} became {topic_id}): "
                "offsets no longer mean what the store says. Use another group, or delete the "
                f"rows of pipeline {self._group!r} and this topic from kohort_progress"
            )
        by_store = committed.snapshot == BY_STORE
        if by_store and committed.offset is not None and row.next_offset < committed.offset:
            where = "nowhere" if row.next_offset == NOWHERE else f"at {row.next_offset}"
            raise DataLossError(
                f"group {self._group}: the store is {where} in {key[0]}-{key[1]}, and the "
                f"group's commit at {committed.offset}: the store was emptied, replaced or "
                "restored from a backup. To do the difference again, set the group back: "
                f"kohort group reset {self._group} --topic {key[0]}:{key[1]} --to earliest"
            )

    # -- the ledger's word -----------------------------------------------------------------------

    def _judge(self, items: Sequence[Item]) -> Judged:
        attempts = [attempt_of(item) for item in items]
        ids = [attempt.origin.retry_id for attempt in attempts]
        while True:
            try:
                states = self._store.states(self._group, ids)
                self._is_there()
                break
            except StoreBusyError as error:
                if self._is_stopped_while_away(
                    "records of retry topics wait for the store: %s", error
                ):
                    states = {}
                    break
        owed: set[int] = set()
        elsewhere: set[int] = set()
        for index, (attempt, retry_id) in enumerate(zip(attempts, ids, strict=True)):
            rows = states.get(retry_id, ())
            if books.gate(attempt, rows) is Word.RUN:
                owed.add(index)
            elif books.owed_elsewhere(rows):
                elsewhere.add(index)
        return Judged(items, frozenset(owed), frozenset(elsewhere))

    # -- one batch -------------------------------------------------------------------------------

    def _commit_batch(self, batch: Batch, member: GroupMetadata) -> Verdict:
        del member  # the epoch in the store is what fences
        try:
            for _ in range(ROUNDS):
                refusal = self._publish(batch)
                if refusal is not None:
                    return refusal
                done = self._store.advance(self._advance(batch), done_at)
                if done.committed:
                    return self._committed(batch)
                if not done.overtaken:
                    return self._lost(batch, done)
                for publication in batch.publications:  # to be copied once more, further on
                    if publication.place in done.overtaken:
                        publication.place = None
            return Verdict(
                batch, KohortError("copies were overtaken by their retry topics' readers")
            )
        except ConstraintError as error:
            return self._broken(batch, error)
        except StoreBusyError as error:
            return self._in_doubt(batch, error)

    def _committed(self, batch: Batch) -> Verdict:
        for key, commit in batch.commits.items():
            row = self._rows[key]
            self._rows[key] = row._replace(next_offset=commit.offset, snapshot=commit.metadata)
        return Verdict(batch)

    def _in_doubt(self, batch: Batch, error: StoreBusyError) -> Verdict:
        """The answer may have been lost, and not the transaction: the store tells."""
        while True:
            try:
                committed = self._is_committed(batch)
            except StoreBusyError as worse:
                if self._is_stopped_while_away(
                    "whether a transaction was committed is not known yet (%s)", worse
                ):
                    return Verdict(batch, error)
                continue
            self._is_there()
            return self._committed(batch) if committed else Verdict(batch, error)

    def _is_committed(self, batch: Batch) -> bool:
        """Whether the store is where a batch has moved it, in partitions that are still ours.

        The next owner of another one may have moved it on. Where all were taken over nothing tells,
        and the next try is fenced.
        """
        rows = {key: self._store.progress(self._group, *key) for key in batch.commits}
        ours = {
            key: row
            for key, row in rows.items()
            if row is None or row.epoch == self._rows[key].epoch
        }
        return bool(ours) and all(
            row is not None
            and (row.next_offset, row.snapshot)
            == (batch.commits[key].offset, batch.commits[key].metadata)
            for key, row in ours.items()
        )

    def _publish(self, batch: Batch) -> Verdict | None:
        """Copies and outputs, acknowledged; a verdict when some were refused."""
        sends = self._sends
        assert sends is not None, "made at the start"
        sent: list[tuple[int, RecordFuture]] = []
        failures: dict[int, KohortError] = {}
        for index, publication in enumerate(batch.publications):
            if publication.place is not None:
                continue
            for output in publication.outputs:
                try:
                    future = sends.send(publication, output)
                except KohortError as error:
                    failures[index] = error
                    break
                sent.append((index, future))
        for index, future in sent:
            try:
                stored = future.result()
            except KohortError as error:
                failures.setdefault(index, error)
                continue
            publication = batch.publications[index]
            if index not in failures:  # of a copy it is the copy's; of outputs, that they are there
                publication.place = Place(stored.topic, stored.partition, stored.offset)
        if not failures:
            return None
        unfit = {index: error for index, error in failures.items() if is_unfit(error)}
        cause = next(iter(failures.values()))
        return Verdict(batch, cause, unfit=unfit, refused=failures.keys() - unfit.keys())

    def _advance(self, batch: Batch) -> Advance:
        now = self._now_ms()
        moves = [
            ProgressMove(
                *key,
                (row := self._rows[key]).epoch,
                (row.next_offset, row.snapshot),
                commit.offset,
                commit.metadata,
            )
            for key, commit in batch.commits.items()
        ]
        change = Advance(self._group, now, moves)
        effects = [effect for publication in batch.publications for effect in publication.effects]
        change.statements = statements(effects)
        inert = [p.item for p in batch.publications if p.inert]
        change.inert = {_here(item): attempt_of(item).origin.retry_id for item in inert}
        for publication in batch.publications:
            entries = _entries(publication, now)
            if entries.claim is not None:
                change.claims.append(entries.claim)
            change.rows += entries.rows
            change.claims += self._failed_unread(publication, now)
        return change

    def _failed_unread(self, publication: Publication, now_ms: int) -> list[books.Claim]:
        """The copies in an unreadable batch of a retry topic."""
        copy, failure, place = publication.copy, publication.failure, publication.place
        partition = publication.item.partition
        if partition.delay_ms is None or copy is None or failure is None or place is None:
            return []
        end = copy.retry.origin_next_offset
        if failure.reason != UNREADABLE_REASON or end is None:
            return []
        here = _here(publication.item)
        owed = self._store.scheduled_within(
            self._group, here.topic, here.partition, here.offset, end
        )
        return books.failed_unread(owed, failure, copy, place, now_ms)

    def _lost(self, batch: Batch, done: Advanced) -> Verdict:
        """Another writer was faster: at a partition, or at an attempt."""
        places = {_here(p.item): index for index, p in enumerate(batch.publications)}
        revived = {places[place] for place in done.revived}
        inert: set[int] = set()
        if done.claim_lost:
            retry_topics = [
                i for i, p in enumerate(batch.publications) if _from_retry_topic(p) and not p.inert
            ]
            judged = self._judge([batch.publications[i].item for i in retry_topics])
            inert = {at for n, at in enumerate(retry_topics) if n not in judged.owed}
            if not inert:
                inert = _doubled(batch, retry_topics)
            if not inert:
                raise KohortError(
                    f"group {self._group}: the ledger holds attempts that this program is about to "
                    "make for the first time; was the topic's progress set back by hand? Delete "
                    "the group's rows from kohort_ledger too"
                )
        error = KohortError("another program, or another copy of a record, was faster")
        return Verdict(batch, error, inert=inert, revived=revived, fenced=done.fenced)

    def _broken(self, batch: Batch, error: ConstraintError) -> Verdict:
        """Find the records whose rows break a constraint."""
        indices = [i for i, p in enumerate(batch.publications) if p.effects]
        parts = [statements(batch.publications[i].effects) for i in indices]
        try:
            broken = self._store.probe(parts)
        except StoreBusyError as busy:
            return Verdict(batch, busy)
        if not broken:
            raise KohortError(
                f"a constraint broke at commit that no single record breaks ({error}); deferred "
                "constraints cannot be attributed"
            ) from error
        failures: dict[int, Failure] = {
            indices[number]: describe(
                cause, permanent=True, reason=CONSTRAINT_REASON, disposition=Disposition.FATAL
            )
            for number, cause in broken.items()
        }
        return Verdict(batch, error, failures=failures)


def done_at(next_offset: int, snapshot: str, offset: int) -> bool:
    """Whether a reader whose progress says this is done with an offset."""
    if offset < next_offset:
        return True
    try:
        done = decode(next_offset, snapshot).done if next_offset >= 0 else ()
    except SnapshotError:
        return False
    return any(start <= offset < end for start, end in done)


def _entries(publication: Publication, now_ms: int) -> Entries:
    """What the end of an attempt means for the ledger."""
    attempt = publication.item.attempt
    if publication.inert or attempt is None:
        return Entries()  # a first try that succeeds leaves no trace
    copy, failure, place = publication.copy, publication.failure, publication.place
    if copy is None:
        return books.succeeded(attempt, now_ms)
    assert place is not None, "a copy is acknowledged before it is written down"
    if failure is None:
        return books.held(attempt, copy, place, now_ms)
    return books.failed(attempt, failure, copy, publication.step, place, now_ms)


def _doubled(batch: Batch, retry_topics: Sequence[int]) -> set[int]:
    """Of copies of one attempt in one batch all but the first."""
    seen: set[tuple[str, int, int]] = set()
    indices: set[int] = set()
    for index in retry_topics:
        attempt = attempt_of(batch.publications[index].item)
        number = 0 if books.is_redriven(attempt) else attempt.number  # as the ledger has it
        name = (attempt.origin.retry_id, attempt.redrive_count, number)
        if name in seen:
            indices.add(index)
        seen.add(name)
    return indices


def _from_retry_topic(publication: Publication) -> bool:
    attempt = publication.item.attempt
    return attempt is not None and attempt.previous is not None


def _here(item: Item) -> Place:
    record = item.record
    return Place(record.topic, record.partition, record.offset)
