"""E2: every row of its kill table, and a walk over random kills (spec 6.3)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kohort.config import parse_duration_ms
from kohort.errors import DataLossError
from kohort.retry.classify import Permanent, RetryAfter, Temporary
from kohort.retry.copies import Attempt, Copy, ladder, redrive_copy
from kohort.retry.handling import Record
from kohort.retry.headers import VALUE_OMITTED, parse
from kohort.retry.ledger import Place, backs_failed
from kohort.retry.sql_statements import Insert
from kohort.retry.unreadable import Unreadable
from tests.effort import examples
from tests.retry.world import Killed, World, row

numbers = itertools.count()
KILLS = (
    "before publish",
    "during publish",
    "after publish",
    "before transaction",
    "after commit",
    "before commit log",
)


def handle(record: Record, _store: object) -> object:
    """`ok`, `bad`, or how often to fail first."""
    if record.value == b"bad":
        raise Permanent("bad")
    if record.value not in (b"ok", b"bad") and record.attempt < int(record.value or b"0"):
        raise Temporary("not_yet")
    return row(record)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    """The same tests on both databases."""
    url = f"sqlite:///{tmp_path}/db.sqlite"
    if request.param == "postgres":
        url = request.getfixturevalue("database")
    made = World(url, handle=handle)
    yield made
    made.close()


@pytest.mark.parametrize("behind_ms", [5_000, 600_000])
def test_an_executor_whose_clock_is_behind_does_what_the_driver_planned(
    world: World, behind_ms: int
) -> None:
    """A record is due by the broker's time and the driver's; five seconds ended the pipeline."""
    world.produce(0, b"1", b"ok")
    world.behind_ms = behind_ms
    world.run_all()
    world.check()
    assert world.slept_ms == 0


def test_everything_ends_loaded_or_failed(world: World) -> None:
    """Spec 5.3, 6.3: permanent to failed, temporary through its retry topics, the rest at once."""
    world.produce(0, b"ok", b"bad", b"1", b"3", b"4")
    world.produce(1, b"2", b"ok")
    world.run_all()
    world.check()
    assert world.failed() == ["in/0/1", "in/0/4"]
    attempts = world.ask("SELECT id, attempt FROM loaded WHERE attempt > 0 ORDER BY id")
    assert attempts == [("in/0/2", 1), ("in/0/3", 3), ("in/1/0", 2)]
    reasons = world.ask("SELECT reason, disposition FROM kohort_ledger WHERE status='failed'")
    assert sorted(reasons) == [("bad", "fatal"), ("not_yet", "exhausted")]


def later(record: Record, _store: object) -> object:
    """The first try asks for 12 s, which is two retry topics of 5 s and one of 2 s."""
    if not record.attempt:
        raise RetryAfter("12s", "busy")
    return row(record)


def test_retry_after_waits_past_the_longest_delay_and_uses_up_one_attempt(world: World) -> None:
    """Spec 5.3, 6.5: the ledger follows the copy from retry topic to retry topic."""
    world.handle = later
    start = world.now
    world.produce(0, b"a", b"b")
    world.run_all()
    world.check()
    assert world.now - start >= 12_000
    assert world.ask("SELECT DISTINCT attempt FROM loaded") == [(1,)]
    assert world.ask("SELECT DISTINCT retry_number, status FROM kohort_ledger") == [(1, "done")]
    assert [len(world.logs[f"in.g.retry.{retry_topic}", 0]) for retry_topic in ("2s", "5s")] == [
        2,
        4,
    ]


@settings(
    max_examples=20,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(kills=st.lists(st.sampled_from(KILLS), max_size=8), chunk=st.integers(1, 4))
def test_kills_while_records_wait_on(tmp_path: Path, kills: list[str], chunk: int) -> None:
    """X3: a wait that passes through several retry topics loses and repeats nothing."""
    world = World(f"sqlite:///{tmp_path}/{next(numbers)}.sqlite", handle=later)
    world.produce(0, b"a", b"b", b"c")
    world.kills.at = list(kills)
    world.run_all(chunk)
    world.kills.at = []
    world.check()
    assert world.loaded() == ["in/0/0", "in/0/1", "in/0/2"]
    world.close()


def damaged(world: World, *offsets: int, topic: str = "in") -> None:
    """Make these records of partition 0 a batch that nobody can read."""
    log = world.logs[topic, 0]
    first = offsets[0]
    batch = Unreadable(topic, 0, first, offsets[-1] + 1, "its CRC does not match", b"raw bytes")
    for offset in offsets:
        log[offset] = batch


@pytest.mark.parametrize("place", [None, *KILLS])
def test_a_pipeline_gets_past_a_batch_that_nobody_can_read(world: World, place: str | None) -> None:
    """Spec 5.6: its bytes go to the dead-letter topic once in the ledger, the rest is loaded."""
    world.produce(0, b"ok", b"ok", b"ok", b"1", b"ok")
    damaged(world, 1, 2)
    world.kills.at = [place] if place else []
    world.run_all(chunk=2)
    assert world.loaded() == ["in/0/0", "in/0/3", "in/0/4"]
    assert world.failed() == ["in/0/1"]
    assert world.ask("SELECT reason, disposition FROM kohort_ledger WHERE status='failed'") == [
        ("unreadable_batch", "unreadable")
    ]
    assert world.ask("SELECT sum(failed), sum(read) FROM kohort_counts WHERE topic = 'in'") == [
        (1, 4)
    ]
    copies = world.logs[world.topics.dead_letter, 0] + world.logs[world.topics.dead_letter, 1]
    assert {copy.value for copy in copies} == {b"raw bytes"}
    headers = parse(copies[0].headers)
    assert headers is not None
    assert (headers.origin.offset, headers.origin_next_offset) == (1, 3)


def test_a_damaged_batch_of_a_retry_topic_fails_the_records_in_it(world: World) -> None:
    """Spec 6.3: the ledger knows whose copies stood there; nothing stays owed for ever."""
    world.produce(0, b"1", b"1", b"1", b"ok")
    world.run("in", 0)
    damaged(world, 0, 1, topic="in.g.retry.2s")
    world.run_all()
    world.check_books()
    assert world.loaded() == ["in/0/2", "in/0/3"]
    assert world.failed() == ["in.g.retry.2s/0/0", "in/0/0", "in/0/1"]
    assert world.ask("SELECT sum(failed) FROM kohort_counts") == [(2,)]
    copies = world.logs[world.topics.dead_letter, 0] + world.logs[world.topics.dead_letter, 1]
    assert [copy.value for copy in copies] == [b"raw bytes"]


@pytest.mark.rows(9)
@pytest.mark.parametrize("place", KILLS)
@pytest.mark.parametrize("topic", ["in", "in.g.retry.2s", "in.g.retry.5s"])
def test_a_kill_anywhere_changes_nothing(world: World, place: str, topic: str) -> None:
    """E2, the kill table's first four rows, on the source and on each retry topic."""
    world.produce(0, b"ok", b"bad", b"1", b"2", b"3", b"4")
    killed = False
    for _ in range(100):
        for name in ("in", *world.topics.delays_ms):
            if (
                name == topic
                and not killed
                and world.end(name, 0, world.checkpoint.get((name, 0), 0))
            ):
                world.kills.at = [place]
                try:
                    world.run(name, 0)
                except Killed:
                    killed = True
                    world.gate.forget()
                world.kills.at = []
            world.survive(name, 0)
        world.now += 1_000
    assert killed
    world.check()
    assert world.failed() == ["in/0/1", "in/0/5"]


