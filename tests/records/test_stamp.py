"""What a broker sets in a batch."""

from __future__ import annotations

from kohort.records import BatchBuilder, BatchHeader, crc_matches, stamp


def built() -> bytearray:
    builder = BatchBuilder()
    builder.append(1_000, b"key", b"value")
    return bytearray(builder.build())


def test_a_stamp_changes_only_the_offset_and_the_epoch() -> None:
    """The length between the two stays as it is."""
    batch = built()
    before = BatchHeader(batch)
    stamp(batch, 0, 42, 7)
    after = BatchHeader(batch)
    assert (after.base_offset, after.partition_leader_epoch) == (42, 7)
    assert (after.length, after.crc) == (before.length, before.crc)
    assert crc_matches(batch, after)


def test_a_stamp_of_append_time_renews_the_crc() -> None:
    """KIP-32: the batch's timestamp is the broker's."""
    batch = built()
    stamp(batch, 0, 42, 7, 5_000)
    header = BatchHeader(batch)
    assert header.timestamp_type == 1
    assert header.max_timestamp == 5_000
    assert crc_matches(batch, header)
