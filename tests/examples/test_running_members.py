"""Usages 5, 7 and 8 (spec 4.10) while other members run: one cut off, some not yet restarted."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from examples import consume_exactly_once, consume_rewind, consume_rewind_database
from kohort import Admin, Consumer, OffsetAndMetadata, Producer, Record, TopicPartition
from kohort.client.common.types import OffsetAndTimestamp
from tests.clusters import Embedded
from tests.examples.conftest import Collect, fill, one_of, total
from tests.expelling import expel
from tests.known import fake
from tests.patience import PATIENCE_S, until

GROUP_APIS = (
    "FindCoordinator",
    "JoinGroup",
    "SyncGroup",
    "Heartbeat",
    "LeaveGroup",
    "OffsetCommit",
)


class Gate:
    """Holds a member before it stores its records, until the test lets it pass."""

    def __init__(self) -> None:
        self.waiting = threading.Semaphore(0)
        self._passes = threading.Semaphore(0)
        self.open = threading.Event()

    def wait(self) -> None:
        self.waiting.release()
        while not (self.open.is_set() or self._passes.acquire(timeout=0.01)):
            pass

    def next(self) -> None:
        """Wait until the member is here, let it pass, wait until it is here again."""
        self._passes.release()
        self.arrived()

    def arrived(self) -> None:
        assert self.waiting.acquire(timeout=PATIENCE_S)


@dataclass
class Member:
    """One member of an example's group, in a thread of its own."""

    name: str
    target: Callable[[], None]
    settings: dict[str, Any] = field(default_factory=dict)
    gate: Gate | None = None
    factor: int = 1
    """A bad deployment stores each amount times this."""
    error: BaseException | None = None
    consumer: Consumer | None = None

    def __post_init__(self) -> None:
        self.thread = threading.Thread(target=self._run, name=self.name, daemon=True)

    def start(self) -> Member:
        self.thread.start()
        return self

    def _run(self) -> None:
        try:
            self.target()
        except BaseException as error:
            self.error = error

    @property
    def has_partitions(self) -> bool:
        return self.consumer is not None and bool(self.consumer.assignment())

    def made_of(self, record: Record) -> Record:
        """What this member's code makes of a record."""
        amount = b"%d" % (int(record.value or b"0") * self.factor)
        return Record(record.topic, record.partition, record.offset, key=record.key, value=amount)

    def join(self) -> BaseException | None:
        self.thread.join(PATIENCE_S)
        assert not self.thread.is_alive(), f"{self.name} still runs"
        return self.error


@pytest.fixture
def members(monkeypatch) -> Iterator[Callable[..., Member]]:
    """Makes members of `consume_exactly_once.py`, each with its own settings, gate and code."""
    made: dict[str, Member] = {}
    load = consume_exactly_once.load

    def make(name: str, target: Callable[[], None], **more) -> Member:
        made[name] = Member(name, target, **more)
        return made[name]

    def consumer(**settings: Any) -> Consumer:
        member = made[threading.current_thread().name]
        settings |= member.settings
        member.consumer = Consumer(**settings, client_id=member.name)
        return member.consumer

    def gated(database, records, *more) -> None:
        member = made[threading.current_thread().name]
        if member.gate is not None:
            member.gate.wait()
        load(database, [member.made_of(record) for record in records], *more)

    monkeypatch.setattr(consume_exactly_once, "Consumer", consumer)
    monkeypatch.setattr(consume_exactly_once, "load", gated)
    yield make
    for member in made.values():
        if member.gate is not None:
            member.gate.open.set()


def test_5_a_member_that_is_cut_off_reads_on_beside_the_new_owner(members, tmp_path) -> None:
    """Its chunk is overtaken, and its next one must not jump over what nobody stored."""
    topic, group, file = "cut-off", "cut-off", str(tmp_path / "sums.db")
    with Embedded(group_initial_rebalance_delay_ms=0) as cluster:
        cluster.create_topic(topic)
        produce(cluster, topic, 0, 30)

        def run() -> None:
            consume_exactly_once.run(topic, group, file, cluster.bootstrap, 50)

        former = members("former", run, settings={"max_poll_records": 10}).start()
        until(lambda: position(file) == 30, "the first 30 are stored")
        former.gate = Gate()
        assert former.consumer is not None
        metadata = former.consumer.group_metadata()
        cluster.faults.cut(GROUP_APIS, client_id="former", times=1_000_000)
        with Admin(bootstrap_servers=cluster.bootstrap) as admin:
            expel(admin, metadata)
        owner = members("owner", run, settings={"max_poll_records": 5}, gate=Gate()).start()
        until(lambda: owner.has_partitions)
        produce(cluster, topic, 30, 20)
        former.gate.arrived()  # with 30 to 39
        owner.gate.arrived()  # with 30 to 34
        owner.gate.next()  # 30 to 34 are stored, it has 35 to 39
        former.gate.next()  # overtaken; has 40 to 49, or what the database asks for
        former.gate.open.set()
        until(lambda: position(file) >= 50)
        cluster.faults.clear()
        owner.gate.open.set()
        assert (former.join(), owner.join()) == (None, None)
    assert one_of(file, "SELECT next FROM positions") == 50
    assert total(file) == sum(range(50))


