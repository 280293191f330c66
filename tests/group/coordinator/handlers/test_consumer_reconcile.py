"""The reconciliation of one member, as a pure function (G1, G4; KIP-848, KIP-1251)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kohort.group.coordinator.handlers.consumer_reconcile import Owned, reconcile
from kohort.group.coordinator.state.consumer_records import Current, Epochs, Partitions
from kohort.group.coordinator.state.consumer_table import (
    MEMBER_TRANSITIONS,
    MemberEvent,
    MemberState,
    next_state,
)
from tests.effort import examples

T, U = b"t" * 16, b"u" * 16
M = MemberState


def has(*numbers: int, topic: bytes = T, since: int = 1) -> Epochs:
    return {topic: dict.fromkeys(numbers, since)} if numbers else {}


def step(
    current: Current,
    target: Partitions,
    owned: Owned | None = None,
    *,
    epoch: int = 2,
    taken: set[int] = frozenset(),  # type: ignore[assignment]
    subscribed: set[bytes] = frozenset({T, U}),  # type: ignore[assignment]
) -> Current:
    return reconcile(current, epoch, target, subscribed, owned, lambda _, n: n in taken)


STABLE = Current(1, 0, M.STABLE, has(0, 1), {})
GIVING_UP = Current(1, 1, M.UNREVOKED, has(0), has(1))
WAITING = Current(2, 1, M.UNRELEASED, has(0), {})


@pytest.mark.parametrize(
    ("current", "target", "owned", "taken", "expected"),
    [
        # What has arrived stays, also when it says nothing.
        (Current(2, 1, M.STABLE, has(0), {}), {T: (0,)}, None, set(), None),
        # To be given up: in the epoch it is in; said not to own it: at once.
        (STABLE, {T: (0,)}, None, set(), Current(1, 1, M.UNREVOKED, has(0), has(1))),
        (STABLE, {T: (0,)}, {T: {0, 1}}, set(), Current(1, 1, M.UNREVOKED, has(0), has(1))),
        (STABLE, {T: (0,)}, {T: {0}}, set(), Current(2, 1, M.STABLE, has(0), {})),
        (STABLE, {}, {}, set(), Current(2, 1, M.STABLE, {}, {})),
        # New ones: free, or some free, or none.
        (STABLE, {T: (0, 1, 2)}, None, set(), Current(2, 1, M.STABLE, {T: {0: 1, 1: 1, 2: 2}}, {})),
        (
            STABLE,
            {T: (0, 1, 2, 3)},
            None,
            {3},
            Current(2, 1, M.UNRELEASED, {T: {0: 1, 1: 1, 2: 2}}, {}),
        ),
        (STABLE, {T: (0, 1, 2)}, None, {2}, Current(2, 1, M.UNRELEASED, has(0, 1), {})),
        # Giving up: not done, silent, done; the new ones wait for it.
        (GIVING_UP, {T: (0, 2)}, {T: {0, 1}}, set(), None),
        (GIVING_UP, {T: (0, 2)}, None, set(), None),
        (GIVING_UP, {T: (0, 2)}, {T: {0}}, set(), Current(2, 1, M.STABLE, {T: {0: 1, 2: 2}}, {})),
        # B1: what it is giving up and is to have again is its own when it has given it up.
        (GIVING_UP, {T: (0, 1)}, {T: {0, 1}}, set(), None),
        (GIVING_UP, {T: (0, 1)}, {T: {0}}, set(), Current(2, 1, M.STABLE, {T: {0: 1, 1: 2}}, {})),
        # From one revocation into the next.
        (GIVING_UP, {}, {T: {0}}, set(), Current(1, 1, M.UNREVOKED, {}, has(0))),
        # Waiting: still taken, free now, not for it any more, in a newer epoch.
        (WAITING, {T: (0, 2)}, None, {2}, None),
        (WAITING, {T: (0, 2)}, None, set(), Current(2, 2, M.STABLE, {T: {0: 1, 2: 2}}, {})),
        (WAITING, {T: (0,)}, None, set(), Current(2, 2, M.STABLE, has(0), {})),
    ],
)
def test_each_step(
    current: Current,
    target: Partitions,
    owned: Owned | None,
    taken: set[int],
    expected: Current | None,
) -> None:
    after = step(current, target, owned, taken=taken)
    if expected is None:
        assert after is current
    else:
        assert after == expected


def test_topics_that_are_no_longer_read_are_given_up() -> None:
    """Whatever an older target says, and in every state."""
    arrived = Current(2, 1, M.STABLE, has(0), {})
    gone = step(arrived, {T: (0,)}, None, subscribed={U})
    assert gone == Current(2, 2, M.UNREVOKED, {}, has(0))
    more = step(GIVING_UP, {T: (0,)}, {T: {0, 1}}, subscribed={U})
    assert more == Current(1, 1, M.UNREVOKED, {}, has(0, 1))
    waits = step(WAITING, {T: (0,), U: (0,)}, {}, subscribed={U})
    assert waits == Current(2, 2, M.STABLE, has(0, topic=U, since=2), {})


def test_every_transition_of_the_table_and_no_other() -> None:
    for state in MemberState:
        for event in MemberEvent:
            target = MEMBER_TRANSITIONS.get((state, event))
            if target is not None:
                assert next_state(state, event) is target
            else:
                with pytest.raises(AssertionError, match="report it"):
                    next_state(state, event)
    assert MemberState.of(99) is MemberState.UNKNOWN


numbers = st.sets(st.integers(0, 5))


@settings(max_examples=examples(300), deadline=None)
@given(
    numbers,
    numbers,
    numbers,
    numbers,
    st.one_of(st.none(), numbers),
    st.sampled_from([M.STABLE, M.UNREVOKED, M.UNRELEASED]),
    st.integers(1, 3),
)
def test_a_step_is_always_safe(
    assigned: set[int],
    pending: set[int],
    target: set[int],
    others: set[int],
    owned: set[int] | None,
    state: MemberState,
    epoch: int,
) -> None:
    """Nothing that others have is given; nothing that may be owned is let go; then it is stable."""
    pending = pending - assigned if state is M.UNREVOKED else set()
    if state is M.UNREVOKED and not pending:
        state = M.STABLE
    others = others - assigned - pending
    current = Current(epoch, epoch, state, has(*assigned), has(*pending))
    reported = None if owned is None else {T: owned}
    goal: Partitions = {T: tuple(sorted(target))} if target else {}
    after = step(current, goal, reported, epoch=3, taken=others)
    holds = set(after.assigned.get(T, {})) | set(after.pending.get(T, {}))
    assert not holds & others
    may_own = (assigned | pending) if owned is None else (assigned | pending) & owned
    assert may_own <= holds
    assert after.epoch in (epoch, 3)
    assert (after.state is M.UNREVOKED) == bool(after.pending)
    if after.state is M.STABLE:
        assert after.epoch == 3
        assert set(after.assigned.get(T, {})) == target or after is current
    for number, since in after.assigned.get(T, {}).items():
        assert since == (1 if number in assigned else 3)
    settled = after
    for _ in range(2):  # one revocation may lead to the next
        settled = step(settled, goal, {T: set(settled.assigned.get(T, {}))}, epoch=3)
    assert settled.state is M.STABLE
    assert set(settled.assigned.get(T, {})) == target or current.state is M.STABLE
