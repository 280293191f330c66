"""`AppHarness`: handlers without a broker, in time that a test moves (issue 19, item 5)."""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import sqlite3
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from kohort import App, Permanent, RetryAfter
from kohort.errors import UsageError
from kohort.testing import AppHarness, crash_everywhere
from tests.known import known

MINUTE = 60_000
FIGURE = Path(__file__).parents[2] / "docs" / "figures" / "journey.svg"
RETRIES = "5m 5m 30m 30m 30m 1h"


def failing(**settings: Any) -> App:
    """An app whose handler fails always."""
    app = App("billing", retries=RETRIES, **settings)  # type: ignore[arg-type]

    @app.handler("orders")
    def bill(record: object) -> None:
        raise TimeoutError("the bank does not answer")

    return app


def test_six_retries_when_due_then_the_dead_letter_topic(
    kafka_app: Callable[..., AppHarness],
) -> None:
    """Spec 5.3: never early, none left out, and the offset is committed at once."""
    harness = kafka_app(failing())
    record = harness.send("orders", b"42", b"k", headers=[("trace", b"1")])
    harness.run()
    assert harness.committed("orders") == {0: 1}
    (waiting,) = harness.retries()
    assert (waiting.retry.number, waiting.due_ms - harness.now_ms) == (1, 5 * MINUTE)
    harness.advance("4m59s")
    assert len(harness.attempts) == 1
    harness.advance("1s")
    assert len(harness.attempts) == 2
    harness.advance("5m 30m 30m 30m 1h")
    minutes = [(a.at_ms - harness.started_ms) // MINUTE for a in harness.attempts_of(record)]
    assert minutes == [0, 5, 10, 40, 70, 100, 160]
    assert harness.retries() == []
    (letter,) = harness.dead_letters()
    assert (letter.record.value, letter.record.key) == (b"42", b"k")
    assert ("trace", b"1") in letter.record.headers
    assert letter.retry.error_message == "the bank does not answer"


def test_the_journey_is_told_and_drawn(kafka_app: Callable[..., AppHarness]) -> None:
    harness = kafka_app(failing())
    record = harness.send("orders", b"42")
    harness.run_to_end()
    dead = harness.dead_letters()[0].record.topic
    lines = harness.journey(record).splitlines()
    assert len(lines) == 7
    assert lines[0].split()[:4] == ["0s", "attempt", "0", "orders"]
    assert lines[6].split()[0] == "160m"
    assert lines[6].endswith(f"-> {dead}")
    picture = ElementTree.fromstring(harness.journey_svg(record))
    name = "{http://www.w3.org/2000/svg}"
    assert len(picture.findall(f".//{name}circle")) == 7
    words = {text.text for text in picture.iter(f"{name}text")}
    assert {"orders", "orders.billing.retry.5m", dead, "160m"} <= words


def test_the_picture_of_the_page_is_what_the_harness_draws(
    kafka_app: Callable[..., AppHarness],
) -> None:
    """KOHORT_WRITE_DOCS writes docs/figures/journey.svg anew."""
    harness = kafka_app(failing())
    record = harness.send("orders", b"42")
    harness.run_to_end()
    drawn = harness.journey_svg(record)
    if os.environ.get("KOHORT_WRITE_DOCS"):
        FIGURE.parent.mkdir(exist_ok=True)
        FIGURE.write_text(drawn)
    assert FIGURE.read_text() == drawn


def test_what_handlers_send_and_what_they_refuse(kafka_app: Callable[..., AppHarness]) -> None:
    app, reasons = App("billing", retries="1m"), list[str]()

    @app.handler("orders", decode="json")
    def bill(record):
        if record.data < 0:
            raise Permanent("negative")
        if record.data == 7 and not record.attempt:
            record.send("bills", b"never")
            raise RetryAfter("10m", "busy")
        record.send("bills", b"%d" % record.data, record.key)

    app.on_failure(lambda failed: reasons.append(failed.reason))
    harness = kafka_app(app, partitions=3)
    for value in (b"1", b"7", b"-1", b"{no json", b"2"):
        harness.send("orders", value, value)
    harness.run()
    assert sorted(known(r.value) for r in harness.records("bills")) == [b"1", b"2"]
    assert {letter.reason for letter in harness.dead_letters()} == {"negative", "undecodable"}
    harness.advance("9m")
    assert len(harness.records("bills")) == 2
    harness.run_to_end()
    assert sorted(known(r.value) for r in harness.records("bills")) == [b"1", b"2", b"7"]
    assert Counter(reasons) == {"busy": 1, "negative": 1, "undecodable": 1}
    assert sum(harness.committed("orders").values()) == 5


Done = list[tuple[bytes, int]]


def in_batches(app: App, done: Done) -> None:
    @app.handler("orders", batch=True, max_batch=10)
    def whole(batch):
        for index, record in enumerate(batch):
            if record.value == b"0" and record.attempt < 2:
                batch.retry(index, "later")
            else:
                done.append((record.value, record.attempt))


def in_tasks(app: App, done: Done) -> None:
    @app.handler("orders")
    async def one(record):
        if record.value == b"0" and record.attempt < 2:
            raise ConnectionError("later")
        done.append((record.value, record.attempt))


def holding(app: App, done: Done) -> None:
    @app.handler("orders", on_failure="hold_key")
    def held(record):
        if record.value == b"0" and record.attempt < 2:
            raise ConnectionError("later")
        done.append((record.value, record.attempt))


@pytest.mark.parametrize("register", [in_batches, in_tasks, holding])
def test_other_kinds_of_handlers(
    kafka_app: Callable[..., AppHarness], register: Callable[[App, Done], None]
) -> None:
    """A batch handler, a coroutine, and one whose failures hold their key."""
    app, done = App("billing", retries="1m 1m"), Done()
    register(app, done)
    harness = kafka_app(app)
    for n in range(5):
        harness.send("orders", b"%d" % n, b"k")
    harness.run_to_end()
    assert sorted(value for value, _ in done) == [b"0", b"1", b"2", b"3", b"4"]
    assert (b"0", 2) in done
    if register is holding:
        assert [value for value, _ in done] == [b"0", b"1", b"2", b"3", b"4"]
    assert harness.now_ms - harness.started_ms >= 2 * MINUTE


numbers = itertools.count()


def counting(promise: str | None) -> App:
    """Sends each record on; every third fails once, one always."""
    app = App("billing", retries="1m", exactly_once=promise)

    @app.handler("orders")
    def bill(record):
        if record.value == b"bad" or (int(record.value) % 3 == 0 and not record.attempt):
            raise TimeoutError("later")
        record.send("bills", record.value)

    return app


def loading(url: str) -> App:
    """The same into a table."""
    app = App("billing", retries="1m", exactly_once=url)

    @app.setup
    def table(store):
        store.run("CREATE TABLE IF NOT EXISTS bills (value TEXT, p INTEGER, o INTEGER)")

    @app.handler("orders", table="bills", origin=("p", "o"))
    def bill(record):
        if record.value == b"bad" or (int(record.value) % 3 == 0 and not record.attempt):
            raise TimeoutError("later")
        return {"value": record.value.decode()}

    return app


def scenario(harness: AppHarness) -> None:
    for value in (b"0", b"1", b"bad", b"2", b"3"):
        harness.send("orders", value)
    harness.run_to_end()


@pytest.mark.parametrize("promise", [None, "kafka"])
def test_a_crash_at_every_step_loses_nothing(promise: str | None) -> None:
    """Spec 5.4, 9.2; with exactly_once nothing is sent twice either."""
    runs, twice = 0, 0
    for harness in crash_everywhere(lambda: AppHarness(counting(promise)), scenario):
        runs += 1
        assert harness.crashes == (runs > 1)
        bills = Counter(r.value for r in harness.records("bills"))
        assert set(bills) == {b"0", b"1", b"2", b"3"}
        dead = Counter(letter.record.value for letter in harness.dead_letters())
        assert set(dead) == {b"bad"}
        twice += max(bills.values()) > 1 or dead[b"bad"] > 1
        assert harness.retries() == []
        assert harness.committed("orders") == {0: 5}
        if promise:
            assert max(bills.values()) == dead[b"bad"] == 1
    assert runs > 20
    assert bool(twice) == (promise is None), "at least once repeats something at some step"


def test_a_crash_at_every_step_with_a_store(tmp_path: Path) -> None:
    """Spec 6.3: each record is loaded exactly once or failed exactly once."""
    paths: list[Path] = []

    def make() -> AppHarness:
        paths.append(tmp_path / f"{next(numbers)}.db")
        return AppHarness(loading(f"sqlite:///{paths[-1]}"))

    for harness in crash_everywhere(make, scenario):
        with closing(sqlite3.connect(paths[-1])) as database:
            rows = database.execute("SELECT value, o FROM bills ORDER BY o").fetchall()
            failed = database.execute(
                "SELECT retry_id FROM kohort_ledger WHERE status = 'failed'"
            ).fetchall()
        assert rows == [("0", 0), ("1", 1), ("2", 3), ("3", 4)]
        assert failed == [("orders/0/2",)]
        assert harness.retries() == []
    assert len(paths) > 20


@pytest.mark.parametrize("topic", ["orders", re.compile("orders")])
def test_a_store_of_an_earlier_run_is_refused(
    kafka_app: Callable[..., AppHarness], tmp_path: Path, topic: Any
) -> None:
    """Its progress is ahead of the topics, which are new: the second run handled nothing."""
    app = App("billing", exactly_once=f"sqlite:///{tmp_path}/app.db")
    app.handler(topic)(lambda record: None)
    kafka_app(app).close()  # nothing was done
    first = kafka_app(app)
    first.send("orders", b"1")
    first.run()
    assert first.committed("orders") == {0: 1}
    with pytest.raises(UsageError, match=r"group billing \(orders-0 .* offset 1\)"):
        kafka_app(app)


def test_two_harnesses_with_one_store(kafka_app: Callable[..., AppHarness], tmp_path: Path) -> None:
    """The second takes the partitions over; the first did nothing any more."""
    app = App("billing", exactly_once=f"sqlite:///{tmp_path}/app.db")
    app.handler("orders")(lambda record: None)
    first, _ = kafka_app(app), kafka_app(app)
    first.send("orders", b"1")
    with pytest.raises(UsageError, match=r"group billing: another harness .* orders-0"):
        first.run()


def test_a_crash_forgets_what_was_in_memory(kafka_app: Callable[..., AppHarness]) -> None:
    app, done = App("billing", retries="none"), list[bytes]()
    app.handler("orders")(lambda record: done.append(record.value))
    harness = kafka_app(app, crash_at=2)
    harness.send("orders", b"a")
    harness.run()
    assert harness.crashes == 1
    assert harness.steps[2] == "before orders/0/0 is handled"
    assert done == [b"a"]
    harness.crash()
    harness.send("orders", b"b")
    harness.run()
    assert done == [b"a", b"b"]


def test_an_app_without_a_handler_is_refused() -> None:
    with pytest.raises(UsageError, match="no handler"):
        AppHarness(App("billing"))


def test_what_ends_a_program_ends_the_test(kafka_app: Callable[..., AppHarness]) -> None:
    app = App("billing")

    @app.handler("orders")
    def bill(record):
        raise SystemExit(3)

    harness = kafka_app(app)
    harness.send("orders", b"1")
    with pytest.raises(SystemExit):
        harness.run()


def test_a_crash_comes_between_two_outputs_of_a_record() -> None:
    """All the steps of a record were passed before the first of its outputs was there."""

    def make() -> AppHarness:
        app = App("billing", retries="none")

        @app.handler("orders")
        def bill(record):
            record.send("bills", b"bill")
            record.send("letters", b"letter")

        return AppHarness(app)

    found: set[tuple[int, int]] = set()
    for harness in crash_everywhere(
        make, lambda harness: (harness.send("orders", b"1"), harness.run())
    ):
        found.add((len(harness.records("bills")), len(harness.records("letters"))))
    assert found == {(1, 1), (2, 1), (2, 2)}


@pytest.mark.parametrize("promise", [None, "kafka", "sqlite"])
def test_an_output_for_no_partition_fails_its_record(
    kafka_app: Callable[..., AppHarness], tmp_path: Path, promise: str | None
) -> None:
    """As in an app; it ended the test. With a transaction nothing of the record is stored."""
    url = f"sqlite:///{tmp_path}/app.db" if promise == "sqlite" else promise
    app = App("billing", retries="none", exactly_once=url)

    @app.handler("orders")
    def bill(record):
        record.send("bills", b"to 0 " + record.value, partition=0)
        record.send("bills", b"to N " + record.value, partition=int(record.value))

    harness = kafka_app(app, partitions=2)
    for value in (b"1", b"7", b"0"):
        harness.send("orders", value, b"k")
    harness.run()
    (letter,) = harness.dead_letters()
    assert (letter.record.value, letter.retry.reason) == (b"7", "output_refused")
    assert "not 7" in letter.retry.error_message
    bills = Counter(known(record.value) for record in harness.records("bills"))
    assert set(bills) - {b"to 0 7"} == {b"to 0 0", b"to N 0", b"to 0 1", b"to N 1"}
    assert sum(harness.committed("orders").values()) == 3
    if promise == "kafka":
        assert bills[b"to 0 7"] == 0
        assert set(bills.values()) == {1}


@pytest.mark.parametrize("promise", [None, "kafka", "sqlite"])
@pytest.mark.parametrize(
    ("topic", "size", "why"),
    [
        ("bad bills", 1, "a topic name consists of"),
        ("bills", 1 << 20, "max.message.bytes of bills"),
    ],
)
def test_an_output_that_every_broker_refuses_fails_its_record(
    kafka_app: Callable[..., AppHarness],
    tmp_path: Path,
    promise: str | None,
    topic: str,
    size: int,
    why: str,
) -> None:
    """As in an app; it was stored, and the test passed."""
    url = f"sqlite:///{tmp_path}/app.db" if promise == "sqlite" else promise
    app = App("billing", retries="none", exactly_once=url)

    @app.handler("orders")
    def bill(record):
        record.send(topic, bytes(size))

    harness = kafka_app(app)
    harness.send("orders", b"1")
    harness.run()
    (letter,) = harness.dead_letters()
    assert letter.retry.reason == "output_refused"
    assert why in letter.retry.error_message
    assert harness.records(topic) == []


@pytest.mark.parametrize("promise", [None, "kafka", "sqlite"])
def test_outputs_join_the_handler_of_a_pattern(
    kafka_app: Callable[..., AppHarness], tmp_path: Path, promise: str | None
) -> None:
    """Only what the test sent did. A dead letter's topic matches, too, and joins nobody."""
    url = f"sqlite:///{tmp_path}/app.db" if promise == "sqlite" else promise
    app, done = App("billing", retries="5m", exactly_once=url), list[tuple[str, bytes]]()

    @app.handler("orders")
    def sort(record):
        record.send(f"events.{record.value.decode()}", record.value)

    @app.handler(re.compile(r"events\..*"))
    def event(record):
        done.append((record.topic, record.value))
        if record.value == b"b":
            raise TimeoutError("later")

    harness = kafka_app(app)
    for value in (b"a", b"b"):
        harness.send("orders", value)
    harness.run_to_end()
    assert Counter(done) == {("events.a", b"a"): 1, ("events.b", b"b"): 2}
    assert [letter.record.topic for letter in harness.dead_letters()] == ["events.b.billing.dlt"]


def test_topics_of_a_harness_are_its_own(kafka_app: Callable[..., AppHarness]) -> None:
    """What had joined stayed in the app, for its next harness."""
    app = App("billing", retries="none")
    app.handler(re.compile(r"events\..*"))(lambda record: None)
    first = kafka_app(app)
    first.send("events.a", b"1")
    first.run()
    assert first.committed("events.a") == {0: 1}
    assert list(app.topics) == []
    second = kafka_app(app)
    second.send("events.a", b"2")
    second.run()
    assert second.committed("events.a") == {0: 1}


def test_a_crash_before_a_new_topic_is_read(kafka_app: Callable[..., AppHarness]) -> None:
    """What is started again finds it."""

    def make() -> AppHarness:
        app = App("billing", retries="none")
        app.handler("orders")(lambda record: record.send("events.a", record.value))
        app.handler(re.compile(r"events\..*"))(lambda record: record.send("done", record.value))
        return AppHarness(app)

    def whole(harness: AppHarness) -> None:
        harness.send("orders", b"1")
        harness.run()

    for harness in crash_everywhere(make, whole):
        assert harness.records("done")
        assert harness.committed("events.a") == {0: len(harness.records("events.a"))}


def open_for_bills(story: list[str], fails_at: str = "") -> App:
    """A coroutine handler that needs what a lifespan opens."""
    app, sessions = App("billing", retries="none"), list[str]()

    @app.lifespan
    async def outer():
        try:
            yield
        finally:
            story.append("given back")

    @app.lifespan
    async def session():
        if fails_at == "start":
            raise OSError("no such host")
        sessions[:] = ["session"]
        story.append("opened")
        yield
        if fails_at == "end":
            raise OSError("could not flush")
        story.append("closed")

    @app.handler("orders")
    async def bill(record):
        story.append(sessions[0])

    return app


def test_lifespans_are_open_while_handlers_run() -> None:
    """As in an app, before the first record and to the end. Handlers found nothing open."""
    story: list[str] = []
    with AppHarness(open_for_bills(story)) as harness:
        assert story == ["opened"]
        harness.send("orders", b"1")
        harness.run()
        assert story == ["opened", "session"]
        assert harness.dead_letters() == []
    assert story == ["opened", "session", "closed", "given back"]


def test_a_crash_opens_lifespans_again(kafka_app: Callable[..., AppHarness]) -> None:
    """A program that dies runs no code behind the `yield`; what it had open is given back."""
    story: list[str] = []
    harness = kafka_app(open_for_bills(story), crash_at=0)
    harness.send("orders", b"1")
    harness.run()
    assert harness.crashes == 1
    assert story == ["opened", "given back", "opened", "session"]


def test_what_a_lifespan_raises_is_raised() -> None:
    story: list[str] = []
    with pytest.raises(OSError, match="no such host"):
        AppHarness(open_for_bills(story, fails_at="start"))
    harness = AppHarness(open_for_bills(story, fails_at="end"))
    with pytest.raises(OSError, match="could not flush"):
        harness.close()
    assert story == ["given back", "opened", "given back"]


def test_a_test_that_is_a_coroutine_is_told_to_be_none() -> None:
    app = open_for_bills([])

    async def made_here() -> None:
        with pytest.raises(UsageError, match="write the test as a plain `def`"):
            AppHarness(app)

    async def run_here(harness: AppHarness) -> None:
        with pytest.raises(UsageError, match="write the test as a plain `def`"):
            harness.run()

    asyncio.run(made_here())
    with AppHarness(app) as harness:  # as the fixture makes it
        harness.send("orders", b"1")
        asyncio.run(run_here(harness))


def test_a_hook_that_raises_hides_no_other_failure() -> None:
    app, seen = App("billing", retries="none"), list[int]()

    @app.handler("orders")
    def bill(record) -> None:
        raise KeyError("amount")

    @app.on_failure
    def report(failed) -> None:
        seen.append(failed.offset)
        raise ValueError(failed.offset)

    with AppHarness(app) as harness:
        harness.send("orders", b"1")
        harness.send("orders", b"2")
        with pytest.raises(ValueError, match="0") as raised:
            harness.run()
        assert raised.value.__notes__ == [
            "on_failure raised again, for another failure: ValueError(1)"
        ]
        assert seen == [0, 1]
        assert all(attempt.next_topic for attempt in harness.attempts)
