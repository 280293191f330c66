"""Each row of the kill table in virtual time, in both modes, and lives full of kills (E2, E3).

`test_planted_*` break one rule each and must be found by the same checks.
"""

from __future__ import annotations

import random
from collections import Counter
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from kohort.client.common.types import GroupMetadata
from kohort.errors import BrokerError, ErrorCode, FencedError
from kohort.processing.engine.dispatcher import Order
from kohort.processing.engine.exactly_once_engine import Batch, ExactEngine, Verdict
from kohort.processing.engine.partition_state import OnFailure
from kohort.processing.engine.state import Limits
from kohort.processing.engine.tracker import PartitionTracker
from kohort.processing.runtime import store_transactor
from kohort.processing.runtime.kafka_transactor import KafkaTransactor
from kohort.processing.runtime.runner import Start
from kohort.processing.runtime.store_transactor import StoreTransactor
from kohort.processing.runtime.transactor import Judged
from kohort.retry import Permanent, Temporary
from kohort.retry.progress import LostRaceError, Progress
from kohort.retry.store import Store, StoreBusyError
from tests.known import of_type
from tests.processing.exactly_once_world import ExactWorld, Transactional
from tests.processing.world import route

MODES = ["kafka", "store"]
PLACES = {
    "kafka": ["init", "sending", "offsets", "before commit", "after commit"],
    "store": ["publishing", "before transaction", "inside transaction", "after commit"],
}
numbers = count()


def fate_of(chance: random.Random, inputs: int) -> dict[bytes, int]:
    """How often each record fails; -1: for good."""
    return {
        b"%d" % n: chance.choice([-1, 1, 1, 2, 9]) if chance.random() < 0.25 else 0
        for n in range(inputs)
    }


def make(mode: str, path: Path, seed: int = 0, inputs: int = 60, **more) -> ExactWorld:
    """`mode`: "kafka", "store" (a new SQLite file), or the URL of a store."""
    chance = random.Random(seed * 31 + 7)
    fate = fate_of(chance, inputs)

    def handler(record, attempt):
        left = fate[record.value]
        if left < 0:
            raise Permanent("bad")
        if attempt < left:
            raise Temporary("down")

    order = more.pop("order", Order.KEY)
    held = more.pop("on_failure", OnFailure.PASS)
    kinds = {"kafka": None, "store": f"sqlite:///{path}/{next(numbers)}.db"}
    url = kinds.get(mode, mode)
    world = ExactWorld(
        [route(retries="5s 5s 30s", order=order, on_failure=held)],
        handler,
        seed=seed,
        url=url,
        **more,
    )
    watch_store(world)
    for n in range(inputs):
        key = None if chance.random() < 0.1 else b"k%d" % chance.randrange(9)
        world.produce("orders", chance.randrange(3), key, b"%d" % n)
    world.fate = fate
    return world


def watch_store(world: ExactWorld) -> None:
    """Kills around and inside of the store's transaction."""
    if world.url is None:
        return
    make_transactor = world.make_transactor

    def made():
        transactor = make_transactor()
        store = of_type(transactor, StoreTransactor)._store
        advance, look = store.advance, store._look_for_revived

        def advanced(change, done_at):
            world.trouble.reach("before transaction")
            if world.trouble.happens():
                raise StoreBusyError("locked")
            if world.members > 1 and change.rows:
                world.now_ms += 6_000
                world.other_acts(commits=world.chance.random() < 0.5)
            done = advance(change, done_at)
            world.trouble.reach("after commit")
            if world.trouble.happens():
                raise StoreBusyError("the answer was lost")
            return done

        def looked(cursor, change):
            look(cursor, change)
            world.trouble.reach("inside transaction")

        store.advance, store._look_for_revived = advanced, looked
        return transactor

    world.make_transactor = made
    world.crash()


def check(world: ExactWorld) -> None:
    """Spec 6.3: each input's result is there once, or it has failed once."""
    good = Counter(v.decode() for v, left in world.fate.items() if 0 <= left <= 3)
    bad = Counter(v.decode() for v, left in world.fate.items() if not 0 <= left <= 3)
    results, failures = world.results(), world.failures()
    assert results == good, (results - good, good - results)
    assert failures == bad, (failures - bad, bad - failures)
    assert not any(life.engine.outstanding for life in world.present)
    if world.url is not None:
        assert not world.ask("SELECT * FROM kohort_ledger WHERE status = 'scheduled'")


