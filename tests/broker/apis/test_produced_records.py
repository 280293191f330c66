"""What the broker refuses of batches whose CRC is right (issue F 1, spec F6): Kafka's LogValidator.

Each defect goes by the fast path, in turns with sound batches, and by the general way.
"""

from __future__ import annotations

import gzip
import random
import struct
from collections import Counter
from typing import Any

import pytest

from kohort.broker.fast_path.fast_path import FAST_PATH
from kohort.errors import ErrorCode
from kohort.records import BatchHeader, Compression, compress, crc32c, crc_matches
from kohort.wire.messages.produce_response import PartitionProduceResponse
from tests.broker.fast_path.test_fast_path import Served, frame_of
from tests.broker.harness import WALL_MS, Harness, batch_of, produce_request
from tests.broker.hostile_batches import hostile_batch
from tests.records.conftest import RECORDS, raw_batch, raw_record

NOW_MS = WALL_MS + 1_000_000
INVALID, TIMES = ErrorCode.INVALID_RECORD, ErrorCode.INVALID_TIMESTAMP
CODECS = [codec for codec in Compression if codec]


def timed(batch: bytes, base_ms: int = NOW_MS, max_ms: int | None = None) -> bytes:
    """The batch of another time, with a right CRC."""
    other = bytearray(batch)
    struct.pack_into(">qq", other, 27, base_ms, base_ms if max_ms is None else max_ms)
    struct.pack_into(">I", other, 17, crc32c(other[21:]))
    return bytes(other)


def of_records(records: bytes | memoryview, count: int, codec: int = 0, **fields: Any) -> bytes:
    return timed(raw_batch(bytes(records), count, attributes=codec, **fields))


def plain(count: int, codec: int = 0) -> bytes:
    """Sound records, of which `count` is claimed."""
    return of_records(compress(codec, RECORDS), count, codec)


def attributed(bits: int) -> bytes:
    return of_records(RECORDS, 2, bits)


TWO_MIB = bytes(2 << 20)
DEFECTS: dict[str, tuple[bytes, ErrorCode]] = {
    "bytes of 0xFF": (of_records(b"\xff" * 30, 2), INVALID),
    "bytes of 0": (of_records(bytes(30), 2), INVALID),
    "a large one of 0xFF": (of_records(b"\xff" * 30_000, 2), INVALID),
    "one record more": (plain(1), INVALID),
    "one record less": (plain(3), INVALID),
    "a gap": (of_records(raw_record(0, b"", b"x") + raw_record(2, b"", b"y"), 2), INVALID),
    "offsets from 1": (of_records(raw_record(1, None, b"x"), 1), INVALID),
    "no record": (of_records(b"", 0, last_delta=-1), INVALID),
    "fewer than offsets": (of_records(RECORDS, 2, last_delta=2), INVALID),
    "2^31-1 records in 100 bytes of gzip": (
        of_records(gzip.compress(bytes(60_000)), 0x7FFFFFFF, 1),
        INVALID,
    ),
    "9,000,000 records in 100 bytes of gzip": (
        of_records(gzip.compress(bytes(60_000)), 9_000_000, 1),
        INVALID,
    ),
    "codec 5": (attributed(5), INVALID),
    "a marker": (attributed(0x20), INVALID),
    "a sequence below 0": (of_records(RECORDS, 2, producer_id=7, base_sequence=-1), INVALID),
    "the broker's timestamps": (attributed(0x08), TIMES),
    "a record of next week under an honest maximum": (
        timed(of_records(raw_record(0, b"", b"", timestamp=7 * 86_400_000), 1)),
        TIMES,
    ),
    "expands to 80 MiB": (
        of_records(b"".join([gzip.compress(TWO_MIB)] * 40), 2, 1),
        ErrorCode.MESSAGE_TOO_LARGE,
    ),
    **{
        f"no {codec.name.lower()}": (of_records(b"\xff" * 50, 2, codec), INVALID)
        for codec in CODECS
    },
    **{
        f"{codec.name.lower()} of 0xFF": (
            of_records(compress(codec, b"\xff" * 30), 2, codec),
            INVALID,
        )
        for codec in CODECS
    },
    **{f"{codec.name.lower()} of 3": (plain(3, codec), INVALID) for codec in CODECS},
}


class Broker:
    """A topic, and how to produce to it: by the fast path, or by the general way."""

    def __init__(self, *, on_fast_path: bool, **topic: str) -> None:
        self.harness = Harness()
        self.harness.create("t", 1, **topic)
        self._served = Served(self.harness, 1, on_fast_path=on_fast_path)

    def produce(self, batch: bytes) -> PartitionProduceResponse:
        self._served.turn([(0, frame_of(produce_request("t", batch), 11))])
        (answer,) = self._served.produced()
        self._served.lines[0].sent.clear()
        return answer

    def stored(self) -> list[tuple[int, bytes]]:
        return self.harness.read_all("t")


