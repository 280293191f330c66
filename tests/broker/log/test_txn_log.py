"""Transactions in the log: what is stable, the index of aborted ones, recovery, compaction."""

from __future__ import annotations

import errno
import os
import random
from typing import NamedTuple, NoReturn

import pytest

from kohort.broker.base.config import BrokerConfig
from kohort.broker.log import producers as producers_module
from kohort.broker.log.cleaner import clean
from kohort.broker.log.files import MemoryFile, MemoryFiles
from kohort.broker.log.loading import Opening, open_log
from kohort.broker.log.log import PartitionLog
from kohort.broker.log.producers import Producers
from kohort.broker.log.topic_config import TopicConfig
from kohort.broker.log.txn_index import (
    AbortedTransaction,
    Marker,
    decode_aborted,
    encode_aborted,
    marker_batch,
    marker_of,
)
from kohort.broker.state.leadership import Led
from kohort.broker.state.partition import Partition
from kohort.errors import BrokerError, ErrorCode
from kohort.records import BatchHeader, Chunk
from tests.broker.harness import WALL_MS, batch_of

BROKER = BrokerConfig(durability="memory")
LATER_MS = WALL_MS + 10**9 + 1_000
COMMIT, ABORT = Marker(True, 0), Marker(False, 0)


class Row(NamedTuple):
    """A record of the model; `state`: "plain", "open", "committed" or "aborted"."""

    offset: int
    key: bytes
    value: bytes
    producer_id: int
    state: str


class World:
    """A log, and what should be in it."""

    def __init__(self, seed: int, **config: str) -> None:
        self.chance = random.Random(seed)
        self.files = MemoryFiles()
        self.files.make_dir("t-0")
        config = {"segment.bytes": "700", "index.interval.bytes": "100", **config}
        self.config = TopicConfig.of(BROKER, config)
        self.rows: list[Row] = []
        self.open: dict[int, int] = {}
        self.sequences: dict[int, int] = {}
        self.values = 0
        self.log = self.opened(clean=True)

    def opened(
        self, *, clean: bool, durable: bool = False, recovery_point: int = 0
    ) -> PartitionLog:
        opening = Opening("t-0", self.config, durable, clean, recovery_point, now_ms=WALL_MS)
        return open_log(self.files, opening)[0]

    def append(self, batch: memoryview, marker: Marker | None = None) -> int:
        appended = self.log.append(batch, BatchHeader(batch), WALL_MS, marker)
        self.log.advance(appended.mark)
        return appended.base_offset

    def write(self, producer_id: int = -1) -> None:
        count = self.chance.randrange(1, 4)
        values = [b"%d" % (self.values + i) for i in range(count)]
        keys: list[bytes | None] = [b"k%d" % self.chance.randrange(6) for _ in values]
        self.values += count
        stamp = {}
        if producer_id >= 0:
            first = self.sequences.get(producer_id, 0)
            self.sequences[producer_id] = first + count
            stamp = {
                "producer_id": producer_id,
                "producer_epoch": 0,
                "base_sequence": first,
                "transactional": True,
            }
        base = self.append(memoryview(batch_of(values, keys=keys, **stamp)))
        state = "plain" if producer_id < 0 else "open"
        if producer_id >= 0:
            self.open.setdefault(producer_id, base)
        for at, (key, value) in enumerate(zip(keys, values, strict=True)):
            self.rows.append(Row(base + at, key or b"", value, producer_id, state))

    def end(self, producer_id: int, marker: Marker) -> None:
        self.append(marker_batch(producer_id, 0, marker, WALL_MS), marker)
        self.open.pop(producer_id, None)
        state = "committed" if marker.committed else "aborted"
        self.rows = [
            row._replace(state=state)
            if row.producer_id == producer_id and row.state == "open"
            else row
            for row in self.rows
        ]

    def restart(self) -> None:
        clean = self.chance.random() < 0.5
        self.log.close(clean=clean)
        self.log = self.opened(clean=clean)

    def step(self) -> None:
        what = self.chance.random()
        if what < 0.25:
            self.write()
        elif what < 0.65:
            self.write(self.chance.randrange(5))
        elif what < 0.95 and self.open:
            self.end(self.chance.choice(list(self.open)), self.chance.choice([COMMIT, ABORT]))
        elif what < 0.97:
            self.end(self.chance.randrange(5, 8), self.chance.choice([COMMIT, ABORT]))
        else:
            self.restart()

    @property
    def stable(self) -> int:
        return min([*self.open.values(), self.log.end.offset])

    def visible(self, start: int = 0) -> list[Row]:
        return [
            row
            for row in self.rows
            if start <= row.offset < self.stable and row.state in ("plain", "committed")
        ]


