"""Batches whose records nobody can read, with a right checksum, in a log.

They are refused now (`test_produced_records.py`), but a log that was written before may hold some.
Whoever looks inside does not take the partition away from everybody else.
"""

from __future__ import annotations

import struct

import cramjam
import pytest

from kohort.records import BatchHeader, Compression, crc32c
from kohort.wire.messages.list_offsets_request import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from kohort.wire.messages.list_offsets_response import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
)
from tests.broker.harness import WALL_MS, Harness, batch_of

HEADER = 61
MAX_TIMESTAMP = -3
BOMB = bytes(cramjam.zstd.compress(bytes(16 << 20))) * 5
PAYLOADS = {
    "a bomb": (Compression.ZSTD, BOMB),
    "no zstd": (Compression.ZSTD, b"\x01" * 50),
    "no lz4": (Compression.LZ4, b"\x02" * 50),
    "no records": (Compression.NONE, b"\xff" * 50),
    "half a record": (Compression.NONE, bytes(batch_of([b"x"] * 3))[HEADER:-3] + b"\x7f" * 20),
}


def unreadable(codec: Compression, payload: bytes, timestamp: int) -> bytes:
    """A batch that says it has three records."""
    batch = bytearray(batch_of([b"x"] * 3, timestamp, compression=codec)[:HEADER] + payload)
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">I", batch, 17, crc32c(memoryview(batch)[21:]))
    return bytes(batch)


def store(harness: Harness, batch: bytes) -> None:
    """Put a batch into the log as a broker did that did not look inside."""
    partition = harness.state.topics.partition("t", 0)
    assert partition is not None
    partition.append(memoryview(batch), BatchHeader(batch), lambda result: None)


def asked(harness: Harness, timestamp: int) -> ListOffsetsPartitionResponse:
    part = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    request = ListOffsetsRequest(topics=[ListOffsetsTopic(name="t", partitions=[part])])
    return harness.ask(request, ListOffsetsResponse, 7).topics[0].partitions[0]


@pytest.mark.parametrize("what", PAYLOADS)
def test_a_lookup_by_time_takes_it_as_a_whole(what: str) -> None:
    """Its first offset and its latest time are known; nothing else is."""
    harness = Harness()
    harness.create("t")
    now = WALL_MS + harness.env.clock_ms
    assert harness.produce("t", batch_of([b"a"], now)).error_code == 0
    store(harness, unreadable(*PAYLOADS[what], now + 10))
    assert harness.produce("t", batch_of([b"z"], now + 20)).base_offset == 4
    for timestamp, offset in ((now, 0), (now + 5, 1), (now + 10, 1), (now + 15, 4), (now + 30, -1)):
        answer = asked(harness, timestamp)
        assert (answer.error_code, answer.offset) == (0, offset)
    assert asked(harness, MAX_TIMESTAMP).offset == 4
    partition = harness.state.topics.partition("t", 0)
    assert partition is not None
    assert partition.log is not None
    partition.log.delete_before(2)  # within it
    assert asked(harness, now).offset == 2
    assert asked(harness, MAX_TIMESTAMP).offset == 4
    assert partition.offline is None
    assert harness.produce("t", batch_of([b"!"], now)).base_offset == 5


@pytest.mark.parametrize("what", PAYLOADS)
def test_compaction_leaves_it_where_it_is(what: str) -> None:
    """A topic that is compacted from now on may have such batches."""
    from kohort.wire.messages.incremental_alter_configs_request import (
        AlterableConfig,
        AlterConfigsResource,
        IncrementalAlterConfigsRequest,
    )
    from kohort.wire.messages.incremental_alter_configs_response import (
        IncrementalAlterConfigsResponse,
    )

    harness = Harness(log_segment_bytes=6_000, log_cleaner_backoff_ms=100)
    harness.create("t")
    now = WALL_MS + harness.env.clock_ms
    bad = unreadable(*PAYLOADS[what], now)
    for n in range(90):
        if n == 5:
            store(harness, bad)
            continue
        batch = batch_of([b"%d" % n * 20] * 2, now, keys=[b"a", b"b"])
        assert harness.produce("t", batch).error_code == 0
    compact = AlterableConfig(name="cleanup.policy", value="compact")
    resource = AlterConfigsResource(resource_type=2, resource_name="t", configs=[compact])
    request = IncrementalAlterConfigsRequest(resources=[resource])
    harness.ask(request, IncrementalAlterConfigsResponse)
    harness.env.advance(1_000)
    partition = harness.state.topics.partition("t", 0)
    assert partition is not None
    assert partition.log is not None
    assert partition.offline is None
    stored = list(partition.log.batches())
    assert len(stored) < 90, "nothing was compacted"
    kept = [bytes(batch)[HEADER:] for header, batch in stored if header.base_offset == 10]
    assert kept == [bad[HEADER:]]
