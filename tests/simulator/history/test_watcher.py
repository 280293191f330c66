"""The first design's machine and its ZooKeeper."""

from __future__ import annotations

import pytest

from kohort.group.assignors import GroupView, MemberView, TopicView
from kohort.group.assignors.range import RangeAssignor
from kohort.simulator.history.watcher import Ask, Failed, Read, State, Stop, Watcher, share
from kohort.simulator.history.zookeeper import (
    Answer,
    Close,
    Create,
    Delete,
    Ensemble,
    Look,
    Notice,
    Request,
    View,
)


def asked(ensemble: Ensemble, session: int, request: Request, now: int = 0) -> list[Notice]:
    done = ensemble.request(session, request, now)
    assert done is not None
    return done[1]


def test_a_watch_fires_once_and_is_set_again_by_the_next_look() -> None:
    zookeeper = Ensemble(1_000)
    watching, other = zookeeper.connect(0), zookeeper.connect(0)
    look = Look("/ids", ("/t",))
    asked(zookeeper, watching, look)
    assert asked(zookeeper, other, Create(("/ids/a",), "")) == [Notice(watching, "/ids")]
    assert asked(zookeeper, other, Create(("/ids/b",), "")) == []
    asked(zookeeper, watching, look)
    assert zookeeper.set_data("/t", "3") == [Notice(watching, "/t")]
    assert asked(zookeeper, other, Delete(("/ids/b",))) == [Notice(watching, "/ids")]


def test_a_silent_session_expires_with_its_nodes_and_the_others_are_told() -> None:
    zookeeper = Ensemble(1_000)
    silent, watching = zookeeper.connect(0), zookeeper.connect(0)
    asked(zookeeper, silent, Create(("/ids/a",), ""))
    asked(zookeeper, watching, Look("/ids", ()), 600)
    assert zookeeper.tick(1_000) == [Notice(watching, "/ids")]
    assert not zookeeper.alive(silent)
    assert zookeeper.request(silent, Delete(("/ids/a",)), 1_100) is None
    assert zookeeper.renew(watching, 1_100)


def test_who_closes_is_not_told_of_its_own_going() -> None:
    zookeeper = Ensemble(1_000)
    one, two = zookeeper.connect(0), zookeeper.connect(0)
    asked(zookeeper, one, Create(("/ids/a",), ""))
    for session in (one, two):
        asked(zookeeper, session, Look("/ids", ()))
    assert asked(zookeeper, one, Close()) == [Notice(two, "/ids")]


def test_a_node_that_another_session_has_is_a_failed_claim() -> None:
    zookeeper = Ensemble(1_000)
    one, two = zookeeper.connect(0), zookeeper.connect(0)
    asked(zookeeper, one, Create(("/owners/t/0",), "a"))
    done = zookeeper.request(two, Create(("/owners/t/0", "/owners/t/1"), "b"), 0)
    assert done is not None
    assert done[0].result == ("/owners/t/0",)
    assert done[0].requests == 2


def test_a_look_stands_for_as_many_requests_as_a_consumer_had_to_make() -> None:
    """The children, each child's subscription, each topic: 1 + 3 + 2."""
    zookeeper = Ensemble(1_000)
    session = zookeeper.connect(0)
    asked(zookeeper, session, Create(("/ids/c", "/ids/a", "/ids/b"), "t"))
    done = zookeeper.request(session, Look("/ids", ("/t", "/u")), 0)
    assert done is not None
    answer: Answer = done[0]
    assert answer.requests == 6
    assert isinstance(answer.result, View)
    assert answer.result.children == ("a", "b", "c")


@pytest.mark.parametrize("members", [1, 2, 3, 7])
@pytest.mark.parametrize("size", [0, 1, 5, 14])
def test_shares_are_those_of_range(members: int, size: int) -> None:
    """Everybody by itself comes to what Kafka's range assignor gives to all."""
    names = [f"c{n}" for n in range(members)]
    view = View(tuple(names), (str(size), str(size + 1)))
    group = GroupView(
        {name: MemberView(name, frozenset({"t", "u"})) for name in names},
        {"t": TopicView(size), "u": TopicView(size + 1)},
    )
    plan = RangeAssignor().assign(group).assignments
    for name in names:
        mine = {topic: list(numbers) for topic, numbers in share(name, view, ("t", "u")).items()}
        assigned = {
            topic: list(numbers) for topic, numbers in plan.get(name, {}).items() if numbers
        }
        assert mine == assigned


def registered(retries: int = 2) -> tuple[Watcher, int]:
    """A consumer that has registered and looks; with the token of its look."""
    watcher = Watcher("a", ("t",), retries, 500)
    (ask,) = watcher.start()
    assert isinstance(ask, Ask)
    (look,) = watcher.answered(ask.token, ())
    assert isinstance(look, Ask)
    return watcher, look.token


def test_a_failed_claim_gives_back_waits_and_gives_up_in_the_end() -> None:
    """Two tries, as configured; after that it reads nothing until a watch fires."""
    watcher, token = registered()
    for attempt in (1, 2):
        (claim,) = watcher.answered(token, View(("a",), ("2",)))
        assert isinstance(claim, Ask)
        failed, undo = watcher.answered(claim.token, ("/consumers/g/owners/t/0",))
        assert failed == Failed(1)
        assert isinstance(undo, Ask)
        assert undo.request == Delete(("/consumers/g/owners/t/1",))
        assert watcher.answered(undo.token, ()) == []
        watcher.rest(1_000)
        if attempt == 1:
            assert (watcher.state, watcher.wake_ms) == (State.BACKING_OFF, 1_500)
            (look,) = watcher.tick()
            assert isinstance(look, Ask)
            token = look.token
    assert watcher.state is State.GAVE_UP
    (look,) = watcher.notified()
    assert isinstance(look, Ask)


def test_a_watch_in_the_middle_makes_another_whole_rebalance_follow() -> None:
    watcher, token = registered()
    assert watcher.notified() == []
    (claim,) = watcher.answered(token, View(("a", "b"), ("2",)))
    assert isinstance(claim, Ask)
    read, again = watcher.answered(claim.token, ())
    assert isinstance(read, Read)
    assert dict(read.parts) == {"t": range(1)}
    assert isinstance(again, Ask)
    assert watcher.answered(again.token, View(("a", "b"), ("2",))) == [Stop()]


def test_who_hears_that_its_session_expired_reads_on_until_it_stops() -> None:
    """So it is for that long that somebody else may read the same (spec 7, split brain)."""
    watcher, token = registered()
    (claim,) = watcher.answered(token, View(("a",), ("1",)))
    assert isinstance(claim, Ask)
    watcher.answered(claim.token, ())
    (again,) = watcher.expired()
    assert isinstance(again, Ask)
    assert again.request == Create(("/consumers/g/ids/a",), "t")
    (look,) = watcher.answered(again.token, ())
    assert isinstance(look, Ask)
    assert watcher.answered(look.token, View(("a",), ("1",))) == [Stop()]
    (claim,) = watcher.stopped()
    assert isinstance(claim, Ask)
    assert isinstance(claim.request, Create)
