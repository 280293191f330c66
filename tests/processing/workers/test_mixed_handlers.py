"""One app, handlers of every kind: a worker's list has records for several of them (spec 4.12)."""

from __future__ import annotations

import pytest

from kohort import Producer
from kohort.processing.engine.engine import NOT_BEGUN
from kohort.processing.workers.handlers import HandlerSpec, Invoker, Kind, Received
from kohort.processing.workers.process_worker import Parcel, _item
from kohort.records import Record
from kohort.retry import Temporary
from tests.known import known
from tests.processing.test_exact import wait_for


def item(
    topic: str,
    number: int,
    key: bytes = b"k",
    *,
    stops_lane: bool = True,
    value: bytes | None = None,
):
    record = Record(topic, 0, number, timestamp=0, key=key, value=value or b"%d" % number)
    return _item(Parcel(record, None, (topic, key), topic, stops_lane, topic))


def test_each_record_comes_to_the_handler_of_its_topic() -> None:
    """Whatever kind the first of the list is of."""
    calls: list[tuple] = []

    def single(record) -> None:
        assert isinstance(record, Received)
        calls.append(("single", int(known(record.value))))
        if record.value == b"4":
            raise Temporary("down")

    def batch(records) -> None:
        calls.append(("batch", *(int(r.value) for r in records)))
        for index, record in enumerate(records):
            if record.value == b"2":
                records.retry(index, "down")

    invoker = Invoker(
        {
            "single": HandlerSpec("single", single),
            "batch": HandlerSpec("batch", batch, Kind.BATCH),
        }
    )
    topics = ["batch", "batch", "batch", "single", "single", "batch", "single", "batch"]
    keys = [b"k", b"k", b"l", b"k", b"k", b"l", b"k", b"k"]
    items = [item(t, n, key) for n, (t, key) in enumerate(zip(topics, keys, strict=True))]
    outcomes = invoker.run(items)
    assert calls == [("batch", 0, 1, 2), ("single", 3), ("single", 4), ("batch", 7)]
    assert outcomes is not None
    assert [o is None for o in outcomes] == [True, True, False, True, False, False, False, True]
    assert [i for i, o in enumerate(outcomes) if o is NOT_BEGUN] == [5, 6], "behind what failed"
    calls.clear()
    assert invoker.run(items[3:4] + items[:2]) is None
    assert calls == [("single", 3), ("batch", 0, 1)]


def batches_of(max_batch: int, bad: bytes, calls: list[tuple[int, ...]], *, marks: bool) -> Invoker:
    """A batch handler that notes its calls; `bad` is marked for a retry, or raises."""

    def batch(records) -> None:
        calls.append(tuple(int(record.value) for record in records))
        for index, record in enumerate(records):
            if record.value == bad:
                if not marks:
                    raise Temporary("down")
                records.retry(index, "down")

    return Invoker({"batch": HandlerSpec("batch", batch, Kind.BATCH, max_batch=max_batch)})


def test_later_calls_do_not_begin_what_is_behind_a_failed_record() -> None:
    """W4: with hold_key, blocking or stop_partition the second call would overtake the first."""
    calls: list[tuple[int, ...]] = []
    items = [item("batch", n, b"l" if n == 3 else b"k") for n in range(5)]
    outcomes = batches_of(2, b"0", calls, marks=True).run(items)
    assert calls == [(0, 1), (3,)]
    assert outcomes is not None
    assert [i for i, o in enumerate(outcomes) if o is NOT_BEGUN] == [2, 4]
    assert outcomes[1] is None, "it was in the same call, and is done"


def test_the_second_half_does_not_begin_what_is_behind_a_failed_record() -> None:
    """W4: a call that raised is made again in halves, which are calls of their own."""
    calls: list[tuple[int, ...]] = []
    items = [item("batch", n, b"l" if n == 3 else b"k") for n in range(4)]
    outcomes = batches_of(9, b"0", calls, marks=False).run(items)
    assert calls == [(0, 1, 2, 3), (0, 1), (0,), (3,)]
    assert outcomes is not None
    assert [i for i, o in enumerate(outcomes) if o is NOT_BEGUN] == [1, 2]
    assert outcomes[3] is None


def test_what_does_not_decode_holds_back_its_lane_as_any_failure() -> None:
    """W4: in order, and no record before it is held back."""
    calls: list[tuple[object, ...]] = []
    spec = HandlerSpec("batch", lambda records: calls.append(tuple(records.data)), Kind.BATCH, int)
    bad = item("batch", 1, value=b"not a number")
    items = [item("batch", 0), bad, item("batch", 2), item("batch", 3, b"l")]
    outcomes = Invoker({"batch": spec}).run(items)
    assert calls == [(0, 3)]
    assert outcomes is not None
    assert [o is None for o in outcomes] == [True, False, False, True]
    assert outcomes[2] is NOT_BEGUN


@pytest.mark.rows(1)
@pytest.mark.parametrize("workers", ["threads", "processes"])
def test_an_app_of_every_kind(cluster, topic, app, start, workers) -> None:
    pytest.importorskip("pyarrow")
    names = [f"{topic}-{kind}" for kind in ("single", "batch", "arrow")]
    for name in names:
        cluster.create_topic(name, partitions=3)
    with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        for n in range(300):
            for name in names:
                producer.send(name, b"%d" % n, b"k%d" % (n % 20))
    program = app(threads=2, processes=2)
    program.handler(names[0], workers=workers)(a_record)
    program.handler(names[1], workers=workers, batch=True)(a_batch)
    program.handler(names[2], workers=workers, arrow=True)(an_arrow_batch)
    start(program)

    def ended() -> bool:
        counts = program.counts()
        assert not counts.get("failures"), counts
        return counts.get("succeeded", 0) == 900

    wait_for(ended, "all of them")


def a_record(record) -> None:
    assert 0 <= int(record.value) < 300


def a_batch(records) -> None:
    assert all(0 <= int(r.value) < 300 for r in records)


def an_arrow_batch(records) -> None:
    assert all(0 <= int(value) < 300 for value in records.column("value").to_pylist())
