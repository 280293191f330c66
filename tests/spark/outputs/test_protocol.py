"""The commit protocol, with the driver killed between any two effects (spec 6.3, kill table)."""

from __future__ import annotations

import contextlib
import itertools
from typing import Any

import pytest

from kohort.client.producer.plan.transaction_requests import Identity
from kohort.client.shared.transaction import TransactionLostError
from kohort.errors import DataLossError, KohortError
from kohort.spark.outputs.fence import Batch, Fence
from kohort.spark.outputs.protocol import BatchFailedError, Outcome, Step, Written
from tests.spark.outputs.world import BATCHES, Died, WorkModel, World, check

KINDS = [
    pytest.param({"table": True, "topic": False}, id="table"),
    pytest.param({"table": False, "topic": True}, id="topic"),
    pytest.param({"table": True, "topic": True}, id="both"),
]
Kind = dict[str, Any]


def lives(world: World, kind: Kind, *, expire: bool = False) -> int:
    """Drivers, one after the other, until all is done; how many there were."""
    for life in itertools.count(1):
        try:
            world.driver(**kind).run_all()
        except Died:
            if expire:
                world.kafka.expire()
            continue
        return life
    raise AssertionError


def effects_of(kind: Kind) -> int:
    world = World()
    assert lives(world, kind) == 1
    check(world, **kind)
    return world.effects


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("expire", [False, True], ids=["", "transaction expires"])
def test_a_driver_killed_at_any_effect(kind: Kind, expire: bool) -> None:
    for at in range(1, effects_of(kind) + 1):
        world = World(dies_at=frozenset({at}))
        assert lives(world, kind, expire=expire) == 2
        check(world, **kind)


@pytest.mark.parametrize("kind", KINDS)
def test_two_kills_at_any_two_effects(kind: Kind) -> None:
    for pair in itertools.combinations(range(1, effects_of(kind) + 20), 2):
        world = World(dies_at=frozenset(pair))
        lives(world, kind, expire=pair[0] % 2 == 0)
        check(world, **kind)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("step", list(Step))
def test_a_second_driver_at_any_step(kind: Kind, step: Step) -> None:
    """It does the same batch while the first stands still; the first finds out, or is too late."""
    world = World()
    world.driver(**kind).run(0)

    def second(at: Step) -> None:
        if at is step and world.commit_log == 0:
            world.commit_log = 1
            world.driver(**kind).run(1)

    first = world.driver(**kind, reached=second)
    with contextlib.suppress(TransactionLostError):
        first.run(1)
    assert world.driver(**kind).run(1) is Outcome.SKIPPED
    check(world, **kind, batches=2)


@pytest.mark.parametrize(
    ("kind", "step"),
    [
        (k, s)
        for k in ({"table": False, "topic": True}, {"table": True, "topic": True})
        for s in (Step.AFTER_STAGING, Step.KAFKA_FENCED, Step.AFTER_FENCE, Step.BEFORE_END)
        if k["table"] or s is not Step.AFTER_FENCE
    ],
)
def test_a_transaction_that_times_out_under_its_driver(kind: Kind, step: Step) -> None:
    """All of it is aborted: the batch runs again, or is sent anew when the database has decided."""
    world = World()
    times: list[Step] = []

    def slow(at: Step) -> None:
        if at is step and not times:
            times.append(at)
            world.kafka.expire()

    assert world.driver(**kind, reached=slow).run(0) is Outcome.COMMITTED
    assert times
    check(world, **kind, batches=1)


def test_a_batch_that_never_ends_in_time_fails_with_the_reason() -> None:
    world = World()

    def slow(at: Step) -> None:
        if at is Step.AFTER_STAGING:
            world.kafka.expire()

    with pytest.raises(BatchFailedError, match=r"batch 0 was given up after 3 rounds: over"):
        world.driver(table=False, topic=True, reached=slow).run(0)
    assert not world.kafka.committed
    assert world.driver(table=False, topic=True).run(0) is Outcome.COMMITTED


@pytest.mark.parametrize("kind", KINDS[1:])
def test_a_batch_with_a_second_attempt_runs_again_under_a_new_epoch(kind: Kind) -> None:
    world = World()
    driver = world.driver(**kind)
    assert driver.run(0, taints=["a task was started a second time"]) is Outcome.COMMITTED
    assert world.kafka.epoch >= 2
    assert {number for _, number in world.kafka.committed} == {2}
    if not kind["table"]:
        check(world, **kind, batches=1)


def test_staging_that_vanished_is_staged_again() -> None:
    """PostgreSQL empties unlogged tables when it recovers; somebody may drop them."""
    world = World()
    swept: list[int] = []

    def vanish(at: Step) -> None:
        if at is Step.BEFORE_FENCE and not swept:
            swept.append(1)
            world.staged.clear()

    assert world.driver(table=True, topic=False, reached=vanish).run(0) is Outcome.COMMITTED
    assert swept
    check(world, table=True, topic=False, batches=1)


def test_a_failed_task_leaves_no_transaction_open() -> None:
    world = World()
    driver = world.driver(table=False, topic=True)

    class Failing:
        def run(self, identity: Identity | None) -> Written:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        driver.committer.run(Batch("q", 0, "c1"), Failing())
    assert not world.kafka.open


def test_what_kafka_has_forgotten_is_not_guessed() -> None:
    """Killed before EndTxn was noted, and started again when Kafka had dropped fence and id."""
    world = World()
    kind: dict[str, Any] = {"table": True, "topic": True}
    world.driver(**kind).run(0)

    def die(at: Step) -> None:
        if at is Step.AFTER_END:
            raise Died

    with pytest.raises(Died):
        world.driver(**kind, reached=die).run(1)
    world.kafka.fence, world.kafka.epoch = None, 99
    with pytest.raises(DataLossError, match=r"cannot be found out.*ended = 1"):
        world.driver(**kind).run(1)
    assert len(world.kafka.committed) == 4


def test_topics_taken_out_while_their_transaction_is_owed_are_refused() -> None:
    world = World()

    def die(at: Step) -> None:
        if at is Step.BEFORE_END:
            raise Died

    with pytest.raises(Died):
        world.driver(table=True, topic=True, reached=die).run(0)
    with pytest.raises(DataLossError, match="no topic output any more"):
        world.driver(table=True, topic=False).run(1)


def test_a_deleted_checkpoint_changes_nothing() -> None:
    kinds: list[dict[str, Any]] = [
        {"table": True, "topic": False},
        {"table": False, "topic": True},
    ]
    for kind in kinds:
        world = World()
        for batch_id in range(BATCHES):
            world.driver(**kind).run(batch_id)
        driver = world.driver(**kind)
        other = Batch("q", 0, "c2")
        with pytest.raises(KohortError, match="checkpoint was deleted"):
            driver.committer.run(other, WorkModel(driver, other))
        check(world, **kind)
        assert not kind["topic"] or world.kafka.fence == Fence(BATCHES - 1, "c1")
