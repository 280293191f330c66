"""Record batches in memory: nanoseconds a record, both ways, beside the peers' own codecs.

A fetch of about 1 MB (batches of about 100 KB, 8-byte keys, values of 100 bytes or 1 KB that
compress to about half) is decoded again and again, CRCs checked, on one core; CPU time, best of
several runs. `touched` reads every value. A ratio above 1 means that ours is faster.

    python -m benchmarks.bench_records          the kernel
    KOHORT_PURE=1 python -m benchmarks.bench_records
"""

from __future__ import annotations

import random
import time
import warnings
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from aiokafka.record.default_records import DefaultRecordBatch as AioBatch
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AioBuilder

from kohort.records import (
    CRC_PATH,
    KERNEL,
    BatchBuilder,
    BatchHeader,
    Chunk,
    Compression,
    check_produced,
    crc32c,
    crc_matches,
    iter_batches,
)
from kohort.records.arrow import encode_record_batch, to_record_batch

with warnings.catch_warnings():  # kafka-python reads its own resources in a deprecated way
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.codec import has_snappy, has_zstd
    from kafka.record import MemoryRecords
    from kafka.record.default_records import DefaultRecordBatchBuilder as PyBuilder

SET_BYTES, BATCH_BYTES, NOW_MS = 1_000_000, 100_000, 1_700_000_000_000
SECONDS_A_FIGURE = 0.4 if KERNEL == "cython" else 1.0


