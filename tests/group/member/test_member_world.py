"""Members against the real coordinator in a seeded world of faults: G1, C1, C6, GL1, GL2, GL5."""

from __future__ import annotations

import pytest

from tests.group.member_world import World, story


@pytest.mark.rows(9)
@pytest.mark.parametrize("protocol", ["range", "sticky", "cooperative-sticky"])
@pytest.mark.parametrize("seed", range(30))
def test_a_world_of_faults_comes_to_rest(seed: int, protocol: str) -> None:
    """No two owners at any time; afterwards everybody is in and every partition is owned."""
    story(seed, protocol)


@pytest.mark.rows(4)
@pytest.mark.parametrize("protocol", ["sticky", "cooperative-sticky"])
@pytest.mark.parametrize("seed", range(20))
def test_static_members_come_back_and_twins_are_fenced(seed: int, protocol: str) -> None:
    """KIP-345, G8: an instance restarts, or a second one takes its name and the first must stop."""
    story(seed, protocol, static=True)


@pytest.mark.parametrize("protocol", ["range,cooperative-sticky", "cooperative-sticky"])
def test_a_change_of_members_takes_few_rebalances(protocol: str) -> None:
    """GL1: one member more is one generation (eager) or two (cooperative), no more."""
    world = World(1, protocol)
    world.faults = False
    for _ in range(3):
        world.start()
    world.run(30_000)
    world.settled()
    before = world.callers[0].member.generation
    world.start()
    world.run(60_000)
    world.settled()
    assert world.callers[0].member.generation - before <= 2
