"""`hold_key` across restarts, moves and its bound (W3): a key's order is kept."""

from __future__ import annotations

import random
from collections import Counter, defaultdict

import pytest

from kohort.client.common import completion
from kohort.errors import ConfigError
from kohort.processing.app import App
from kohort.processing.engine.engine import Engine
from kohort.processing.engine.key_holds import Scanned, Waiting
from kohort.processing.engine.partition_state import OnFailure
from kohort.processing.runtime.holding_checks import check_holding, holding_client
from kohort.processing.runtime.runner import wall_ms
from kohort.retry import Permanent, Temporary
from kohort.retry.copies import Attempt, redrive_copy
from kohort.retry.headers import parse
from tests.processing.engine.test_exactly_once_world import make
from tests.processing.world import World, route

RETRIES = ["orders.billing.retry.5s", "orders.billing.retry.30s"]


def holding(fate: dict[bytes, int], **more) -> World:
    def handler(record, attempt):
        if attempt < fate.get(record.value, 0):
            raise Temporary("down")

    routes = [route(retries="5s 5s 30s", on_failure=OnFailure.HOLD_KEY)]
    # Without the guard, which takes records that were about whenever we crash for the killers.
    return World(routes, handler, crash_guard=False, **more)


def firsts(world: World) -> dict[bytes | None, list[int]]:
    """Per key, in which order its records were done for the first time."""
    found: dict[bytes | None, list[int]] = defaultdict(list)
    seen: set[object] = set()
    for run in world.runs:
        if run.ok and run.origin not in seen:
            seen.add(run.origin)
            found[run.key].append(run.origin[2])
    return found


def test_after_a_restart_the_retry_topics_are_read_before_anything_begins() -> None:
    world = holding({b"0": 2})
    for n in range(3):
        world.produce("orders", 0, b"k", b"%d" % n)
    world.settle()  # 0 failed, 1 and 2 follow it
    world.commit()
    world.crash()
    for n in range(3, 6):
        world.produce("orders", 0, b"k", b"%d" % n)
    partition = world.engine.partitions["orders", 0]
    assert "has been read" in partition.why_stopped(world.now_ms)
    assert ("orders", 0) in world.engine.paused(world.now_ms)
    world.settle()
    assert not partition.why_stopped(world.now_ms)
    assert not [run for run in world.runs if run.ok]
    world.run_out()
    assert firsts(world) == {b"k": [0, 1, 2, 3, 4, 5]}
    assert not len(world.engine.holds)


def test_what_a_former_owner_did_beyond_its_commit_holds_nothing() -> None:
    world = holding({b"0": 1, b"1": 2})
    for n in range(2):
        world.produce("orders", 0, b"k%d" % n, b"%d" % n)
    world.settle()
    world.now_ms += 5_000
    world.settle()  # 0 is done in the retry topic, 1 has moved on to its second try
    world.commit()
    retry_topic = (RETRIES[0], 0)
    offset, _ = world.commits[retry_topic]
    assert offset == 2
    world.crash()
    world.settle()
    assert len(world.engine.holds) == 1


def test_a_redriven_record_holds_no_later_one_of_its_key_in_the_entry_topic() -> None:
    """Copied there, a new record was no redrive, and became a dead letter: bad_retry_headers."""
    world = holding({b"0": 9})
    world.produce("orders", 0, b"k", b"0")
    world.run_out()
    (dead,) = world.failed()
    topics = world.routes[0].topics
    retry = parse(dead.headers)
    place = (dead.topic, dead.partition, dead.offset)
    attempt = Attempt(retry.origin, retry.number, place, b"k", b"0", tuple(dead.headers), retry)
    copy = redrive_copy(attempt, topics=topics, redrive_id="r", now_ms=world.now_ms)
    world.append(topics.entry, 0, copy.key, copy.value, copy.headers)
    for n in range(1, 4):
        world.produce("orders", 0, b"k", b"%d" % n)
    world.run_out()
    assert [parse(r.headers).reason for r in world.failed()] == ["down", "down"]
    done = [run.origin[2] for run in world.runs if run.ok]
    assert done == [1, 2, 3]
    assert not len(world.engine.holds)


