"""Other libraries read what we write, and we read what they write (oracles, never our code)."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from aiokafka.record.default_records import DefaultRecordBatch as AioBatch
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AioBuilder

from kohort.records import Compression

with warnings.catch_warnings():  # kafka-python reads its own resources in a deprecated way
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.codec import has_snappy, has_zstd
    from kafka.record import MemoryRecords
    from kafka.record.default_records import DefaultRecordBatchBuilder as PyBuilder

from tests.records.conftest import checked_set

HEADERS = [("name", b"value"), ("none", None), ("ü", b"")]
ROWS = [
    (
        1_700_000_000_000 + (i * 37) % 1000,
        None if i % 4 == 0 else b"key-%d" % i,
        None if i % 5 == 0 else b"value " * (i % 50),
        HEADERS[: i % 4],
    )
    for i in range(300)
]


def supported(codec: Compression) -> bool:
    """Whether this kafka-python can do it: its libraries for two codecs are optional."""
    checks = {Compression.SNAPPY: has_snappy, Compression.ZSTD: has_zstd}
    return checks[codec]() if codec in checks else True


def ours(impl: Any, codec: Compression) -> bytes:
    builder = impl.BatchBuilder(codec)
    for row in ROWS:
        builder.append(*row)
    return builder.build(base_offset=1000, producer_id=5, producer_epoch=2, base_sequence=9)


def check_theirs(impl: Any, batch: bytes) -> None:
    records = impl.Chunk("t", 0, batch, 0).next_records(1000)
    got = [(r.timestamp, r.key, r.value, list(r.headers)) for r in records]
    assert got == ROWS
    assert [r.offset for r in records] == list(range(len(ROWS)))
    assert checked_set(batch)


@pytest.mark.parametrize("codec", Compression)
def test_aiokafka_reads_ours(impl: Any, codec: Compression) -> None:
    batch = AioBatch(ours(impl, codec))
    assert batch.validate_crc()
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (5, 2, 9)
    rows: Iterator[Any] = iter(batch)
    assert [(r.timestamp, r.key, r.value, list(r.headers)) for r in rows] == ROWS


@pytest.mark.parametrize("codec", Compression)
def test_we_read_aiokafka(impl: Any, codec: Compression) -> None:
    builder = AioBuilder(2, int(codec), 0, -1, -1, -1, 1 << 20)
    for offset, (timestamp, key, value, headers) in enumerate(ROWS):
        builder.append(offset, timestamp, key, value, headers)
    batch = bytes(builder.build())
    check_theirs(impl, batch)
    if codec is Compression.NONE:
        again = impl.BatchBuilder()
        for row in ROWS:
            again.append(*row)
        assert again.build(leader_epoch=BatchEpoch(batch)) == batch


def BatchEpoch(batch: bytes) -> int:
    """The leader epoch that a builder put into its batch; brokers overwrite it."""
    return int.from_bytes(batch[12:16], "big", signed=True)


@pytest.mark.parametrize("codec", [codec for codec in Compression if supported(codec)])
def test_kafka_python_reads_ours(impl: Any, codec: Compression) -> None:
    memory = MemoryRecords(ours(impl, codec))
    batch = memory.next_batch()
    assert batch.validate_crc()
    assert [(r.timestamp, r.key, r.value, list(r.headers)) for r in batch] == ROWS
    assert not memory.has_next()


@pytest.mark.parametrize("codec", [codec for codec in Compression if supported(codec)])
def test_we_read_kafka_python(impl: Any, codec: Compression) -> None:
    builder = PyBuilder(2, int(codec), False, -1, -1, -1, 1 << 20)
    for offset, (timestamp, key, value, headers) in enumerate(ROWS):
        builder.append(offset, timestamp, key, value, headers)
    batch = bytes(builder.build())
    check_theirs(impl, batch)
    if codec is Compression.NONE:
        again = impl.BatchBuilder()
        for row in ROWS:
            again.append(*row)
        assert again.build(leader_epoch=BatchEpoch(batch)) == batch
