"""What of the dead-letter topic still counts once records were sent back (spec 5.6, 6.3)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kohort.records import Record
from kohort.retry import dead_letters
from kohort.retry.classify import Disposition
from kohort.retry.dead_letters import FailedCopies
from kohort.retry.headers import Origin, RetryHeaders
from kohort.retry.policy import RetryPolicy, RetryTopics
from kohort.retry.sql_statements import Insert, statements
from kohort.retry.store import ROW_COLUMNS, Store
from kohort.retry.stores import open_store
from kohort.spark import progress

TOPICS = RetryTopics("sales", "loader", RetryPolicy.parse("1s"))


def row(number: int, redrive: int, status: str, copy: int | None) -> dict[str, Any]:
    """A ledger row of the record sales/0/`number`; `copy`: its offset in the DLT."""
    dest = None if copy is None else TOPICS.dead_letter
    known = {
        "retry_id": f"sales/0/{number}",
        "redrive_count": redrive,
        "retry_number": 0,
        "status": status,
        "origin_topic": "sales",
        "origin_partition": 0,
        "origin_offset": number,
        "origin_timestamp": 0,
        "dest": dest,
        "copy_partition": None if copy is None else 0,
        "copy_offset": copy,
        "disposition": "fatal",
        "reason": "bad",
        "error_class": "",
        "error_message": "",
        "fingerprint": "",
        "created_at": redrive,
    }
    return {"pipeline": "p", **{name: known.get(name) for name in ROW_COLUMNS}}


def copy(number: int, redrive: int, offset: int) -> Record:
    retry = RetryHeaders(
        0,
        0,
        Origin("sales", 0, number, 0),
        "loader",
        0,
        0,
        0,
        Disposition.FATAL,
        reason="bad",
        redrive_count=redrive,
    )
    return Record(TOPICS.dead_letter, 0, offset, value=b"", headers=retry.encode())


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = open_store(f"sqlite:///{tmp_path}/l.db")
    made.prepare()
    return made


def test_what_was_sent_back_counts_by_its_last_round(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Record 1 failed; 2 was redriven and is done; 3 was redriven and has failed again."""
    rows = [
        row(1, 0, "failed", 0),
        row(2, 0, "failed", 1),
        row(2, 1, "done", None),
        row(3, 0, "failed", 2),
        row(3, 1, "failed", 3),
    ]
    store.execute(statements(Insert("kohort_ledger", each) for each in rows))
    copies = [copy(1, 0, 0), copy(2, 0, 1), copy(3, 0, 2), copy(3, 1, 3)]
    monkeypatch.setattr(dead_letters, "pages_to_end", lambda *_: iter([copies]))
    client = {"bootstrap_servers": "localhost:1"}
    found = list(FailedCopies("p", TOPICS, store, client, 1).read(inert=True))
    assert [each.place.offset for each in found if each.backed] == [0, 3]
    assert progress._counts(store, "p")["failed"] == 2
    store.close()
