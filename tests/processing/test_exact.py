"""`App(exactly_once=...)` with a real broker and a real database (E2, E3, spec 6.3)."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from kohort import Consumer, Permanent, Temporary
from kohort.processing.app import App, Ended
from tests.known import known
from tests.patience import PATIENCE_S, until
from tests.reading import read_committed

RECORDS = 60


def outcome(number: int, attempt: int) -> None:
    """Every tenth is bad, every seventh needs one or two retries."""
    if number % 10 == 9:
        raise Permanent("bad")
    if number % 7 == 3 and attempt <= number % 2:
        raise Temporary("not_yet")


def good(numbers: range) -> list[int]:
    return [n for n in numbers if n % 10 != 9]


def settled(app: App) -> bool:
    return not app.status() or not any(app.status().values())


def wait_for(condition, what: str, patience_s: float = PATIENCE_S) -> None:
    until(condition, what, patience_s)


@pytest.mark.parametrize("workers", ["threads", "tasks"])
def test_outputs_and_offsets_in_one_transaction(
    cluster, topic, produce, app, start, workers
) -> None:
    """E: each output once, each failure once, whatever was retried."""
    out = f"{topic}-out"
    cluster.create_topic(out, partitions=3)
    running_app = app(exactly_once="kafka")

    def handle(record) -> None:
        record.send(out, record.value, record.key)  # sent before it fails: it must not be seen
        outcome(int(record.value), record.attempt)

    async def handle_async(record) -> None:
        handle(record)

    running_app.handler(topic)(handle if workers == "threads" else handle_async)
    produce(RECORDS)
    running = start(running_app)
    wanted = good(range(RECORDS))
    wait_for(lambda: len(read_committed(cluster.bootstrap, out)) >= len(wanted), "outputs")
    dead_letter_topic, bad = running_app.topics[topic].dead_letter, RECORDS - len(wanted)
    wait_for(lambda: len(read_committed(cluster.bootstrap, dead_letter_topic)) >= bad, "failures")
    running.stop()
    assert running.error is None
    assert sorted(int(known(r.value)) for r in read_committed(cluster.bootstrap, out)) == wanted
    failed = read_committed(cluster.bootstrap, dead_letter_topic)
    assert sorted(int(known(r.value)) for r in failed) == [n for n in range(RECORDS) if n % 10 == 9]
    with Consumer(bootstrap_servers=cluster.bootstrap, group_id=running_app.group) as consumer:
        tps = [(topic, number) for number in range(3)]
        committed = consumer.committed(tps)
        assert {tp: known(at).offset for tp, at in committed.items()} == consumer.end_offsets(tps)


def test_rows_and_offsets_in_one_transaction(
    cluster, topic, produce, app, start, tmp_path: Path
) -> None:
    """E2, E3: rows, ledger and progress together; a broken constraint is its record's failure."""
    file = tmp_path / "results.db"
    running_app = app(exactly_once=f"sqlite:///{file}")

    @running_app.setup
    def tables(store) -> None:
        store.run("CREATE TABLE IF NOT EXISTS loaded (number INTEGER CHECK (number != 50))")

    @running_app.handler(topic, table="loaded", decode="json")
    def handle(record):
        assert record.store.one("SELECT 1") == (1,)
        outcome(record.data, record.attempt)
        return {"number": record.data}

    produce(RECORDS)
    running = start(running_app)
    wanted = [n for n in good(range(RECORDS)) if n != 50]
    wait_for(lambda: len(rows(file, "SELECT * FROM loaded")) >= len(wanted), "rows")
    failed = running_app.topics[topic].dead_letter
    wait_for(lambda: len(read_committed(cluster.bootstrap, failed)) >= 7, "failures")
    running.stop()
    assert running.error is None
    assert sorted(n for (n,) in rows(file, "SELECT number FROM loaded")) == wanted
    ended = Ended(running_app.counts(), 0)
    assert str(ended).startswith(f"succeeded {len(wanted)}, "), "what failed after all is not done"
    reasons = rows(
        file, "SELECT reason, count(*) FROM kohort_ledger WHERE status='failed' GROUP BY 1"
    )
    assert dict(reasons) == {"bad": 6, "constraint_violated": 1}
    assert not rows(file, "SELECT * FROM kohort_ledger WHERE status = 'scheduled'")
    ends = rows(file, "SELECT sum(next_offset) FROM kohort_progress WHERE topic = ?", topic)
    assert ends == [(RECORDS,)]


def rows(file: Path, sql: str, *params) -> list[tuple]:
    if not file.exists():
        return []
    connection = sqlite3.connect(file, timeout=30)
    try:
        return connection.execute(sql, params).fetchall()
    except sqlite3.OperationalError:
        return []
    finally:
        connection.close()
