"""Whole systems in virtual time (spec 9.1): they hold, they repeat, and they can fail."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from dataclasses import replace
from typing import Any

import pytest

from kohort.broker.base.config import BrokerConfig
from kohort.client.common.completion import pause
from kohort.client.common.types import TopicPartition
from kohort.errors import KohortError
from kohort.simulator.checks.violation import Violation
from kohort.simulator.files import SimFile, SimFiles
from kohort.simulator.machine import WALL_MS, Clock, Machine
from kohort.simulator.schedule import Random, Schedule
from kohort.simulator.system import world as world_module
from kohort.simulator.system.apps import APPS, BOOKERS, HANDLERS, failures_of, is_dead
from kohort.simulator.system.checks import Final, Handled, Stored, check
from kohort.simulator.system.client_process import ClientProcess
from kohort.simulator.system.history import (
    Attempt,
    Fate,
    History,
    Kind,
    Look,
    Operation,
    Read,
    Round,
    Seen,
    Sent,
    Transaction,
)
from kohort.simulator.system.network import Listener, Network
from kohort.simulator.system.plan import FAULTS, SystemPlan, plan_of
from kohort.simulator.system.process import BrokerProcess
from kohort.simulator.system.programs import (
    INPUT,
    LEDGER,
    OUTPUT,
    PROGRAMS,
    READERS,
    TABLE,
    Life,
)
from kohort.simulator.system.redrives import Redriven, mended
from kohort.simulator.system.remade import PLACE
from kohort.simulator.system.retained import RETENTION_BYTES, WINDOW, Window
from kohort.simulator.system.running import Coverage, Overrides, run_seed, smallest
from kohort.simulator.system.states import all_states
from kohort.simulator.system.sync_process import SyncProcess
from kohort.simulator.system.world import Outcome, SystemWorld, run

P0 = TopicPartition(INPUT, 0)
L0 = TopicPartition(LEDGER, 0)
T0 = TopicPartition(TABLE, 0)
W0 = TopicPartition(WINDOW, 0)
OTHERS = ("fill", "trail", "trim", "redrive", "remake", "refill", "span", "look")


@pytest.mark.rows(2)
@pytest.mark.parametrize("seed", [*range(2, 6), 8])
def test_a_random_system_holds(seed: int) -> None:
    """SY1-SY10: all that is checked of a whole system, with random programs and faults."""
    outcome = run(plan_of(seed))
    assert not outcome.failed, f"{outcome.plan.command()}\n{outcome.what}"
    assert outcome.sent > 50, "the programs have worked"


@pytest.mark.extended
@pytest.mark.parametrize("seed", range(1_000, 1_060))
def test_more_random_systems_hold(seed: int) -> None:
    outcome = run(plan_of(seed))
    assert not outcome.failed, f"{outcome.plan.command()}\n{outcome.what}"


def test_a_seed_decides_everything() -> None:
    """Several times: what depends on the addresses of objects is often the same by chance."""
    plan = replace(plan_of(2), work_ms=3_000)
    assert "book" in dict(plan.programs)
    first, *others = (run(plan) for _ in range(5))
    for other in others:
        assert first.story == other.story
        assert (first.events, first.ended_ms) == (other.events, other.ended_ms)


@pytest.mark.rows(5)
@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_happens_and_is_survived(fault: str) -> None:
    """Every kind of fault alone, with every program at work."""
    programs = tuple((name, 1) for name in (*PROGRAMS, *APPS, *OTHERS))
    plan = SystemPlan(11, programs, (fault,), 3, 2_500, 2, 2, "mixed", "fsync")
    outcome = run(plan)
    assert not outcome.failed, outcome.what
    assert outcome.reached[f"fault {fault}"] == 3


def test_apps_retry_in_a_simulated_system() -> None:
    """A program that waits runs as one that awaits: the same seed gives the same attempts."""
    programs = (("load", 1), ("handle", 2), ("book", 2))
    plan = SystemPlan(3, programs, ("client_kill", "node_kill"), 4, 3_000, 2, 2, "mixed", "fsync")
    worlds = SystemWorld(plan), SystemWorld(plan)
    for world in worlds:
        outcome = world.run()
        assert not outcome.failed, outcome.what
    first, second = (world.history.attempts for world in worlds)
    assert first == second
    assert {a.number for a in first} == {0, 1, 2}, "every retry topic was read"
    assert {a.group for a in first} == {HANDLERS, BOOKERS}


def test_a_killed_program_that_waits_ends_its_thread() -> None:
    """`kill -9` in the middle of a wait: nothing of the thread is left."""
    schedule = Schedule(1)
    ended: list[BaseException | None] = []
    process = SyncProcess(schedule, Network(schedule), "p", Clock(), ended.append)
    waited: list[float] = []

    def program() -> None:
        pause(2.0)
        waited.append(process.wall_ms())
        pause(60.0)

    process.run(program)
    schedule.run_until(10_000)
    assert [ms - WALL_MS for ms in waited] == [2_000]
    process.kill()
    assert "sim p" not in {thread.name for thread in threading.enumerate()}
    assert ended == [], "it has not ended by itself"


def test_a_program_that_waits_ends_with_its_error() -> None:
    schedule = Schedule(1)
    ended: list[BaseException | None] = []

    def program() -> None:
        pause(0.5)
        raise KohortError("its own")

    SyncProcess(schedule, Network(schedule), "p", Clock(), ended.append).run(program)
    schedule.run_until(400)
    assert ended == []
    schedule.run_until(1_000)
    assert [str(error) for error in ended] == ["its own"]


def test_how_a_program_takes_the_end_of_its_world_is_not_heard_of() -> None:
    """One that awaits on its way out has an error then, which read as what had gone wrong."""
    schedule = Schedule(1)
    ended: list[BaseException | None] = []
    process = ClientProcess(schedule, Network(schedule), "p", Clock(), ended.append)

    async def program() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.Event().wait()

    process.run(program)
    schedule.run_until(1_000)
    process.dispose()
    assert ended == []


async def _misuse(life: Life) -> None:
    async with life.producer(transactional_id=life.name) as producer:
        await producer.init_transactions()
        producer.begin_transaction()
        producer.begin_transaction()


def test_a_call_that_a_client_refuses_fails_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that forgets its state refuses calls that its contract allows."""
    monkeypatch.setitem(world_module._AWAITING, "load", _misuse)
    outcome = run(SystemPlan(1, (("load", 1),), (), 2, 1_000, 1, 1, "mixed", "fsync"))
    assert outcome.failed
    assert "UsageError" in outcome.what


