"""One flipped bit in one answer: the client heals, or says so in every call (F.2)."""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from kohort import Admin, Consumer, Producer
from kohort.client.cluster import connection
from kohort.client.common.types import GroupMetadata
from kohort.errors import CorruptRecordError, DamagedAnswerError, DecodeError, KohortError
from kohort.testing import VirtualClock
from kohort.wire import Message
from tests.client.flips import SOUND, Flip, Flips, bits
from tests.clusters import Embedded
from tests.known import known

FAST: dict[str, Any] = {
    "retry_backoff_ms": 20,
    "reconnect_backoff_ms": 10,
    "request_timeout_ms": 5_000,
}
GROUP: dict[str, Any] = {
    "auto_offset_reset": "earliest",
    "max_poll_interval_ms": 20_000,
    "fetch_max_wait_ms": 200,
    **FAST,
}
FEW, MANY = 1, 6
ANSWERS_A_SECOND = 200
GROWTH_KB = 64 * 1024
TRACEBACK_MAX = 40
LOUD = 5
"""So many calls in a row have to fail for a client to have said it in every call."""
PATIENT_S = 120


@pytest.fixture
def flips(monkeypatch: pytest.MonkeyPatch) -> Iterator[Flips]:
    flips = Flips(monkeypatch)
    yield flips
    flips.close()


def kilobytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def depth(error: BaseException) -> int:
    count, trace = 0, error.__traceback__
    while trace is not None:
        count, trace = count + 1, trace.tb_next
    return count


class Scene:
    """One client at its work on a cluster of its own, and time that passes at once."""

    def __init__(self, flips: Flips) -> None:
        self.flips = flips
        self.clock = VirtualClock()
        self.clock.__enter__()
        self.cluster = Embedded(
            clock=self.clock,
            group_initial_rebalance_delay_ms=0,
            offsets_topic_num_partitions=2,
        )
        self.cluster.start()
        self.cluster.create_topic("t", partitions=2)
        self.sent = 0

    def send(self) -> None:
        """A record for each partition, from a client whose answers are left alone."""
        with Producer(bootstrap_servers=self.cluster.bootstrap, client_id=SOUND) as producer:
            for partition in (0, 1):
                producer.send("t", b"%d" % self.sent, partition=partition)
        self.sent += 1

    def end(self) -> None:
        self.cluster.stop()
        self.clock.__exit__()


def loud(errors: list[KohortError | None]) -> bool:
    """The last calls all failed, each with an exception of its own."""
    last = errors[-LOUD:]
    if len(last) < LOUD or None in last:
        return False
    fresh = len({id(error) for error in last}) == LOUD
    return fresh and max(depth(e) for e in last if e is not None) <= TRACEBACK_MAX


def read(scene: Scene, **config: Any) -> list[str]:
    """Poll until what was sent after the damage has come from both partitions."""
    grouped = "group_id" in config
    consumer = Consumer(bootstrap_servers=scene.cluster.bootstrap, **{**GROUP, **config})
    errors: list[KohortError | None] = []
    try:
        if grouped:
            consumer.subscribe(["t"])
        else:
            consumer.assign([("t", 0), ("t", 1)])
        scene.send()
        begun_s, missing = scene.clock.elapsed_s, {0, 1}
        marker, due_s = 0, begun_s
        while (now_s := scene.clock.elapsed_s) - begun_s < PATIENT_S:
            if now_s >= due_s and (scene.flips.done or now_s - begun_s > 3):
                marker, due_s = marker or scene.sent, now_s + 5
                scene.send()
            try:
                records = consumer.poll(1)
                missing -= {
                    r.partition for r in records if marker and int(known(r.value)) >= marker
                }
                if not missing:
                    return []
                if grouped and records:
                    consumer.commit(timeout=3)
                errors.append(None)
            except KohortError as error:
                errors.append(error)
        if loud(errors):
            return []
        return [
            f"silent: {missing} never came; {[str(e)[:100] for e in errors[-4:]]}\n"
            f"{consumer.health()}"
        ]
    finally:
        with suppress(KohortError):
            consumer.close(5)


