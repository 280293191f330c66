"""`kohort retry status` and `kohort dlq list`: by the ledger, else by topics and marked so."""

from __future__ import annotations

import csv
import io
import re
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kohort import Consumer, OffsetAndMetadata, Producer, TopicPartition
from kohort.processing.engine.snapshot import Snapshot, encode
from kohort.retry.classify import Disposition
from kohort.retry.headers import Origin, RetryHeaders
from kohort.retry.ledger import FenceMove, LedgerRow, Place, Status
from kohort.retry.store import Applied, Transaction
from kohort.retry.stores import open_store
from tests.cli.conftest import Run
from tests.clusters import Cluster
from tests.databases import all_closed

RETRIES = ("in.g.retry.0s", "in.g.retry.5m", "in.g.retry.1h")
FAR_MS = 4_000_000_000_000  # in the year 2096


@pytest.fixture(autouse=True)
def _every_store_is_closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with all_closed(monkeypatch):
        yield


def row(
    offset: int,
    status: Status,
    number: int = 1,
    reason: str = "customer_unknown",
    due_ms: int | None = None,
    created_ms: int = 1_000,
    dest: str = RETRIES[1],
    **more: Any,
) -> LedgerRow:
    closed = None if status is Status.SCHEDULED else created_ms + 10_000
    return LedgerRow(
        Origin("in", 0, offset, 500),
        0,
        number,
        status,
        Place(dest, 0, offset),
        due_ms,
        None,
        "retryable",
        reason,
        "Temporary",
        "customer 7 is\nnot there",
        "f" + reason[:3],
        created_ms,
        closed,
    )


def write(url: str, name: str, rows: list[LedgerRow]) -> None:
    store = open_store(url)
    store.prepare()
    for retry_topic in RETRIES:
        store.open_fence(name, retry_topic, "id", 0, 0, 0)
    store.open_fence(name, "in", "id", 0, 0, 0)
    done = store.apply(Transaction(name, FenceMove("in", 0, 0, 100), 0, rows=rows))
    assert done is Applied.COMMITTED
    store.close()


@pytest.fixture
def url(tmp_path: Path) -> str:
    found = f"sqlite:///{tmp_path / 'store.db'}"
    write(
        found,
        "loader",
        [
            row(1, Status.SCHEDULED, due_ms=5_000),
            row(2, Status.SCHEDULED, due_ms=FAR_MS),
            row(3, Status.SCHEDULED, due_ms=FAR_MS + 1, dest=RETRIES[2]),
            row(4, Status.DONE, 1, created_ms=1_000),
            row(4, Status.FAILED, 2, created_ms=2_000),
            row(5, Status.FAILED, 0, "unknown_airport", created_ms=3_000),
            row(6, Status.FAILED, 0, "unknown_airport", created_ms=4_000),
        ],
    )
    return found


def test_retry_topics_by_the_ledger(bare: Run, url: str) -> None:
    """Waiting, due now, oldest and next due of each retry topic; not of the entry."""
    found = bare("retry", "status", "--store", url, "--name", "loader", "-o", "json").json
    assert found["schema"] == 1
    assert found["rows"] == [
        {
            "retry_topic": RETRIES[1],
            "delay": "5m",
            "waiting": 2,
            "due_now": 1,
            "oldest_due": "1970-01-01T00:00:05.000Z",
            "next_due": "2096-10-02T07:06:40.000Z",
            "counted_by": "ledger",
        },
        {
            "retry_topic": RETRIES[2],
            "delay": "1h",
            "waiting": 1,
            "due_now": 0,
            "oldest_due": "2096-10-02T07:06:40.001Z",
            "next_due": "2096-10-02T07:06:40.001Z",
            "counted_by": "ledger",
        },
    ]
    assert bare("retry", "status", "--store", url).lines[0].split() == [
        "RETRY-TOPIC",
        "DELAY",
        "WAITING",
        "DUE-NOW",
        "OLDEST-DUE",
        "NEXT-DUE",
        "COUNTED-BY",
    ]