@settings(
    max_examples=examples(60),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    values=st.lists(st.sampled_from([b"ok", b"bad", b"1", b"2", b"3", b"4"]), max_size=25),
    kills=st.lists(st.sampled_from(KILLS), max_size=12),
    chunk=st.integers(1, 10),
)
def test_random_kills(tmp_path: Path, values: list[bytes], kills: list[str], chunk: int) -> None:
    """X3: whatever is killed and when, the output is the input, once."""
    world = World(f"sqlite:///{tmp_path}/{next(numbers)}.sqlite", handle=handle)
    for n, value in enumerate(values):
        world.produce(n % 2, value)
    world.kills.at = list(kills)
    world.run_all(chunk)
    world.kills.at = []
    world.check()
    expected = [v for v in values if v in (b"bad", b"4")]
    assert len(world.failed()) == len(expected)


def test_orphan_and_duplicate_copies_are_inert(world: World) -> None:
    """X7: a copy whose transaction never committed is dropped; the batch repeats it with its id."""
    world.produce(0, b"1")
    world.kills.at = ["after publish"]
    with pytest.raises(Killed):
        world.run("in", 0)
    world.now += 10_000
    report = world.run("in.g.retry.2s", 0)  # the orphan is read before the source runs again
    assert report is not None
    assert (report.inert, report.loaded) == (1, 0)
    world.run_all()
    world.check()
    assert world.loaded() == ["in/0/0"]