def killed_there(world: ExactWorld, place: str, batch: int) -> None:
    """A kill at this place of the batch-th transaction, and at the next of whoever follows."""
    for _ in range(batch):
        for _ in range(20):
            world.step()
        world.trouble.kill_at = [place]
        world.commit()
    world.trouble.kill_at = [place]
    world.run_out()
    assert world.lives > 1
    check(world)


def left_behind(world: ExactWorld) -> None:
    """A process that its group has left behind goes on, before and after its successor does."""
    for _ in range(10):
        world.step()
    world.leave_behind()
    assert world.zombies[0].working or world.zombies[0].engine._settled
    before = (world.results(), world.failures())
    world.zombie_acts()
    assert (world.results(), world.failures()) == before
    world.step()
    world.commit()
    world.zombie_acts()
    world.run_out()
    check(world)


@pytest.mark.rows(9)
@pytest.mark.parametrize(
    ("mode", "place"), [(mode, place) for mode in MODES for place in PLACES[mode]]
)
@pytest.mark.parametrize("batch", [1, 2, 4])
def test_a_kill_anywhere_changes_nothing(mode, place, batch, tmp_path) -> None:
    """E2, the kill table: at each step of the first, the second and a later transaction."""
    killed_there(make(mode, tmp_path), place, batch)


@pytest.mark.parametrize("mode", MODES)
def test_who_was_left_behind_changes_nothing(mode, tmp_path) -> None:
    """E2, "zombie": its transaction is refused as a whole, whenever it comes."""
    left_behind(make(mode, tmp_path))


def test_a_copy_that_the_ledger_does_not_owe_is_never_run(tmp_path) -> None:
    """E2, ledger gate: nor does the handler see it, whose calls elsewhere nobody could undo."""

    def down_once(record, attempt):
        if not attempt:
            raise Temporary("down")

    url = f"sqlite:///{tmp_path}/owed.db"
    world = ExactWorld([route()], down_once, partitions=1, url=url)
    world.produce("orders", 0, b"k", b"v")
    world.settle()
    (copy,) = world.logs["orders.billing.retry.5m", 0]
    world.append(copy.topic, 0, copy.key, copy.value, copy.headers)
    world.run_out()
    assert [run.attempt for run in world.runs] == [0, 1]
    assert world.results() == {"v": 1}
    world.close()


@pytest.mark.parametrize("mode", MODES)
def test_a_record_that_cannot_be_stored_stops_nobody(mode, tmp_path) -> None:
    """A2, publish failure ladder: smaller copies; and who is refused waits alone."""
    world = make(mode, tmp_path)
    world.too_large = 480
    world.run_out()
    check(world)


def test_a_fenced_producer_is_replaced(tmp_path, monkeypatch) -> None:
    """A coordinator that aborts what took too long fences its producer; the program goes on.

    It ended when its transactional id was made of its own instance id, which under load looked like
    a member that dies by itself.
    """
    world = make("kafka", tmp_path)
    commit, fenced = Transactional.commit_transaction, count()

    def too_late(self, timeout_s=None) -> None:
        if next(fenced) in (1, 2, 5):
            raise FencedError(ErrorCode.PRODUCER_FENCED, "the transaction has timed out")
        commit(self, timeout_s)

    monkeypatch.setattr(Transactional, "commit_transaction", too_late)
    world.run_out()
    assert world.engine.counts["transactions_aborted"] == 3
    check(world)


def two_partitions(path: Path, mode: str) -> tuple[ExactWorld, Batch]:
    """A batch of two records in each of two partitions, about to be committed."""
    url = f"sqlite:///{path}/{next(numbers)}.db" if mode == "store" else None
    world = ExactWorld([route()], lambda record, attempt: None, partitions=2, url=url)
    watch_store(world)
    for n in range(4):
        world.produce("orders", n % 2, b"k%d" % n, b"%d" % n)
    for _ in range(50):
        world.step()
    batch = world.engine.batch(world.now_ms)
    assert batch is not None
    assert [batch.commits["orders", n].offset for n in range(2)] == [2, 2]
    return world, batch


def ended(world: ExactWorld, batch: Batch) -> Verdict:
    """A batch that was put through, and the engine has heard of it."""
    life = world.life
    verdict = life.transactor._commit_batch(
        batch, GroupMetadata("billing", life.generation, "m", None)
    )
    if verdict.error is None:
        life.engine.transaction_committed(batch, world.now_ms)
    else:
        life.engine.transaction_aborted(verdict, world.now_ms)
    return verdict