def test_what_waits_by_the_ledger(bare: Run, url: str) -> None:
    """Spec 5.7: which records wait, why, until when; those that are due first."""
    found = bare("retry", "list", "--store", url, "--limit", "2", "-o", "json").json
    assert found["rows"] == [
        {
            "topic": "in",
            "partition": 0,
            "offset": offset,
            "retry": 1,
            "due": due,
            "reason": "customer_unknown",
            "error_class": "Temporary",
            "message": "customer 7 is\nnot there",
            "fingerprint": "fcus",
            "first_failed": "1970-01-01T00:00:01.000Z",
            "retry_topic": RETRIES[1],
            "waits_at": None,
        }
        for offset, due in ((1, "1970-01-01T00:00:05.000Z"), (2, "2096-10-02T07:06:40.000Z"))
    ]
    ran = bare("retry", "list", "--store", url, "--limit", "2")
    assert ran.err == "3 records wait; the 2 that are due first:\n"
    assert ran.lines[0].split() == [
        "ORIGIN",
        "RETRY",
        "DUE",
        "REASON",
        "ERROR",
        "FIRST-FAILED",
        "WAITS-AT",
    ]
    assert "Temporary: customer 7 is not there" in ran.lines[1]


def test_what_waits_by_topic(kohort: Run, cluster: Cluster) -> None:
    """What the group has passed is left out, and so is what it has done beyond its commit."""
    retry_topic = "src.list.retry.1h"
    kohort("topic", "create", retry_topic, "-c", "message.timestamp.type=LogAppendTime")
    with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        for offset in range(6):
            headers = RetryHeaders(
                number=2,
                not_before_ms=FAR_MS - offset,
                origin=Origin("src", 3, offset, 1),
                group="list",
                delay_ms=3_600_000,
                first_failed_at_ms=1_000,
                last_failed_at_ms=2_000,
                disposition=Disposition.RETRYABLE,
                error_class="KeyError",
                error_message="'amuont'",
                fingerprint="f",
                reason="KeyError",
            ).encode()
            producer.send(retry_topic, b"v", headers=headers)
        producer.send(retry_topic, b"a stranger")
    with Consumer(bootstrap_servers=cluster.bootstrap, group_id="list") as consumer:
        done = encode(1, Snapshot(((2, 3),)))
        consumer.commit({TopicPartition(retry_topic, 0): OffsetAndMetadata(1, done)})
    ran = kohort("retry", "list", "--topic", "src", "--group", "list", "-o", "json")
    assert [row["offset"] for row in ran.json["rows"]] == [5, 4, 3, 1]
    assert ran.json["rows"][0]["due"] == "2096-10-02T07:06:39.995Z"
    assert ran.json["rows"][0]["retry_topic"] == retry_topic
    place = ran.json["rows"][0]["waits_at"]  # what `app retry-record` takes
    assert re.fullmatch(rf"{re.escape(retry_topic)}/\d+/\d+", place)
    ran = kohort("retry", "list", "--topic", "src", "--group", "list")
    assert ran.lines[1].endswith(place)
    assert ran.err == "4 records wait\n"
    assert "KeyError: 'amuont'" in ran.lines[1]
    ran = kohort("retry", "list", "--topic", "src", "--group", "nobody")
    assert ran.code == 1
    assert "there is no retry topic" in ran.err


def test_failures_by_the_ledger(bare: Run, url: str) -> None:
    """The newest row of a record counts; attempts include the first; first failure is kept."""
    found = bare("dlq", "list", "--store", url, "-o", "json").json
    assert (found["schema"], found["counted_by"]) == (1, "ledger")
    assert [(k["reason"], k["count"]) for k in found["kinds"]] == [
        ("unknown_airport", 2),
        ("customer_unknown", 1),
    ]
    assert [r["offset"] for r in found["rows"]] == [6, 5, 4]
    assert found["rows"][2] == {
        "topic": "in",
        "partition": 0,
        "offset": 4,
        "timestamp": "1970-01-01T00:00:00.500Z",
        "reason": "customer_unknown",
        "error_class": "Temporary",
        "message": "customer 7 is\nnot there",
        "fingerprint": "fcus",
        "disposition": "retryable",
        "attempts": 3,
        "redrives": 0,
        "first_failed": "1970-01-01T00:00:01.000Z",
        "failed": "1970-01-01T00:00:12.000Z",
        "copy": "in.g.retry.5m/0/4",
    }
    table = bare("dlq", "list", "--store", url).out
    assert table.startswith("3 failed (counted by ledger)\n")
    assert "customer 7 is not there" in table