def repeat(scene: Scene, call: Callable[[], object]) -> list[str]:
    """Call until it returns what it should, or has failed in every call."""
    errors: list[KohortError | None] = []
    for _ in range(2 + LOUD):
        try:
            outcome = call()
        except KohortError as error:
            errors.append(error)
            continue
        if outcome is None or outcome is True:
            return []
        errors.append(None)
    return [] if loud(errors) else [f"neither right nor loud: {errors}"]


def consumer_calls(scene: Scene) -> list[str]:
    scene.send()
    found: list[str] = []
    with Consumer(bootstrap_servers=scene.cluster.bootstrap, group_id="g", **GROUP) as consumer:
        consumer.assign([("t", 0)])
        tp = ("t", 0)

        def commit() -> bool:
            consumer.commit({tp: 1}, timeout=3)
            return known(next(iter(consumer.committed([tp], timeout=3).values()))).offset == 1

        found += repeat(scene, lambda: consumer.position(tp, timeout=3) >= 0)
        found += repeat(scene, lambda: set(consumer.end_offsets([tp], 3).values()) == {1})
        found += repeat(scene, lambda: consumer.offsets_for_times({tp: 1}, 3) is not None)
        found += repeat(scene, commit)
    return found


def produce(scene: Scene) -> list[str]:
    producer = Producer(
        bootstrap_servers=scene.cluster.bootstrap,
        max_block_ms=4_000,
        delivery_timeout_ms=6_000,
        linger_ms=0,
        **FAST,
    )
    try:
        return repeat(scene, lambda: producer.send("t", b"x", partition=0).result(8) is not None)
    finally:
        with suppress(KohortError):
            producer.close(1)


def administer(scene: Scene) -> list[str]:
    scene.send()
    found: list[str] = []
    with Admin(bootstrap_servers=scene.cluster.bootstrap, **FAST) as admin:
        found += repeat(scene, lambda: "t" in {t.name for t in admin.list_topics(timeout_s=4)})
        found += repeat(scene, lambda: admin.describe_topics(["t"], timeout_s=4) is not None)
        found += repeat(scene, lambda: admin.describe_cluster(timeout_s=4) is not None)
        found += repeat(scene, lambda: admin.list_groups(timeout_s=4) is not None)
        found += repeat(scene, lambda: admin.describe_configs("t", timeout_s=4) is not None)
    return found


def transact(scene: Scene) -> list[str]:
    """A record and an offset in one transaction; a failed one is aborted, or its producer ends."""
    producers: list[Producer] = []

    def producer() -> Producer:
        if not producers:
            one = Producer(
                bootstrap_servers=scene.cluster.bootstrap,
                transactional_id="x",
                max_block_ms=4_000,
                delivery_timeout_ms=6_000,
                linger_ms=0,
                **FAST,
            )
            producers.append(one)
            one.init_transactions(8)
        return producers[0]

    def once() -> bool:
        try:
            one = producer()
            one.begin_transaction()
            one.send("t", b"x", partition=0)
            one.send_offsets_to_transaction({("t", 0): 1}, GroupMetadata("g", -1, "", None), 8)
            one.commit_transaction(8)
        except KohortError:
            end(producers)
            raise
        return True

    def end(open_ones: list[Producer]) -> None:
        while open_ones:
            with suppress(KohortError):
                open_ones.pop().close(1)

    try:
        return repeat(scene, once)
    finally:
        end(producers)


def administer_groups(scene: Scene) -> list[str]:
    scene.send()
    group, offsets = "gg", {("t", 0): 1}
    wrong: list[str] = []
    with Admin(bootstrap_servers=scene.cluster.bootstrap, **FAST) as admin:

        def committed() -> bool:
            admin.alter_group_offsets(group, offsets, timeout_s=4)
            return admin.list_group_offsets(group, timeout_s=4) is not None

        wrong += repeat(scene, committed)
        wrong += repeat(scene, lambda: group in admin.describe_groups([group], timeout_s=4))
        wrong += repeat(scene, lambda: admin.survey_groups(timeout_s=4) is not None)
        wrong += repeat(scene, lambda: admin.survey_log_dirs(timeout_s=4) is not None)
        wrong += repeat(scene, lambda: admin.list_offsets({("t", 0): "latest"}, timeout_s=4) != {})
        wrong += repeat(scene, lambda: admin.create_partitions({"t": 3}, timeout_s=4) is None)
    return wrong


