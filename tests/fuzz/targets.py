"""The entry points that read foreign bytes, each as a function of bytes (issue 19, item 6).

A target returns when the bytes are taken or refused by an error of Kohort's tree. Any other
exception is a finding, and so is whatever a sanitizer says.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import suppress

from kohort.errors import KohortError
from kohort.records import (
    BatchHeader,
    Chunk,
    Compression,
    check_batch,
    check_produced,
    crc32c,
    decompress,
    end_of_set,
    iter_batches,
    whole_batches,
)
from kohort.wire import decode, decode_request, message_class
from tests.broker.hostile import HostileWorld
from tests.wire.values import ALL_NAMES

MAX_EXPANDED = 1 << 20
MAX_READS = 200
HEADER = 61


def records(data: bytes) -> None:
    """A record set as a consumer reads it: as records."""
    chunk = Chunk("t", 0, data, 0, max_decompressed=MAX_EXPANDED)
    for _ in range(MAX_READS):
        if chunk.exhausted:
            return
        try:
            for record in chunk.next_records(50):
                _ = record.key, record.value, record.headers, record.timestamp, record.size
        except KohortError:
            chunk.skip_batch()


def columns(data: bytes) -> None:
    """The same as columns."""
    chunk = Chunk("t", 0, data, 0, max_decompressed=MAX_EXPANDED)
    for _ in range(MAX_READS):
        if chunk.exhausted:
            return
        try:
            chunk.next_columns(50)
        except KohortError:
            chunk.skip_batch()


def produced(data: bytes) -> None:
    """Batches as a broker checks them, behind a right CRC or a wrong one."""
    end_of_set(data)
    whole_batches(data)
    for batch in (data, resealed(data)):
        with suppress(KohortError):
            for header in iter_batches(batch):
                part = memoryview(batch)[header.position : header.position + header.size]
                check_batch(part, BatchHeader(part, 0))
                check_produced(part, BatchHeader(part, 0), max_decompressed=MAX_EXPANDED)


def resealed(data: bytes) -> bytes:
    """The first batch with its length and its CRC put right."""
    if len(data) < HEADER:
        return data
    batch = bytearray(data)
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    batch[16] = 2
    struct.pack_into(">I", batch, 17, crc32c(memoryview(batch)[21:]))
    return bytes(batch)


def read_resealed(data: bytes) -> None:
    """Both readers on a batch whose CRC is right."""
    records(resealed(data))
    columns(resealed(data))


def compressed(data: bytes) -> None:
    """Each codec; the first byte chooses."""
    if data:
        with suppress(KohortError):
            decompress(Compression(data[0] % len(Compression)), data[1:], MAX_EXPANDED)


def messages(data: bytes) -> None:
    """A message of any kind and version, as the first three bytes choose."""
    if len(data) < 3:
        return
    cls = message_class(ALL_NAMES[int.from_bytes(data[:2], "big") % len(ALL_NAMES)])
    version = cls.MIN_VERSION + data[2] % (cls.MAX_VERSION - cls.MIN_VERSION + 1)
    with suppress(KohortError):
        decode(cls, version, data[3:])


def requests(data: bytes) -> None:
    """A request's frame, as a broker takes it apart."""
    with suppress(KohortError):
        decode_request(data)


class Broker:
    """A broker on the fast path, created again when it has stored much."""

    TURNS = 2_000

    def __init__(self) -> None:
        self._turns = 0
        self._world: HostileWorld | None = None

    def __call__(self, data: bytes) -> None:
        """A frame from a connection, and after it one of an honest client."""
        if self._world is None or self._turns >= self.TURNS:
            self._world, self._turns = HostileWorld(1), 0
        self._turns += 1
        self._world.send(data)
        self._world.prove_unharmed()


TARGETS: dict[str, Callable[[bytes], None]] = {
    "records": records,
    "columns": columns,
    "produced": produced,
    "resealed": read_resealed,
    "compressed": compressed,
    "messages": messages,
    "requests": requests,
    "broker": Broker(),
}