def test_filters_and_limits(bare: Run, url: str) -> None:
    def offsets(*args: str) -> list[int]:
        found = bare("dlq", "list", "--store", url, "-o", "json", *args).json
        return [r["offset"] for r in found["rows"]]

    assert offsets("--reason", "unknown_airport") == [6, 5]
    assert offsets("--fingerprint", "fcus") == [4]
    assert offsets("--error-class", "Permanent") == []
    assert offsets("--origin", "in", "--limit", "1") == [6]
    assert offsets("--since", "1970-01-01T00:00:13Z") == [6, 5]
    limited = bare("dlq", "list", "--store", url, "--limit", "0").out
    assert limited.startswith("3 failed")
    plain = bare("dlq", "list", "--store", url, "-o", "csv", "--limit", "2").out
    assert [line[2] for line in csv.reader(io.StringIO(plain))] == ["offset", "6", "5"]


@pytest.mark.parametrize("text", ["straße müller", "STRASSE MÜLLER", "Müller", "ÉTÉ 9", "été 9"])
def test_search_ignores_case_beyond_ascii(bare: Run, tmp_path: Path, text: str) -> None:
    """SQLite's lower() knows ASCII only: a capital É in a message was not found by any text."""
    url = f"sqlite:///{tmp_path / 'store.db'}"
    kept = replace(row(1, Status.FAILED, 0), error_message="Straße MÜLLER, ÉTÉ 9, strasse müller")
    write(url, "loader", [kept])
    ran = bare("dlq", "list", "--store", url, "--search", text, "-o", "json")
    assert [r["offset"] for r in ran.json["rows"]] == [1]


def app_store(tmp_path: Path) -> str:
    """What an App with a store has made: progress, and a ledger as soon as a record failed."""
    url = f"sqlite:///{tmp_path / 'app.db'}"
    store = open_store(url)
    store.prepare()
    for topic in ("in", *RETRIES):
        store.take_over("billing", topic, "id", partition=0, now_ms=0)
    store.close()
    return url


def test_the_store_of_an_app(bare: Run, tmp_path: Path) -> None:
    """A healthy App has progress and no fence; it was unknown until a record had failed."""
    url = app_store(tmp_path)
    for name in (("--name", "billing"), ()):
        ran = bare("retry", "status", "--store", url, *name, "-o", "json")
        assert ran.code == 0, ran.err
        assert [row["retry_topic"] for row in ran.json["rows"]] == [RETRIES[1], RETRIES[2]]
    assert bare("dlq", "list", "--store", url, "--name", "billing").out.startswith("0 failed")
    ran = bare("dlq", "list", "--store", url, "--name", "biling")
    assert "did you mean 'billing'?" in ran.err


@pytest.mark.parametrize("command", [("retry", "list"), ("dlq", "show", "in/0/1")])
def test_a_ledger_that_is_missing_is_an_error_with_words(
    bare: Run, url: str, tmp_path: Path, command: tuple[str, ...]
) -> None:
    database = sqlite3.connect(tmp_path / "store.db")
    database.execute("ALTER TABLE kohort_ledger RENAME COLUMN reason TO why")
    database.commit()
    database.close()
    ran = bare(*command, "--store", url, "--name", "loader")
    assert ran.code == 1
    assert "cannot be read" in ran.err
    assert "Traceback" not in ran.err


def test_a_store_or_pipeline_that_is_not_there(bare: Run, url: str, tmp_path: Path) -> None:
    """Said, with what there is; and no database is made by looking for one."""
    ran = bare("retry", "status", "--store", url, "--name", "laoder")
    assert (ran.code, ran.out) == (2, "")
    assert "did you mean 'loader'? (there: loader)" in ran.err
    missing = tmp_path / "missing.db"
    ran = bare("dlq", "list", "--store", f"sqlite:///{missing}")
    assert (ran.code, ran.out) == (1, "")
    assert f"there is no database {missing}" in ran.err
    assert not missing.exists()
    text = tmp_path / "text.db"
    text.write_text("this is no database, whatever its name may say" * 100)
    ran = bare("dlq", "list", "--store", f"sqlite:///{text}")
    assert ran.code == 1
    assert "cannot be read" in ran.err
    ran = bare("retry", "status", "--store", "mysql://localhost/x")
    assert ran.code == 2
    assert "write sqlite:///FILE.db or postgresql://" in ran.err
    write(url, "second", [])
    ran = bare("retry", "status", "--store", url)
    assert ran.code == 2
    assert "choose one with --name: loader, second" in ran.err


