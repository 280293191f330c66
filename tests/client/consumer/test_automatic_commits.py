"""Automatic commits and rebalances (spec 4.5): none is made that can only be refused."""

from __future__ import annotations

import logging

import pytest

from kohort.simulator.plan import ConsumerPlan, Plan, Settings
from kohort.simulator.runs.simulation import Simulation

STEPS = (
    "start a",
    "start b",
    "when everybody is stable: write 50 records to orders-0",
    "write 50 records to orders-1",
    "write 50 records to orders-2",
    "slow a for 1500 ms",
    "start c",
    "after 3000: write 50 records to orders-1",
    "when everybody is stable: nothing",
)


@pytest.mark.parametrize("seed", range(1, 6))
def test_none_is_sent_behind_a_join(caplog: pytest.LogCaptureFixture, seed: int) -> None:
    """KIP-429: whoever keeps its partitions in a rebalance reads on, and its interval goes by.

    A commit behind the join that waits at the coordinator would come with the old generation and be
    refused: nothing is wrong then, and nobody is to be warned of it.
    """
    consumers = tuple(
        ConsumerPlan(name=name, topics=("orders",), assignor="cooperative-sticky", poll_ms=100)
        for name in "abc"
    )
    settings = Settings(auto_commit_ms=20)
    plan = Plan(
        seed=seed,
        nodes=1,
        topics={"orders": 4},
        consumers=consumers,
        steps=STEPS,
        settings=settings,
    )
    with caplog.at_level(logging.WARNING):
        outcome = Simulation(plan).run()
    assert outcome.code is None, outcome.what
    assert "automatic commit failed" not in caplog.text
