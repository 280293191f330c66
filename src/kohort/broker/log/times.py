"""The times of a stored batch's records, for lookups by time. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from kohort.broker.log.files import Buffer
from kohort.errors import CorruptRecordError
from kohort.records import BatchHeader, Chunk
from kohort.records.batch import check_batch


def first_at_time(
    header: BatchHeader, batch: Buffer, timestamp: int, from_offset: int
) -> tuple[int, int] | None:
    """`(offset, timestamp)` of a batch's first record at or after a time and an offset."""
    if header.timestamp_type.value:  # one time for all of them
        return max(header.base_offset, from_offset), header.max_timestamp
    for offset, record_time in times_of(batch, from_offset):
        if record_time >= timestamp and offset >= from_offset:
            return offset, record_time
    return None


def times_of(batch: Buffer, from_offset: int) -> Iterator[tuple[int, int]]:
    """`(offset, timestamp)` of a batch's records from an offset on.

    Batches are stored unopened: a batch that cannot be decoded counts as one record at
    the batch's latest time. Raises CorruptRecordError for what is damaged here.
    """
    try:
        chunk = Chunk("", 0, batch, from_offset)
        while not chunk.exhausted:
            for record in chunk.next_records(1_000):
                yield record.offset, record.timestamp
    except CorruptRecordError:
        header = BatchHeader(batch, 0)
        check_batch(batch, header)
        yield max(header.base_offset, from_offset), header.max_timestamp
