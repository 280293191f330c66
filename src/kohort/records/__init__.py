"""Record batches both ways: bytes to records or columns, records or columns to bytes.

    chunk = Chunk("flights", 0, record_set, fetch_offset=17)
    chunk.next_records(500)          # list[Record], lazy: a field is read when it is asked for
    chunk.next_columns()             # Columns, Arrow's layout; kohort.records.arrow makes it Arrow
    chunk.position                   # the next offset to fetch

    builder = BatchBuilder(Compression.LZ4, max_bytes=256 * 1024)
    builder.append(timestamp_ms, b"key", b"value", [("name", b"header")])   # -1 when it is full
    builder.build(producer_id=7, producer_epoch=0, base_sequence=0)

    check_produced(batch, BatchHeader(batch))                              # a broker's check
    stamp(buffer, header.position, base_offset, leader_epoch)              # and its stamp

`Chunk`, `Record`, `BatchBuilder` and `crc32c` come from the compiled kernel or from its pure-Python
twin (`kohort.records.pure`, which has their contracts); `KERNEL` says which one is in use.
Nothing here imports pyarrow or numpy.
"""

from kohort.records.batch import (
    check_batch,
    check_produced,
    crc_matches,
    set_max_timestamp,
    stamp,
)
from kohort.records.columns import (
    ALL_COLUMNS,
    COLUMN_NAMES,
    DEFAULT_COLUMNS,
    DEFAULT_MAX_ROWS,
    DEFAULT_PIECE_BYTES,
    BinaryColumn,
    Columns,
    HeaderColumn,
)
from kohort.records.compression import (
    DEFAULT_MAX_DECOMPRESSED_BYTES,
    Compression,
    compress,
    decompress,
)
from kohort.records.implementation import (
    CRC_PATH,
    KERNEL,
    BatchBuilder,
    Chunk,
    Record,
    crc32c,
    end_of_set,
    whole_batches,
)
from kohort.records.layout import (
    BatchHeader,
    RecordCheck,
    TimestampType,
    iter_batches,
    read_batch_header,
)

__all__ = [
    "ALL_COLUMNS",
    "COLUMN_NAMES",
    "CRC_PATH",
    "DEFAULT_COLUMNS",
    "DEFAULT_MAX_DECOMPRESSED_BYTES",
    "DEFAULT_MAX_ROWS",
    "DEFAULT_PIECE_BYTES",
    "KERNEL",
    "BatchBuilder",
    "BatchHeader",
    "BinaryColumn",
    "Chunk",
    "Columns",
    "Compression",
    "HeaderColumn",
    "Record",
    "RecordCheck",
    "TimestampType",
    "check_batch",
    "check_produced",
    "compress",
    "crc32c",
    "crc_matches",
    "decompress",
    "end_of_set",
    "iter_batches",
    "read_batch_header",
    "set_max_timestamp",
    "stamp",
    "whole_batches",
]