def test_a_partition_waits_for_its_retry_topics_to_be_with_the_same_member() -> None:
    world = holding({})
    world.produce("orders", 0, b"k", b"0")
    world.engine.removed([(RETRIES[1], 0)])
    world.settle()
    assert not world.runs
    standing = world.engine.partitions["orders", 0].why_stopped(world.now_ms)
    assert f"{RETRIES[1]}-0" in standing
    assert "range assignor" in standing
    world.assign((RETRIES[1], 0))
    world.settle()
    assert len(world.runs) == 1


def test_past_the_bound_source_partitions_stand_and_go_on() -> None:
    """Order is kept, memory is bounded, and nothing stands for ever."""
    world = holding({b"%d" % n: 2 for n in range(0, 200, 2)})
    world.engine.holds.most = 20
    for n in range(200):
        world.produce("orders", n % 3, b"k%d" % (n % 10), b"%d" % n)
    most = 0
    for _ in range(400):
        world.step()
        most = max(most, len(world.engine.holds))
    assert world.engine.counts["holds_full"]
    assert "wait for a retry" in world.engine.partitions["orders", 0].why_stopped(world.now_ms)
    world.run_out()
    assert sum(len(done) for done in firsts(world).values()) == 200
    assert all(done == sorted(done) for key, done in by_partition(world).items())


def by_partition(world: World) -> dict[object, list[int]]:
    found: dict[object, list[int]] = defaultdict(list)
    seen: set[object] = set()
    for run in world.runs:
        if run.ok and run.origin not in seen:
            seen.add(run.origin)
            found[run.origin[1], run.key].append(run.origin[2])
    return found


def test_retry_topics_that_hold_more_than_the_bound_at_a_start() -> None:
    """They are worked on first; the source waits, and loses nothing."""
    world = holding({b"%d" % n: 1 for n in range(60)})
    for n in range(60):
        world.produce("orders", 0, b"k%d" % (n % 10), b"%d" % n)
    world.settle()
    world.commit()
    world.crash()
    world.engine.holds.most = 8
    for n in range(60, 70):
        world.produce("orders", 0, b"k%d" % (n % 10), b"%d" % n)
    world.settle()
    assert "fewer records" in world.engine.partitions["orders", 0].why_stopped(world.now_ms)
    world.run_out()
    done = firsts(world)
    assert sum(len(each) for each in done.values()) == 70
    for key, offsets in done.items():
        assert offsets[-1] == max(offsets), f"{key}: the source overtook its retry topic"


@pytest.mark.rows(2)
@pytest.mark.parametrize("seed", range(15))
def test_order_within_a_key_through_crashes(seed: int) -> None:
    chance = random.Random(seed)
    world = holding({b"%d" % n: chance.choice([0, 0, 0, 1, 2, 3]) for n in range(120)}, seed=seed)
    for n in range(120):
        key = n % 9
        world.produce("orders", key % 3, b"k%d" % key, b"%d" % n)
    world.live(chance, 400)
    world.run_out()
    done = firsts(world)
    assert sum(len(each) for each in done.values()) == 120
    assert all(offsets == sorted(offsets) for offsets in done.values()), done


@pytest.mark.parametrize("fails", [1, -1])
def test_a_second_copy_holds_nobody_when_the_first_has_ended(fails: int, tmp_path) -> None:
    """What a killed or overtaken member left in a retry topic is inert, in any order.

    It held its key for ever when it was read after the copy that counts had ended and before the
    transaction of that was through: every later record of the key went round its retry topic
    without end.
    """
    world = make("store", tmp_path, inputs=0, on_failure=OnFailure.HOLD_KEY)
    world.fate |= {b"a": fails, b"b": 0}
    if fails < 0:  # it fails again in the retry topic, for good
        world.handler = fails_for_good
    for value in world.fate:
        world.produce("orders", 0, b"k", value)
    while not world.engine._settled:
        world.step()
    world.leave_behind()
    for _ in range(40):
        world.step()
        world.commit()
    world.zombie_acts()  # refused, but its copy is there: behind the one that counts
    assert len(world.logs[RETRIES[0], 0]) > 2
    world.now_ms += 5_000
    world.poll(1)
    world.publish()
    while not world.engine._settled:
        world.work()
    world.poll()
    world.publish()
    world.run_out()
    assert not len(world.engine.holds)
    assert world.results() == Counter({"b": 1} if fails < 0 else {"a": 1, "b": 1})


