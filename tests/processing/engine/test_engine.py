"""The engine through whole lives: retries when due, order, commits, crashes, circuits, guards."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise

import pytest

from kohort.processing.engine.circuit_breaker import CircuitConfig
from kohort.processing.engine.dispatcher import Order
from kohort.processing.engine.engine import NOT_BEGUN, Engine
from kohort.processing.engine.in_place_retries import Blocking
from kohort.processing.engine.partition_state import OnFailure
from kohort.processing.engine.state import Limits
from kohort.records import Record
from kohort.retry import headers as h
from kohort.retry.classify import Classifier, Permanent, RetryAfter, Temporary
from tests.known import known
from tests.processing import world as world_module
from tests.processing.test_broken import TP, records, started
from tests.processing.world import World, route

MINUTE = 60_000
ORIGIN = ("orders", 0, 0)


def always_down(record, attempt):
    raise Temporary("down")


def test_the_default_sequence_each_attempt_exactly_when_due() -> None:
    """Issue E: 5m 5m 30m 30m 30m 1h, then the dead-letter topic; never early (R3, R4)."""
    world = World([route()], always_down)
    start = world.now_ms
    world.produce("orders", 0, b"k", b"v")
    world.run_out()
    minutes = [(at - start) / MINUTE for at in world.times(ORIGIN)]
    assert minutes == [0, 5, 10, 40, 70, 100, 160]
    assert [r.attempt for r in world.runs] == [0, 1, 2, 3, 4, 5, 6]
    (failed,) = world.failed()
    parsed = h.parse(failed.headers)
    assert (failed.key, failed.value, parsed.number) == (b"k", b"v", 6)
    assert parsed.disposition == "exhausted"
    assert all(offset == len(world.logs[key]) for key, (offset, _) in world.commits.items())


def test_what_is_read_before_it_is_due_waits_out_the_rest(monkeypatch) -> None:
    """D2: clocks differ by 700 ms, and the gate goes by the broker's: never early all the same."""
    monkeypatch.setattr(world_module, "SKEW_MS", 1_000)
    down = True

    def dependency(record, attempt):
        if down:
            raise Temporary("down")

    world = World([route(retries="5m")], dependency, partitions=1)
    world.produce("orders", 0, b"k", b"v")
    appended = world.now_ms
    world.commit()  # what the crash guard waits for
    world.now_ms += 700  # our clock; the broker's is behind it
    world.poll()
    items = world.engine.take("threads", 1, world.now_ms)
    world.engine.finished(items, world.outcomes(items), world.now_ms)
    world.now_ms = appended
    world.publish()
    world.commit()
    down = False
    for late_ms in (0, 699):
        world.now_ms = appended + 5 * MINUTE + late_ms
        world.settle()
        assert [r.attempt for r in world.runs] == [0]
    assert world.engine.tally.early["orders"] == 1
    world.now_ms += 1
    world.settle()
    assert [(r.attempt, r.ok) for r in world.runs] == [(0, False), (1, True)]


def test_a_permanent_failure_is_never_tried_again() -> None:
    """Spec 5.1."""

    def broken(record, attempt):
        raise Permanent("bad")

    world = World([route()], broken)
    world.produce("orders", 1, None, b"v")
    world.run_out()
    assert len(world.runs) == 1
    assert len(world.failed()) == 1


@pytest.mark.parametrize("order", list(Order))
def test_retry_after_waits_at_least_so_long_and_uses_up_one_attempt(order: Order) -> None:
    """Spec 5.3: every retry of the policy is made, and no wait is cut short.

    2h10m is longer than the longest delay: 1h, 1h and 30m (which covers what is left).
    """
    asked = ["45m", "2h10m", "1m", "1h", "0s", "5m"]

    def busy(record, attempt):
        raise RetryAfter(asked[attempt] if attempt < len(asked) else "1m", "busy")

    world = World([route(order=order)], busy)
    world.produce("orders", 0, b"k", b"v")
    world.run_out()
    assert [r.attempt for r in world.runs] == [0, 1, 2, 3, 4, 5, 6]
    times = world.times(ORIGIN)
    waits = [(later - at) / MINUTE for at, later in pairwise(times)]
    assert waits == [60, 150, 30, 60, 30, 60]
    assert len(world.failed()) == 1
    assert world.engine.counts["postponed"] == 2
    assert all(offset == len(world.logs[key]) for key, (offset, _) in world.commits.items())


