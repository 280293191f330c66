"""Every test that takes `impl` runs over the compiled kernel and over its pure-Python twin.

So the run without the compiled modules (`make test`) leaves these out: it would repeat them.
"""

from __future__ import annotations

import importlib
import struct
from types import ModuleType
from typing import Any

import pytest

from kohort.records import KERNEL, Record, check_produced, crc_matches, iter_batches
from kohort.records.layout import BatchHeader

Fields = tuple[Any, ...]


def pytest_itemcollected(item: pytest.Item) -> None:
    if "impl" in getattr(item, "fixturenames", ()):
        item.add_marker("once")


def implementations() -> list[ModuleType]:
    names = ["kohort.records.pure"]
    if KERNEL == "cython":
        names.insert(0, "kohort.records._kernel")
    return [importlib.import_module(name) for name in names]


IMPLEMENTATIONS = implementations()


@pytest.fixture(params=IMPLEMENTATIONS, ids=lambda module: module.__name__.split(".")[-1])
def impl(request: pytest.FixtureRequest) -> Any:
    return request.param


def fields(record: Record) -> Fields:
    """All that a record holds."""
    return (
        record.topic,
        record.partition,
        record.offset,
        record.timestamp,
        record.timestamp_type,
        record.key,
        record.value,
        record.headers,
        record.leader_epoch,
    )


def crc_mended(impl: Any, batch: bytes | bytearray) -> bytes:
    """The batch with the CRC that its present bytes need."""
    mended = bytearray(batch)
    header = BatchHeader(mended)
    mended[17:21] = impl.crc32c(mended[21 : header.size]).to_bytes(4, "big")
    return bytes(mended)


def varint(value: int) -> bytes:
    """A zigzag varint as short as can be."""
    raw, out = (value << 1) ^ (value >> 63), bytearray()
    while raw > 0x7F:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)
    return bytes(out)


def raw_record(
    delta: int,
    key: bytes | None,
    value: bytes | None,
    tail: bytes = b"\0",
    *,
    timestamp: int = 0,
) -> bytes:
    """One record by hand; `tail` is its header count and headers, `timestamp` a difference."""
    fields = [b"\0" + varint(timestamp) + varint(delta)]
    for data in (key, value):
        fields.append(varint(-1) if data is None else varint(len(data)) + data)
    body = b"".join(fields) + tail
    return varint(len(body)) + body


RECORDS = raw_record(0, b"k", b"x") + raw_record(1, None, b"y", b"\x02\x02n\x01")
"""Two that are sound."""


def raw_batch(
    records: bytes,
    count: int,
    *,
    base_offset: int = 0,
    last_delta: int | None = None,
    attributes: int = 0,
    producer_id: int = -1,
    base_sequence: int = 0,
    max_timestamp: int = 2000,
) -> bytes:
    """A batch by hand, whatever its records are, with a right CRC."""
    last = count - 1 if last_delta is None else last_delta
    checked = struct.pack(
        ">hiqqqhii", attributes, last, 1000, max_timestamp, producer_id, 0, base_sequence, count
    )
    checked += records
    crc = IMPLEMENTATIONS[0].crc32c(checked)
    return struct.pack(">qiibI", base_offset, len(checked) + 9, 5, 2, crc) + checked


def marker(base_offset: int, producer_id: int, *, abort: bool) -> bytes:
    """A control batch that ends a transaction (KIP-98)."""
    key = struct.pack(">hh", 0, 0 if abort else 1)
    record = raw_record(0, key, struct.pack(">hi", 0, 0))
    return raw_batch(record, 1, base_offset=base_offset, attributes=0x30, producer_id=producer_id)


def batch_of(impl: Any, offset: int, values: list[bytes], codec: int = 0, **options: Any) -> bytes:
    """A batch of values, without keys."""
    builder = impl.BatchBuilder(codec)
    for value in values:
        builder.append(1000, None, value)
    return builder.build(base_offset=offset, **options)


def drained(chunk: Any, size: int = 100) -> list[tuple[int, bytes | None]]:
    """All records that are left, as (offset, value)."""
    out: list[tuple[int, bytes | None]] = []
    while records := chunk.next_records(size):
        out += [(record.offset, record.value) for record in records]
    return out


def checked_set(data: bytes) -> list[BatchHeader]:
    """The batches of a set, each of which a broker would take, wherever it is to stand."""
    headers = list(iter_batches(data, strict=True))
    for header in headers:
        assert crc_matches(data, header)
        sent = bytearray(data[header.position : header.position + header.size])
        sent[:8] = bytes(8)
        assert check_produced(sent, BatchHeader(sent)).latest == max(header.max_timestamp, -1)
    return headers
