"""Handlers with several threads: order by key, outcomes by record (issue 17, spec 6.6)."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kohort.errors import ConfigError, StorageError
from kohort.records import Record as Fetched
from kohort.retry.classify import Failure, Permanent
from kohort.retry.handling import Handlers, HandlerSpec, Lookup, Outcome, Record
from kohort.retry.sql_statements import Insert
from kohort.retry.stores import open_store
from kohort.spark import Pipeline
from tests.patience import PATIENCE_S

Keys = Sequence[bytes | None]


def records(keys: Keys) -> list[Fetched]:
    return [
        Fetched("t", 0, n, timestamp=1, key=key, value=b"%d" % n, headers=(), timestamp_type=0)
        for n, key in enumerate(keys)
    ]


def outcomes(function: Any, keys: Keys, threads: int, store: Any = None) -> list[Outcome]:
    spec = HandlerSpec("t", function, table="rows", threads=threads)
    return Handlers([spec])("t", records(keys), store)


def test_records_of_different_keys_are_handled_at_once() -> None:
    """Each waits for the others: one after another they would never meet."""
    meeting = threading.Barrier(4, timeout=PATIENCE_S)
    by_lane: dict[int, bytes] = {}
    for n in range(1_000):  # hashes of bytes differ by process
        by_lane.setdefault(hash(b"%d" % n) % 4, b"%d" % n)

    def handle(record: Record, store: Lookup) -> dict[str, int]:
        meeting.wait()
        return {"n": record.data}

    found = outcomes(handle, list(by_lane.values()), threads=4)
    assert found == [(Insert("rows", {"n": n}),) for n in range(4)]


@given(st.lists(st.sampled_from([None, b"a", b"b", b"c", b"d"]), max_size=30), st.integers(2, 5))
def test_those_of_one_key_stay_in_order_and_outcomes_in_place(keys: Keys, threads: int) -> None:
    handled: dict[bytes, list[int]] = defaultdict(list)

    def handle(record: Record, store: Lookup) -> dict[str, int]:
        if record.key is not None:
            handled[record.key].append(record.offset)
        if record.data % 3 == 0:
            raise Permanent("a third")
        return {"n": record.data}

    found = outcomes(handle, keys, threads)
    assert all(offsets == sorted(offsets) for offsets in handled.values())
    assert [isinstance(f, Failure) or f for f in found] == [
        n % 3 == 0 or (Insert("rows", {"n": n}),) for n in range(len(keys))
    ]


def test_they_look_things_up_in_one_store_and_its_errors_are_not_the_records(
    tmp_path: Path,
) -> None:
    store = open_store(f"sqlite:///{tmp_path / 'a.db'}")
    store.prepare()

    def count(record: Record, asked: Lookup) -> dict[str, int]:
        row = asked.one("SELECT ?", (record.data,))
        assert row is not None
        return {"n": row[0]}

    keys = [b"%d" % n for n in range(50)]
    assert outcomes(count, keys, 8, store) == [(Insert("rows", {"n": n}),) for n in range(50)]
    with pytest.raises(StorageError, match="no such table"):
        outcomes(lambda _, asked: asked.one("SELECT 1 FROM nowhere"), keys, 8, store)
    store.close()


@pytest.mark.parametrize("threads", [0, 257])
def test_a_number_of_threads_that_cannot_be_is_refused(tmp_path: Path, threads: int) -> None:
    pipeline = Pipeline("p", store=f"sqlite:///{tmp_path / 'a.db'}")
    with pytest.raises(ConfigError, match=f"threads={threads}"):
        pipeline.handler("t", threads=threads)