def rows_of(value_bytes: int) -> list[tuple[int, bytes, bytes]]:
    """Rows of about one fetch; half of each value is noise, half is text."""
    chance = random.Random(value_bytes)
    text = b"the quick brown fox jumps over the lazy dog; " * 30
    half = value_bytes // 2
    return [
        (NOW_MS + i // 3, b"%08d" % i, chance.randbytes(half) + text[: value_bytes - half])
        for i in range(SET_BYTES // (value_bytes + 20))
    ]


def fetch_of(rows: list[tuple[int, bytes, bytes]], codec: Compression) -> bytes:
    out: list[bytes] = []
    offset = 0
    builder = BatchBuilder(codec, BATCH_BYTES)
    for row in rows:
        if builder.append(*row) < 0:
            out.append(builder.build(base_offset=offset))
            offset += len(builder)
            builder.clear()
            builder.append(*row)
    out.append(builder.build(base_offset=offset))
    return b"".join(out)


def nanoseconds(work: Callable[[], Any], records: int) -> float:
    """CPU time of one record, best of as many runs as fit."""
    best, spent = float("inf"), 0.0
    while spent < SECONDS_A_FIGURE:
        started = time.process_time()
        work()
        took = time.process_time() - started
        best, spent = min(best, took), spent + max(took, 1e-4)
    return best / records * 1e9


def peers_can(codec: Compression) -> bool:
    checks = {Compression.SNAPPY: has_snappy, Compression.ZSTD: has_zstd}
    return checks[codec]() if codec in checks else True


def decoders(data: bytes, codec: Compression) -> dict[str, Callable[[], Any]]:
    parts = [data[h.position : h.position + h.size] for h in iter_batches(data)]

    def touched() -> None:
        for record in Chunk("t", 0, data, 0).next_records(1_000_000):
            record.value  # noqa: B018

    def aiokafka() -> None:
        for part in parts:
            batch = AioBatch(part)
            assert batch.validate_crc()
            for record in batch:
                record.value  # noqa: B018

    def kafka_python() -> None:
        for batch in MemoryRecords(data):
            assert batch.validate_crc()
            for record in batch:
                record.value  # noqa: B018

    out: dict[str, Callable[[], Any]] = {
        "records": lambda: Chunk("t", 0, data, 0).next_records(1_000_000),
        "touched": touched,
        "columns": lambda: columns(data),
        "to Arrow": lambda: columns(data, to_record_batch),
        "aiokafka": aiokafka,
    }
    if peers_can(codec):
        out["kafka-py"] = kafka_python
    return out


def columns(data: bytes, then: Callable[[Any], Any] | None = None) -> None:
    chunk = Chunk("t", 0, data, 0)
    while piece := chunk.next_columns():
        if then is not None:
            then(piece)


def encoders(rows: list[Any], codec: Compression) -> dict[str, Callable[[], Any]]:
    times, keys, values = (list(column) for column in zip(*rows, strict=True))
    table = pa.record_batch({"timestamp": times, "key": keys, "value": values})

    def one_by_one() -> None:
        builder = BatchBuilder(codec, BATCH_BYTES)
        for timestamp, key, value in rows:
            if builder.append(timestamp, key, value) < 0:
                builder.build()
                builder.clear()
                builder.append(timestamp, key, value)
        builder.build()

    def in_bulk() -> None:
        builder = BatchBuilder(codec, BATCH_BYTES)
        start = 0
        while start < len(rows):
            start += builder.extend(times, keys, values, start=start)
            builder.build()
            builder.clear()

    def peer(make: Callable[[], Any]) -> None:
        builder, offset = make(), 0
        for timestamp, key, value in rows:
            if not builder.append(offset, timestamp, key, value, []):
                builder.build()
                builder, offset = make(), 0
                builder.append(offset, timestamp, key, value, [])
            offset += 1
        builder.build()

    number = int(codec)
    out: dict[str, Callable[[], Any]] = {
        "append": one_by_one,
        "extend": in_bulk,
        "Arrow": lambda: encode_record_batch(table, 0, compression=codec, max_bytes=BATCH_BYTES),
        "aiokafka": lambda: peer(lambda: AioBuilder(2, number, 0, -1, -1, -1, BATCH_BYTES)),
    }
    if peers_can(codec):
        out["kafka-py"] = lambda: peer(lambda: PyBuilder(2, number, False, -1, -1, -1, BATCH_BYTES))
    return out


def table(title: str, make: Callable[..., dict[str, Callable[[], Any]]], ours: list[str]) -> None:
    print(f"\n{title}: ns a record; in brackets M records/s and GB/s of raw records")
    for value_bytes in (100, 1000):
        rows = rows_of(value_bytes)
        for codec in Compression:
            subject = fetch_of(rows, codec) if make is decoders else rows
            found = {
                name: nanoseconds(work, len(rows)) for name, work in make(subject, codec).items()
            }
            print(f"{value_bytes:5} B {codec.name.lower():6}", end="")
            for name, took in found.items():
                rates = f"[{1e3 / took:5.1f}, {(value_bytes + 20) / took:5.2f}]"
                print(f"  {name} {took:6.0f} {rates if name in ours else ''}", end="")
            for name in ours:
                print(f"  {name}/aiokafka {found['aiokafka'] / found[name]:.1f}x", end="")
            print(flush=True)


def small_things() -> None:
    """What is done once a batch, and the CRC."""
    one = BatchBuilder()
    one.append(NOW_MS, b"key", b"value")
    single = one.build()
    header = BatchHeader(single)
    megabyte = random.Random(1).randbytes(1_000_000)

    def read() -> None:
        Chunk("t", 0, single, 0).next_records(10)

    def build() -> None:
        builder = BatchBuilder()
        builder.append(NOW_MS, b"key", b"value")
        builder.build()

    print(f"\nCRC-32C by {CRC_PATH}: {1e6 / nanoseconds(lambda: crc32c(megabyte), 1):.1f} GB/s")
    for name, work in (
        ("a batch of one record, read", read),
        ("a batch of one record, built", build),
        ("a batch of one record, checked by a broker", lambda: check_produced(single, header)),
    ):
        print(f"{name}: {nanoseconds(lambda w=work: [w() for _ in range(1000)], 1000):.0f} ns")


def broker_checks() -> None:
    """What a broker looks at in produced batches of 1,000 records of 100 bytes, per record."""
    for codec in Compression:
        builder, chance = BatchBuilder(codec), random.Random(1)
        for number in range(1_000):
            builder.append(
                NOW_MS + number, b"key-%06d" % number, chance.randbytes(40).hex().encode()
            )
        batch = builder.build()
        header = BatchHeader(batch)
        crc = nanoseconds(lambda b=batch, h=header: crc_matches(b, h), 1_000)
        walk = nanoseconds(lambda b=batch, h=header: check_produced(b, h), 1_000)
        print(
            f"checked by a broker, {codec.name.lower():6} {len(batch):6} B: CRC {crc:5.1f} ns, "
            f"records {walk:5.1f} ns a record"
        )


def main() -> None:
    print(f"kernel: {KERNEL}")
    table("decode", decoders, ["touched", "columns"])
    table("encode", encoders, ["append", "Arrow"])
    small_things()
    broker_checks()


if __name__ == "__main__":
    main()