def test_a_disk_that_lies_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The checks can fail: acknowledged records are lost when flushes do nothing."""

    def lie(self: SimFile, size: int) -> None:
        self.unsynced = self.size > size

    monkeypatch.setattr(SimFile, "sync_to", lie)
    codes = {run(_power_cuts(seed)).code for seed in range(3)}
    assert codes & {"SY1", "CRASH"}, codes


def _power_cuts(seed: int) -> SystemPlan:
    return SystemPlan(seed, (("load", 2),), ("power_cut",), 3, 4_000, 1, 1, "classic", "fsync")


def test_a_failing_plan_is_made_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shrinking keeps the promise that breaks and drops what does not matter."""
    from kohort.simulator.system import running

    def pretended(plan: SystemPlan) -> Outcome:
        code = "SY1" if "cut" in plan.faults else None
        return Outcome(plan, code, "", 1, 1, [], 1)

    monkeypatch.setattr(running, "run", pretended)
    big = replace(plan_of(1), faults=("cut", "block", "power_cut"), fault_count=8, nodes=3)
    small = smallest(pretended(big)).plan
    assert small.faults == ("cut",)
    assert (small.nodes, small.partitions, small.fault_count) == (1, 1, 1)
    assert len(small.programs) == 1


def test_a_plan_prints_the_command_that_runs_it_again() -> None:
    assert plan_of(5).command() == "kohort simulate system --seed 5"
    changed = replace(plan_of(5), nodes=2, faults=())
    assert "--faults none" in changed.command()
    overrides = Overrides(faults=(), nodes=2)
    assert overrides.plan(5) == changed
    assert run_seed(5, replace(overrides, work_ms=1_500)).story == [], "dropped when it held"


