"""Records in, records out: both implementations give equal bytes and equal values (spec 4, F3)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kohort.records import ALL_COLUMNS, Compression
from kohort.records.arrow import encode_record_batch, to_record_batch
from tests.effort import examples
from tests.known import fake
from tests.records.conftest import IMPLEMENTATIONS, checked_set, fields

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
DATA = st.none() | st.binary(max_size=300)
RECORD = st.tuples(INT64, DATA, DATA, st.lists(st.tuples(st.text(max_size=10), DATA), max_size=4))
NOT_CHECKED = fake(list(HealthCheck))  # its metaclass hides what it iterates over
FAST = settings(max_examples=examples(60), deadline=None, suppress_health_check=NOT_CHECKED)


def built(impl: Any, records: list[Any], codec: Compression, **options: Any) -> bytes:
    builder = impl.BatchBuilder(codec)
    for index, (timestamp, key, value, headers) in enumerate(records):
        assert builder.append(timestamp, key, value, headers) == index
    return builder.build(**options)


@FAST
@given(st.lists(RECORD, min_size=1, max_size=30), st.sampled_from(list(Compression)))
def test_bytes_and_values_are_equal_in_both(records: list[Any], codec: Compression) -> None:
    batches = [
        built(
            impl,
            records,
            codec,
            base_offset=50,
            leader_epoch=3,
            producer_id=9,
            producer_epoch=1,
            base_sequence=7,
        )
        for impl in IMPLEMENTATIONS
    ]
    assert all(batch == batches[0] for batch in batches)
    assert checked_set(batches[0])[0].record_count == len(records)
    for impl in IMPLEMENTATIONS:
        chunk = impl.Chunk("t", 3, batches[0], 50)
        got = [fields(record) for record in chunk.next_records(1000)]
        assert got == [
            ("t", 3, 50 + index, timestamp, 0, key, value, tuple(headers), 3)
            for index, (timestamp, key, value, headers) in enumerate(records)
        ]
        assert chunk.exhausted
        assert chunk.position == 50 + len(records)


@FAST
@given(st.lists(RECORD, min_size=1, max_size=30), st.integers(1, 40), st.integers(1, 2000))
def test_columns_are_the_records(records: list[Any], max_rows: int, max_bytes: int) -> None:
    batch = built(IMPLEMENTATIONS[0], records, Compression.NONE, base_offset=5)
    for impl in IMPLEMENTATIONS:
        chunk = impl.Chunk("topic", 3, batch, 5)
        rows: list[Any] = []
        while columns := chunk.next_columns(max_rows, ALL_COLUMNS, max_bytes=max_bytes):
            table = to_record_batch(columns, ALL_COLUMNS)
            table.validate(full=True)
            assert table.num_rows <= max_rows
            rows += zip(
                table["offset"].to_pylist(),
                table["timestamp"].cast("int64").to_pylist(),
                table["key"].to_pylist(),
                table["value"].to_pylist(),
                [[(h["key"], h["value"]) for h in row] for row in table["headers"].to_pylist()],
                strict=True,
            )
            assert table["topic"].to_pylist() == ["topic"] * table.num_rows
            assert table["partition"].to_pylist() == [3] * table.num_rows
            assert table["timestamp_type"].to_pylist() == [0] * table.num_rows
        assert rows == [(5 + i, *record) for i, record in enumerate(records)]


@FAST
@given(st.lists(RECORD, min_size=1, max_size=30), st.integers(100, 2000), st.integers(0, 5))
def test_arrow_goes_back_to_the_same_batches(
    records: list[Any], max_bytes: int, first: int
) -> None:
    """Encoded from Arrow columns (sliced, so with offsets) or one by one: equal bytes."""
    batch = built(IMPLEMENTATIONS[0], records, Compression.NONE)
    columns = IMPLEMENTATIONS[0].Chunk("t", 0, batch, 0).next_columns(1000, ALL_COLUMNS)
    table = to_record_batch(columns, ALL_COLUMNS).slice(first)
    want: list[bytes] = []
    builder = IMPLEMENTATIONS[-1].BatchBuilder(max_bytes=max_bytes)
    for timestamp, key, value, headers in records[first:]:
        if builder.append(timestamp, key, value, headers) < 0:
            want.append(builder.build())
            builder.clear()
            builder.append(timestamp, key, value, headers)
    if len(builder):
        want.append(builder.build())
    assert encode_record_batch(table, 0, max_bytes=max_bytes) == want


@pytest.mark.parametrize("codec", Compression)
def test_pieces_join_without_gap(impl: Any, codec: Compression) -> None:
    """Two batches and a part of a third, read from the middle, in pieces of seven."""
    one, two = (
        built(impl, [(i, None, b"%d" % i, []) for i in range(20)], codec, base_offset=base)
        for base in (100, 120)
    )
    chunk = impl.Chunk("t", 0, one + two + two[:70], 113)
    offsets: list[int] = []
    while records := chunk.next_records(7):
        offsets += [record.offset for record in records]
        assert chunk.position == offsets[-1] + 1
    assert offsets == list(range(113, 140))
    assert chunk.exhausted