def test_a_wait_past_the_longest_delay_outlives_crashes() -> None:
    """Spec 5.3, 5.4: what is left of it stands in the copy's headers, not in memory."""

    def busy(record, attempt):
        if not attempt:
            raise RetryAfter("25s", "busy")

    world = World([route(retries="10s")], busy, partitions=1)
    start = world.now_ms
    world.produce("orders", 0, b"k", b"v")
    for _ in range(10):
        world.settle()
        world.crash()
        world.now_ms += 5_000
    assert [(r.attempt, (r.at_ms - start) // 1_000) for r in world.runs] == [(0, 0), (1, 30)]


def test_a_failure_blocks_nobody() -> None:
    """Spec 5.4: others of the same partition and key are done at once."""

    def first_fails(record, attempt):
        if record.value == b"0" and not attempt:
            raise Temporary("later")

    world = World([route()], first_fails)
    start = world.now_ms
    for n in range(20):
        world.produce("orders", 0, b"k", b"%d" % n)
    world.settle()
    assert sum(world.done().values()) == 19
    assert world.commits["orders", 0] == (20, "")
    world.run_out()
    assert world.times(ORIGIN) == [start, start + 5 * MINUTE]


def test_in_place_the_lane_waits_and_nobody_else() -> None:
    """Spec 5.2, blocking: a fixed delay, a number of times, then the dead-letter topic."""

    def one_key_fails(record, attempt):
        if record.key == b"bad" and record.value == b"0":
            raise Temporary("down")

    blocking = Blocking.parse("10s 20s")
    world = World([route(retries="none", blocking=blocking)], one_key_fails)
    start = world.now_ms
    for n in range(3):
        world.produce("orders", 0, b"bad", b"%d" % n)
        world.produce("orders", 0, b"good", b"%d" % n)
    world.settle()
    assert {r.key for r in world.runs if r.ok} == {b"good"}
    world.run_out()
    assert [at - start for at in world.times(ORIGIN)] == [0, 10_000, 30_000]
    assert [r.origin[2] for r in world.runs if r.key == b"bad" and r.ok] == [2, 4]
    assert len(world.failed()) == 1


def test_in_place_for_ever() -> None:
    tries = 0

    def tenth_time(record, attempt):
        nonlocal tries
        tries += 1
        if tries < 10:
            raise Temporary("down")

    world = World([route(retries="none", blocking=Blocking.parse("1s 5s ..."))], tenth_time)
    world.produce("orders", 0, b"k", b"v")
    world.run_out()
    gaps = [b - a for a, b in zip(world.times(ORIGIN), world.times(ORIGIN)[1:], strict=False)]
    assert gaps == [1_000] + [5_000] * 8
    assert not world.failed()


def test_stop_partition_stops_just_that_one_until_it_is_resumed() -> None:
    mended = False

    def until_mended(record, attempt):
        if record.partition == 0 and record.value == b"1" and not mended:
            raise Temporary("down")

    stops = route(order=Order.PARTITION, on_failure=OnFailure.STOP_PARTITION)
    world = World([stops], until_mended)
    for n in range(4):
        world.produce("orders", 0, None, b"%d" % n)
        world.produce("orders", 1, None, b"%d" % n)
    world.run_out()
    assert Counter(r.origin[1] for r in world.runs if r.ok) == {0: 1, 1: 4}
    assert "offset 1 failed" in world.engine.partitions["orders", 0].why_stopped(0)
    mended = True
    assert world.engine.resume(("orders", 0), world.now_ms)
    world.run_out()
    assert [r.origin[2] for r in world.runs if r.origin[1] == 0 and r.ok] == [0, 1, 2, 3]


def test_hold_key_keeps_the_order_through_the_retry_topics() -> None:
    """W3: later records of the key follow the failed one, and nobody else does."""

    def third_try(record, attempt):
        if record.value == b"0" and attempt < 2:
            raise Temporary("down")

    world = World([route(retries="1m 5m", on_failure=OnFailure.HOLD_KEY)], third_try)
    for n in range(6):
        world.produce("orders", 0, b"bad", b"%d" % n)
        world.produce("orders", 0, b"good", b"x%d" % n)
    world.settle()
    assert {r.key for r in world.runs if r.ok} == {b"good"}
    world.run_out()
    done = [r.origin[2] for r in world.runs if r.key == b"bad" and r.ok]
    assert done == [0, 2, 4, 6, 8, 10]
    assert len(world.engine.holds) == 0
    assert not world.failed()


def test_bad_headers_go_to_the_dead_letter_topic() -> None:
    """A2: incoming headers of a retry topic are not trusted."""
    world = World([route()], lambda record, attempt: None)
    world.append("orders.billing.retry.5m", 0, b"k", b"v", ((h.NUMBER, b"seven"),))
    world.run_out()
    assert not world.runs
    assert h.parse(world.failed()[0].headers).reason == "bad_retry_headers"


def test_publication_ladder_for_copies_that_are_too_large() -> None:
    """A2: smaller and smaller, until only the value's place is left; never passed over."""
    world = World([route()], always_down, refuse=lambda topic, size: size > 1_500 or None)
    world.produce("orders", 0, b"k", b"v" * 2_000)
    world.settle()
    (copy,) = world.logs["orders.billing.retry.5m", 0]
    assert copy.value is None
    assert (h.VALUE_OMITTED, b"2000") in copy.headers
    assert world.commits["orders", 0][0] == 1


@pytest.mark.parametrize("hold", [False, True], ids=["retry topics", "held keys"])
def test_a_stub_in_a_retry_topic_never_reaches_its_handler(hold: bool) -> None:
    """A2: a handler would take the null for a tombstone. Records behind it go on."""
    on_failure = OnFailure.HOLD_KEY if hold else OnFailure.PASS

    def down_for_large(record, attempt):
        if record.value != b"small":
            raise Temporary("down")

    world = World(
        [route(on_failure=on_failure)],
        down_for_large,
        refuse=lambda topic, size: ("retry" in topic and size > 1_500) or None,
    )
    world.produce("orders", 0, b"k", b"v" * 2_000)
    world.produce("orders", 0, b"k", b"small")
    world.run_out()
    assert [r.attempt for r in world.runs if r.origin[2] == 0] == [0]
    assert [r.ok for r in world.runs if r.origin[2] == 1] == [True]
    (failed,) = world.failed()
    assert failed.value is None
    assert (h.VALUE_OMITTED, b"2000") in failed.headers
    found = h.parse(failed.headers)
    assert (found.reason, found.disposition, found.number) == ("undecodable", "deserialize", 1)
    assert len(world.engine.holds) == 0


@pytest.mark.parametrize("unfit", [False, True], ids=["for now", "as a stub, too"])
def test_a_copy_that_cannot_be_published_is_never_passed(unfit: bool) -> None:
    """A2: also at the end of the ladder."""
    up = False
    world = World([route()], always_down, refuse=lambda topic, size: None if up else unfit)
    world.produce("orders", 0, b"k", b"v")
    world.settle()
    assert world.commits["orders", 0][0] == 0
    assert world.engine.paused(world.now_ms) == {("orders", 0)}
    up = True
    world.run_out()
    assert len(world.failed()) == 1


def test_the_circuit_opens_probes_and_closes() -> None:
    """W6: a dependency that is down does not send a whole topic to the dead-letter topic."""
    down = True

    def dependency(record, attempt):
        if down:
            raise Temporary("down")

    broken = route(retries="1m", circuit=CircuitConfig(tokens=5, pause_ms=1_000))
    world = World([broken], dependency, partitions=1)
    for n in range(500):
        world.produce("orders", 0, b"%d" % n, b"v")
    start = world.now_ms
    world.settle()
    assert world.engine.counts["circuit_opened"] == 1
    tried = len(world.runs)
    assert tried <= 5 + 4 * 4  # what workers held already
    for _ in range(3):
        world.now_ms = world.engine.partitions["orders", 0].circuit.reopens_ms
        world.settle()
    assert len(world.runs) == tried + 3
    assert world.now_ms - start == 1_000 + 2_000 + 4_000
    down = False
    world.run_out()
    assert world.engine.counts["circuit_closed"] == 1
    assert len(world.done()) == 500


def test_a_record_that_kills_the_process_is_found_and_failed() -> None:
    """A2, crash-loop guard: it goes to the dead-letter topic with `crash`, the others are done."""

    class DiedError(BaseException):
        pass

    def deadly(record, attempt):
        if record.value == b"13":
            raise DiedError

    world = World([route()], deadly, partitions=1)
    for n in range(30):
        world.produce("orders", 0, b"%d" % n, b"%d" % n)
    for _ in range(20):
        try:
            world.run_out()
            break
        except DiedError:
            world.crash()
    else:
        pytest.fail("it dies for ever")
    assert 3 <= world.lives <= 10
    (failed,) = world.failed()
    assert (failed.value, h.parse(failed.headers).disposition) == (b"13", "crash")
    assert len(world.done()) == 29


def test_a_stuck_head_is_evicted() -> None:
    world = World([route()], lambda r, a: None, partitions=1, limits=Limits(head_timeout_ms=60_000))
    for n in range(100):
        world.produce("orders", 0, b"%d" % n, b"%d" % n)
    engine = world.engine
    world.poll(100)
    world.commit()
    stuck = engine.take("threads", 1, world.now_ms)
    while items := engine.take("threads", 10, world.now_ms):
        engine.finished(items, None, world.now_ms)
    engine.tick(world.now_ms)
    world.now_ms += 60_000
    engine.tick(world.now_ms)
    world.publish()
    assert engine.commits()["orders", 0].offset == 100
    assert h.parse(world.logs["orders.billing.retry.5m", 0][0].headers).disposition == "evicted"
    engine.finished(stuck, None, world.now_ms)
    assert engine.outstanding == 0


@pytest.mark.parametrize("on_failure", [OnFailure.HOLD_KEY, OnFailure.STOP_PARTITION])
def test_a_stuck_head_stays_where_order_is_kept(on_failure: OnFailure) -> None:
    """W1, head of line: what is behind it in its key must not be done before it."""
    limits = Limits(head_timeout_ms=60_000)
    kept = route(on_failure=on_failure)
    world = World([kept], lambda r, a: None, partitions=1, limits=limits, crash_guard=False)
    for n in range(100):
        world.produce("orders", 0, b"%d" % n, b"%d" % n)
    engine = world.engine
    world.scan()
    world.poll(100)
    stuck = engine.take("threads", 1, world.now_ms)
    while items := engine.take("threads", 10, world.now_ms):
        engine.finished(items, None, world.now_ms)
    for _ in range(3):
        engine.tick(world.now_ms)
        world.now_ms += 60_000
    assert not engine.publications()
    assert engine.commits()["orders", 0].offset == stuck[0].offset


def test_what_is_read_of_a_partition_that_is_going_is_not_begun() -> None:
    world = World([route()], lambda r, a: None, partitions=1, crash_guard=False)
    world.produce("orders", 0, b"k", b"v")
    world.engine.draining([("orders", 0)])
    world.poll()
    assert not world.engine.ready("threads")
    assert world.engine.idle


def test_caps_stop_reading_and_half_resumes() -> None:
    """PC#832: back-pressure stops reading; what is outstanding is bounded."""
    world = World([route()], lambda r, a: None, partitions=1, limits=Limits(records=100))
    for n in range(1_000):
        world.produce("orders", 0, b"%d" % n, b"v")
    for _ in range(10):
        world.poll(50)
        world.commit()
    assert world.engine.outstanding == 100
    assert world.engine.paused(world.now_ms)
    items = world.engine.take("threads", 49, world.now_ms)
    world.engine.finished(items, None, world.now_ms)
    assert world.engine.paused(world.now_ms)
    world.engine.finished(world.engine.take("threads", 1, world.now_ms), None, world.now_ms)
    assert not world.engine.paused(world.now_ms)


def test_revoked_while_a_worker_holds_it_and_assigned_again() -> None:
    """PC#875, C7: what comes back of a former assignment changes nothing."""
    world = World([route()], lambda r, a: None, partitions=1)
    world.produce("orders", 0, b"k", b"v")
    world.poll()
    world.commit()
    items = world.engine.take("threads", 1, world.now_ms)
    world.engine.removed([("orders", 0)])
    world.assign(("orders", 0))
    world.poll()
    world.engine.finished(items, None, world.now_ms)
    assert world.engine.commits()["orders", 0].offset == 0
    world.settle()
    assert world.commits["orders", 0][0] == 1


def test_draining_begins_nothing_more_and_commits_what_is_done() -> None:
    world = World([route()], lambda r, a: None, partitions=1)
    for n in range(10):
        world.produce("orders", 0, b"%d" % n, b"v")
    world.poll()
    world.commit()
    engine = world.engine
    items = engine.take("threads", 3, world.now_ms)
    engine.draining([("orders", 0)])
    assert engine.take("threads", 10, world.now_ms) == []
    assert engine.in_flight_of([("orders", 0)]) == 3
    engine.finished(items, None, world.now_ms)
    assert engine.in_flight_of([("orders", 0)]) == 0
    assert engine.commits()["orders", 0].offset == 3
    engine.removed([("orders", 0)])
    assert (engine.outstanding, engine.outstanding_bytes) == (0, 0)


@pytest.mark.rows(6)
@pytest.mark.parametrize("order", list(Order))
@pytest.mark.parametrize("seed", range(25))
def test_soak(seed: int, order: Order) -> None:
    """R1, R2, W1: random failures, refused publications, rebalances, crashes; in any order.

    Every record is done or in the dead-letter topic (at least once), commits never go back, and
    where order is asked for nothing overtakes within a lane except what was sent to a retry topic.
    """
    chance = random.Random(seed * 7 + len(order))
    fate: dict[bytes, int] = {}

    def handler(record, attempt):
        left = fate.get(record.value, 0)
        if left < 0:
            raise Permanent("bad")
        if left:
            fate[record.value] = left - 1
            raise Temporary("down")

    blocking = Blocking.parse(chance.choice(["none", "1s", "500ms 2s"]))
    retries = chance.choice(["none", "10s", "5s 5s 30s"])
    circuit = CircuitConfig(tokens=chance.choice([0, 20]))
    held = OnFailure.HOLD_KEY if chance.random() < 0.3 and retries != "none" else OnFailure.PASS
    world = World(
        [route(retries=retries, order=order, blocking=blocking, circuit=circuit, on_failure=held)],
        handler,
        seed=seed,
        limits=Limits(records=chance.choice([20, 10_000])),
        refuse=lambda topic, size: False if chance.random() < 0.1 else None,
    )
    inputs = 200
    for n in range(inputs):
        value = b"%d" % n
        if chance.random() < 0.2:
            fate[value] = chance.choice([-1, 1, 1, 2, 9])
        key = None if chance.random() < 0.1 else b"k%d" % chance.randrange(12)
        world.produce("orders", chance.randrange(3), key, value)
    world.live(chance, 600)
    world.run_out()
    ended = set(world.done()) | {tuple(h.parse(r.headers).origin[:3]) for r in world.failed()}
    assert len(ended) == inputs
    assert (world.engine.outstanding, world.engine.outstanding_bytes) == (0, 0)
    assert all(
        world.commits[k][0] == len(log)
        for k, log in world.logs.items()
        if k in world.engine.partitions and log
    )


@pytest.mark.parametrize(
    ("delay", "place"), [("150ms", "here"), ("10m", "retry_topic"), ("1h", "retry_topic")]
)
def test_what_is_to_be_left_alone_for_long_goes_to_a_retry_topic_at_once(
    delay: str, place: str
) -> None:
    """A2, RetryAfter: the tries in place are for a moment; the lane does not wait for hours."""
    engine = Engine([route(blocking=Blocking.parse("200ms ..."))], crash_guard=False)
    started(engine)
    engine.polled(TP, records(0), 1, 0)
    items = engine.take("threads", 1, 0)
    engine.finished(items, [Classifier().classify(RetryAfter(delay, "busy"))], 0)
    copies = [known(publication.copy).topic for publication in engine.publications()]
    wanted = {"10m": "30m", "1h": "1h"}
    assert copies == ([f"orders.billing.retry.{wanted[delay]}"] if place == "retry_topic" else [])


def test_without_retry_topics_a_try_in_place_waits_as_long_as_was_asked() -> None:
    """A2, RetryAfter: never before its delay is over, wherever it is waited out."""
    engine = Engine([route(retries="none", blocking=Blocking.parse("200ms"))], crash_guard=False)
    started(engine)
    engine.polled(TP, records(0), 1, 0)
    items = engine.take("threads", 1, 0)
    engine.finished(items, [Classifier().classify(RetryAfter("10m", "busy"))], 0)
    assert not engine.publications()
    assert engine.next_deadline() == 600_000


def test_what_is_read_of_a_partition_that_is_being_given_up_is_nobodys() -> None:
    """W1, revoked: nothing more is begun; whoever owns it next reads it."""
    engine = Engine([route()], crash_guard=False)
    started(engine)
    engine.draining([TP])
    engine.polled(TP, records(0), 1, 0)
    assert (engine.ready("threads"), engine.outstanding) == (0, 0)
    assert not engine.commits()


def test_a_commit_of_a_former_assignment_lets_nothing_begin() -> None:
    """C7: its answer comes when the partition has been given up, and has come back."""
    engine = Engine([route()])
    engine.assigned(TP, 1, 0)
    former = engine.commits()
    engine.removed([TP])
    engine.assigned(TP, 2, 0)
    engine.polled(TP, records(0), 1, 0)
    engine.committed(former, 0)
    assert engine.ready("threads") == 0
    engine.committed(engine.commits(), 0)
    assert engine.ready("threads") == 1


def test_failures_in_a_retry_topic_open_no_circuit() -> None:
    """W6: what is in a retry topic has waited already, and waits again in the next one."""
    engine = Engine([route(circuit=CircuitConfig(tokens=1))], skew_ms=0, crash_guard=False)
    started(engine)
    engine.polled(TP, records(0), 1, 0)
    down = Classifier().classify(Temporary("down"))
    engine.finished(engine.take("threads", 1, 0), [down], 0)
    (publication,) = engine.publications()
    copy, retry_topic = publication.copy, (known(publication.copy).topic, 0)
    engine.assigned(retry_topic, 7, 0)
    waiting = Record(
        *retry_topic,
        0,
        key=known(copy).key,
        value=known(copy).value,
        headers=tuple(known(copy).headers),
    )
    engine.polled(retry_topic, [waiting], 1, 5 * MINUTE)
    engine.finished(engine.take("threads", 1, 5 * MINUTE), [down], 5 * MINUTE)
    assert engine.partitions[TP].circuit.opened == 1
    assert engine.partitions[retry_topic].circuit.opened == 0


def test_a_record_is_evicted_once() -> None:
    """W1, head of line: its copy is on its way, and a second one would be run, too."""
    limits = Limits(head_timeout_ms=1_000)
    engine = Engine([route(order=Order.NONE)], limits, crash_guard=False)
    started(engine)
    engine.polled(TP, records(*range(100)), 100, 0)
    engine.take("threads", 1, 0)
    engine.finished(engine.take("threads", 99, 0), None, 0)
    for now_ms in (1_000, 2_000, 3_000):
        engine.tick(now_ms)
    (publication,) = engine.publications()
    assert known(publication.copy).retry.disposition == "evicted"


def test_a_partition_that_is_resumed_has_all_its_tries_in_place() -> None:
    """Spec 5.2: whoever mended the cause may have mended it not quite."""
    kept = route(blocking=Blocking.parse("100ms"), on_failure=OnFailure.STOP_PARTITION)
    engine = Engine([kept], crash_guard=False)
    started(engine)
    engine.polled(TP, records(0), 1, 0)
    down = Classifier().classify(Temporary("down"))
    for now_ms in (0, 100):
        engine.tick(now_ms)
        engine.finished(engine.take("threads", 1, now_ms), [down], now_ms)
    assert engine.partitions[TP].stopped
    assert engine.resume(TP, 200)
    engine.finished(engine.take("threads", 1, 200), [down], 200)
    assert not engine.partitions[TP].stopped
    assert engine.next_deadline() == 300


def test_what_a_worker_gives_back_of_a_partition_that_goes_is_not_begun() -> None:
    """W1, revoked: it is read again by whoever owns the partition next."""
    engine = Engine([route(order=Order.PARTITION)], crash_guard=False)
    started(engine)
    engine.polled(TP, records(0, 1), 2, 0)
    items = engine.take("threads", 2, 0)
    engine.draining([TP])
    engine.finished(items, [None, NOT_BEGUN], 0)
    assert (engine.ready("threads"), engine.outstanding) == (0, 0)


def test_reading_stops_at_so_many_bytes() -> None:
    """W1: few large records fill memory as many small ones do."""
    engine = Engine([route()], Limits(bytes=10), crash_guard=False)
    started(engine)
    engine.polled(TP, records(0, 1, 2, 3), 4, 0)
    assert engine.paused(0) == {TP}
    engine.finished(engine.take("threads", 4, 0), None, 0)
    assert engine.paused(0) == set()


def test_a_half_open_circuit_lets_one_record_through() -> None:
    """W6: whether the dependency is back is found out with one record."""
    kept = route(order=Order.NONE, circuit=CircuitConfig(tokens=1))
    engine = Engine([kept], crash_guard=False)
    started(engine)
    engine.polled(TP, records(0, 1, 2), 3, 0)
    down = Classifier().classify(Temporary("down"))
    engine.finished(engine.take("threads", 1, 0), [down], 0)
    assert engine.ready("threads") == 0
    engine.tick(known(engine.next_deadline()))
    assert engine.ready("threads") == 1


def test_a_reader_that_was_set_back_hears_no_commit_of_the_log_before() -> None:
    """C7: its offsets are of other records."""
    engine = Engine([route()], crash_guard=False)
    started(engine)
    engine.polled(TP, records(0, 1), 2, 0)
    engine.finished(engine.take("threads", 2, 0), None, 0)
    former = engine.commits()
    engine.polled(TP, records(0), 1, 0)
    assert engine.counts["set_back"] == 1
    assert engine.partitions[TP].tracker.epoch != former[TP].epoch
