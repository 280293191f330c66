"""SY18: committed offsets against the reference model, and the model against brute force."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random

import pytest

from kohort.client.common.types import TopicPartition
from kohort.simulator.checks.violation import Violation
from kohort.simulator.system import model
from kohort.simulator.system.history import Fate, History, Kind, Operation
from kohort.simulator.system.model import (
    GaveUpError,
    check_group,
    check_offsets,
    unexplained,
)
from tests.effort import examples

P, Q = TopicPartition("input", 0), TopicPartition("input", 1)
COMMIT, TRANSACTION, DELETE, FETCH = Kind.COMMIT, Kind.TRANSACTION, Kind.DELETE, Kind.FETCH


def op(
    kind: Kind,
    asked: int,
    done: int | None,
    p: int | None = None,
    *,
    fate: Fate | None = None,
    epoch: int = -1,
    member: str = "",
    **more: int | None,
) -> Operation:
    """One operation on `P`, or with `q` on both partitions."""
    offsets = {P: p, Q: more["q"]} if "q" in more else {P: p}
    known = fate or (Fate.UNKNOWN if done is None else Fate.DONE)
    return Operation(
        "read-1/1", "readers", kind, offsets, asked, asked, done, done or -1, known, member, epoch
    )


RIGHT: dict[str, list[Operation]] = {
    "nothing is committed at first": [op(FETCH, 1, 2, None)],
    "a fetch after a commit": [op(COMMIT, 1, 2, 5), op(FETCH, 3, 4, 5)],
    "a fetch beside a commit sees what was before": [
        op(COMMIT, 1, 2, 5),
        op(COMMIT, 3, 6, 7),
        op(FETCH, 4, 5, 5),
    ],
    "and what comes": [op(COMMIT, 1, 2, 5), op(COMMIT, 3, 6, 7), op(FETCH, 4, 5, 7)],
    "two commits at once, in either order": [
        op(COMMIT, 1, 4, 5),
        op(COMMIT, 2, 3, 7),
        op(FETCH, 5, 6, 5),
    ],
    "a commit without an answer is never seen": [op(COMMIT, 1, None, 5), op(FETCH, 2, 3, None)],
    "or is seen late": [
        op(COMMIT, 1, None, 5),
        op(FETCH, 2, 3, None),
        op(COMMIT, 4, 5, 3),
        op(FETCH, 6, 7, 3),
        op(FETCH, 8, 9, 5),
    ],
    "a refused commit has no effect": [
        op(COMMIT, 1, 2, 5, fate=Fate.REFUSED),
        op(FETCH, 3, 4, None),
    ],
    "a deleted topic has no offsets": [
        op(COMMIT, 1, 2, 5),
        op(DELETE, 3, 4, None),
        op(FETCH, 5, 6, None),
    ],
    "a transaction shows whole": [
        op(TRANSACTION, 1, 6, 5, q=7),
        op(FETCH, 2, 3, None, q=None),
        op(FETCH, 4, 5, 5, q=7),
    ],
    "a new member of the same generation": [
        op(COMMIT, 1, 2, 5, epoch=3, member="a"),
        op(COMMIT, 3, 4, 6, epoch=3, member="b"),
    ],
    "a member's own older epoch": [
        op(COMMIT, 1, 2, 5, epoch=4, member="a"),
        op(COMMIT, 3, 4, 6, epoch=3, member="a"),
    ],
}
WRONG: dict[str, list[Operation]] = {
    "a stale read": [op(COMMIT, 1, 2, 5), op(COMMIT, 3, 4, 7), op(FETCH, 5, 6, 5)],
    "a lost commit": [op(COMMIT, 1, 2, 5), op(FETCH, 3, 4, None)],
    "an offset that nobody has committed": [op(COMMIT, 1, 2, 5), op(FETCH, 3, 4, 6)],
    "a fetch goes back behind one that was answered": [
        op(COMMIT, 1, 2, 5),
        op(COMMIT, 3, 8, 7),
        op(FETCH, 4, 5, 7),
        op(FETCH, 6, 7, 5),
    ],
    "a refused commit took effect": [
        op(COMMIT, 1, 2, 5, fate=Fate.REFUSED),
        op(FETCH, 3, 4, 5),
    ],
    "a commit of unknown fate is seen and then unseen": [
        op(COMMIT, 1, 2, 3),
        op(COMMIT, 3, None, 5),
        op(FETCH, 4, 5, 5),
        op(FETCH, 6, 7, 3),
    ],
    "a commit of unknown fate shows before it was asked for": [
        op(FETCH, 1, 2, 5),
        op(COMMIT, 3, None, 5),
    ],
    "the offsets of a deleted topic are back": [
        op(COMMIT, 1, 2, 5),
        op(DELETE, 3, 4, None),
        op(FETCH, 5, 6, 5),
    ],
    "half a transaction": [op(TRANSACTION, 1, 4, 5, q=7), op(FETCH, 2, 3, 5, q=None)],
    "half a transaction of unknown fate": [
        op(TRANSACTION, 1, None, 5, q=7),
        op(FETCH, 2, 3, None, q=7),
    ],
    "an aborted transaction": [
        op(TRANSACTION, 1, 2, 5, fate=Fate.REFUSED),
        op(FETCH, 3, 4, 5),
    ],
    "a fenced member commits": [
        op(COMMIT, 1, 2, 5, epoch=4, member="b"),
        op(COMMIT, 3, 4, 6, epoch=3, member="a"),
    ],
}


@pytest.mark.parametrize("name", RIGHT)
def test_what_the_model_allows(name: str) -> None:
    """SY18: what Kafka allows is no violation."""
    check_group("readers", RIGHT[name])


@pytest.mark.parametrize("name", WRONG)
def test_what_the_model_refuses(name: str) -> None:
    """SY18: each kind of violation is found."""
    with pytest.raises(Violation) as broken:
        check_group("readers", WRONG[name])
    assert broken.value.code == "SY18"


def test_a_commit_of_a_generation_that_is_over() -> None:
    """SY18: also where the newer generation has committed nothing."""
    late = op(COMMIT, 5, 6, 5, epoch=3, member="a")
    check_group("readers", [late], [(3, 1), (4, 7)])
    with pytest.raises(Violation, match="generation 3 at 5 ms; generation 4 was stable"):
        check_group("readers", [late], [(3, 1), (4, 4)])


def test_the_message_says_what_it_could_be() -> None:
    with pytest.raises(Violation) as broken:
        check_group("readers", WRONG["a stale read"])
    assert str(broken.value) == (
        "read-1/1 fetched input-0@5 of group readers from 5 to 6 ms; by the commits of input-0 "
        "before and beside it, it could be 7"
    )


def test_the_end_of_a_run_is_a_fetch_of_all() -> None:
    """SY18: what was acknowledged is there at the end, too; a topic is deleted for all groups."""
    history = History(operations=[op(COMMIT, 1, 2, 5)])
    check_offsets(history, {"readers": {P: 5}})
    with pytest.raises(Violation, match="the last look fetched input-0@None"):
        check_offsets(history, {"readers": {P: None}})
    history.operations.append(replace(op(DELETE, 3, 4, None), group=""))
    check_offsets(history, {"readers": {P: None}})


def test_a_search_that_gives_up_is_no_good_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    """SY18: without an end of the search nothing is said to hold."""
    monkeypatch.setattr(model, "BUDGET", 20)
    commits = [op(COMMIT, n, None, n, q=n) for n in range(1, 20)]
    reads = [op(FETCH, 100 + 2 * n, 101 + 2 * n, n, q=n) for n in range(1, 20)]
    with pytest.raises(GaveUpError):
        unexplained([*commits, *reads])
    with pytest.raises(Violation, match="no verdict on group readers, input-0"):
        check_group("readers", [*commits, *reads])


def test_many_repeats_without_an_answer_have_a_verdict() -> None:
    """SY18: a client repeats its commits for a long time, as in seeds 50000147 and 60000388."""
    repeated = [op(COMMIT, at, None, at // 18, q=2) for at in range(180)]
    answered = [
        op(COMMIT, 300, 301, 9, q=2),
        *(op(FETCH, at, at + 1, 9, q=2) for at in range(302, 308, 2)),
        *(op(COMMIT, at, at + 1, at) for at in range(310, 330, 2)),
    ]
    late, torn = op(FETCH, 400, 401, 4, q=2), op(FETCH, 402, 403, 4, q=3)
    assert unexplained([*repeated, *answered, late]) is None
    wrong = unexplained([*repeated, *answered, late, torn])
    assert wrong is not None
    assert wrong.operation == torn


def _orders(
    held: dict[TopicPartition, int | None], left: Sequence[Operation]
) -> Iterator[Sequence[Operation]]:
    """What is left once one more operation has taken effect, for each order: no cleverness."""
    if all(one.fate is not Fate.DONE for one in left):
        yield ()
        return
    for one in left:
        rest = [other for other in left if other is not one]
        if any(o.fate is Fate.DONE and (o.done or 0) < one.asked for o in rest):
            continue  # that one was answered before this one began
        if one.kind is not FETCH:
            yield from _orders({**held, **one.offsets}, rest)
        elif all(held.get(place) == offset for place, offset in one.offsets.items()):
            yield from _orders(held, rest)


def is_explained(operations: Sequence[Operation]) -> bool:
    """By trying every order."""
    possible = [one for one in operations if one.fate is not Fate.REFUSED]
    return next(_orders({}, possible), None) is not None


def _random_history(chance: Random) -> list[Operation]:
    """Few operations and values, so that about every second history has an explanation."""
    count = chance.randint(2, 7)
    moments = list(range(2 * count))
    chance.shuffle(moments)
    found: list[Operation] = []
    for number in range(count):
        asked, done = sorted(moments[2 * number : 2 * number + 2])
        if chance.random() < 0.5:
            done = min(done, asked + 2)
        places = {P: chance.choice((None, 1, 2))}
        if chance.random() < 0.4:
            places[Q] = chance.choice((None, 1, 2))
        kind = chance.choice((COMMIT, TRANSACTION, FETCH, FETCH))
        fate = Fate.DONE
        if kind is not FETCH:
            places = {place: value or 1 for place, value in places.items()}
            fate = chance.choice((Fate.DONE, Fate.DONE, Fate.UNKNOWN, Fate.REFUSED))
        known = None if fate is Fate.UNKNOWN else done
        found.append(Operation("a/1", "g", kind, dict(places), asked, 0, known, 0, fate))
    return found


def test_the_search_agrees_with_brute_force() -> None:
    """Both verdicts, over thousands of small histories with one and two partitions."""
    verdicts: list[bool] = []
    for seed in range(examples(20_000)):
        history = _random_history(Random(seed))
        expected = is_explained(history)
        assert (unexplained(history) is None) is expected, (seed, history)
        verdicts.append(expected)
    assert len(verdicts) / 10 < sum(verdicts) < len(verdicts) * 0.9


def test_commits_that_are_repeated_without_an_answer_cost_little(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Seed 20000158 had no verdict: two members repeated two commits for seconds."""
    monkeypatch.setattr(model, "BUDGET", 3_000)
    history = [op(COMMIT, 2 * n, None, 20 + 4 * (n % 2)) for n in range(1, 20)]
    history += [op(FETCH, 41, 42, 24, q=None), op(FETCH, 43, 44, 20, q=None)]
    for n in range(50, 200, 5):
        history += [op(COMMIT, n, n + 2, n, q=n), op(FETCH, n + 1, n + 3, n, q=n)]
    check_group("readers", history)
