"""Looks at a cluster again and again, and keeps the last overview for its readers.

Rules:
- One thread samples; any thread reads `latest`, which is replaced as a whole and never changed.
- A verdict compares the present snapshot with one that is `EVIDENCE_S` old where there is one.
- A sample that takes long makes the next one wait: at most a fifth of the time is spent on it.
- A cluster that does not answer is reported in `error`; the last overview stays.
- What a sample makes is in no cycle, and of 2,000 groups with 50 partitions it makes half a
  million objects: while one is taken, the garbage collector rests, which halves its time.

Shell: the clock, threads.
"""

from __future__ import annotations

import gc
import heapq
import logging
import threading
import time
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kohort.errors import KohortError
from kohort.observe.overview import (
    Evidence,
    GroupLine,
    GroupView,
    Overview,
    listed_lines,
    overview,
    refined,
)
from kohort.observe.trend import Ends, Sample
from kohort.observe.verdicts import State
from kohort.sampling.history import History
from kohort.sampling.open_transactions import open_in
from kohort.sampling.record_times import MOST, RecordTimes
from kohort.sampling.snapshots import take

if TYPE_CHECKING:
    from kohort.client.admin.admin import Admin
    from kohort.client.common.types import TopicPartition
    from kohort.observe.open_transactions import Open
    from kohort.observe.snapshot import ClusterSnapshot, Seen

log = logging.getLogger("kohort.console")

INTERVAL_S: Final = 5.0
EVIDENCE_S: Final = 30.0
SNAPSHOTS_KEPT: Final = 6
ROUNDS: Final = 3
"""Groups that read the same partition are asked in turns; so many in one sample."""
SHARE: Final = 5
"""At most one part in so many of the time is spent on sampling."""


