from collections.abc import Sequence
from typing import Any, Literal

from kohort.broker.log.log import BatchRun
from kohort.records import BatchHeader
from kohort.wire import Message

class Entry(BatchHeader):
    peer: Any
    frame: memoryview  # None once its batch is `stamped`: nobody may want it then
    client_id: str
    target: bytes
    api: Literal[0]
    api_version: int
    correlation_id: int
    answered: bool
    response: list[bytes] | Message | None
    given_up: None
    def place(self) -> tuple[str | bytes, int] | None: ...

class GroupCall:
    peer: Any
    frame: memoryview
    api: Literal[8, 12, 68]
    api_version: int
    correlation_id: int
    client_id: str
    group_id: str
    member_id: str
    instance_id: str | None
    epoch: int
    offsets: list[Any]
    answered: bool
    response: list[bytes] | Message | None
    given_up: None
    @property
    def client_host(self) -> str: ...
    def settle(self, said: int | list[int] | Message | None) -> None: ...
    def answer(self, said: int | list[int] | Message | None) -> None: ...

class Run(BatchRun):
    @property
    def entries(self) -> list[Entry]: ...
    largest: int
    marks: list[tuple[int, int, int, int]]
    def __init__(self) -> None: ...
    def __len__(self) -> int: ...
    def add(self, entry: Entry) -> None: ...
    def stamped(self, offset: int, position: int, leader_epoch: int) -> list[memoryview]: ...
    def answers(self, log_start_offset: int) -> None: ...

class Gathered(Run):
    def __init__(self, records: Sequence[tuple[bytes, bytes | None]], time_ms: int) -> None: ...

def take(peer: object, frame: memoryview) -> Entry | GroupCall | None: ...