def test_coverage_names_what_was_not_reached() -> None:
    coverage = Coverage(run(replace(plan_of(2), work_ms=2_000)).reached)
    assert "group dead" in coverage.missing()
    seen = {name for name in coverage.reached if name.startswith(("group ", "transaction "))}
    assert seen <= all_states(), "what is seen and what is missed have the same names"
    assert coverage.lines()[-1].startswith("not reached: ")


# -- each check by itself: a history and logs that break exactly one promise


LIVELY = next(b"%d" % n for n in range(100) if failures_of(b"%d" % n) == 0)
DEADLY = next(b"%d" % n for n in range(100) if is_dead(b"%d" % n))


def _final(*records: Stored, partition: TopicPartition = P0, shown: bool = True) -> Final:
    topics = (INPUT, OUTPUT, LEDGER, TABLE)
    logs: dict[TopicPartition, list[Stored]] = {TopicPartition(t, 0): [] for t in topics}
    everything = {**logs, partition: list(records)}
    return Final(everything, everything if shown else logs, {})


def _sent(number: int, value: bytes, fate: Fate, offset: int = -1, at: TopicPartition = P0) -> Sent:
    return Sent("a/1", number, at, value, b"k" if at is T0 else None, None, fate, offset)


def broken_promises() -> dict[str, tuple[History, Final]]:
    """One example for each check."""
    x, y = Stored(0, None, b"x"), Stored(1, None, b"y")
    twice = Stored(1, None, b"x")
    transaction = [Transaction("a/1", Fate.DONE)]
    in_transaction = [
        Sent("a/1", n, L0, v, None, 0, Fate.DONE, n) for n, v in enumerate((b"x", b"y"))
    ]
    return {
        "SY1": (History([_sent(0, b"x", Fate.DONE, 0)]), _final()),
        "SY2": (History([_sent(0, b"x", Fate.UNKNOWN)]), _final(x, twice)),
        "SY3": (
            History([_sent(0, b"y", Fate.DONE, 1), _sent(1, b"x", Fate.DONE, 0)]),
            _final(x, y),
        ),
        "SY4": (History(in_transaction, transaction), _final(x, y, partition=L0, shown=False)),
        "SY6": (History(), _final(Stored(0, None, b"0:7:z"), partition=TopicPartition(OUTPUT, 0))),
        "SY7": (History(seen=[Seen("r/1", P0, 0, b"other", False)]), _final(x)),
        "SY8": (History(commits={(READERS, P0): 5}), _final(x)),
        "SY9": (
            History([_sent(0, b"0002", Fate.DONE, 1, T0)]),
            _final(Stored(0, b"k", b"0001"), partition=T0),
        ),
        "SY11": (History(), _apps("handle")),
        "SY12": (
            History(attempts=[_attempt(0, 1_000, succeeded=False), _attempt(1, 1_399)]),
            _final(x),
        ),
        "SY13": (History(), _apps("book", rows=((LIVELY.decode(), 0, 0),) * 2)),
        "SY14": (History(trimmed={W0: 3}), replace(_final(), windows={W0: Window(2, 5_000)})),
        "SY15": (
            History([_sent(0, b"x", Fate.DONE, 0, W0)], reads=[_read(1)]),
            _window(Window(0, 0), Stored(0, None, b"x")),
        ),
        "SY16": (History(), _redriven(sent=(mended("r-0", b"x"),) * 2)),
        "SY18": (
            History(
                operations=[Operation("r/1", "g", Kind.COMMIT, {P0: 5}, 1, 1, 2, 2, Fate.DONE)]
            ),
            replace(_final(x), groups={"g": {P0: None}}),
        ),
        "SY17": (_remade(Sent("a/1", 0, PLACE, b"x", None, None, Fate.DONE, 0, 1, 2)), _found(x)),
    }