@pytest.fixture(params=["fast", "slow"])
def on_fast_path(request: pytest.FixtureRequest) -> bool:
    if request.param == "fast" and FAST_PATH != "cython":
        pytest.skip("there is no fast path")
    return bool(request.param == "fast")


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_batch_that_could_not_be_read_is_not_stored(on_fast_path: bool, defect: str) -> None:
    """Nothing of it is stored, no offset is used, and what follows is served."""
    broker = Broker(on_fast_path=on_fast_path)
    batch, code = DEFECTS[defect]
    assert crc_matches(batch, BatchHeader(batch))
    assert broker.produce(batch_of([b"first"])).base_offset == 0
    refused = broker.produce(batch)
    assert ErrorCode(refused.error_code) == code
    assert refused.error_message
    assert (refused.base_offset, refused.log_append_time_ms) == (-1, -1)
    assert broker.produce(batch_of([b"second"])).base_offset == 1
    assert broker.stored() == [(0, b"first"), (1, b"second")]


@pytest.mark.parametrize("codec", Compression)
def test_sound_batches_are_stored_as_they_are(on_fast_path: bool, codec: int) -> None:
    broker = Broker(on_fast_path=on_fast_path)
    batch = plain(2, codec)
    assert broker.produce(batch).error_code == 0
    stored = bytes(broker.harness.fetch("t", 0).records or b"")  # type: ignore[arg-type]
    assert stored[16:] == batch[16:]


@pytest.mark.parametrize("max_ms", [-1, 0, NOW_MS - 1, NOW_MS + 1, 2**62])
@pytest.mark.parametrize("codec", [Compression.NONE, Compression.LZ4])
def test_the_max_timestamp_is_that_of_the_records(
    on_fast_path: bool, codec: int, max_ms: int
) -> None:
    """As in Kafka: another one would lead searches by time, and retention, astray."""
    broker = Broker(on_fast_path=on_fast_path)
    assert broker.produce(timed(plain(2, codec), max_ms=max_ms)).error_code == 0
    stored = bytes(broker.harness.fetch("t", 0).records or b"")  # type: ignore[arg-type]
    header = BatchHeader(stored)
    assert header.max_timestamp == NOW_MS
    assert crc_matches(stored, header)
    assert len(broker.stored()) == 2


@pytest.mark.parametrize("late_ms", [1_000, 1_001])
def test_the_earliest_record_counts_for_the_topics_range(on_fast_path: bool, late_ms: int) -> None:
    """KIP-937. Not the base timestamp, from which records may count backwards; one that has no
    timestamp is not in the past.
    """
    broker = Broker(on_fast_path=on_fast_path, message_timestamp_before_max_ms="1000")
    records = raw_record(0, b"", b"") + raw_record(1, b"", b"", timestamp=-late_ms)
    code = ErrorCode.NONE if late_ms == 1_000 else TIMES
    assert ErrorCode(broker.produce(of_records(records, 2)).error_code) == code
    assert broker.produce(timed(plain(2), -1)).error_code == 0


def test_batches_beyond_the_limit_may_be_allowed(on_fast_path: bool) -> None:
    """A batch may expand to what the topic allows it to be, where that is more."""
    broker = Broker(on_fast_path=on_fast_path, max_message_bytes=str(90 << 20))
    value = bytes(70 << 20)
    assert broker.produce(batch_of([value], NOW_MS, compression=Compression.ZSTD)).error_code == 0


def test_only_so_many_records_without_a_key_are_named(on_fast_path: bool) -> None:
    """A small batch can hold millions of them: the answer must not grow with these (KIP-467)."""
    broker = Broker(on_fast_path=on_fast_path, cleanup_policy="compact")
    keys: list[bytes | None] = [b"k", None] * 3_000
    batch = batch_of([b""] * 6_000, NOW_MS, keys=keys, compression=Compression.ZSTD)
    answer = broker.produce(batch)
    assert ErrorCode(answer.error_code) == INVALID
    assert "3000 in this batch" in (answer.error_message or "")
    assert [error.batch_index for error in answer.record_errors] == list(range(1, 2_000, 2))


@pytest.mark.rows(1)
@pytest.mark.parametrize("seed", range(3))
def test_hostile_contents_behind_right_checksums(on_fast_path: bool, seed: int) -> None:
    """Of thousands some are stored: of these every record can be read, and none of the others
    uses an offset.
    """
    broker, pick = Broker(on_fast_path=on_fast_path), random.Random(seed)
    codes: Counter[ErrorCode] = Counter()
    after = 0
    for number in range(1_500):
        batch = hostile_batch(pick)
        answer = broker.produce(batch)
        codes[ErrorCode(answer.error_code)] += 1
        if answer.error_code == 0:
            assert answer.base_offset == after, number
            after += BatchHeader(batch).record_count
    assert [offset for offset, _ in broker.stored()] == list(range(after))
    assert codes[ErrorCode.NONE] > 200
    assert codes[INVALID] > 500
    assert set(codes) <= {
        ErrorCode.NONE,
        INVALID,
        TIMES,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
