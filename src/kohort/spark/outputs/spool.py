"""Encoded batches in files, where all tasks of a job run on one machine.

Shell: files, randomness (their names).

Rules:
- The shuffle then carries the places of batches, not their bytes, which it would copy through the
  JVM and back. Tasks of a cluster share no disk: there the shuffle carries the bytes.
- A task has a file of its own, so a second attempt writes into another one.
- The driver empties the directory after each job. It is inside Spark's own temporary directory,
  which Spark deletes when it ends.
"""

# pyspark's types are incomplete, so strict checking would report nothing else.
# pyright: basic
from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from kohort.records.compression import Readable


class Place(NamedTuple):
    """Where a batch is: the name of its file, its first byte, how many it has."""

    file: str
    at: int
    size: int


class SpoolWriter:
    """The file of one task."""

    def __init__(self, directory: Path) -> None:
        self._name = secrets.token_hex(8)
        self._file = (directory / self._name).open("xb", buffering=0)
        self._size = 0

    def put(self, payload: Readable) -> Place:
        """Append a batch. Raises OSError when the disk is full."""
        place = Place(self._name, self._size, len(payload))
        left = memoryview(payload)
        while left:
            left = left[self._file.write(left) :]
        self._size += place.size
        return place

    def close(self) -> None:
        """Close the file; it stays until the job has ended."""
        self._file.close()


class SpoolReader:
    """Reads batches of a job. Use it as a context manager."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._files: dict[str, Any] = {}
        self._open = ExitStack()

    def __enter__(self) -> SpoolReader:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._open.close()

    def get(self, place: Place) -> bytes:
        """The bytes of a batch. Raises OSError when they are not there."""
        file = self._files.get(place.file)
        if file is None:
            opened = (self._directory / place.file).open("rb", buffering=0)
            file = self._files[place.file] = self._open.enter_context(opened)
        payload = os.pread(file.fileno(), place.size, place.at)
        if len(payload) != place.size:
            raise OSError(f"{self._directory / place.file} is cut off at {place}")
        return payload


def spool_directory(context: Any, query: str) -> Path | None:
    """Where the tasks of a query spool; None where they do not run on this machine alone."""
    from pyspark import SparkFiles

    if not context.master.startswith("local") or context.master.startswith("local-cluster"):
        return None
    name = hashlib.sha256(query.encode()).hexdigest()[:12]
    return Path(SparkFiles.getRootDirectory()) / f"kohort-spool-{name}"


@contextlib.contextmanager
def emptied(directory: Path | None) -> Iterator[None]:
    """An empty directory for one job. Files of tasks that still run go with the next job's."""
    if directory is None:
        yield
        return
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True, exist_ok=True)
    try:
        yield
    finally:
        shutil.rmtree(directory, ignore_errors=True)