def _remade(*sent: Sent, looks: tuple[Look, ...] = ()) -> History:
    """A topic that was deleted from 3 to 4 ms."""
    return History(list(sent), rounds=[Round(3, 4, 4)], looks=list(looks))


def _found(*records: Stored) -> Final:
    return replace(_final(*records, partition=PLACE), at_ms=100)


R0 = TopicPartition("retry", 0)
"""The dead-letter topic."""


def _redriven(sent: tuple[bytes, ...], end: int = 1) -> Final:
    """One dead letter, and one redrive that goes up to `end`."""
    return replace(_final(), redriven=Redriven({R0: {0: b"x"}}, sent, {"r-0": {R0: end}}))


def _window(window: Window, *records: Stored) -> Final:
    return replace(_final(*records, partition=W0), windows={W0: window})


def _read(offset: int, log_start: int | None = 0, after: int = -1, trimmed: int = 0) -> Read:
    return Read("trail-1", "trail-1/1", W0, offset, b"y", after, log_start, trimmed)


def _apps(kind: str, **left: Any) -> Final:
    """One input that succeeds at once, and what an app has left behind."""
    return replace(_final(Stored(0, None, LIVELY)), apps=Handled(frozenset({kind}), **left))


def _attempt(number: int, at_ms: int, *, succeeded: bool = True) -> Attempt:
    return Attempt(HANDLERS, "handle-1/1", P0, 0, b"x", number, at_ms, succeeded)


WRONG_ENDS: dict[str, tuple[History, Final]] = {
    "SY11 would have succeeded": (
        History(attempts=[Attempt(HANDLERS, "a/1", P0, 0, LIVELY, 0, 0, True)]),
        _apps("handle", dead={HANDLERS: frozenset({LIVELY})}),
    ),
    "SY11 not in the dead-letter topic": (
        History(),
        replace(_final(Stored(0, None, DEADLY)), apps=Handled(frozenset({"handle"}))),
    ),
    "SY6 is in the input and not in the output": (
        History(),
        replace(_final(Stored(0, None, b"x")), kinds=frozenset({"move"})),
    ),
    "SY12 out of nothing": (History(attempts=[_attempt(1, 0)]), _final()),
    "SY13 is not in the store": (History(), _apps("book")),
    "SY13 the store has b'other'": (History(), _apps("book", rows=(("other", 0, 0),))),
    "SY13 the ledger knows": (
        History(),
        _apps("book", rows=((LIVELY.decode(), 0, 0),), failed=frozenset({(0, 0)})),
    ),
    "SY13 which is not": (
        History(),
        _apps("book", rows=((LIVELY.decode(), 0, 0), ("more", 0, 9))),
    ),
}


def assert_noticed(wrong: str, history: History, final: Final) -> None:
    """The check names the promise, and says what is wrong, as the key of an example does."""
    code, _, what = wrong.partition(" ")
    with pytest.raises(Violation, match=what) as broken:
        check(history, final)
    assert broken.value.code == code


@pytest.mark.parametrize("end", WRONG_ENDS)
def test_each_wrong_end_of_an_input_is_noticed(end: str) -> None:
    """SY11-SY13 have several ways to be broken."""
    assert_noticed(end, *WRONG_ENDS[end])


WRONG_REDRIVES: dict[str, tuple[History, Final]] = {
    "SY1 no place": (
        _remade(Sent("a/1", 0, PLACE, b"x", None, None, Fate.DONE, 0, 5, 6)),
        _found(),
    ),
    "SY2 was given b'x' at": (
        _remade(Sent("a/1", 0, PLACE, b"x", asked_ms=5)),
        _found(Stored(0, None, b"x"), Stored(1, None, b"x")),
    ),
    "SY17 finds offset 7 committed": (_remade(looks=(Look("l/1", 5, 6, 7),)), _found()),
    "SY16 had ended": (History(sent_after_the_end=[("r-0", 1)]), _final()),
    "SY16 not sent as": (History(), _redriven(())),
    "SY16 too often": (History(), _redriven((mended("r-0", b"x"),), end=0)),
    "SY11 has come to no end": (
        History(),
        replace(_redriven((mended("r-0", b"x"),)), apps=Handled(frozenset({"handle"}))),
    ),
}