def test_a_copy_overtaken_by_its_retry_topic_is_published_again(world: World) -> None:
    """A slow transaction whose copy was already read and dropped is not owed for ever."""
    world.produce(0, b"1")
    loader = world.loader()
    publish, calls = loader.publisher.publish, []

    class Slow:
        def publish(self, copies: object) -> list[Place]:
            places = publish(copies)  # type: ignore[arg-type]
            calls.append(places)
            if len(calls) == 1:
                world.now += 60_000
                world.run("in.g.retry.2s", 0)
            return places

    loader.publisher = Slow()  # type: ignore[assignment]
    load = loader.open(world.span("in", 0, 0, 1))
    load.load(world.logs["in", 0])
    load.finish()
    assert len(calls) == 2
    world.checkpoint["in", 0] = 1
    world.run_all()
    world.check()


def test_a_retry_topic_fence_does_not_pass_a_row_scheduled_meanwhile(world: World) -> None:
    """The other side of the same race: the retry topic finds the row when it moves its fence."""
    world.produce(0, b"1")
    source, retry_topic = world.loader(), world.loader()
    load = source.open(world.span("in", 0, 0, 1))
    at = ("in.g.retry.2s", 0)
    headers = _headers_of_first_copy(world)
    world.append(at, b"k", b"1", headers, timestamp_type=1, timestamp=world.now - 5_000)
    retry_topics = world.logs[at]

    class Published:
        def publish(self, copies: object) -> list[Place]:
            return [Place("in.g.retry.2s", 0, 0)]

    class Late:
        """A store in which the source commits right after the retry topic has looked."""

        def __init__(self, real: object) -> None:
            self.real = real

        def __getattr__(self, name: str) -> object:
            return getattr(self.real, name)

        def states(self, *args: object) -> object:
            found = self.real.states(*args)  # type: ignore[attr-defined]
            load.load(world.logs["in", 0])
            return found

    source.publisher = Published()  # type: ignore[assignment]
    retry_topic.store = Late(retry_topic.store)  # type: ignore[assignment]
    running = retry_topic.open(world.span("in.g.retry.2s", 0, 0, 1))
    running.load(retry_topics)
    assert running.finish().loaded == 1
    assert world.loaded() == ["in/0/0"]


def _headers_of_first_copy(world: World) -> list[tuple[str, bytes | None]]:
    from kohort.retry.classify import stated
    from kohort.retry.copies import copy_for
    from kohort.retry.headers import Origin

    origin = Origin("in", 0, 0, world.now, 0, "id-1")
    attempt = Attempt(origin, 0, ("in", 0, 0), b"k", b"1", [])
    copy, _ = copy_for(
        attempt, stated("x", permanent=False), topics=world.topics, now_ms=world.now - 5_000
    )
    return copy.headers


def test_checkpoint_deleted(world: World) -> None:
    """E2: batch 0 again, from the start: the prefix is dropped by offset."""
    world.produce(0, b"ok", b"1", b"bad")
    world.run("in", 0)
    world.checkpoint.clear()
    report = world.run("in", 0)
    assert report is not None
    assert (report.loaded, report.failed) == (0, 0)
    world.run_all()
    world.check()


def test_store_emptied_restored_or_topic_recreated_is_refused(world: World) -> None:
    """E2: n < s, no fence, another topic id: loud, and nothing is changed."""
    world.produce(0, b"ok", b"ok")
    store = world.store()
    loader = world.loader()
    with pytest.raises(DataLossError, match="emptied or replaced"):
        loader.open(world.span("in", 0, 1, 2))
    store.open_fence("p", "in", "id-1", 0, 0, 1)
    with pytest.raises(DataLossError, match="backup"):
        loader.open(world.span("in", 0, 1, 2))
    world.topic_id = "id-2"
    with pytest.raises(DataLossError, match="created again"):
        loader.open(world.span("in", 0, 0, 2))
    assert world.loaded() == []
    store.close()