@pytest.mark.parametrize(
    "args",
    [
        (),
        ("--topic", "a"),
        ("--store", "sqlite:///x.db", "--topic", "a", "--group", "g"),
        ("--name", "n"),
        ("--pipeline", "/no/such/file.py"),
    ],
)
def test_whose_failures_must_be_said(bare: Run, args: tuple[str, ...]) -> None:
    for command in (("retry", "status"), ("dlq", "list")):
        assert bare(*command, *args).code == 2


def failed_headers(offset: int, reason: str, at_ms: int) -> list[tuple[str, bytes | None]]:
    return RetryHeaders(
        number=2,
        not_before_ms=0,
        origin=Origin("in", 0, offset, 1),
        group="g",
        delay_ms=0,
        first_failed_at_ms=at_ms - 1,
        last_failed_at_ms=at_ms,
        disposition=Disposition.EXHAUSTED,
        error_class="Temporary",
        error_message="m",
        fingerprint="f",
        reason=reason,
    ).encode()


def test_failures_by_topic_are_marked(kohort: Run, cluster: Cluster) -> None:
    kohort("topic", "create", "in.g.dlt", "-p", "2")
    with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        for offset in range(5):
            reason = "late" if offset % 2 else "early"
            headers = failed_headers(offset, reason, 1_000 + offset)
            producer.send("in.g.dlt", b"v", partition=offset % 2, headers=headers)
        producer.send("in.g.dlt", b"a stranger")
    found = kohort("dlq", "list", "--topic", "in", "--group", "g", "-o", "json").json
    assert found["counted_by"] == "topic"
    assert [(k["reason"], k["count"]) for k in found["kinds"]] == [("early", 3), ("late", 2)]
    assert [r["offset"] for r in found["rows"]] == [4, 3, 2, 1, 0]
    assert found["rows"][0]["attempts"] == 3
    ran = kohort(
        "dlq",
        "list",
        "--topic",
        "in",
        "--group",
        "g",
        "--reason",
        "late",
        "--limit",
        "1",
        "-o",
        "jsonl",
    )
    assert len(ran.lines) == 1
    ran = kohort("dlq", "list", "--topic", "in", "--group", "other")
    assert ran.code == 1
    assert "in.other.dlt" in ran.err


def test_retry_topics_by_topic_are_marked(kohort: Run, cluster: Cluster) -> None:
    """Due by append time: of a retry topic of 1 ms all is due, of one of 1 h nothing is."""
    for delay in ("1ms", "1h", "2h"):
        kohort(
            "topic",
            "create",
            f"src.grp.retry.{delay}",
            "-c",
            "message.timestamp.type=LogAppendTime",
            "-p",
            "2",
        )
    for retry_topic in ("src.grp.retry.1ms", "src.grp.retry.1h"):
        kohort("produce", retry_topic, "-p", "0", stdin=b"a\nb\nc\n")
        kohort("produce", retry_topic, "-p", "1", stdin=b"d\n")
    ran = kohort("retry", "status", "--topic", "src", "--group", "grp", "-o", "json")
    rows = {r["delay"]: r for r in ran.json["rows"]}
    assert list(rows) == ["1ms", "1h", "2h"]
    assert {r["counted_by"] for r in rows.values()} == {"topic"}
    assert (rows["1h"]["waiting"], rows["1h"]["due_now"]) == (4, 0)
    assert rows["1h"]["next_due"] == rows["1h"]["oldest_due"] is not None
    assert (rows["2h"]["waiting"], rows["2h"]["oldest_due"]) == (0, None)
    assert rows["1ms"]["waiting"] == 4
    assert rows["1ms"]["oldest_due"] is not None
    ran = kohort("retry", "status", "--topic", "src", "--group", "nobody")
    assert ran.code == 1
    assert "there is no retry topic of topic 'src' and group 'nobody'" in ran.err