def read(log: PartitionLog, start: int = 0, max_bytes: int = 300) -> list[tuple[int, bytes]]:
    """What a READ_COMMITTED consumer sees, fetch by fetch."""
    led = Led(0, 0, (0,))
    partition = Partition(None, 0, led)  # type: ignore[arg-type]  # its topic is not asked for
    partition.log = log
    found: list[tuple[int, bytes]] = []
    offset = start
    while (span := log.locate(offset, max_bytes, log.stable)) is not None:
        data = b"".join(bytes(v) for v in span.views())
        aborted = [(entry[0], entry[1]) for entry in partition.aborted(span, offset)]
        assert aborted == sorted(aborted, key=lambda entry: entry[1])
        chunk = Chunk("t", 0, data, offset, aborted=aborted)
        while not chunk.exhausted:
            found += [(r.offset, r.value or b"") for r in chunk.next_records(100)]
        assert chunk.position > offset
        offset = chunk.position
    return found


@pytest.mark.rows(6)
@pytest.mark.parametrize("seed", range(25))
def test_what_is_committed_is_read_and_nothing_else(seed: int) -> None:
    """F2 at every moment, from every offset, over rolls, restarts and crashes."""
    world = World(seed)
    for _ in range(120):
        world.step()
        assert world.log.stable.offset == world.stable
        start = world.chance.randrange(world.log.end.offset + 1)
        wanted = [(row.offset, row.value) for row in world.visible(start)]
        assert read(world.log, start) == wanted


@pytest.mark.rows(6)
@pytest.mark.parametrize("seed", range(25))
def test_compaction_keeps_the_last_committed_record_of_each_key(seed: int) -> None:
    """Aborted records go and never count; what is open, and what is behind it, is left alone."""
    world = World(seed, **{"cleanup.policy": "compact"})
    for round_ in range(6):
        for _ in range(25):
            world.step()
        when_ms = WALL_MS + (round_ % 2) * 10**9  # the second time, old markers may go
        for _ in clean(world.files, world.log, when_ms, durable=False):
            pass
        if round_ % 3 == 2:
            world.restart()
        assert world.log.stable.offset == world.stable
        latest = {row.key: row.value for row in world.visible()}
        assert by_key(world) == latest
    for producer_id in list(world.open):
        world.end(producer_id, world.chance.choice([COMMIT, ABORT]))
    world.restart()
    assert world.log.stable.offset == world.log.end.offset
    assert by_key(world) == {row.key: row.value for row in world.visible()}


def by_key(world: World) -> dict[bytes, bytes]:
    values = {row.value: row.key for row in world.rows}
    return {values[value]: value for _, value in read(world.log)}


def test_old_markers_go_with_their_records() -> None:
    """Else a topic of offsets, each committed in a transaction, would grow for ever."""
    world = World(0, **{"cleanup.policy": "compact"})
    for n in range(60):
        world.write(n % 3)
        world.end(n % 3, COMMIT if n % 2 else ABORT)
    before = sum(1 for header, _ in world.log.batches() if header.is_control)
    for when_ms in (WALL_MS, WALL_MS + 10**9):
        for _ in clean(world.files, world.log, when_ms, durable=False):
            pass
    after = sum(1 for header, _ in world.log.batches() if header.is_control)
    assert before == 60
    assert after < 25
    world.log.close(clean=False)
    world.log = world.opened(clean=False)
    assert world.log.stable.offset == world.log.end.offset


