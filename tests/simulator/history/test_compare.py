"""Four designs side by side (spec 7): what each costs on cases small enough to count by hand."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping

import pytest

from kohort.errors import ConfigError
from kohort.simulator.history import members
from kohort.simulator.history.compare import DESIGNS, Run, compare, designs_of
from kohort.simulator.history.ledger import KEEP_ALIVE, Figures
from kohort.simulator.history.plan import STEPS, Kind, Size, make_plan

TINY = Size(2, 4, topics=1)
CLASSIC = ("classic", "cooperative")
FENCED = (*CLASSIC, "kip848")


def one(design: str, kind: Kind, size: Size = TINY, seed: int = 1) -> Run:
    (run,) = compare(seed, [size], designs_of([design]), [kind])
    return run


def counted(figures: Figures) -> Mapping[str, int]:
    return {kind: n for kind, n in figures.by_kind.items() if n and kind != KEEP_ALIVE}


@pytest.mark.parametrize("design", DESIGNS)
@pytest.mark.parametrize("seed", [1, 2])
def test_without_faults_every_design_settles(design: str, seed: int) -> None:
    """GL1: after each change everybody has what is its own, and no two the same."""
    kinds = [Kind.JOIN, Kind.LEAVE, Kind.GROW, Kind.BOUNCE]
    (run,) = compare(seed, [Size(7, 30)], designs_of([design]), kinds)
    assert [line.settled_s is not None for line in run.events] == [True] * 5
    assert run.total.splits == 0
    assert run.total.overlap_s == 0
    assert run.unowned[-1] == 0


def test_zookeeper_leave_counted_by_hand() -> None:
    """Two consumers with two partitions each; one closes its session: a request and its answer.

    The other is told (1 notification), looks (children, one subscription, one topic: 3 requests),
    deletes its 2 claims and makes 4: 2 + 1 + 2·3 + 2·2 + 2·4 = 21 messages.
    """
    assert counted(one("zookeeper", Kind.LEAVE).events[1]) == {
        "close": 2,
        "notification": 1,
        "read": 6,
        "delete": 4,
        "create": 8,
    }


def test_server_join_counted_by_hand() -> None:
    """The newcomer asks for the coordinator and registers (2 + 2); the two others are stopped and
    say so (2·2), one write to ZooKeeper (2), and three are started and say so (2·3): 16.
    """
    assert counted(one("server", Kind.JOIN).events[1]) == {
        "FindCoordinator": 2,
        "Register": 1,
        "Registered": 1,
        "StopFetch": 2,
        "Stopped": 2,
        "zookeeper": 2,
        "StartFetch": 3,
        "Started": 3,
    }


@pytest.mark.parametrize("design", CLASSIC)
def test_classic_start_counted_by_hand(design: str) -> None:
    """Each of two members asks for the coordinator (2), joins without an id and again with the one
    it was given (4), and syncs (2): 8 a member; the delay of the first rebalance holds all.
    """
    assert counted(one(design, Kind.JOIN).events[0]) == {
        "FindCoordinator": 4,
        "JoinGroup": 8,
        "SyncGroup": 4,
    }


def test_classic_join_counted_by_hand() -> None:
    """The newcomer: 2 + 4 + 2. Each of the two others hears of it in a heartbeat's answer (the
    heartbeat itself is a keep-alive), joins and syncs: 2·(1 + 2 + 2). Together 18.
    """
    assert counted(one("classic", Kind.JOIN).events[1]) == {
        "FindCoordinator": 2,
        "Heartbeat": 2,
        "JoinGroup": 8,
        "SyncGroup": 6,
    }


def test_classic_growth_counted_by_hand() -> None:
    """The leader sees the topic grow and rejoins (2 + 2); the other hears of it (1 + 2 + 2)."""
    assert counted(one("classic", Kind.GROW).events[1]) == {
        "Heartbeat": 1,
        "JoinGroup": 4,
        "SyncGroup": 4,
    }


def test_cooperative_leave_counted_by_hand() -> None:
    """LeaveGroup (2); who is left hears of it, joins and syncs once (1 + 2 + 2): nothing of what
    it has moves, so no second rebalance follows.
    """
    assert counted(one("cooperative", Kind.LEAVE).events[1]) == {
        "LeaveGroup": 2,
        "Heartbeat": 1,
        "JoinGroup": 2,
        "SyncGroup": 2,
    }


@pytest.mark.parametrize("size", [TINY, Size(3, 4, topics=1)], ids=str)
def test_kip848_join_counted_by_hand(size: Size) -> None:
    """The newcomer asks for the coordinator (2) and joins (2). One member, at its heartbeat, is
    told to give a partition up (1; the heartbeat is a keep-alive) and says that it did (2). The
    newcomer is then told that it has it (1), and says so (2). Together 10, however many they are.
    """
    assert counted(one("kip848", Kind.JOIN, size).events[1]) == {
        "FindCoordinator": 2,
        "ConsumerGroupHeartbeat": 8,
    }


def test_kip848_leave_and_growth_counted_by_hand() -> None:
    """Leaving is a heartbeat (2); who gets the partitions is told at its next one and says so
    (1 + 2). A new partition goes to one member in the same way (1 + 2).
    """
    leave, grow = (one("kip848", kind).events[1] for kind in (Kind.LEAVE, Kind.GROW))
    assert counted(leave) == {"ConsumerGroupHeartbeat": 5}
    assert counted(grow) == {"ConsumerGroupHeartbeat": 3}


def test_a_large_group_of_kip848_starts_out_of_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its members find everything as they left it; the events after that cost what they cost."""
    joined = one("kip848", Kind.LEAVE, Size(6, 24))
    monkeypatch.setattr(members, "MOST_JOINING", 5)
    known = one("kip848", Kind.LEAVE, Size(6, 24))
    assert (joined.from_the_log, known.from_the_log) == (False, True)
    assert known.start_s is None
    assert known.events[0].moved == 0
    assert known.events[0].settled_s is not None
    assert counted(known.events[1]) == counted(joined.events[1])