def produce(cluster, topic: str, start: int, count: int) -> None:
    """To one partition, in one batch, so that a poll finds all of them."""
    with Producer(bootstrap_servers=cluster.bootstrap, linger_ms=1_000) as producer:
        for n in range(start, start + count):
            producer.send(topic, b"%d" % n, b"k%d" % (n % 5), 0, 1_000 + n)


def position(file: str) -> int:
    """What is stored of all partitions; 0 while there is no table."""
    try:
        return one_of(file, "SELECT coalesce(sum(next), 0) FROM positions")
    except Exception:
        return 0


def test_8_rewind_in_the_database_while_members_run(cluster, members, tmp_path) -> None:
    """After it the bad deployment stores nothing, another goes back; results before it stay."""
    topic, file = "put-back", str(tmp_path / "sums.db")
    cluster.create_topic(topic, partitions=3)
    fill(cluster, topic, 30)

    def run(number: int, deployment: str) -> Callable[[], None]:
        return lambda: consume_exactly_once.run(
            topic, topic, file, cluster.bootstrap, number, deployment
        )

    assert members("first", run(30, "1")).start().join() is None
    kept = members("kept", run(90, "1")).start()
    bad = members("bad", run(90, "2"), factor=1_000).start()
    until(lambda: kept.has_partitions and bad.has_partitions)
    fill(cluster, topic, 30, 30)
    until(lambda: position(file) == 60, "the first 60 are stored")
    assert total(file) > sum(range(60)), "the bad deployment stored some"
    kept.gate, bad.gate = Gate(), Gate()
    fill(cluster, topic, 30, 60)
    kept.gate.arrived()  # both with records behind the positions that the rewind leaves
    bad.gate.arrived()
    assert consume_rewind_database.rewind(topic, 1_030, "2", file, cluster.bootstrap) == 3
    assert total(file) == sum(range(30))
    kept.gate.open.set()
    bad.gate.open.set()
    assert isinstance(bad.join(), consume_exactly_once.Withdrawn)
    restarted = members("restarted", run(90, "3")).start()
    assert (kept.join(), restarted.join()) == (None, None)
    assert total(file) == sum(range(90))
    again = members("bad-again", run(90, "2")).start().join()
    assert isinstance(again, consume_exactly_once.Withdrawn)
    assert "deployment 2 is withdrawn" in str(again)


def test_8_a_rewind_never_moves_forward(cluster, topic, tmp_path) -> None:
    """A partition that has not reached the time stays; where no record is so young, too."""
    file = str(tmp_path / "sums.db")
    consume_exactly_once.run(topic, topic, file, cluster.bootstrap, until=60)
    assert consume_rewind_database.rewind(topic, 2_000, "2", file, cluster.bootstrap) == 0
    assert consume_rewind_database.rewind(topic, 1_030, "2", file, cluster.bootstrap) == 3
    assert consume_rewind_database.rewind(topic, 1_045, "2", file, cluster.bootstrap) == 0
    assert position(file) == 30
    consume_exactly_once.run(topic, topic, file, cluster.bootstrap, until=60)
    assert total(file) == sum(range(60))


def test_7_rewind_by_a_flag_once(cluster, topic) -> None:
    """A whole group goes back; the same deployment does not go back a second time."""
    first = Collect(60)
    consume_rewind.run(topic, topic, 1, 0, cluster.bootstrap, first)
    again = Collect(30)
    consume_rewind.run(topic, topic, 2, 1_030, cluster.bootstrap, again)
    assert sorted(again.values) == list(range(30, 60))
    fill(cluster, topic, 3, 60)
    restarted = Collect(3)
    consume_rewind.run(topic, topic, 2, 1_030, cluster.bootstrap, restarted)
    assert sorted(restarted.values) == [60, 61, 62]
    fill(cluster, topic, 3, 63)
    older = Collect(3)  # the flag of an older deployment counts no longer
    consume_rewind.run(topic, topic, 1, 0, cluster.bootstrap, older)
    assert sorted(older.values) == [63, 64, 65]


