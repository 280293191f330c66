"""The kernel's types are its twin's."""

from typing import Any

from kohort.records.layout import Readable
from kohort.records.pure import BatchBuilder as BatchBuilder
from kohort.records.pure import Chunk as Chunk
from kohort.records.pure import Record as Record
from kohort.records.pure import check_records as check_records
from kohort.records.pure import rebuild_record as rebuild_record

CRC_PATH: str

def crc32c(data: Readable, crc: int = 0) -> int: ...
def crc32c_portable(data: Readable, crc: int = 0) -> int: ...
def allocate(size: int, filled_soon: bool = False) -> memoryview: ...
def end_of_set(data: Readable) -> int: ...
def whole_batches(data: Readable) -> int: ...

class Lent:
    """An Arrow array that another library may take over at `address`."""

    def __init__(self, layout: tuple[Any, ...]) -> None: ...
    @property
    def address(self) -> int: ...