def test_the_herd() -> None:
    """A join tells each of n watchers, and each reads all n + 1 subscriptions: n notifications and
    more than n² reads. The others send a number of messages for each member, n in all.
    """
    few, many = (one("zookeeper", Kind.JOIN, Size(n, 2 * n, 1)).events[1] for n in (10, 40))
    assert (few.notifications, many.notifications) == (10, 40)
    assert few.by_kind["read"] >= 2 * 11 * (1 + 11 + 1)
    assert many.by_kind["read"] >= 2 * 41 * (1 + 41 + 1)
    few, many = (one("kip848", Kind.JOIN, Size(n, 2 * n, 1)).events[1] for n in (10, 40))
    assert few.messages == many.messages
    for design in ("server", "classic"):
        few, many = (one(design, Kind.JOIN, Size(n, 2 * n, 1)).events[1] for n in (10, 40))
        assert few.notifications == many.notifications == 0
        assert many.messages < 4.2 * few.messages


@pytest.mark.parametrize("seed", range(1, 6))
def test_split_brain_needs_a_design_that_fences_nobody(seed: int) -> None:
    """A consumer whose watches and expiry reach it late reads on, and nothing refuses what it
    commits (1); today it reads on too, but its generation is over (G1: one unfenced owner).
    """
    watching = one("zookeeper", Kind.CUT, Size(5, 20), seed).total
    assert watching.splits > 0
    assert watching.split_s > 0
    for design in FENCED:
        fenced = one(design, Kind.CUT, Size(5, 20), seed).total
        assert fenced.splits == 0
        assert fenced.overlap_s > 0


@pytest.mark.parametrize("seed", range(1, 4))
def test_a_deposed_coordinator_splits_only_the_design_whose_answers_need_no_log(seed: int) -> None:
    """(2): two coordinators, each with a generation of its own, confirm two owners. Today the one
    that cannot write to the log cannot take a commit (G11, B23).
    """
    assert one("server", Kind.DEPOSED, Size(5, 20), seed).total.splits > 0
    for design in FENCED:
        run = one(design, Kind.DEPOSED, Size(5, 20), seed)
        assert run.total.splits == 0
        assert run.total.overlap_s > 0


def test_late_watches_make_claims_fail() -> None:
    """(1): who hears late decides by an old view, and the claims of the others fail meanwhile."""
    failed = [
        one("zookeeper", Kind.SLOW, Size(10, 100), seed).total.failed_claims for seed in (1, 2, 3)
    ]
    assert all(failed)
    assert one("classic", Kind.SLOW, Size(10, 100)).total.failed_claims == 0


def test_a_new_coordinator_has_the_group_from_the_log_or_stops_the_world() -> None:
    """Spec 2.12: today nothing stops when the coordinator dies; in (2) everything does, once."""
    for design in FENCED:
        assert one(design, Kind.SERVER_DIES).total.unowned_s == 0
        assert one(design, Kind.SERVER_DIES).total.moved == 0
    assert one("server", Kind.SERVER_DIES).total.unowned_s > 0


def test_eager_stops_everybody_and_cooperative_only_who_gives_up() -> None:
    size = Size(10, 100)
    eager, cooperative, kip848 = (one(name, Kind.JOIN, size) for name in FENCED)
    assert cooperative.total.moved == kip848.total.moved == 100 // 11
    assert eager.total.moved > 100 // 11
    joined_s = int(eager.total.at_s)
    assert max(eager.unowned[joined_s:]) == 100
    for incremental in (cooperative, kip848):
        assert max(incremental.unowned[joined_s:]) <= 100 // 11


@pytest.mark.extended
def test_the_same_seed_gives_the_same_table_in_any_process() -> None:
    """Hashes of texts differ from process to process; nothing may depend on them."""
    code = (
        "from kohort.simulator.history.compare import *;"
        "print([list(r.rows()) for r in compare(3, [Size(6, 24)])])"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1
    assert compare(3, [Size(6, 24)]) == compare(3, [Size(6, 24)])
    assert compare(3, [Size(6, 24)]) != compare(4, [Size(6, 24)])


def test_one_plan_for_all_designs() -> None:
    """Events happen at the same moments to the same consumers, whatever the design."""
    runs = compare(5, [Size(4, 16)])
    assert len({tuple((f.what, f.at_s) for f in run.events) for run in runs}) == 1
    plan = make_plan(5, Size(4, 16))
    assert [event.kind for event in plan.events if event.kind in STEPS] == list(STEPS)


def test_wrong_sizes_and_names_are_refused_with_what_to_do() -> None:
    with pytest.raises(ConfigError, match="MEMBERSxPARTITIONS"):
        Size.parse("ten")
    with pytest.raises(ConfigError, match="2 to 10,000"):
        Size.parse("1x10")
    with pytest.raises(ConfigError, match="did you mean 'classic'"):
        designs_of(["clasic"])