def test_7_a_rewind_never_moves_forward(cluster, topic) -> None:
    """Unread records of a partition that lags are not skipped, whatever the time says."""
    lagging, at_end, read = (TopicPartition(topic, n) for n in range(3))
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        commits = {lagging: 4, at_end: 20, read: OffsetAndMetadata(15, "somebody else's")}
        admin.alter_group_offsets(topic, commits)
    some = Collect(16 + 10 + 10)
    consume_rewind.run(topic, topic, 2, 1_030, cluster.bootstrap, some)
    assert sorted(some.values) == sorted([*range(12, 60, 3), *range(31, 60, 3), *range(32, 60, 3)])
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.alter_group_offsets(topic, {lagging: 4, at_end: 20, read: 15})
    rest = Collect(16 + 5)  # no record is as young as this time: nothing moves, nothing is skipped
    consume_rewind.run(topic, topic, 3, 5_000, cluster.bootstrap, rest)
    assert sorted(rest.values) == sorted([*range(12, 60, 3), *range(47, 60, 3)])


class Crash(Exception):
    """A member of the bad deployment ends without a commit."""


def test_7_rolling_restart_while_members_run(cluster, topic) -> None:
    """Members of both deployments at once: what is young is done by the new one, the rest by any.

    The time is later than where the crashed member was, so that its partition lags behind it.
    """
    fill(cluster, topic, 30, 60)
    crashing, stopping = threading.Event(), threading.Event()
    stuck: list[int] = []
    by_old: set[int] = set()
    by_new: set[int] = set()
    enough = threading.Event()

    def bad(record: Record) -> bool:
        number = int(record.value or b"")
        if number >= 45 and (not stuck or stuck[0] == threading.get_ident()):
            stuck.append(threading.get_ident())
            assert crashing.wait(PATIENCE_S)
            raise Crash
        by_old.add(number)
        return not stopping.is_set()

    def good(record: Record) -> bool:
        by_new.add(int(record.value or b""))
        return not enough.is_set()

    def member(deployment: int, time_ms: int, work: Callable[[Record], bool]) -> Member:
        args = (topic, topic, deployment, time_ms, cluster.bootstrap, work)
        return Member(f"{deployment}", lambda: consume_rewind.run(*args))

    old = [member(1, 0, bad).start() for _ in range(2)]
    until(lambda: bool(stuck), "one member works on 45 or a later record")
    new = [member(2, 1_060, good).start()]
    crashing.set()
    number = 90

    def feed_until(met: Callable[[], bool]) -> None:
        nonlocal number
        while not met():
            fill(cluster, topic, 3, number)
            number += 3

    feed_until(lambda: any(isinstance(one.error, Crash) for one in old))
    feed_until(lambda: bool(by_new))
    new.append(member(2, 1_060, good).start())
    stopping.set()
    feed_until(lambda: not any(one.thread.is_alive() for one in old))
    last = number
    until(lambda: by_new >= set(range(60, last)), "the new deployment did all that is young")
    enough.set()
    feed_until(lambda: not any(one.thread.is_alive() for one in new))
    assert [one.join() for one in new] == [None, None]
    assert sum(isinstance(one.join(), Crash) for one in old) == 1
    assert by_old | by_new >= set(range(last)), "no record is left out"


@pytest.mark.parametrize(
    ("commit", "at", "moves"),
    [
        (OffsetAndMetadata(20), 10, 10),
        (OffsetAndMetadata(20, "1"), 10, 10),
        (OffsetAndMetadata(20, "2"), 10, None),
        (OffsetAndMetadata(20, "3"), 10, None),
        (OffsetAndMetadata(20, "v3"), 10, 10),
        (OffsetAndMetadata(20), 20, None),
        (OffsetAndMetadata(20), 30, None),
        (OffsetAndMetadata(20), None, None),
        (None, 10, None),
    ],
)
def test_7_when_a_partition_moves(commit, at, moves) -> None:
    """The decision alone, by what is committed and where the time is, for deployment 2."""
    tp, moved = TopicPartition("orders", 0), {}

    class Scripted:
        def committed(self, partitions):
            return dict.fromkeys(partitions, commit)

        def offsets_for_times(self, times):
            found = None if at is None else OffsetAndTimestamp(at, 1_000)
            return dict.fromkeys(times, found)

        def seek(self, partition, offset):
            moved[partition] = offset

    consume_rewind.Rewind(fake(Scripted()), 2, 1_000).on_partitions_assigned([tp])
    assert moved == ({} if moves is None else {tp: moves})
