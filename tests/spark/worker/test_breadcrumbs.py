"""Records that kill their process (spec 6.5), with real processes that die, without Spark."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kohort.records import Record
from kohort.retry.classify import Disposition, Failure
from kohort.retry.copies import Attempt
from kohort.retry.handling import Batch, HandlerSpec, Outcome
from kohort.retry.headers import Origin
from kohort.retry.store import Store
from kohort.retry.stores import open_store
from kohort.spark.worker.breadcrumbs import GuardedHandlers

# Python 3.12 and later warn of forks beside threads; the tests fork on purpose.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(f"sqlite:///{tmp_path / 'db.sqlite'}")


def records(low: int, high: int) -> list[Record]:
    return [Record("in", 3, offset, value=b"%d" % offset) for offset in range(low, high)]


def attempts(low: int, high: int) -> list[Attempt]:
    return [
        Attempt(Origin("first", 0, 100 - n, 0), 1, ("in", 3, n), None, b"%d" % n, ())
        for n in range(low, high)
    ]


def dies_at(*bad: int, by: Callable[[], object]) -> Callable[[Any, Any], Any]:
    """A handler that ends its process at these values."""

    def handle(record: Any, _store: Any) -> dict[str, int]:
        if record.data in bad:
            by()
        return {"n": record.data}

    return handle


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def life(directory: Path, spec: HandlerSpec, items: Any, store: Store) -> int:
    """A worker that handles these records; how it ended: 0, or its signal or exit code."""
    child = os.fork()
    if child == 0:
        try:
            handlers = GuardedHandlers("p", [spec], directory)
            handlers("in", items, store)
            handlers.close()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def outcomes(directory: Path, spec: HandlerSpec, items: Any, store: Store) -> list[Outcome]:
    handlers = GuardedHandlers("p", [spec], directory)
    found = handlers("in", items, store)
    handlers.close()
    return found


@pytest.mark.parametrize(
    ("by", "code", "text"),
    [
        (kill, -signal.SIGKILL, r"signal 9 \(SIGKILL\), with \d+ MiB"),
        (lambda: os._exit(5), 5, "exit code 5"),
        (lambda: os._exit(0), 0, "exit code 0"),
    ],
    ids=["kill", "exit 5", "exit 0"],
)
@pytest.mark.parametrize("items", [records, attempts], ids=["records", "attempts"])
def test_a_record_that_kills_its_worker_fails_and_its_neighbours_are_handled(
    tmp_path: Path,
    store: Store,
    items: Callable[[int, int], Any],
    by: Callable[[], object],
    code: int,
    text: str,
) -> None:
    spec = HandlerSpec("in", dies_at(14, by=by), table="t")
    assert life(tmp_path / "crumbs", spec, items(10, 20), store) == code
    found = outcomes(tmp_path / "crumbs", spec, items(10, 20), store)
    failure = found.pop(4)
    assert isinstance(failure, Failure)
    assert failure.reason == "worker_killed"
    assert failure.permanent
    assert failure.disposition is Disposition.CRASH
    assert "died 3 times" in failure.message
    assert re.search(text, failure.message)
    assert len(found) == 9
    assert not any(isinstance(outcome, Failure) for outcome in found)
    assert list((tmp_path / "crumbs").iterdir()) == []


def test_a_worker_that_was_killed_for_another_reason_costs_no_record(
    tmp_path: Path, store: Store
) -> None:
    """The out-of-memory killer, a cancelled task: a crumb is a suspicion and no verdict."""
    killer = HandlerSpec("in", dies_at(14, by=kill), table="t")
    assert life(tmp_path, killer, records(10, 20), store) == -signal.SIGKILL
    healthy = HandlerSpec("in", dies_at(by=kill), table="t")
    found = outcomes(tmp_path, healthy, records(10, 20), store)
    assert not any(isinstance(outcome, Failure) for outcome in found)


def test_of_a_batch_those_records_fail_that_kill_alone(tmp_path: Path, store: Store) -> None:
    def handle(batch: Batch, _store: Any) -> None:
        for index, record in enumerate(batch.records):
            if record.data in (13, 17):
                kill()
            batch.load(index, {"n": record.data})

    spec = HandlerSpec("in", handle, batch=True, table="t")
    assert life(tmp_path, spec, records(10, 20), store) == -signal.SIGKILL
    found = outcomes(tmp_path, spec, records(10, 20), store)
    assert [i for i, o in enumerate(found) if isinstance(o, Failure)] == [3, 7]


def test_a_decoder_that_kills_its_worker(tmp_path: Path, store: Store) -> None:
    def decode(value: bytes) -> int:
        if value == b"15":
            kill()
        return int(value)

    spec = HandlerSpec("in", dies_at(by=kill), table="t", decode=decode)
    assert life(tmp_path, spec, records(10, 20), store) == -signal.SIGKILL
    found = outcomes(tmp_path, spec, records(10, 20), store)
    assert [i for i, o in enumerate(found) if isinstance(o, Failure)] == [5]


def test_marks_name_the_offset_when_some_values_do_not_decode(tmp_path: Path, store: Store) -> None:
    spec = HandlerSpec("in", dies_at(14, by=kill), table="t")
    items = records(10, 20)
    items[1] = Record("in", 3, 11, value=b"{no json")
    assert life(tmp_path, spec, items, store) == -signal.SIGKILL
    handlers = GuardedHandlers("p", [spec], tmp_path)
    assert handlers._crumb(("in", 3)).left == (14, 15)
    found = handlers("in", items, store)
    failed = {i: o.reason for i, o in enumerate(found) if isinstance(o, Failure)}
    assert failed == {1: "undecodable", 4: "worker_killed"}
