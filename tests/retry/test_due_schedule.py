"""R3, R6, D2: the gate is never early and never stuck, on a simulated log."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from kohort.retry.due_schedule import Answer, DueSchedule, NeedProof, NeedScan, Opened, Question
from tests.effort import examples

TP = ("t.g.retry.5m", 0)
DELAY = 300_000


@dataclass
class SimulatedLog:
    """One retry partition. `hide` makes by-time answers -1, as a moved log start does (D1)."""

    stamps: list[int] = field(default_factory=list)
    log_start: int = 0
    hide: bool = False

    def answer(self, q: Question) -> Answer:
        latest = len(self.stamps)
        offset, stamp = -1, -1
        if not self.hide:
            offset, stamp = next(((o, t) for o, t in self._live() if t >= q.target_ms), (-1, -1))
        return Answer(latest, offset, stamp, log_start=self.log_start)

    def prove(self, a: Answer) -> Answer:
        best = max(self._live(), key=lambda e: e[1], default=(-1, -1))
        return replace(a, max_offset=best[0], max_timestamp_ms=best[1])

    def scan(self, a: Answer, need: NeedScan, limit: int) -> Answer:
        stop = min(need.end, need.start + limit)
        for offset in range(need.start, stop):
            if self.stamps[offset] >= need.target_ms:
                return replace(a, scanned=offset, scanned_ms=self.stamps[offset])
        return replace(a, scanned=stop)

    def _live(self) -> list[tuple[int, int]]:
        return [(o, t) for o, t in enumerate(self.stamps) if o >= self.log_start]


def step(gate: DueSchedule, log: SimulatedLog, start: int, now: int, scan_limit: int = 5) -> int:
    """One tick of a reader at `start`; the end it may read to."""
    for question in gate.questions({TP: start}, now):
        answer = log.answer(question)
        outcome = gate.answer(question, answer, now)
        if isinstance(outcome, NeedProof):
            answer = log.prove(answer)
            outcome = gate.answer(question, answer, now)
        if isinstance(outcome, NeedScan):
            outcome = gate.answer(question, log.scan(answer, outcome, scan_limit), now)
        assert isinstance(outcome, Opened)
    opened = gate.opened(TP)
    assert opened is not None
    return max(opened.end, start)


@settings(max_examples=examples(300))
@given(
    appends=st.lists(st.tuples(st.integers(0, 200_000), st.integers(-2_000, 2_000)), max_size=40),
    ticks=st.lists(st.integers(1, 120_000), min_size=1, max_size=60),
    skew=st.sampled_from([0, 1_000]),
    jitter=st.booleans(),
    hide=st.sampled_from(["never", "always", "half"]),
    moved=st.integers(0, 5),
)
def test_never_early_and_never_stuck(
    appends: list[tuple[int, int]], ticks: list[int], skew: int, jitter: bool, hide: str, moved: int
) -> None:
    """Whatever the broker's by-time search hides: early never; late by one check at most."""
    gate, log = DueSchedule({TP[0]: DELAY}, skew_ms=skew), SimulatedLog()
    pending, at, now, start = [], 1_000_000, 1_000_000, 0
    for gap, wobble in appends:
        at += gap
        pending.append((at, at + (wobble if jitter else 0)))
    tail = [20_000] * 80  # long enough for everything to fall due
    for number, tick in enumerate([*ticks, *tail]):
        now += tick
        while pending and pending[0][0] <= now:
            log.stamps.append(pending.pop(0)[1])
        log.hide = hide == "always" or (hide == "half" and number % 2 == 0)
        log.log_start = min(moved, start)
        end = step(gate, log, start, now)
        early = [t for t in log.stamps[start:end] if t + DELAY + skew > now]
        assert not early
        assert end >= start
        start = end
        at = max(at, now)
    while pending:
        log.stamps.append(pending.pop(0)[1])
    now = max([now, *log.stamps]) + DELAY + skew + 1
    for _ in range(60):
        start = step(gate, log, start, now)
        now += 30_000
    assert start == len(log.stamps)


def test_an_idle_retry_topic_is_asked_every_thirty_seconds_at_most() -> None:
    gate, log = DueSchedule({TP[0]: DELAY}), SimulatedLog()
    asked = 0
    for now in range(0, 600_000, 1_000):
        asked += len(gate.questions({TP: 0}, now))
        step(gate, log, 0, now)
    assert asked <= 21


def test_a_busy_retry_topic_is_asked_exactly_when_its_next_record_falls_due() -> None:
    gate, log = DueSchedule({TP[0]: DELAY}, skew_ms=0), SimulatedLog([1_000, 9_000])
    assert step(gate, log, 0, 301_000) == 1
    assert gate.next_check_ms() == 309_000
    assert gate.questions({TP: 1}, 308_999) == []
    assert step(gate, log, 1, 309_000) == 2


def test_latest_bounds_what_by_time_says() -> None:
    """D2: LATEST is read first, so a record appended in between is not read with it."""
    gate = DueSchedule({TP[0]: DELAY}, skew_ms=0)
    (question,) = gate.questions({TP: 0}, 400_000)
    opened = gate.answer(question, Answer(latest=3, by_time_offset=9, by_time_ms=500_000), 400_000)
    assert isinstance(opened, Opened)
    assert opened.end == 3


def test_the_entry_topic_holds_nothing_back_and_loss_is_reported() -> None:
    gate = DueSchedule({"e": 0})
    (question,) = gate.questions({("e", 0): 2}, 50)
    opened = gate.answer(question, Answer(latest=7, by_time_offset=-1, log_start=4), 50)
    assert isinstance(opened, Opened)
    assert (opened.end, opened.lost_below) == (7, 4)
    assert gate.questions({("e", 0): 2}, 50) != []