def test_a_damaged_index_is_built_again() -> None:
    """L6: `.txnindex` is Kafka's format, and is not believed when its checksum does not match."""
    world = with_damaged_indexes()
    assert read(world.log) == [(row.offset, row.value) for row in world.visible()]


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EROFS], ids=errno.errorcode.get)
def test_a_damaged_index_is_built_again_where_nothing_can_be_written(
    error: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk took a partition offline that could be read (seed 78002142)."""
    world = with_damaged_indexes()

    def refuse(*args: object) -> NoReturn:
        raise OSError(error, os.strerror(error))

    with monkeypatch.context() as full_disk:
        full_disk.setattr(MemoryFile, "append", refuse)
        full_disk.setattr(MemoryFiles, "rename", refuse)
        assert read(world.log) == [(row.offset, row.value) for row in world.visible()]
        for segment in world.log.segments[:-1]:
            segment.index.forget()  # as when the indexes of other logs need the memory
        assert read(world.log) == [(row.offset, row.value) for row in world.visible()]
    assert read(world.log) == [(row.offset, row.value) for row in world.visible()]
    world.log = world.opened(clean=True)
    assert read(world.log) == [(row.offset, row.value) for row in world.visible()]


def test_a_log_is_opened_after_a_crash_on_a_full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker must start, so that space can be freed. The indexes are stored once there is
    room; until then a start after another crash reads the log again, or it would show what was
    aborted."""
    world = with_aborted_transactions()
    expected = [(row.offset, row.value) for row in world.visible()]
    world.log.close(clean=False)
    for name in world.files.list("t-0"):
        if "index" in name:  # a power cut took what was not durable
            world.files.remove(f"t-0/{name}")
    point = 0
    with monkeypatch.context() as full_disk:
        full_disk.setattr(MemoryFile, "append", _no_room)
        for _ in range(2):
            world.log = world.opened(clean=False, durable=True, recovery_point=point)
            assert read(world.log) == expected
            point = world.log.recovery_point
            assert point == 0
            for segment in world.log.segments[:-1]:
                segment.index.forget()
            with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
                world.log.write_missing_indexes()
    world.log.write_missing_indexes()
    point = world.log.recovery_point
    assert point == world.log.end.offset
    world.log.close(clean=False)
    world.log = world.opened(clean=False, durable=True, recovery_point=point)
    assert read(world.log) == expected


def test_a_clean_close_stores_the_indexes_that_found_no_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = with_aborted_transactions()
    expected = [(row.offset, row.value) for row in world.visible()]
    world.log.close(clean=False)
    for name in world.files.list("t-0"):
        if "index" in name:
            world.files.remove(f"t-0/{name}")
    with monkeypatch.context() as full_disk:
        full_disk.setattr(MemoryFile, "append", _no_room)
        world.log = world.opened(clean=False)
    world.log.close(clean=True)
    world.log = world.opened(clean=True)
    assert read(world.log) == expected


def _no_room(*args: object) -> NoReturn:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def with_aborted_transactions() -> World:
    """A world of many segments, with an aborted transaction in most."""
    world = World(3)
    for _ in range(80):
        world.write(1)
        world.end(1, world.chance.choice([COMMIT, ABORT]))
    return world


def with_damaged_indexes() -> World:
    """A world whose log was closed in order; then somebody wrote to its indexes."""
    world = with_aborted_transactions()
    world.log.close(clean=True)
    names = [n for n in world.files.list("t-0") if n.endswith(".txnindex")]
    assert len(names) > 3
    for name in names[:3]:
        data = world.files.read_all(f"t-0/{name}")
        assert data is not None
        entries = decode_aborted(data)
        assert encode_aborted(entries) == data
        world.files.remove(f"t-0/{name}")
        file = world.files.open(f"t-0/{name}", create=True)
        file.append([encode_aborted([AbortedTransaction(9, 0, 10**9, 10**9)])])
    world.log = world.opened(clean=True)
    return world


def test_retention_stops_at_an_open_transaction() -> None:
    world = World(0, **{"retention.bytes": "1"})
    world.write(1)
    for _ in range(40):
        world.write()
    assert world.log.apply_retention(WALL_MS) == 0
    world.end(1, COMMIT)
    assert world.log.apply_retention(WALL_MS) > 3


def test_records_deleted_below_an_open_transaction() -> None:
    """DeleteRecords may go beyond its first record: then what is stable begins with the log."""
    world = World(0)
    world.write(1)
    for _ in range(40):
        world.write()
    world.log.delete_before(30)
    assert world.log.stable.offset == 30
    assert world.log.locate(30, 100, world.log.stable) is None


def test_a_marker_counts_when_it_is_durable() -> None:
    """What is stable never moves beyond the high watermark, and never falls (L8)."""
    world = World(0)
    world.write(1)
    batch = marker_batch(1, 0, COMMIT, WALL_MS)
    appended = world.log.append(batch, BatchHeader(batch), WALL_MS, COMMIT)
    assert world.log.stable.offset == 0
    world.log.advance(appended.mark)
    assert world.log.stable.offset == appended.last_offset + 1


@pytest.mark.parametrize("clean", [True, False])
def test_producers_over_a_restart(clean: bool) -> None:
    """L4, B59: sequences, epochs, open transactions and coordinator epochs are known again."""
    world = World(0)
    world.write(1)
    world.end(1, Marker(True, 7))
    world.write(1)
    world.write(2)
    before = world.log.producers.encode()
    world.log.close(clean=clean)
    world.log = world.opened(clean=clean)
    assert world.log.producers.encode() == before
    stale = marker_batch(1, 0, Marker(True, 6), WALL_MS)
    with pytest.raises(BrokerError) as refused:
        world.log.append(stale, BatchHeader(stale), WALL_MS, Marker(True, 6))
    assert refused.value.code == ErrorCode.TRANSACTION_COORDINATOR_FENCED


def test_a_producer_whose_transaction_is_open_is_not_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(producers_module, "MAX_PRODUCERS", 3)
    producers = Producers()
    for producer_id in range(8):
        batch = batch_of(
            [b"x"],
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=0,
            transactional=producer_id in (0, 2),
        )
        producers.note(BatchHeader(batch), producer_id, WALL_MS)
    assert {i for i, _ in producers.items()} == {0, 2, 7}
    producers.expire(WALL_MS + 1)
    assert {i for i, _ in producers.items()} == {0, 2}
    assert producers.first_open == 0


def test_a_transaction_that_goes_on_under_another_epoch() -> None:
    """Its first record stays its first record."""
    producers = Producers()
    for epoch in (0, 1):
        batch = batch_of(
            [b"x"], producer_id=1, producer_epoch=epoch, base_sequence=0, transactional=True
        )
        producers.note(BatchHeader(batch), epoch + 5, WALL_MS)
    assert producers.first_open == 5
    ((_, known),) = producers.items()
    assert known.first_offset == 5


def test_a_coordinator_stays_fenced_under_another_epoch_of_its_producer() -> None:
    """KIP-98: a marker from before a failover, after the producer has begun anew."""
    world = World(0)
    world.write(1)
    world.end(1, Marker(True, 7))
    batch = batch_of([b"x"], producer_id=1, producer_epoch=1, base_sequence=0, transactional=True)
    world.append(memoryview(bytearray(batch)))
    stale = marker_batch(1, 1, Marker(True, 6), WALL_MS)
    with pytest.raises(BrokerError) as refused:
        world.append(stale, Marker(True, 6))
    assert refused.value.code == ErrorCode.TRANSACTION_COORDINATOR_FENCED


def test_those_who_are_held_back_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits on everything that grows: the one that was refused longest ago goes first."""
    monkeypatch.setattr(producers_module, "MAX_HELD_BACK", 3)
    producers = Producers()
    for producer_id in range(5):
        held = batch_of([b"x"], producer_id=producer_id, producer_epoch=0, base_sequence=0)
        producers.hold_back(BatchHeader(held))
    behind = [
        BatchHeader(batch_of([b"x"], producer_id=i, producer_epoch=0, base_sequence=1))
        for i in range(5)
    ]
    late = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert [producers.check(batch) for batch in behind] == [None, None, late, late, late]


def test_a_marker_stays_for_a_time_when_its_records_are_gone() -> None:
    """`delete.retention.ms`, after the pass that took the records: who reads behind it sees that
    the transaction ended.
    """
    world = World(0, **{"cleanup.policy": "compact", "delete.retention.ms": "1000"})
    for n in range(40):
        world.write(n % 3)
        world.end(n % 3, ABORT)
    written = [marker_of(batch) for header, batch in world.log.batches() if header.is_control]
    for when_ms, some in ((WALL_MS + 10**9, 30), (WALL_MS + 10**9 + 999, 30), (LATER_MS, 0)):
        for _ in clean(world.files, world.log, when_ms, durable=False):
            pass
        markers = sum(1 for header, _ in world.log.batches() if header.is_control)
        assert (markers > 30) == bool(some)
        if some:
            assert world.log.stable.offset == world.log.end.offset
            kept = [marker_of(batch) for header, batch in world.log.batches() if header.is_control]
            assert kept == written[-len(kept) :]
            world.log.close(clean=False)
            world.log = world.opened(clean=False)
            assert world.log.stable.offset == world.log.end.offset


def test_what_a_marker_says() -> None:
    for marker in (Marker(True, 5), Marker(False, 0)):
        assert marker_of(marker_batch(9, 3, marker, WALL_MS)) == marker
    assert marker_of(batch_of([b"x"])[:70]) is None