@pytest.mark.parametrize("end", WRONG_REDRIVES)
def test_each_wrong_end_of_a_redrive_is_noticed(end: str) -> None:
    """SY16, SY11: what a redrive sends, and what becomes of it."""
    assert_noticed(end, *WRONG_REDRIVES[end])


def test_the_right_end_of_a_redrive_holds() -> None:
    """Its own copies that failed again are not sent again; those of another redrive are."""
    own, other = mended("r-0", b"x"), mended("r-1", b"x")
    letters = {R0: {0: b"x", 1: own, 2: other}}
    sent = (own, mended("r-0", other))
    final = replace(_final(), redriven=Redriven(letters, sent, {"r-0": {R0: 3}}))
    check(History(), final)


@pytest.mark.parametrize("fault", ["client_kill", "client_twin"])
def test_dead_letters_are_redriven_in_a_simulated_system(fault: str) -> None:
    """A redrive that is killed continues; of two runs at once one ends."""
    programs = (("load", 2), ("handle", 1), ("redrive", 2))
    world = SystemWorld(SystemPlan(1, programs, (fault,), 8, 10_000, 1, 2, "mixed", "fsync"))
    outcome = world.run()
    assert not outcome.failed, outcome.what
    redriven = world.redriven()
    assert len(redriven.sent) > 10
    assert len(world.history.ended_redrives) > 2


FULL = Window(2, RETENTION_BYTES)
WRONG_STARTS: dict[str, tuple[History, Final]] = {
    "SY1 which is deleted": (
        History([_sent(0, b"x", Fate.DONE, 1, W0)]),
        _window(FULL, Stored(1, None, b"x")),
    ),
    "SY1 no place": (History([_sent(0, b"x", Fate.DONE, 2, W0)]), _window(FULL)),
    "SY7 was acknowledged there": (
        History([_sent(0, b"x", Fate.DONE, 1, W0)], reads=[_read(1)]),
        _window(FULL),
    ),
    "SY14 it begins at 1": (History(wrong_starts=[("trim-1/1", W0, 2, 1)]), _window(FULL)),
    "SY14 begins at 2 again": (History(reads=[_read(2, 2, trimmed=3)]), _window(FULL)),
    "SY14 was deleted up to 3": (History(trimmed={W0: 3}), _window(FULL)),
    "SY14 retention has left": (History(), _window(replace(FULL, size=RETENTION_BYTES - 1))),
    "SY15 after offset 5": (History(reads=[_read(5, 2), _read(5, 2)]), _window(FULL)),
    "SY15 was never given": (
        History([_sent(0, b"x", Fate.DONE, 1, W0)], reads=[_read(2, 1)]),
        _window(FULL),
    ),
}


@pytest.mark.parametrize("start", WRONG_STARTS)
def test_each_wrong_start_of_a_log_is_noticed(start: str) -> None:
    """SY14, SY15: what goes from the beginning of a log, and what its readers may miss."""
    assert_noticed(start, *WRONG_STARTS[start])


def test_the_right_starts_of_logs_hold() -> None:
    """The examples of wrong starts are wrong by one thing alone."""
    sent = [_sent(0, b"x", Fate.DONE, 1, W0), _sent(1, b"y", Fate.DONE, 2, W0)]
    window = _window(FULL, Stored(2, None, b"y"))
    check(History(sent, reads=[_read(2, 2)], trimmed={W0: 2}), window)
    check(History(sent, reads=[_read(2, 0, after=1)]), window)
    check(History(sent, reads=[_read(2, None)]), window)
    small = {W0: Window(2, 10)}
    check(History(sent, trims={(W0, 2)}), replace(window, windows=small))
    check(History(sent), replace(window, windows=small, lost_power=True))