CALLS: dict[str, Callable[[Scene], list[str]]] = {
    "poll, assigned": read,
    "poll, read_committed": lambda scene: read(scene, isolation_level="read_committed"),
    "poll, classic group": lambda scene: read(scene, group_id="g", session_timeout_ms=6_000),
    "poll, consumer group": lambda scene: read(scene, group_id="g", group_protocol="consumer"),
    "position, end_offsets, commit": consumer_calls,
    "send": produce,
    "transaction": transact,
    "admin": administer,
    "admin, groups": administer_groups,
}


ANSWERS = {
    "poll, assigned": "ApiVersions Metadata ListOffsets Fetch",
    "poll, read_committed": "ApiVersions Metadata ListOffsets Fetch",
    "poll, classic group": "FindCoordinator JoinGroup SyncGroup Heartbeat OffsetFetch OffsetCommit",
    "poll, consumer group": "FindCoordinator ConsumerGroupHeartbeat OffsetFetch OffsetCommit",
    "position, end_offsets, commit": "ListOffsets OffsetFetch OffsetCommit FindCoordinator",
    "send": "ApiVersions Metadata InitProducerId Produce",
    "transaction": "FindCoordinator InitProducerId Produce TxnOffsetCommit EndTxn",
    "admin": "Metadata DescribeTopicPartitions ListGroups DescribeConfigs",
    "admin, groups": "DescribeGroups DescribeLogDirs CreatePartitions OffsetCommit OffsetFetch",
}
"""What each call gets that is flipped, of its answers at least these."""


def play(flips: Flips, call: str, target: Flip | None) -> list[str]:
    """One client, one flipped bit: what is wrong with how it took it."""
    flips.begin(target)
    scene = Scene(flips)
    before_kb, begun_s = kilobytes(), scene.clock.elapsed_s
    try:
        wrong = CALLS[call](scene)
        seconds = max(1, scene.clock.elapsed_s - begun_s)
        if flips.answers > ANSWERS_A_SECOND * seconds:
            wrong.append(f"{flips.answers} answers in {seconds} s")
        if (more := kilobytes() - before_kb) > GROWTH_KB:
            wrong.append(f"{more} kB more")
        wrong += flips.defects
    except Exception as error:
        wrong = [f"{type(error).__name__}: {error}"]
        if "-v" in sys.argv:
            raise
    finally:
        scene.end()
    return [f"{call}, {target}: {each}" for each in wrong]


@pytest.mark.rows(2)
@pytest.mark.parametrize("many", [FEW, pytest.param(MANY, marks=pytest.mark.extended)])
@pytest.mark.parametrize("call", CALLS)
def test_one_flipped_bit(flips: Flips, call: str, many: int) -> None:
    assert play(flips, call, None) == []
    assert set(ANSWERS[call].split()) <= {api for api, _ in flips.sizes}
    wrong: list[str] = []
    for (api, ordinal), size in list(flips.sizes.items()):
        if ordinal > 1:
            continue
        for bit in bits(size, many):
            wrong += play(flips, call, Flip(api, ordinal, bit))
    assert not wrong, f"{len(wrong)}\n" + "\n".join(wrong[:20])


Raised = list[tuple[float, KohortError]]


def errors_of(consumer: Consumer, clock: VirtualClock, polls: int) -> Raised:
    """Each poll of 2 s has to raise: after how long, and what."""
    found: Raised = []
    for _ in range(polls):
        begun_s = clock.elapsed_s
        with pytest.raises(KohortError) as raised:
            consumer.poll(2)
        found.append((clock.elapsed_s - begun_s, raised.value))
    return found