def fails_for_good(record, attempt) -> None:
    if record.value == b"a":
        raise (Permanent if attempt else Temporary)("down")


@pytest.mark.parametrize("mode", ["kafka", "store"])
def test_held_records_exactly_once(mode, tmp_path) -> None:
    """A held copy, its ledger row and the offset of its record are one transaction too."""
    world = make(mode, tmp_path, on_failure=OnFailure.HOLD_KEY)
    for _ in range(40):
        world.step()
        world.commit()
    assert world.engine.counts["held"]
    world.crash()
    world.run_out()
    assert sum(world.results().values()) + sum(world.failures().values()) == 60
    assert not len(world.engine.holds)


def test_the_range_assignor_and_retry_topics_of_one_size() -> None:
    routes = [route(on_failure=OnFailure.HOLD_KEY)]
    assert holding_client(routes, {}) == {"partition_assignment_strategy": ("range",)}
    by_broker = {"group_protocol": "consumer"}
    assert holding_client(routes, by_broker)["group_remote_assignor"] == "range"
    assert holding_client([route()], {}) == {}
    with pytest.raises(ConfigError, match="hold_key"):
        holding_client(routes, {"partition_assignment_strategy": ["cooperative-sticky"]})
    counts = {"orders": 70, **dict.fromkeys(routes[0].topics.delays_ms, 64)}
    with pytest.raises(ConfigError, match="--partitions 70"):
        check_holding(routes, counts)


def test_an_app_reads_its_retry_topics_at_a_start(topic, produce, app, start, monkeypatch) -> None:
    """Real sockets: a key's records wait behind one that a former process scheduled.

    Ten minutes pass when all of them wait, and not before, however slow the machine is."""
    seen: list[tuple[int, int]] = []
    passed_ms = 0
    monkeypatch.setattr(completion, "wall_ms", lambda: wall_ms() + passed_ms)

    def make_app(fails: bool) -> App:
        made = app(retries="10m", client={"heartbeat_interval_ms": 50})

        @made.handler(topic, on_failure="hold_key")
        def handle(record) -> None:
            if fails:
                raise Temporary("down")
            seen.append((int(record.value), record.attempt))

        return made

    produce(3, keys=1)
    first = start(make_app(True))
    wait(lambda: first.app.counts().get("held") == 2)
    first.stop()
    produce(3, keys=1)
    second = start(make_app(False))
    wait(lambda: second.app.counts().get("held") == 3)
    assert not seen
    passed_ms = 10 * 60_000
    second.app._runner.now_ms = completion.wall_ms
    wait(
        lambda: second.app.metrics() and len(seen) == 6
    )  # whoever looks has the retry topics asked anew
    second.stop()
    assert [number for number, _ in seen] == [0, 1, 2, 0, 1, 2]
    assert second.app.counts()["held"] == 3


def wait(condition) -> None:
    from tests.processing.test_exact import wait_for

    wait_for(condition, "it did not happen")


def test_what_was_found_in_a_retry_topic_counts_for_what_was_not_read_since() -> None:
    """W3, C7: not that of a former assignment, nor what has been read, which is held or has ended:
    its key would be held for ever.
    """
    engine = Engine([route(retries="5m", on_failure=OnFailure.HOLD_KEY)], crash_guard=False)
    retry_topic = ("orders.billing.retry.5m", 0)
    engine.assigned(("orders", 0), 1, 0)
    engine.assigned(retry_topic, 2, 0)
    found = [Waiting(0, b"k", (0, 0)), Waiting(1, b"k", (0, 1))]
    engine.scanned(Scanned(retry_topic, 1, found, True), 0)
    assert len(engine.holds) == 0
    assert engine.partitions["orders", 0].unknown
    engine.polled(retry_topic, (), 1, 0)
    engine.scanned(Scanned(retry_topic, 2, found, True), 0)
    assert len(engine.holds) == 1
    assert not engine.partitions["orders", 0].unknown