@pytest.mark.parametrize("applied", [True, False])
@pytest.mark.parametrize("mode", MODES)
def test_only_what_is_still_ours_tells_whether_a_transaction_was_committed(
    mode, applied, tmp_path, monkeypatch
) -> None:
    """E2: its answer was lost, and the next owner of a revoked partition had continued there. That
    was taken for a transaction that was not committed, and the outputs of the others came twice; an
    app with a store ended.
    """
    world, batch = two_partitions(tmp_path, mode)
    life, moved = world.life, ("orders", 1)

    def taken_over() -> None:
        """The drain was over; the next owner handles one more record and commits it."""
        life.engine.removed([moved])
        if mode == "kafka":
            world.commits[moved] = (3, "")
        else:
            taking = world.make_transactor()
            taking._take_over({moved: Start(2, "")})
            taking._close()

    def lost(self, timeout_s=None) -> None:
        if applied:
            self.apply()
        taken_over()
        raise BrokerError(ErrorCode.UNKNOWN_SERVER_ERROR, "the answer was lost")

    with monkeypatch.context() as once:
        if mode == "kafka":
            once.setattr(Transactional, "commit_transaction", lost)
        else:
            store = of_type(life.transactor, StoreTransactor)._store
            advance = store.advance

            def advanced(change, done_at):
                if applied:
                    advance(change, done_at)
                taken_over()
                raise StoreBusyError("the answer was lost")

            once.setattr(store, "advance", advanced)
        assert (ended(world, batch).error is None) is applied
    while (again := world.engine.batch(world.now_ms)) is not None:
        assert ended(world, again).error is None
    of_others = ["1", "3"] if applied else []
    assert world.results() == Counter(["0", "2", *of_others])
    world.close()


def test_a_store_whose_partitions_were_all_taken_over_refuses_the_batch(tmp_path) -> None:
    """E2: nothing tells then whether it was committed; the next try finds who owns them."""
    world, batch = two_partitions(tmp_path, "store")
    store = of_type(world.life.transactor, StoreTransactor)._store
    advance = store.advance

    def advanced(change, done_at):
        taking = world.make_transactor()
        taking._take_over({key: Start(0, "") for key in batch.commits})
        taking._close()
        store.advance = advance
        raise StoreBusyError("the answer was lost")

    store.advance = advanced
    assert ended(world, batch).error is not None
    again = world.engine.batch(world.now_ms)
    assert again is not None
    assert set(ended(world, again).fenced) == set(batch.commits)
    assert world.results() == Counter()
    world.close()


SEEDS = 12


def live(world: ExactWorld, chance: random.Random, steps: int = 250) -> None:
    """Troubles of all kinds, then peace."""
    world.trouble.rate, world.trouble.kill_rate = 0.05, 0.002
    for _ in range(steps):
        world.turn(chance.randrange(world.members))
        world.step()
        act = chance.random()
        if act < 0.2:
            world.commit()
        elif act < 0.22:
            world.crash()
        elif act < 0.24:
            world.leave_behind()
        elif act < 0.30 and world.zombies:
            world.zombie_acts()
        elif act < 0.40:
            world.now_ms += chance.choice([100, 1_000, 10_000])
    world.trouble.rate = world.trouble.kill_rate = 0.0
    world.run_out()
    while world.zombies and chance.random() < 0.9:
        world.zombie_acts()


def a_life(mode: str, seed: int, path: Path) -> None:
    chance = random.Random(seed * 7 + len(mode))
    members = chance.choice([1, 1, 2]) if mode != "kafka" else 1
    held = chance.choice([OnFailure.PASS, OnFailure.HOLD_KEY]) if members == 1 else OnFailure.PASS
    world = make(
        mode,
        path,
        seed,
        order=chance.choice(list(Order)),
        members=members,
        on_failure=held,
        limits=Limits(records=chance.choice([15, 10_000])),
    )
    try:
        live(world, chance)
        check(world)
    finally:
        world.close()


@pytest.mark.rows(6)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_lives_full_of_trouble(mode, seed, tmp_path) -> None:
    """X1 to X8: kills, refusals, lost answers, zombies; each input has its result once."""
    a_life(mode, seed, tmp_path)


# -- planted defects: each must be found by a few of these lives