def are_fresh(errors: Raised) -> bool:
    """Each is an object of its own, and no traceback is longer than the second one's."""
    depths = [depth(error) for _, error in errors]
    return len({id(e) for _, e in errors}) == len(errors) and max(depths[1:]) == depths[1]


def test_a_partition_that_stays_damaged_stops_alone_and_says_so_in_every_poll() -> None:
    """At once, then once in each time-out; in between the other partition is read."""
    with VirtualClock() as clock, Embedded(clock=clock, request_log=10) as cluster:
        cluster.create_topic("t", partitions=2)
        with Producer(bootstrap_servers=cluster.bootstrap) as producer:
            cluster.faults.fail("Fetch", ["CORRUPT_MESSAGE"] * 1_000, topic="t", partition=0)
            consumer = Consumer(bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest")
            consumer.assign([("t", 0), ("t", 1)])
            first, *others = errors = errors_of(consumer, clock, 6)
            assert all(isinstance(error, CorruptRecordError) for _, error in errors)
            assert first[0] < 1
            assert [round(took_s) for took_s, _ in others] == [2] * 5
            assert are_fresh(errors)
            read: list[bytes | None] = []
            for n in range(4):
                producer.send("t", b"%d" % n, partition=1).result(9)
                with suppress(CorruptRecordError):
                    read += [record.value for record in consumer.poll(2)]
            with suppress(CorruptRecordError):
                read += [record.value for record in consumer.poll(2)]
            assert read == [b"0", b"1", b"2", b"3"]
            consumer.close()


@pytest.mark.parametrize("api", ["Fetch", "FindCoordinator", "JoinGroup", "Metadata"])
def test_answers_that_are_always_damaged_are_said_in_every_poll(
    api: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And heal as soon as they are sound; until then a few requests a second."""
    inner, broken, count = connection.decode_response, True, 0

    def decode(kind: type[Message], version: int, frame: memoryview) -> tuple[int, Message]:
        nonlocal count
        if broken and f"{api}Response" == kind.NAME:
            count += 1
            raise DecodeError("one byte too many")
        return inner(kind, version, frame)

    monkeypatch.setattr(connection, "decode_response", decode)
    with VirtualClock() as clock, Embedded(clock=clock) as cluster:
        cluster.create_topic("t", partitions=1)
        settings: dict[str, Any] = {"auto_offset_reset": "earliest", "group_id": "g"}
        consumer = Consumer(bootstrap_servers=cluster.bootstrap, **settings)
        consumer.subscribe(["t"])
        with pytest.raises(DamagedAnswerError, match=f"answered {api} with"):
            consumer.poll(20)  # time for three in a row
        count = 0
        errors = errors_of(consumer, clock, 6)
        assert are_fresh(errors)
        assert all("cannot be decoded" in str(error) for _, error in errors)
        assert [round(took_s) for took_s, _ in errors] == [2] * 6
        assert count < 12 * 15
        assert any("cannot be decoded" in each for each in consumer.health().concerns)
        broken = False
        consumer.poll(20)
        assert consumer.health().concerns == ()
        assert len(consumer.assignment()) == 1
        consumer.close()


def test_an_error_that_ends_the_membership_is_raised_once_in_each_time_out() -> None:
    """At once, then after the time of each poll; not as fast as the caller can call."""
    with VirtualClock() as clock, Embedded(clock=clock) as cluster:
        cluster.create_topic("t", partitions=1)
        cluster.faults.fail("JoinGroup", ["GROUP_AUTHORIZATION_FAILED"] * 10)
        consumer = Consumer(bootstrap_servers=cluster.bootstrap, group_id="g")
        consumer.subscribe(["t"])
        first, *others = errors = errors_of(consumer, clock, 6)
        assert first[0] < 1
        assert [round(took_s) for took_s, _ in others] == [2] * 5
        assert are_fresh(errors)
        assert "GROUP_AUTHORIZATION_FAILED" in str(others[-1][1])
        consumer.close()
