"""Keeps asking how far the retry topics may be read, so that the one who polls never waits for it.

Rules (D2, D3):
- A separate thread with its own clients. It gets the readers' positions and answers with the
  offsets that they may read up to; the schedule is kept here only.
- It sleeps until the next answer runs out: when the next record falls due, at most 30 s; or until
  somebody looks how many records wait (`depths`), who hears what is so now.
- An error of the cluster closes nothing and opens nothing: it is asked again a little later.
- A partition whose leader does not answer holds up no other one. All are asked for together; where
  that fails, those that answer are opened, and the rest is not waited for until all answer again.

Shell: threads.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from kohort.client.common.completion import driven, steady_ms
from kohort.errors import KohortError
from kohort.processing.engine.key_holds import MAX_HELD, Scanned, Waiting, waiting_in
from kohort.processing.runtime.oldest_failures import OldestFailures
from kohort.processing.runtime.repeated_warning import Complaint
from kohort.records import Record
from kohort.retry.due_schedule import MAX_CHECK_MS, DueSchedule
from kohort.retry.offset_queries import OffsetPort, TopicPartition, ask

log = logging.getLogger("kohort.processing")

PAUSE_AFTER_ERROR_MS = 1_000
ANSWER_S = 10.0
"""How long the leaders of retry topics have for an answer; the other questions wait meanwhile."""
NAMED = 5
"""So many partitions that do not answer are named in the log."""
DEPTH_HOLDS_MS = 1_000
"""Maximum age of cached depths of retry topics before they are fetched again."""
DEPTH_WAIT_S = 0.25
"""The longest that a reader of the depths waits for an answer before the last one is used."""
ENTRY_CHECK_MS = 1_000
"""How long a redriven record may lie in the entry topic before it is seen."""

VIRTUAL_ENTRY_CHECK_MS = 60_000
"""The same in virtual time, where looking is what costs."""


@dataclass(frozen=True)
class Released:
    """What waits in retry topics below these offsets is to be tried at once."""

    ends: Mapping[TopicPartition, int]


class RetryTopicPort(OffsetPort, Protocol):
    """What is asked of a cluster about its retry topics."""

    def read(self, at: TopicPartition, start: int) -> Iterator[Sequence[Record]]:
        """Everything from an offset to the present end, page by page."""
        ...


class Discovery(Protocol):
    """Looks for new topics that match a pattern."""

    def look(self, now_ms: int) -> int:
        """Look if it is time to; how many milliseconds until the next time."""
        ...


class RetryTopicPoller:
    """Asks for the retry topics of one program. Calls `opened` on its thread, with new ends only.

    For keys that are held it also reads retry topics to their end, before anything of them is due;
    and it asks for the oldest failure of source topics (`failed`: their dead-letter topic, its
    partitions; see `OldestFailures`). With `discovery`, it also looks for new topics.
    """

    def __init__(
        self,
        delays_ms: Mapping[str, int],
        skew_ms: int,
        port: RetryTopicPort,
        now_ms: Callable[[], int],
        opened: Callable[[dict[TopicPartition, int]], None],
        *,
        group: str = "",
        scanned: Callable[[Scanned | Released], None] = lambda found: None,
        failed: Mapping[str, tuple[str, int]] | None = None,
        discovery: Discovery | None = None,
    ) -> None:
        self._gate = DueSchedule(dict(delays_ms), skew_ms=skew_ms)
        self._port = port
        self._now_ms = now_ms
        self._opened = opened
        self._group = group
        self._scanned = scanned
        self.failures = OldestFailures(port, failed or {})
        self._discovery = discovery
        self._scans: list[tuple[TopicPartition, int, int]] = []
        self._changed = threading.Condition()
        self._starts: dict[TopicPartition, int] = {}
        self._new: set[TopicPartition] = set()
        self._ends: dict[TopicPartition, int] = {}
        self._released: dict[TopicPartition, int] = {}
        """Up to where due times no longer count, because a retry was requested now."""
        self._releasing = False
        self._asked_ms = 0
        """When all were last requested by `depths`; some run out more often than that."""
        self._ask_anew = False
        self._silent: set[TopicPartition] = set()
        """Those that did not answer when all were asked for last."""
        self._complaint = Complaint()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="kohort-gate", daemon=True)
        self.due_ms: int | None = None
        """When `attend` has something to do, by the steady clock; None: a thread does it."""

    def start(self) -> None:
        """Begin to ask: on a thread, or in virtual time in `attend`."""
        if driven() is None:
            self._thread.start()
        else:
            self.due_ms = steady_ms()

    def attend(self) -> None:
        """Where there is no thread, ask if it is time to."""
        if self.due_ms is None:
            return
        if self._new or self._scans or self._ask_anew or steady_ms() >= self.due_ms:
            self.due_ms = steady_ms() + self._look()

    def add(self, delays_ms: Mapping[str, int], failed: Mapping[str, tuple[str, int]]) -> None:
        """More retry topics and dead-letter topics, as in `__init__`."""
        with self._changed:
            self._gate.delays_ms.update(delays_ms)
        self.failures.add(failed)

    def watch(self, starts: Mapping[TopicPartition, int]) -> None:
        """These partitions are ours from now on, to be read from these offsets."""
        with self._changed:
            self._starts.update(starts)
            self._new.update(starts)
            self._changed.notify()

    def moved(self, positions: Iterable[tuple[TopicPartition, int]]) -> None:
        """How far they have been read; partitions that are not watched are passed over."""
        with self._changed:
            for at, position in positions:
                if at in self._starts:
                    self._starts[at] = position

    def release(self) -> None:
        """Let everything that waits now be read at once, whenever it would be due."""
        with self._changed:
            if self._starts:
                self._releasing = self._ask_anew = True
                self._changed.notify_all()

    def depths(
        self, positions: Mapping[TopicPartition, int] | None = None
    ) -> dict[TopicPartition, tuple[int, int]]:
        """By partition: how many records are not read yet, and how many of these are due.

        As of a second ago at most, where the cluster answers within a quarter of one.

        Args:
            positions: how far they have been read, if the caller knows more than `moved` reported.
        """
        read = positions or {}
        with self._changed:
            if self._starts and self._thread.is_alive():
                self._look_again()
            starts = dict(self._starts)
        depths: dict[TopicPartition, tuple[int, int]] = {}
        for at, start in starts.items():
            position, opened = read.get(at, start), self._gate.opened(at)
            if opened is not None:
                end = max(opened.end, self._released.get(at, 0))
                depths[at] = max(0, opened.latest - position), max(0, end - position)
        return depths

    def next_due_ms(self) -> int | None:
        """When the next record that waits falls due, by the last answers; None: none waits."""
        with self._changed:
            starts = list(self._starts)
        due_times = [self._gate.opened(at) for at in starts]
        dues = (each.next_due_ms for each in due_times if each is not None)
        return min((due for due in dues if due is not None), default=None)

    def _look_again(self) -> None:
        asked_ms = self._asked_ms
        if 0 <= self._now_ms() - asked_ms < DEPTH_HOLDS_MS:  # less: the clock was set back
            return
        self._ask_anew = True
        self._changed.notify_all()
        self._changed.wait_for(lambda: self._stopped or self._asked_ms != asked_ms, DEPTH_WAIT_S)

    def look_after(self, partitions: Iterable[TopicPartition]) -> None:
        """These are ours now: with partition 0 of a source topic come its failures."""
        self.failures.assigned(partitions)
        with self._changed:
            self._changed.notify()

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """These are no longer ours."""
        partitions = list(partitions)
        self.failures.removed(partitions)
        with self._changed:
            for at in partitions:
                self._starts.pop(at, None)
                self._new.discard(at)
                self._ends.pop(at, None)
                self._released.pop(at, None)

    def scan(self, retry_topic: TopicPartition, start: int, epoch: int) -> None:
        """Read a retry topic to its end, for held keys; `scanned` gets the records that wait
        there."""
        with self._changed:
            self._scans.append((retry_topic, start, epoch))
            self._changed.notify()

    def _scan(self, retry_topic: TopicPartition, start: int, epoch: int) -> bool:
        """False: the cluster did not answer, and it is to be tried again."""
        waiting: list[Waiting] = []
        whole = True
        try:
            for page in self._port.read(retry_topic, start):
                waiting += waiting_in(page, self._group)
                if len(waiting) >= MAX_HELD:
                    whole = False
                    break
        except KohortError as error:
            log.warning(
                "%s-%d could not be read for held keys (%s); again soon", *retry_topic, error
            )
            return False
        self._scanned(Scanned(retry_topic, epoch, waiting[:MAX_HELD], whole))
        return True

    def _scan_all(self) -> bool:
        """Everything that is to be read; False when something has to be tried again."""
        with self._changed:
            scans, self._scans = self._scans, []
        again = [each for each in scans if each[0] in self._silent or not self._scan(*each)]
        with self._changed:
            self._scans += [each for each in again if each[0] in self._starts]
        return not again

    def stop(self) -> None:
        """End the thread and wait for it."""
        with self._changed:
            self._stopped = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stopped:
            wait_ms = self._look()
            with self._changed:
                if not (self._stopped or self._new or self._scans or self._ask_anew):
                    self._changed.wait(wait_ms / 1_000)

    def _look(self) -> int:
        """Ask for everything once; how long to wait until the next time."""
        with self._changed:
            all_again = self._ask_anew
            if self._new:
                self._gate.forget()
                self._new.clear()
            if all_again:
                self._gate.expire()
                self._ask_anew = False
            starts = dict(self._starts)
        wait_ms = self._ask(starts, all_again=all_again)
        self.failures.ask(steady_ms())
        if self._discovery is not None:
            wait_ms = min(wait_ms, self._discovery.look(steady_ms()))
        return wait_ms if self._scan_all() else min(wait_ms, PAUSE_AFTER_ERROR_MS)

    def _ask(self, starts: dict[TopicPartition, int], *, all_again: bool = False) -> int:
        """Ask once; `all_again`: for all of them; returns how long to wait until the next time."""
        if not starts:
            return PAUSE_AFTER_ERROR_MS * 30
        now_ms = self._now_ms()
        if not self._ask_leaders(starts, now_ms):
            self._ask_anew = self._ask_anew or self._releasing
            return PAUSE_AFTER_ERROR_MS
        released: dict[TopicPartition, int] = {}
        with self._changed:
            if all_again:
                self._asked_ms = now_ms
                self._changed.notify_all()
            if self._releasing and all_again:
                self._releasing = False
                released = {
                    at: opened.latest
                    for at in starts
                    if at in self._starts and (opened := self._gate.opened(at)) is not None
                }
                self._released |= released
            answers = {
                at: max(opened.end, self._released.get(at, 0))
                for at in starts
                if at in self._starts and (opened := self._gate.opened(at)) is not None
            }
            moved_ends = {at: end for at, end in answers.items() if self._ends.get(at) != end}
            self._ends.update(moved_ends)
        if released:  # first: records read next are not to wait again
            self._scanned(Released(released))
        if moved_ends:
            self._opened(moved_ends)
        # Of these only: the answer for a retry topic that is no longer ours has run out and stays
        # so. The entry topic has no due times to wait for: it is looked at now and then.
        entry_ms = ENTRY_CHECK_MS if self.due_ms is None else VIRTUAL_ENTRY_CHECK_MS
        checks = [
            opened.next_check_ms if self._gate.delays_ms[at[0]] else now_ms + entry_ms
            for at in starts
            if at not in self._silent and (opened := self._gate.opened(at)) is not None
        ]
        if self._silent:
            checks.append(now_ms + PAUSE_AFTER_ERROR_MS)
        return max(1, min(min(checks, default=now_ms) - self._now_ms(), MAX_CHECK_MS))

    def _ask_leaders(self, starts: dict[TopicPartition, int], now_ms: int) -> bool:
        """Ask all leaders together; while that fails, for what is known. False: none answers."""
        why = "their leaders do not answer"
        if not self._silent:
            try:
                ask(self._gate, self._port, starts, now_ms, timeout_s=ANSWER_S)
            except KohortError as error:
                why = str(error)
            else:
                self._note_silent(set(), why, now_ms)
                return True
        requested = {question.partition for question in self._gate.questions(starts, now_ms)}
        try:
            found = ask(self._gate, self._port, starts, now_ms, timeout_s=ANSWER_S, partial=True)
        except KohortError as error:
            why, found = str(error), dict[TopicPartition, int]()
        self._note_silent(requested - found.keys(), why, now_ms)
        return bool(found) or not requested

    def _note_silent(self, silent: set[TopicPartition], why: str, now_ms: int) -> None:
        """Log who does not answer, now and again, and that all do once more."""
        self._silent = silent
        if not silent:
            if self._complaint.is_over():
                log.warning("the due offsets of all retry topics are known again")
            return
        names = ", ".join(f"{topic}-{number}" for topic, number in sorted(silent)[:NAMED])
        names += f" and {len(silent) - NAMED} more" if len(silent) > NAMED else ""
        if self._complaint.is_due(names, now_ms):
            log.warning(
                "the due offsets of %s could not be asked for (%s); they are asked for again, and "
                "retries there wait",
                names,
                why,
            )