def test_logs_start_later_and_later_under_their_readers() -> None:
    """The plans reach what the checks are about: readers that were passed, and deleted records."""
    programs = (("fill", 2), ("trail", 2), ("trim", 1))
    faults = ("power_cut", "broker_kill", "client_kill")
    world = SystemWorld(SystemPlan(1, programs, faults, 4, 10_000, 1, 2, "mixed", "fsync"))
    outcome = world.run()
    assert not outcome.failed, outcome.what
    history = world.history
    assert sum(read.offset > read.after + 1 for read in history.reads) > 2, "they were passed"
    assert any(read.offset > read.after + 1 for read in history.reads if read.after >= 0)
    assert history.trimmed


def test_what_was_deleted_and_a_crash_brings_back_may_be_missed() -> None:
    """SY15, found by seed 67000193: a reader continues at 2, and a power cut brings 1 back."""
    sent = [_sent(0, b"x", Fate.DONE, 1, W0), _sent(1, b"y", Fate.DONE, 2, W0)]
    back = replace(FULL, start=1)
    end = _window(back, Stored(1, None, b"x"), Stored(2, None, b"y"))
    check(History(sent, reads=[replace(_read(2, 1), deleted=2)]), end)
    with pytest.raises(Violation, match="went from -1 to 2 in window-0, which began at 1"):
        check(History(sent, reads=[_read(2, 1)]), end)


def test_a_log_start_that_nobody_asked_for_is_no_excuse() -> None:
    """SY15: readers may see an unacknowledged DeleteRecords that a crash then loses."""
    world = SystemWorld(SystemPlan(1, (("fill", 1),), (), 2, 1_000, 1, 1, "mixed", "fsync"))
    assert not world.run().failed
    world.broker.log_starts[W0] |= {4, 6, 9}
    assert world.deleted(W0) == 0
    world.history.trims |= {(W0, 4), (W0, 6), (W0, 20)}
    assert world.deleted(W0) == 6
    world.broker.first_segments[W0] = 8
    assert world.deleted(W0) == 8


def test_each_life_of_a_broker_leaves_its_log_starts() -> None:
    world = SystemWorld(
        SystemPlan(
            1, (("fill", 1), ("trim", 1)), ("broker_kill",), 4, 10_000, 1, 1, "mixed", "fsync"
        )
    )
    assert not world.run().failed
    assert max(world.broker.log_starts[W0]) > 0


def test_the_rest_of_a_plan_does_not_depend_on_retention() -> None:
    """Seeds that mutants name keep their plans."""
    retained, later = {"fill", "trail", "trim"}, {"fill", "trail", "trim", "redrive", "watch"}
    plans = [plan_of(seed) for seed in range(60)]
    drawn = [plan for plan in plans if retained & dict(plan.programs).keys()]
    assert 10 < len(drawn) < 40
    assert all(dict(plan.programs).keys() >= {"fill", "trail"} for plan in drawn)
    assert all(dict(plan.programs).keys() - later for plan in plans)
    watched = [plan for plan in plans if "watch" in dict(plan.programs)]
    assert 10 < len(watched) < 50
    redriving = [dict(plan.programs) for plan in plans if "redrive" in dict(plan.programs)]
    assert 5 < len(redriving) < 30
    assert all("handle" in programs for programs in redriving)


def test_the_right_ends_of_inputs_hold() -> None:
    """The examples of wrong ends are wrong by one thing alone."""
    check(History(), _apps("book", rows=((LIVELY.decode(), 0, 0),)))
    check(
        History(),
        replace(
            _final(Stored(0, None, DEADLY)),
            apps=Handled(
                frozenset({"book", "handle"}),
                (),
                frozenset({(0, 0)}),
                {BOOKERS: frozenset({DEADLY}), HANDLERS: frozenset({DEADLY})},
            ),
        ),
    )
    check(History(attempts=[_attempt(0, 1_000, succeeded=False), _attempt(1, 1_400)]), _final())


