"""Every test that takes `impl` runs over the compiled kernel and over its pure-Python twin."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

import pytest

from kohort.records import KERNEL, Record
from kohort.records.layout import BatchHeader

Fields = tuple[Any, ...]


def implementations() -> list[ModuleType]:
    names = ["kohort.records.pure"]
    if KERNEL == "cython":
        names.insert(0, "kohort.records._kernel")
    return [importlib.import_module(name) for name in names]


IMPLEMENTATIONS = implementations()


@pytest.fixture(params=IMPLEMENTATIONS, ids=lambda module: module.__name__.split(".")[-1])
def impl(request: pytest.FixtureRequest) -> Any:
    return request.param


def fields(record: Record) -> Fields:
    """All that a record holds."""
    return (
        record.topic, record.partition, record.offset, record.timestamp, record.timestamp_type,
        record.key, record.value, record.headers, record.leader_epoch,
    )  # fmt: skip


def crc_mended(impl: Any, batch: bytes | bytearray) -> bytes:
    """The batch with the CRC that its present bytes need."""
    mended = bytearray(batch)
    header = BatchHeader(mended)
    mended[17:21] = impl.crc32c(mended[21 : header.size]).to_bytes(4, "big")
    return bytes(mended)
