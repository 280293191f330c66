"""Seeds and scenarios in the simulator: every invariant after every event, and determinism.

Any exception is CRASH, and a scenario that goes otherwise than it is written is STORY.
"""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest

import kohort
from kohort.simulator.runs.report import story_of
from kohort.simulator.runs.running import Options, run, run_scenario, run_seed
from kohort.simulator.runs.simulation import Simulation
from kohort.simulator.scenario import Scenario, examples, parse

SRC = Path(kohort.__file__).parent.parent
EXTENDED, NIGHTLY, CHUNK = 250, 10_000, 10
SAME, MORE = range(0, 60, 20), range(7, 60, 7)
DIGESTS = """
from kohort.simulator.runs.running import Options, run
print(*(run(Options().plan(seed)).digest for seed in range(%d, %d, %d)))
"""


def hold(seeds: range) -> None:
    for seed in seeds:
        outcome = run_seed(seed, Options())
        assert not outcome.failed, f"{Options().command(seed)}\n" + "\n".join(story_of(outcome))


@pytest.mark.rows(1)
@pytest.mark.parametrize("first", range(1, EXTENDED, CHUNK))
def test_seeds_hold(first: int) -> None:
    """G1-G13, C1-C6, O2, O3, O7, GL1-GL5, CL1, CL3 in random worlds."""
    hold(range(first, first + CHUNK))


@pytest.mark.nightly
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("first", range(EXTENDED + 1, NIGHTLY, 1_000))
def test_many_seeds_hold(first: int) -> None:
    """The same, ten thousand of them."""
    hold(range(first, first + 1_000))


@pytest.mark.parametrize("scenario", examples(), ids=lambda scenario: scenario.name)
def test_scenarios_hold(scenario: Scenario) -> None:
    """The bug corpus and the crash points of spec 2.12, each in the first of its variants."""
    outcome = next(run_scenario(scenario))
    assert not outcome.failed, "\n".join(story_of(outcome))


@pytest.mark.extended
@pytest.mark.parametrize("scenario", examples(), ids=lambda scenario: scenario.name)
def test_scenarios_hold_in_all_variants(scenario: Scenario) -> None:
    """Spec 2.12 and the corpus with every other protocol, fault position and seed."""
    for outcome in islice(run_scenario(scenario), 1, None):
        assert not outcome.failed, "\n".join(story_of(outcome))


@pytest.mark.rows(1)
@pytest.mark.parametrize("seeds", [SAME, MORE], ids=str)
def test_a_seed_decides_everything(seeds: range) -> None:
    """The same seed gives the same trace in another process with other hashes (spec 9.1)."""
    here = [run(Options().plan(seed)).digest for seed in seeds]
    out = subprocess.run(
        [sys.executable, "-c", DIGESTS % (seeds.start, seeds.stop, seeds.step)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(SRC), "PYTHONHASHSEED": "4711"},
    )
    assert out.stdout.split() == here


def holds(story: str, first: int, count: int = 1) -> None:
    """Some seeds of a story that the simulator itself once told wrongly."""
    for plan in parse(f"seeds = {count}\n" + story, "here").plans(first):
        outcome = run(plan)
        assert not outcome.failed, outcome.what


def test_an_epoch_is_durable_with_its_first_record() -> None:
    """G10, the check itself: more of the same epoch may be written while its answer waits."""
    story = """
    steps = [
      "at 0: start b", "at 10: start c", "at 3210: grow orders to 5 partitions",
      "at 4210: slow the disk by 1134 ms", "at 5211: grow bills to 6 partitions",
      "at 5331: write 200 records to orders-4", "at 9211: grow orders to 7 partitions",
      "at 13231: slow the disk by 739 ms",
    ]
    world = { nodes = 1, topics = { orders = 2, bills = 2 } }
    settings = { heartbeat_ms = 1300, initial_delay_ms = 1000 }
    [[consumers]]
    name = "b"
    protocol = "consumer"
    poll_ms = 2000
    work_ms = 0
    fence = true
    [[consumers]]
    name = "c"
    protocol = "consumer"
    records = 1
    """
    holds(story, 20_460)


@pytest.mark.parametrize(
    ("first", "count"), [(1, 5), pytest.param(6, 95, marks=pytest.mark.extended)]
)
def test_a_process_that_dies_takes_no_connection_of_its_twin(first: int, count: int) -> None:
    """Both have one name; the twin's connections were gone without its hearing of it."""
    story = """
    steps = [
      "at 0: start a", "at 1010: kill node 1 silently", "at 1030: kill node 2",
      "at 1933: restart node 1", "at 5030: slow the network to 122 ms",
      "at 5050: start a twin of a", "at 6050: restart a",
    ]
    world = { nodes = 2, topics = { orders = 2 }, group_partitions = 1 }
    settings = { session_ms = 4000, heartbeat_ms = 1300, initial_delay_ms = 1000 }
    [[consumers]]
    name = "a"
    protocol = "consumer"
    instance = "i-a"
    records = 500
    """
    holds(story, first, count)


def test_who_was_replaced_in_a_record_that_is_lost_is_a_member_again() -> None:
    """G8, the check itself: nobody was told of it, since it was never flushed."""
    story = """
    steps = [
      "at 10: start b", "at 7410: write 200 records to orders-0",
      "at 7741: cut the power of the coordinator", "at 11781: slow the disk by 1435 ms",
      "at 11981: start a twin of b", "at 12181: cut the power of node 2",
    ]
    world = { nodes = 2, topics = { orders = 1 }, group_partitions = 1 }
    settings = { heartbeat_ms = 500 }
    [[consumers]]
    name = "b"
    instance = "i-b"
    poll_ms = 2000
    records = 500
    """
    holds(story, 9458)


CRASH_IN_CLOSE = """
name = "crash-in-close"
about = "It dies while it waits for the answer to its goodbye."
steps = [
  "start a",
  "when a is stable: hold answers to LeaveGroup of a",
  "close a",
  "when LeaveGroup of a arrives: crash a",
]
[world]
nodes = 1
[[consumers]]
name = "a"
"""


def test_steps_that_nobody_carries_out_end_where_they_stand() -> None:
    """A close that is given up (its process is gone, its task was dropped) waits no more."""
    for plan in parse(CRASH_IN_CLOSE, "here").plans(1):
        simulation = Simulation(plan)
        outcome = simulation.run()
        assert not outcome.failed, "\n".join(story_of(outcome))
        for steps in reversed(simulation.world.apps["a"].driver.stack):
            steps.close()