def no_epoch(change) -> None:
    """Store: whoever comes last wins."""

    def moved(self, cursor, change):
        for m in change.moves:
            cursor.execute(
                "UPDATE kohort_progress SET next_offset = ?, snapshot = ? WHERE pipeline = ? "
                "AND topic = ? AND partition = ?",
                (m.next_offset, m.snapshot, change.pipeline, m.topic, m.partition),
            )

    change.setattr(Progress, "_move_all", moved)


def no_ledger(change) -> None:
    """Store: every copy that lies in a retry topic is run."""
    change.setattr(
        StoreTransactor,
        "_judge",
        lambda self, items: Judged(items, frozenset(range(len(items))), frozenset()),
    )
    change.setattr(Store, "_close_claims", _careless_claims)


def _careless_claims(self, cursor, change) -> None:
    try:
        _CLOSE(self, cursor, change)
    except LostRaceError:
        return


def no_overtaken(change) -> None:
    """Store: a scheduled copy may have been passed already."""
    change.setattr(store_transactor, "done_at", lambda *row: False)


def no_revived(change) -> None:
    """Store: a copy that was scheduled meanwhile is passed all the same."""
    change.setattr(Progress, "_look_for_revived", lambda self, cursor, change: None)


def aborted_counts_as_committed(change) -> None:
    """Both: what was refused counts as done."""
    change.setattr(
        ExactEngine,
        "transaction_aborted",
        lambda self, verdict, now_ms: self.transaction_committed(verdict.batch, now_ms),
    )


def lost_answer_is_a_failure(change) -> None:
    """Kafka: a commit without an answer is done again, whatever became of it."""
    change.setattr(KafkaTransactor, "_in_doubt", lambda self, batch, error: Verdict(batch, error))


def lost_answer_counts_as_committed(change) -> None:
    """Kafka: a commit without an answer counts as done."""
    change.setattr(KafkaTransactor, "_in_doubt", lambda self, batch, error: Verdict(batch))


def any_member(change) -> None:
    """Kafka: offsets are committed without saying who commits them (before KIP-447)."""
    put = KafkaTransactor._commit_batch

    def unfenced(self, batch, member):
        producer = self._ready()
        newest = GroupMetadata("billing", producer.world.generation, "", None)
        return put(self, batch, newest)

    change.setattr(KafkaTransactor, "_commit_batch", unfenced)


def records_apart(change) -> None:
    """Kafka: records in one transaction, their offsets in another."""
    send_offsets = Transactional.send_offsets_to_transaction

    def apart(self, offsets, member, timeout_s=None):
        self.apply()
        send_offsets(self, offsets, member)

    change.setattr(Transactional, "send_offsets_to_transaction", apart)


def committed_too_much(change) -> None:
    """Both: the offsets of everything that was read."""
    commit_after = PartitionTracker.commit_after

    def more(self, done):
        return commit_after(self, self._incomplete)

    change.setattr(PartitionTracker, "commit_after", more)


_CLOSE = Store._close_claims
PLANTED = {
    "store": [
        no_epoch,
        no_ledger,
        no_overtaken,
        no_revived,
        aborted_counts_as_committed,
        committed_too_much,
    ],
    "kafka": [
        lost_answer_is_a_failure,
        lost_answer_counts_as_committed,
        any_member,
        records_apart,
        aborted_counts_as_committed,
        committed_too_much,
    ],
}


@pytest.mark.rows(4)
@pytest.mark.parametrize(("mode", "plant"), [(m, p) for m in MODES for p in PLANTED[m]])
def test_planted_defects_are_found(mode, plant, tmp_path, monkeypatch) -> None:
    """The checks above are worth something: each of these is found within a few lives."""
    plant(monkeypatch)
    for seed in range(60):
        try:
            a_life(mode, seed, tmp_path)
        except Exception:  # lost, doubled, stuck, or the program's own doubts
            return
    raise AssertionError(f"{plant.__doc__} was not found")


def test_partitions_go_on_in_the_order_in_which_they_were_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not in that of their addresses, which a seed of the simulator does not decide."""
    refilled: list[object] = []

    def refill(engine: ExactEngine, partition: object, now_ms: int) -> None:
        refilled.append(partition)

    monkeypatch.setattr(ExactEngine, "_refill", refill)
    partitions = [Mock(live=True, draining=True) for _ in range(50)]
    random.Random(1).shuffle(partitions)
    read: list[Any] = [Mock(partition=p) for p in [*partitions, *partitions]]
    object.__new__(ExactEngine).judged(read, (), (), 0)
    assert refilled == partitions
