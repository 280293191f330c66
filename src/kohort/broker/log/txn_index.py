"""Transactions in the log: markers (KIP-98), and the index of those that were aborted. Pure.

Rules:
- A marker is a control batch of one record: its key has the kind, its value the epoch of the
  coordinator that wrote it.
- A segment's index has an entry for each aborted transaction whose marker is in the segment, in
  the order of the markers. Format and name (`.txnindex`) are Kafka's.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from typing import NamedTuple

from kohort.broker.log.files import Buffer
from kohort.records import BatchBuilder
from kohort.records.layout import HEADER_BYTES

TXN_INDEX_SUFFIX = ".txnindex"
_ENTRY = Struct(">hqqqq")
_KEY, _VALUE = Struct(">hh"), Struct(">hi")
_ABORT, _COMMIT = 0, 1


class Marker(NamedTuple):
    """How a transaction ended, as its marker says."""

    committed: bool
    coordinator_epoch: int


class AbortedTransaction(NamedTuple):
    """An aborted transaction: its first record, its marker, and what was stable after it."""

    producer_id: int
    first_offset: int
    last_offset: int
    stable_offset: int


def marker_batch(producer_id: int, producer_epoch: int, marker: Marker, now_ms: int) -> memoryview:
    """The control batch that ends a producer's transaction."""
    builder = BatchBuilder()
    kind = _COMMIT if marker.committed else _ABORT
    builder.append(now_ms, _KEY.pack(0, kind), _VALUE.pack(0, marker.coordinator_epoch))
    batch = builder.build(
        producer_id=producer_id, producer_epoch=producer_epoch, transactional=True, control=True
    )
    return memoryview(bytearray(batch))


def marker_of(batch: Buffer) -> Marker | None:
    """What a control batch says; None for one that is no end of a transaction.

    After the batch's header come the record's length, attributes, two deltas (one byte each), the
    length of the key, the key, the length of the value, and the value.
    """
    body = memoryview(batch)[HEADER_BYTES:]
    if len(body) < 5 + _KEY.size + 1 + _VALUE.size:
        return None
    _, kind = _KEY.unpack_from(body, 5)
    if kind not in (_ABORT, _COMMIT):
        return None
    _, coordinator_epoch = _VALUE.unpack_from(body, 5 + _KEY.size + 1)
    return Marker(kind == _COMMIT, coordinator_epoch)


def encode_aborted(entries: Iterable[AbortedTransaction]) -> bytes:
    """The content of a `.txnindex` file."""
    return b"".join(_ENTRY.pack(0, *entry) for entry in entries)


def decode_aborted(data: bytes) -> list[AbortedTransaction]:
    """The entries of a `.txnindex` file; a part of one at its end is left out."""
    whole = len(data) - len(data) % _ENTRY.size
    return [AbortedTransaction(*entry[1:]) for entry in _ENTRY.iter_unpack(data[:whole])]
