"""KIP-848 members and the real coordinator in a seeded world of faults: G1, C6, GL1, GL2, GL5."""

from __future__ import annotations

import pytest

from tests.group.consumer_member_world import CONSUMER, ConsumerWorld, change, migrate
from tests.group.member_world import POLL_MS, SESSION_MS, fault


def rest(world: ConsumerWorld) -> None:
    world.faults = False
    world.run(world.now + 2 * (POLL_MS + SESSION_MS) + 10_000)
    world.settled()


def trouble(world: ConsumerWorld, faults: int) -> None:
    for _ in range(faults):
        world.run(world.now + world.chance.choice([10, 100, 1_000, 5_000]))
        fault(world)


@pytest.mark.rows(6)
@pytest.mark.parametrize("seed", range(30))
def test_a_world_of_faults_comes_to_rest(seed: int) -> None:
    """No two owners at any time; afterwards everybody is in and every partition is owned."""
    faults(seed)


def faults(seed: int) -> None:
    world = ConsumerWorld(seed, CONSUMER)
    for _ in range(world.chance.randint(1, 4)):
        world.start()
    trouble(world, 25)
    rest(world)


@pytest.mark.rows(6)
@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_a_world_that_changes_comes_to_rest(seed: int, static: bool) -> None:
    """B7, B12, KIP-345: topics created again, patterns, subscriptions, members that come back."""
    changes(seed, static)


def changes(seed: int, static: bool) -> None:
    world = ConsumerWorld(seed, CONSUMER, static=static)
    for n in range(world.chance.randint(1, 4)):
        world.start(f"i{n}" if static else None)
    for _ in range(12):
        trouble(world, 1)
        world.run(world.now + world.chance.choice([10, 300, 2_000]))
        change(world)
    rest(world)


@pytest.mark.rows(4)
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_a_group_migrates_online_there_and_back(seed: int, strategy: str) -> None:
    """Spec 2.14: classic to consumer and back, member by member, with faults in between."""
    migration(seed, strategy)


def migration(seed: int, strategy: str) -> None:
    world = ConsumerWorld(seed, strategy)
    for _ in range(world.chance.randint(1, 4)):
        world.start()
    trouble(world, 3)
    migrate(world, CONSUMER)
    trouble(world, 5)
    migrate(world, strategy)
    rest(world)


def test_a_change_of_members_is_soon_over() -> None:
    """GL1: one member more is settled within three heartbeats of its peers."""
    world = ConsumerWorld(1, CONSUMER)
    world.faults = False
    for _ in range(3):
        world.start()
    world.run(30_000)
    world.settled()
    world.start()
    world.run(34_000)
    world.settled()


@pytest.mark.nightly
@pytest.mark.parametrize("hundred", range(10))
def test_a_thousand_worlds(hundred: int) -> None:
    """All of the above, by many seeds."""
    for seed in range(100 * hundred, 100 * (hundred + 1)):
        faults(seed)
        changes(seed, seed % 2 == 0)
        migration(seed, "range" if seed % 2 else "cooperative-sticky")