class Sampler:
    """Samples a cluster on a thread of its own.

    Args:
        admin: of the cluster; the sampler does not close it.
        settings: of the clients that read records, in Kafka's names.
        interval_s: seconds from sample to sample.
        history: a file for some hours of history; None keeps it in memory.
        hours: how much of it is kept.
        times_first: read the times of unread records for the first sample, too, which then takes
            longer.

    Raises:
        StorageError: the history file cannot be used.
    """

    def __init__(
        self,
        admin: Admin,
        settings: Mapping[str, Any],
        *,
        interval_s: float = INTERVAL_S,
        history: Path | None = None,
        hours: float = 6.0,
        times_first: bool = False,
    ) -> None:
        self._admin, self.interval_s = admin, interval_s
        self._times = RecordTimes(settings)
        self._times_first = times_first
        self.history = History(history, hours)
        self._snapshots: deque[ClusterSnapshot] = deque(maxlen=SNAPSHOTS_KEPT)
        self._ends: dict[TopicPartition, Ends] = {}
        self.latest: Overview | None = None
        self.listed: Sequence[GroupLine] = ()
        """The groups by name, for as long as the first sample is being taken."""
        self.number = 0
        """Of samples so far."""
        self.error = ""
        self.changed = threading.Condition()
        """Notified after each sample."""
        self._ended = threading.Event()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to sample."""
        self._thread = threading.Thread(target=self._run, name="kohort-sampler", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread, and close what it uses."""
        self._ended.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
        self._times.close()
        self.history.close()
        with self.changed:
            self.changed.notify_all()

    def sample_soon(self) -> None:
        """Take the next sample now: something was changed."""
        self._wake.set()

    def _list(self) -> None:
        try:
            self.listed = listed_lines(g for g in self._admin.list_groups() if g.describable)
        except KohortError as error:
            self.error = str(error)
        with self.changed:
            self.changed.notify_all()

    def _run(self) -> None:
        self._list()
        while not self._ended.is_set():
            begun = time.monotonic()
            self.sample()
            took = time.monotonic() - begun
            self._wake.wait(max(self.interval_s - took, took * (SHARE - 1)))
            self._wake.clear()

    def sample(self) -> Overview | None:
        """Take one sample; the overview, or None where the cluster does not answer."""
        try:
            with _collection_paused():
                overview_ = self._sampled()
            self.error = ""
        except KohortError as error:
            overview_, self.error = None, str(error)
            log.warning("no sample: %s", error)
        with self.changed:
            if overview_ is not None:
                self.latest = overview_
            self.number += 1
            self.changed.notify_all()
        return overview_

    def _sampled(self) -> Overview:
        previous = self._snapshots[-1] if self._snapshots else None
        now = take(self._admin, previous)
        if previous is None:
            self.history.load(now.cluster.cluster_id or "", now.at_ms)
        before = self._before(now)
        self._note_ends(now)
        evidence = Evidence(self._transactions(now), ends=self._ends, samples=self._samples(now))
        overview_ = overview(now, before, evidence, self.latest)
        times, nothing = (
            self._read(overview_.groups) if before is not None or self._times_first else ({}, {})
        )
        if times or nothing:
            evidence = Evidence(evidence.transactions, nothing, times, self._ends, evidence.samples)
            overview_ = refined(overview_, before, evidence, self.latest)
        self.history.add({name: v.sample for name, v in overview_.groups.items()}, now.at_ms)
        if not now.silent:  # else a group that is missing may be there still
            there = now.groups.keys() | now.not_described.keys()
            self.history.forget(self.history.series.keys() - there)
        if previous is None or now.at_s - previous.at_s >= EVIDENCE_S / SNAPSHOTS_KEPT:
            self._snapshots.append(now)
        return overview_

    def _before(self, now: ClusterSnapshot) -> ClusterSnapshot | None:
        """The youngest snapshot that is old enough; else the oldest there is."""
        old = [one for one in self._snapshots if now.at_s - one.at_s >= EVIDENCE_S]
        return old[-1] if old else (self._snapshots[0] if self._snapshots else None)

    def _samples(self, now: ClusterSnapshot) -> dict[str, Sequence[Sample]]:
        series = self.history.series
        return {name: series[name].samples for name in now.groups if name in series}

    def _note_ends(self, now: ClusterSnapshot) -> None:
        seen = {tp: one.end for look in now.groups.values() for tp, one in look.partitions.items()}
        unseen = {tp for look in now.unseen.values() for tp in look.partitions}
        for gone in self._ends.keys() - seen.keys() - unseen:
            del self._ends[gone]
        for tp, end in seen.items():
            if end is not None:
                self._ends.setdefault(tp, Ends()).add(now.at_ms, end)

    def _transactions(self, now: ClusterSnapshot) -> list[Open]:
        held = {
            tp
            for look in now.groups.values()
            for tp, one in look.partitions.items()
            if one.stable is not None and one.end is not None and one.stable < one.end
        }
        try:
            return open_in(self._admin, sorted(held)[:MOST]) if held else []
        except KohortError:
            return []

    def _read(
        self, groups: Mapping[str, GroupView]
    ) -> tuple[dict[tuple[str, TopicPartition], int], dict[str, set[TopicPartition]]]:
        """Times of the records that the groups read next, stuck and lagging partitions first."""
        wanted = heapq.nsmallest(
            MOST,
            (
                (not stuck, -(seen.lag or 0), name, tp, seen)
                for name, view in groups.items()
                for stuck, tp, seen in _seen(view)
                if seen.lag and (seen.first or 0) <= (seen.committed or 0)
            ),
            key=lambda item: item[:4],
        )
        times: dict[tuple[str, TopicPartition], int] = {}
        nothing: dict[str, set[TopicPartition]] = {}
        self._times.forget_nothing()
        rounds: list[dict[TopicPartition, tuple[str, int, int]]] = []
        for _, _, name, tp, seen in wanted:  # a round holds a partition once
            place = (name, seen.committed or 0, seen.end or 0)
            free = next((one for one in rounds if tp not in one), None)
            if free is None:
                rounds.append(free := {})
            free[tp] = place
        for one in rounds[:ROUNDS]:
            spans = {tp: (offset, end) for tp, (_, offset, end) in one.items()}
            for tp, at_ms in self._times.times(spans).items():
                if at_ms is None:
                    nothing.setdefault(one[tp][0], set()).add(tp)
                else:
                    times[one[tp][0], tp] = at_ms
        return times, nothing


def _seen(view: GroupView) -> Iterator[tuple[bool, TopicPartition, Seen]]:
    """Each partition of a group, and whether it is stuck; at the first look none is yet."""
    if view.verdict is None:
        yield from ((False, tp, seen) for tp, seen in view.look.partitions.items())
    else:
        for one in view.verdict.findings:
            yield one.state is State.STUCK, one.partition, one.seen


@contextmanager
def _collection_paused() -> Generator[None]:
    """Without the garbage collector, which would walk all that a sample makes again and again."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
