"""Hostile input (issue D): only typed errors, bounded memory, other connections unharmed.

`make nightly` sends a million frames; a failure names the seed and the frame that replay it.
"""

from __future__ import annotations

import gc
import tracemalloc
from typing import Any

import pytest

from kohort.broker.apis import APIS
from tests.broker.hostile import HostileWorld, most_memory

MEMORY_MAX = 64 << 20


def attack(seed: int, frames: int, **config: Any) -> HostileWorld:
    world = HostileWorld(seed, **config)
    for number in range(frames):
        what = "?"
        try:
            what = world.attack()
            if number % 1_000 == 0:
                world.prove_unharmed()
                world.prove_sound()
        except Exception as error:
            error.add_note(f"seed {seed}, frame {number}: {what}")
            raise
    world.prove_unharmed()
    world.prove_sound()
    return world


@pytest.mark.rows(2)
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("acls", [False, True])
def test_made_and_damaged_frames_end_no_broker(seed: int, acls: bool) -> None:
    """Without rights; with rights that nobody has (seed 1) and that everybody has (2)."""
    world = attack(seed, 2_000, acls=acls, allow_everyone_if_no_acl_found=acls and seed == 2)
    assert world.answered > 200
    assert world.refused > 200
    if not acls:
        assert world.read > 100
    if acls and seed == 1:
        assert not world.taken
    elif world.has_lane:
        assert world.taken > 250


@pytest.mark.nightly
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("seed", range(10))
def test_a_million_hostile_frames(seed: int) -> None:
    """100,000 frames for each seed, over every API and version."""
    attack(seed, 5_000)  # codecs are made at first use
    gc.collect()
    before = most_memory()
    world = attack(1_000 + seed, 100_000)
    grown = most_memory() - before
    print(
        f"seed {seed}: {world.frames} frames for {len(APIS)} APIs, {world.answered} answered, "
        f"{world.refused} connections closed, {world.taken} by the fast path, "
        f"at most {grown >> 20} MiB more"
    )
    assert world.taken > (10_000 if world.has_lane else -1)
    assert grown < MEMORY_MAX


@pytest.mark.extended
@pytest.mark.once
def test_frames_of_one_kind_do_not_fill_the_memory() -> None:
    """What frames leave behind is bounded by the broker's limits, not by their number."""
    world = attack(3, 1_000)
    tracemalloc.start()
    try:
        for _ in range(700):  # each is ten times slower under this tracing
            world.attack()
        world.harness.env.advance(10 * 86_400_000)
        gc.collect()
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert held < MEMORY_MAX
