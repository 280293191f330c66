"""Exactly once: all that a record causes goes into one transaction with the offset that passes it.

Rules (E2, E3, W5):
- What becomes of a record is *settled* when its handler has ended: its outputs, its rows, or the
  copy for its next try. Nothing of that is visible to anybody yet.
- A batch is what is settled, with the offsets and snapshots as they will be when it is committed.
  Only then is a record done. A batch that is not committed is settled still: nothing is lost,
  and the handler is not called again.
- Results for a partition that was taken away are dropped: its next owner repeats the work.
- With a ledger, a record of a retry topic runs only after the ledger has confirmed that it is owed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, NamedTuple

from kohort.errors import BrokerError, ErrorCode, KohortError
from kohort.processing.engine.engine import Engine
from kohort.processing.engine.outbox import Publication
from kohort.processing.engine.partition_state import Item, OnFailure, Partition
from kohort.processing.engine.state import TopicPartition, output_refused
from kohort.processing.engine.tracker import Commit
from kohort.retry.classify import Failure
from kohort.retry.copies import Attempt, copy_for
from kohort.retry.ledger import Place

MOST_PUBLICATIONS: Final = 5_000


class Batch(NamedTuple):
    """One transaction: its effects, the records it covers, and where they end.

    Args:
        publications: in the order in which they were settled.
        plain: records that are done and have caused nothing.
        commits: offset and snapshot of every partition as of the end of this transaction.
        owned: these partitions as they were assigned when the batch was made.
    """

    publications: Sequence[Publication]
    plain: Mapping[TopicPartition, Sequence[Item]]
    commits: Mapping[TopicPartition, Commit]
    owned: Mapping[TopicPartition, Partition]

    def still_owned(self) -> list[TopicPartition]:
        """The partitions that have not been given up since. Any thread.

        A partition is marked before its group hears that it was given up. So what was read of the
        others before this call was written by nobody else.
        """
        return [key for key, partition in self.owned.items() if partition.live]


@dataclass(frozen=True)
class Verdict:
    """How the transaction of a batch has ended. All but `batch` empty: committed.

    Args:
        error: why it is not committed.
        failures: what these publications (by place in the batch) fail of instead.
        unfit: why no later try of their records would be accepted.
        refused: the broker accepts none of these now; the others continue without them.
        inert: these attempts have been ended by another copy of the record.
        revived: these copies were taken for inert, and are owed after all.
        fenced: another member works on these partitions.
    """

    batch: Batch
    error: KohortError | None = None
    failures: Mapping[int, Failure] = field(default_factory=dict[int, Failure])
    unfit: Mapping[int, KohortError] = field(default_factory=dict[int, KohortError])
    refused: Collection[int] = ()
    inert: Collection[int] = ()
    revived: Collection[int] = ()
    fenced: Collection[TopicPartition] = ()

    def still_held(self, present: Mapping[TopicPartition, Partition]) -> list[TopicPartition]:
        """Of the fenced partitions those that are still the assignment that was fenced."""
        owned = self.batch.owned
        return [key for key in self.fenced if key in owned and present.get(key) is owned[key]]


class ExactEngine(Engine):
    """An engine whose records are done by transactions. `judged`: a ledger is asked first."""

    def __init__(self, *args: Any, judged: bool = False, **more: Any) -> None:
        super().__init__(*args, **more)
        self._judged = judged
        self._settled: list[Publication] = []
        self._plain: dict[Partition, list[Item]] = {}
        self._plain_count = 0
        self._unjudged: list[Item] = []
        self._ended: dict[str, Item] = {}
        """Of records that have ended and whose transaction is not committed: the copy that was run.

        Until then the ledger still calls it owed, and says so of every other copy.
        """

    # -- settling ------------------------------------------------------------------------------

    @property
    def commit_urgent(self) -> bool:
        """True too when so much is settled that nothing more might be read."""
        half = 2 * (self._plain_count + len(self._settled)) >= self.limits.records
        return half or super().commit_urgent

    def _is_open(self, item: Item) -> bool:
        return not item.settled and super()._is_open(item)

    def _done_in(self, partition: Partition, done: Sequence[Item], now_ms: int) -> None:
        self._circuit_succeeded(partition, len(done))
        if not partition.is_source or len(self.holds):
            self._no_longer_held(done)
        if not partition.live:
            return
        done = [item for item in done if not item.settled]
        for item in done:
            item.settled = True
        if self._judged and not partition.is_source:  # their rows are to be closed
            self._settled += [Publication(item) for item in done]
            return
        self._plain.setdefault(partition, []).extend(done)
        self._plain_count += len(done)

    def _post(self, publication: Publication) -> None:
        if not publication.item.settled:
            publication.item.settled = True
            self._settled.append(publication)

    def clock_stepped(self, step_ms: int) -> None:
        """As `Engine.clock_stepped`; refused records are published again no later, either."""
        super().clock_stepped(step_ms)
        for publication in self._settled:
            publication.wait_until_ms += step_ms

    # -- batches -------------------------------------------------------------------------------

    def batch(self, now_ms: int, most: int = MOST_PUBLICATIONS) -> Batch | None:
        """The next transaction; None when there is nothing to say. One at a time."""
        self._settled = [p for p in self._settled if p.item.partition.live]
        self._ended = {name: i for name, i in self._ended.items() if i.partition.live}
        copies = {p.place for p in self._settled if p.place is not None}
        chosen: list[Publication] = []
        left: list[Publication] = []
        for publication in self._settled:
            if publication.inert and _place(publication.item) in copies:
                # It was read before the transaction that schedules it was committed.
                self._judge_again(publication.item)
            elif publication.wait_until_ms > now_ms or len(chosen) >= most:
                left.append(publication)
            else:
                publication.wait_until_ms = 0
                chosen.append(publication)
        plain = {p: items for p, items in self._plain.items() if p.live}
        commits, unfit = self._foretold(chosen, plain)
        self._settled = [p for p in chosen if p.item.partition in unfit] + left
        self._plain = {p: items for p, items in plain.items() if p in unfit}
        self._plain_count = sum(len(items) for items in self._plain.values())
        chosen = [p for p in chosen if p.item.partition not in unfit]
        done = {p.key: items for p, items in plain.items() if p not in unfit}
        owned = {key: self.partitions[key] for key in commits}
        return Batch(chosen, done, commits, owned) if commits else None

    @property
    def next_try_ms(self) -> int | None:
        """When a settled record is to be published (again); None: there is none."""
        return min((p.wait_until_ms for p in self._settled if p.item.partition.live), default=None)

    def _foretold(
        self, chosen: Sequence[Publication], plain: Mapping[Partition, Sequence[Item]]
    ) -> tuple[dict[TopicPartition, Commit], set[Partition]]:
        """The commits, and the partitions whose snapshot would be too long at present."""
        done = {partition: [item.offset for item in items] for partition, items in plain.items()}
        for publication in chosen:
            done.setdefault(publication.item.partition, []).append(publication.item.offset)
        commits: dict[TopicPartition, Commit] = {}
        unfit: set[Partition] = set()
        for key, partition in self.partitions.items():
            tracker, offsets = partition.tracker, done.get(partition, ())
            if offsets or (tracker.dirty and tracker.known):
                commit = tracker.commit_after(offsets)
                if commit is None:
                    unfit.add(partition)
                else:
                    commits[key] = commit
        return commits, unfit

    def owes(self, keys: Collection[TopicPartition]) -> bool:
        """Whether a batch would have anything to say of these partitions."""
        if any(p.item.partition.key in keys for p in self._settled if p.item.partition.live):
            return True
        known = [p for key in keys if (p := self.partitions.get(key)) is not None]
        return any(p in self._plain or (p.tracker.dirty and p.tracker.known) for p in known)

    def transaction_committed(self, batch: Batch, now_ms: int) -> None:
        """The transaction is committed: its records are done."""
        by: dict[Partition, list[Item]] = {}
        for publication in batch.publications:
            by.setdefault(publication.item.partition, []).append(publication.item)
        for items in batch.plain.values():
            by.setdefault(items[0].partition, []).extend(items)
        for partition, items in by.items():
            for item in items:
                if item.attempt is not None:
                    self._ended.pop(item.attempt.origin.retry_id, None)
            self._complete(partition, items, now_ms)
        self.counts["transactions"] += 1
        self.committed(batch.commits, now_ms)

    def transaction_aborted(self, verdict: Verdict, now_ms: int) -> None:
        """The transaction was aborted, and nothing of it is visible: it is settled still."""
        self.counts["transactions_aborted"] += 1
        error = verdict.error
        if isinstance(error, BrokerError) and error.code == ErrorCode.OFFSET_METADATA_TOO_LARGE:
            self.metadata_refused(verdict.batch.commits)
        batch, settled = verdict.batch, list[Publication]()
        for index, publication in enumerate(batch.publications):
            if not publication.item.partition.live:
                continue
            if index in verdict.revived:
                self._judge_again(publication.item)
            else:
                settled.append(self._changed(index, publication, verdict, now_ms))
        self._settled = settled + self._settled
        for items in batch.plain.values():
            if items and items[0].partition.live:
                later = self._plain.get(items[0].partition, [])
                self._plain[items[0].partition] = [*items, *later]
                self._plain_count += len(items)
        if verdict.fenced:
            self.counts["fenced"] += len(verdict.fenced)
            self.removed(verdict.still_held(self.partitions))

    def _changed(
        self, index: int, publication: Publication, verdict: Verdict, now_ms: int
    ) -> Publication:
        """What a publication is in the next try."""
        item = publication.item
        if index in verdict.inert:
            self.counts["inert"] += 1
            return Publication(item, inert=True)
        failure = verdict.failures.get(index)
        if index in verdict.unfit:
            publication.place = None
            if publication.copy is not None:
                if not publication.smaller():
                    publication.wait_until_ms = now_ms + publication.pause_ms()
                return publication
            failure = output_refused(verdict.unfit[index])
        if failure is not None:
            return self._failing(item, failure, now_ms)
        if index in verdict.refused:
            self.counts["publish_errors"] += 1
            publication.wait_until_ms = now_ms + publication.pause_ms()
        return publication

    def _failing(self, item: Item, failure: Failure, now_ms: int) -> Publication:
        """It succeeded, but what it caused cannot be: it fails after all."""
        attempt, topics = self._attempt(item), item.partition.route.topics
        copy, step = copy_for(attempt, failure, topics=topics, now_ms=now_ms)
        self._count_refused()
        self._count_copy(item.partition.route, failure, step)
        self._note_held(item, attempt, copy, ended=step is None)
        self._note_copied(item, failure, copy, now_ms)
        return Publication(item, copy=copy, failure=failure, step=step)

    # -- the ledger's word ---------------------------------------------------------------------

    def _no_longer_held(self, items: Iterable[Item]) -> None:
        super()._no_longer_held(items)
        for item in items if self._judged else ():
            if item.attempt is not None and item.partition.route.on_failure is OnFailure.HOLD_KEY:
                self._ended[item.attempt.origin.retry_id] = item

    def _note_waiting(self, item: Item, attempt: Attempt, retry_topic: str) -> None:
        super()._note_waiting(item, attempt, retry_topic)
        self._ended.pop(attempt.origin.retry_id, None)

    def _admit(self, items: Sequence[Item], now_ms: int) -> list[Item]:
        if not self._judged:
            return super()._admit(items, now_ms)
        self._unjudged += items
        return []

    def _judge_again(self, item: Item) -> None:
        item.settled = False
        self._unjudged.append(item)

    def unjudged(self, most: int) -> list[Item]:
        """Records of retry topics to look up in the ledger; `judged` answers each."""
        items = list(islice((i for i in self._unjudged if i.partition.live), most))
        gone = set(map(id, items))
        self._unjudged = [i for i in self._unjudged if i.partition.live and id(i) not in gone]
        return items

    def judged(
        self, items: Sequence[Item], owed: Collection[int], elsewhere: Collection[int], now_ms: int
    ) -> None:
        """The ledger's word: the items at these places of the list are owed, the others inert.

        Of those `elsewhere` another copy of the record is owed.
        """
        for index, item in enumerate(items):
            partition = item.partition
            if not partition.live or partition.draining:
                continue
            if index not in owed:
                self.counts["inert"] += 1
                if index not in elsewhere or attempt_of(item).origin.retry_id in self._ended:
                    super()._no_longer_held((item,))
                self._post(Publication(item, inert=True))
            elif ready := super()._admit((item,), now_ms):
                partition.aside.extend(ready)
        for partition in dict.fromkeys(item.partition for item in items):  # in their order
            if partition.live:
                self._refill(partition, now_ms)


def attempt_of(item: Item) -> Attempt:
    """Which attempt a record of a retry topic is."""
    assert item.attempt is not None, "a record of a retry topic says which attempt it is"
    return item.attempt


def _place(item: Item) -> Place:
    record = item.record
    return Place(record.topic, record.partition, record.offset)
