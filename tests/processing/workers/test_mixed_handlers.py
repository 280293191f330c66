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


def item(topic: str, number: int, key: bytes = b"k", *, stops_lane: bool = True):
    record = Record(topic, 0, number, timestamp=0, key=key, value=b"%d" % number)
    return _item(Parcel(record, None, (topic, key), topic, stops_lane, topic))


def test_each_record_comes_to_the_handler_of_its_topic() -> None:
    """Whatever kind the first of the list is of."""
    given: list[tuple] = []

    def single(record) -> None:
        assert isinstance(record, Received)
        given.append(("single", int(known(record.value))))
        if record.value == b"4":
            raise Temporary("down")

    def batch(records) -> None:
        given.append(("batch", *(int(r.value) for r in records)))
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
    assert given == [("batch", 0, 1, 2), ("single", 3), ("single", 4), ("batch", 7)]
    assert outcomes is not None
    assert [o is None for o in outcomes] == [True, True, False, True, False, False, False, True]
    assert [i for i, o in enumerate(outcomes) if o is NOT_BEGUN] == [5, 6], "behind what failed"
    given.clear()
    assert invoker.run(items[3:4] + items[:2]) is None
    assert given == [("single", 3), ("batch", 0, 1)]


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