def test_a_fence_of_brokers_without_topic_ids_holds_after_their_upgrade(world: World) -> None:
    """E2: Kafka before 2.8 knows no ids; that a topic has one now does not make it another."""
    world.produce(0, b"ok", b"ok")
    store = world.store()
    store.open_fence("p", "in", "", 0, 1, 1)
    assert not world.loader().open(world.span("in", 0, 1, 2)).done
    store.close()


@pytest.mark.parametrize("middle", [b"ok", b"1"])
def test_zombie_task_loses_the_compare_and_set(world: World, middle: bytes) -> None:
    """X5: two writers of one range: the loser rolls back, finds out, and writes nothing."""
    world.produce(0, b"ok", middle, b"ok")
    zombie = world.loader().open(world.span("in", 0, 0, 3))
    world.run("in", 0)
    zombie.load(world.logs["in", 0])
    assert zombie.finish().loaded == 0
    world.run_all()
    world.check()


def test_broken_constraints_are_isolated(world: World) -> None:
    """Spec 5.1: a constraint violated is permanent, and its neighbours are loaded."""

    def big(record: Record, _store: object) -> object:
        size = 10**9 if record.value == b"big" else 1
        return Insert("loaded", {"id": record.id, "attempt": 0, "small": size})

    world.handle = big
    world.produce(0, b"ok", b"big", b"ok", b"big")
    world.run_all()
    world.check()
    assert world.failed() == ["in/0/1", "in/0/3"]
    assert world.ask("SELECT DISTINCT reason FROM kohort_ledger") == [("constraint_violated",)]


def test_what_does_not_decode_goes_to_failed_untouched(world: World) -> None:
    """R7, issue 2: original bytes untouched, disposition deserialize; tombstones are no error."""
    world.decode = "json"
    world.handle = lambda record, store: row(record)
    world.produce(0, b'{"a": 1}', b"\xff{", b"[1", b"2],3")
    world.append(("in", 0), b"k", None)
    world.run_all()
    assert world.failed() == ["in/0/1", "in/0/2", "in/0/3"]
    copies = world.logs[world.topics.dead_letter, 0]
    assert [c.value for c in copies] == [b"\xff{", b"[1", b"2],3"]
    assert {parse(c.headers).disposition for c in copies} == {"deserialize"}
    assert [c for c in copies[0].headers if c[0] == "h"] == [("h", None), ("h", b"1")]


def test_texts_that_a_database_refuses_fail_their_record_alone(world: World) -> None:
    """Half of a surrogate pair and a NUL: in a row it fails the record; an error's message is kept
    as the database can have it."""

    def into_a_row(record: Record, _store: object) -> object:
        if record.partition == 1:
            raise Permanent("bad", str(record.data))
        return Insert("loaded", {"id": record.data, "attempt": 0, "small": 1})

    world.decode = "json"
    world.handle = into_a_row
    world.produce(0, b'"in/0/0"', b'"\\ud800"', b'"in/0/2"')
    world.produce(1, b'"\\ud800"', b'"a\\u0000b"', b'"in/1/2"')
    world.run_all()
    world.check()
    assert world.failed() == ["in/0/1", "in/1/0", "in/1/1", "in/1/2"]
    messages = world.ask("SELECT error_message FROM kohort_ledger WHERE reason = 'bad' ORDER BY 1")
    nul = "a\0b" if world.url.startswith("sqlite") else "a\\x00b"
    assert messages == [("\\ud800",), (nul,), ("in/1/2",)]


