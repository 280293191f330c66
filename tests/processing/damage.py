"""Record batches that are damaged on the disk of an embedded broker: nobody can read them."""

from __future__ import annotations

from pathlib import Path

from kohort.records import iter_batches
from tests.clusters import Cluster
from tests.known import known


def damage(cluster: Cluster, topic: str, offset: int, partition: int = 0) -> bytes:
    """Flip a bit in the records of the batch that holds `offset`; the batch as it is now."""
    (path,) = Path(known(cluster.config.data_dir)).rglob(f"{topic}-{partition}/*.log")
    raw = bytearray(path.read_bytes())
    for header in iter_batches(raw):
        if header.base_offset <= offset <= header.last_offset:
            end = header.position + header.size
            raw[end - 1] ^= 1
            with path.open("r+b") as file:
                file.seek(end - 1)
                file.write(raw[end - 1 : end])
            return bytes(raw[header.position : end])
    raise AssertionError(f"{topic}-{partition} has no batch with offset {offset}")