def test_search_and_show_by_topic(kohort: Run, cluster: Cluster) -> None:
    """Spec 5.6: a text in key, value or message; one record with every attempt that it had."""
    for name in ("shop.g.retry.5m", "shop.g.dlt"):
        kohort("topic", "create", name, "-p", "1")
    with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        for number, at_ms in ((1, 1_000), (2, 2_000)):
            copy = retry_headers("shop", 7, number, at_ms, Disposition.RETRYABLE, "no route")
            producer.send("shop.g.retry.5m", b"needle-1", b"k", headers=copy)
        last = retry_headers("shop", 7, 2, 3_000, Disposition.EXHAUSTED, "gave up")
        stack = b"Traceback\n  File x\x1b[2J\nValueError: odd"
        own = [("mine", b"x"), ("mine", b"y"), ("retry_error_stack", stack)]
        producer.send("shop.g.dlt", b"needle-1\x1b[31m", headers=[*own, *last])
        other = retry_headers("shop", 8, 2, 3_000, Disposition.EXHAUSTED, "Needle in words")
        producer.send("shop.g.dlt", b"hay", b"k2", headers=other)
    here = ("--topic", "shop", "--group", "g")
    for text, offsets in (("needle-1", [7]), ("needle IN", [8]), ("k2", [8]), ("%", [])):
        ran = kohort("dlq", "list", *here, "--search", text, "-o", "json")
        assert [row["offset"] for row in ran.json["rows"]] == offsets, text
    found = kohort("dlq", "show", "shop/0/7", *here, "-o", "json").json
    attempts = [(a["attempt"], a["outcome"], a["message"]) for a in found["attempts"]]
    assert attempts == [
        (0, "retryable", "no route"),
        (1, "retryable", "no route"),
        (2, "exhausted", "gave up"),
    ]
    assert found["copy"]["value"] == "needle-1\x1b[31m"
    assert found["copy"]["headers"][:2] == [
        {"name": "mine", "value": "x"},
        {"name": "mine", "value": "y"},
    ], "of headers with one name each is told"
    printed = kohort("dlq", "show", "shop/0/7", *here).out
    assert "gave up" in printed
    for line in (
        "current copy: shop.g.dlt/0/0",
        "key: null",
        r"value: needle-1\x1b[31m",
        "  mine: x",
        "  mine: y",
    ):
        assert f"\n{line}\n" in printed, "nothing of a record may drive the terminal"
    assert printed.endswith("stack:\n  Traceback\n    File x\\x1b[2J\n  ValueError: odd\n")
    ran = kohort("dlq", "show", "shop/0/9", *here)
    assert ran.code in (1, 2)
    assert "has not failed here" in ran.err


def retry_headers(
    topic: str, offset: int, number: int, at_ms: int, disposition: Disposition, message: str
) -> list[tuple[str, bytes | None]]:
    return RetryHeaders(
        number=number,
        not_before_ms=0,
        origin=Origin(topic, 0, offset, 1),
        group="g",
        delay_ms=0,
        first_failed_at_ms=1,
        last_failed_at_ms=at_ms,
        disposition=disposition,
        error_class="Temporary",
        error_message=message,
        fingerprint="f",
        reason="down",
    ).encode()


def test_search_and_show_by_the_ledger(bare: Run, url: str) -> None:
    """The ledger's rows are the attempts; a text means itself."""
    whole = bare("dlq", "list", "--store", url, "--name", "loader", "-o", "json").json["rows"]
    first = whole[0]
    args = ("--store", url, "--name", "loader")
    ran = bare("dlq", "list", *args, "--search", first["reason"].upper(), "-o", "json")
    assert first in ran.json["rows"]
    assert not bare("dlq", "list", *args, "--search", "%_%", "-o", "json").json["rows"]
    place = f"{first['topic']}/{first['partition']}/{first['offset']}"
    shown = bare("dlq", "show", place, *args, "-o", "json").json["attempts"]
    assert shown[-1]["outcome"] == "failed"
    assert shown[-1]["reason"] == first["reason"]