def test_a_reader_that_begins_below_the_commit_is_noticed() -> None:
    """SY8: the commit was answered and lost; later commits hide that from the final offsets."""
    history = History(again=[("read-2/1", P0, 4, 5)], commits={(READERS, P0): 9})
    with pytest.raises(Violation, match="after the commit of 5 was acknowledged") as broken:
        check(history, replace(_final(), offsets={P0: 9}))
    assert broken.value.code == "SY8"


@pytest.mark.parametrize("code", broken_promises())
def test_each_check_can_fail(code: str) -> None:
    history, final = broken_promises()[code]
    with pytest.raises(Violation) as broken:
        check(history, final)
    assert broken.value.code == code


def test_a_commit_that_was_given_up_is_lost_on_the_way() -> None:
    """It would come behind a later one and set the offset back, in Apache Kafka too."""
    schedule = Schedule(1)
    network = Network(schedule)
    client, broker = Machine(schedule, "c", Clock()), Machine(schedule, "b", Clock())
    arrived: list[bytes] = []

    class Handler:
        def connected(self, end: object) -> None: ...

        def closed(self, end: object, error: object) -> None: ...

        def frame_received(self, end: object, frame: memoryview) -> None:
            arrived.append(bytes(frame))

    handler: Any = Handler()
    Listener(network, 9_000, broker, lambda _: handler)
    fetch, commit = b"\x00\x01 fetch", b"\x00\x08 commit"
    for gives_up in (False, True):
        end: Any = network.connect(client, 9_000, handler, 1_000)
        schedule.run_until(schedule.now_ms + 100)
        for frame in (fetch, commit):
            end.send([len(frame).to_bytes(4, "big"), frame])
        if gives_up:
            end.close()
        schedule.run_until(schedule.now_ms + 100)
    assert arrived == [fetch, commit, fetch]


def test_a_write_that_fails_leaves_a_half() -> None:
    """Of one buffer, too: what is left of a batch is what a log has to cut off."""
    files = SimFiles()
    file = files.open("f", create=True)
    file.append([b"whole"])
    files.failing_appends = 1
    with pytest.raises(OSError, match="no space"):
        file.append([b"0123456789"])
    assert bytes(file.read(0, 100)) == b"whole01234"
    assert file.size == 10


def test_zombies_are_fenced() -> None:
    """Two processes of one transactional id: what the older one still does is seen by nobody."""
    plan = SystemPlan(2, (("transact", 2),), ("client_twin",), 4, 3_000, 1, 1, "classic", "fsync")
    outcome = run(plan)
    assert not outcome.failed, outcome.what
    assert outcome.reached["fault client_twin"] == 4
    assert any("ends with FencedError" in line for line in outcome.story), outcome.story


def test_a_row_of_an_aborted_transaction_is_noticed() -> None:
    """SY4, SY9: a value of the compacted topic counts with its transaction alone."""
    sent = Sent("a/1", 0, T0, b"0001", b"k", 0, Fate.DONE, 0)
    shown = _final(Stored(0, b"k", b"0001"), partition=T0)
    with pytest.raises(Violation, match="was aborted and is visible") as broken:
        check(History([sent], [Transaction("a/1", Fate.REFUSED)]), shown)
    assert broken.value.code == "SY4"
    check(History([sent], [Transaction("a/1", Fate.REFUSED)]), _final())
    check(History([sent], [Transaction("a/1", Fate.DONE)]), shown)
    with pytest.raises(Violation, match="was acknowledged; the latest value is None") as broken:
        check(History([sent], [Transaction("a/1", Fate.DONE)]), _final())
    assert broken.value.code == "SY9"


def test_the_latest_value_of_a_key_is_that_of_the_highest_offset() -> None:
    """SY9: a process that was started later may be fenced by one that began later (73007634)."""
    later = Sent("a/2", 4, T0, b"0002", b"k", 0, Fate.DONE, 5)
    first = Sent("a/1", 15, T0, b"0001", b"k", 1, Fate.DONE, 33)
    history = History([later, first], [Transaction(name, Fate.DONE) for name in ("a/2", "a/1")])
    check(history, _final(Stored(33, b"k", b"0001"), partition=T0))
    with pytest.raises(Violation, match="b'0001' was acknowledged; the latest value is b'0002'"):
        check(history, _final(Stored(5, b"k", b"0002"), partition=T0))