def test_a_stub_in_a_retry_topic_never_reaches_its_handler(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A2: a handler would take the null for a tombstone."""
    publish = world.publish

    def as_stubs(copies: Sequence[Copy]) -> list[Place]:
        return publish([list(ladder(copy))[-1] for copy in copies])

    monkeypatch.setattr(world, "publish", as_stubs)
    values: list[bytes | None] = []
    world.handle = lambda record, store: values.append(record.value) or handle(record, store)
    world.produce(0, b"1", b"ok")
    world.run_all()
    world.check()
    assert values == [b"1", b"ok"]
    assert world.failed() == ["in/0/0"]
    (copy,) = world.logs[world.topics.dead_letter, 0]
    assert (VALUE_OMITTED, b"1") in copy.headers
    assert parse(copy.headers).reason == "undecodable"


def test_strangers_in_a_retry_topic_go_to_failed(world: World) -> None:
    """A2: a record in a retry topic without our headers is never run."""
    at = ("in.g.retry.2s", 0)
    world.append(at, b"k", b"ok", [("retry_number", b"1")], timestamp_type=1)
    world.now += 10_000
    world.run_all()
    assert world.loaded() == []
    assert world.failed() == ["in.g.retry.2s/0/0"]


@pytest.mark.parametrize("targets", [["entry"] * 2, ["2s"] * 2, ["5s"] * 2, ["2s", "entry"]])
def test_redrive_runs_each_record_once(world: World, targets: list[str]) -> None:
    """R9, spec 5.6: another round; a redrive repeated by a crashed tool is a no-op."""
    world.produce(0, b"bad", b"4")
    world.run_all()
    world.handle = lambda record, store: row(record)
    for target in targets:
        redrive_all(world, target)
    world.run_all()
    world.check()
    assert world.loaded() == ["in/0/0", "in/0/1"]


@pytest.mark.parametrize("target", ["entry", "2s", "5s"])
def test_what_fails_again_after_a_redrive_has_failed_once_more(world: World, target: str) -> None:
    world.produce(0, b"bad", b"9")
    world.run_all()
    redrive_all(world, target)
    world.run_all()
    world.check()
    assert world.failed() == ["in/0/0", "in/0/1"]
    newest = "SELECT retry_id, max(redrive_count) FROM kohort_ledger WHERE status = 'failed' "
    assert world.ask(f"{newest} GROUP BY retry_id ORDER BY retry_id") == [
        ("in/0/0", 1),
        ("in/0/1", 1),
    ]


def redrive_all(world: World, target: str) -> None:
    """Send the dead letters to the entry topic, or to the retry topic of a delay."""
    topics = world.topics
    to, number = topics.entry, 0
    if target != "entry":
        to, number = topics.retry_topic(parse_duration_ms(target)), {"2s": 1, "5s": 3}[target]
    for c in world.logs[topics.dead_letter, 0]:
        parsed = parse(c.headers)
        at = (topics.dead_letter, 0, c.offset)
        attempt = Attempt(parsed.origin, 0, at, c.key, c.value, c.headers, parsed)
        world.publish(
            [
                redrive_copy(
                    attempt,
                    topics=topics,
                    redrive_id="r",
                    now_ms=world.now,
                    topic=to,
                    number=number,
                )
            ]
        )
    world.now += 10_000  # the copies are due: no row says that something is owed yet


def test_only_the_copy_that_the_ledger_names_is_backed(world: World) -> None:
    """Spec 6.3: a copy whose ledger row does not back it is inert, in the dead-letter topic too."""
    world.produce(0, b"bad")
    world.kills.at = ["after publish"]
    world.run_all()
    copies = world.logs[world.topics.dead_letter, 0]
    assert len(copies) == 2
    store = world.store()
    (state,) = store.states("p", ["in/0/0"])["in/0/0"]
    place = world.topics.dead_letter
    backed = [backs_failed(Place(place, 0, c.offset), state, 0) for c in copies]
    assert backed == [False, True]
    store.close()


def test_the_ledger_forgets_what_was_loaded_long_ago_and_nothing_else(world: World) -> None:
    """A duplicate of a forgotten copy stays inert; what waits or has failed is kept."""
    world.produce(0, b"ok", b"bad", b"1", b"3")
    world.run_all()
    retry_topic = next(name for name in world.topics.delays_ms if world.logs[name, 0])
    store = world.store()
    last = max(int(str(at)) for (at,) in world.ask("SELECT closed_at FROM kohort_ledger"))
    assert store.vacuum("p", last - 60_000) == 0
    assert store.vacuum("other", last + 1) == 0
    assert store.vacuum("p", last + 1) == 1 + 3
    assert world.ask("SELECT retry_id, status FROM kohort_ledger") == [("in/0/1", "failed")]
    copy = world.logs[retry_topic, 0][0]
    world.append((retry_topic, 0), copy.key, copy.value, copy.headers, timestamp_type=1)
    world.produce(0, b"2")
    world.run("in", 0)
    assert store.vacuum("p", last + 10_000_000) == 0, "one waits"
    world.run_all()
    world.check()