def test_names_cannot_be_synced_either_when_a_disk_fails() -> None:
    files = SimFiles()
    files.make_dir("d")
    files.failing_syncs = 1
    with pytest.raises(OSError, match="disk failed"):
        files.sync_dir("")
    files.sync_dir("")
    files.power_cut(Random("any"))
    assert files.list("") == ["d"], "the next one succeeds"


def test_a_program_that_nothing_fences_gets_no_twin() -> None:
    """The values of `update` rise only while one process at a time writes them."""
    plan = SystemPlan(2, (("update", 1),), ("client_twin",), 3, 2_000, 1, 1, "classic", "fsync")
    outcome = run(plan)
    assert not outcome.failed, outcome.what
    assert sum("update-1 can have no twin now" in line for line in outcome.story) == 3
    assert not any("begins beside" in line for line in outcome.story)


def test_an_orderly_stop_is_believed_once() -> None:
    """After `broker_stop` nothing is scanned; after a kill, which leaves no mark, everything is."""
    schedule = Schedule(1)
    config = BrokerConfig(data_dir="simulated", durability="fsync")
    broker = BrokerProcess(schedule, Network(schedule), config, lambda: 1)
    broker.stop()
    assert not broker.alive
    broker.start()
    assert broker.state.directory.clean
    broker.kill()
    broker.start()
    assert not broker.state.directory.clean


def test_a_leader_epoch_outlives_an_orderly_stop() -> None:
    """A crash begins an epoch; without an append in it an orderly stop forgot it. The coordinator's
    markers were of an older epoch then, refused, and each transaction stayed open."""
    programs = (("load", 2), ("transact", 1))
    faults = ("broker_stop", "power_cut")
    outcome = run(SystemPlan(40, programs, faults, 8, 3_000, 1, 1, "classic", "fsync"))
    assert not outcome.failed, outcome.what


def test_a_request_that_waits_for_a_connection_overtakes_nothing() -> None:
    """Two batches came back from a connection that failed, while the third of their partition was
    in line for the next one. It was stored first, since the broker knew nothing of the producer."""
    programs = (("load", 3), ("book", 1), ("fill", 1), ("trail", 2))
    faults = ("node_stop", "broker_kill", "block", "slow_disk", "full_disk", "disk_error")
    plan = SystemPlan(
        20000443,
        programs,
        (*faults, "client_twin", "wall_jump"),
        fault_count=3,
        work_ms=4_000,
        nodes=1,
        partitions=4,
        protocol="mixed",
        durability="fsync",
    )
    outcome = run(plan)
    assert not outcome.failed, outcome.what


def test_a_world_that_has_ended_is_let_go_of() -> None:
    """Producers of killed processes kept it: 0.9 GB after 480 seeds."""
    programs = (("load", 2), ("transact", 1), ("read", 1))
    plan = SystemPlan(3, programs, ("client_kill",), 6, 3_000, 1, 1, "classic", "fsync")
    world = SystemWorld(plan)
    outcome = world.run()
    assert not outcome.failed, outcome.what
    assert any("client_kill" in line for line in outcome.story)
    left = weakref.ref(world)
    del world
    gc.collect()
    assert left() is None


def test_answers_that_wait_for_a_marker_are_given() -> None:
    """Found by seed 50000101: what a coordinator answered while the marker of a transaction was
    flushed waited for its own next append. A group that commits nothing never came to one, and each
    later heartbeat waited behind the first."""
    programs = (("load", 2), ("update", 3), ("move", 3), ("read", 3), ("book", 3))
    faults = ("node_kill", "node_stop", "leader_move", "broker_kill", "slow_disk", "client_twin")
    plan = SystemPlan(50000101, programs, faults, 5, 10_000, 1, 1, "classic", "fsync")
    outcome = run(plan)
    assert not outcome.failed, outcome.what
