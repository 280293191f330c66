from collections.abc import Callable
from types import ModuleType
from typing import Any, TypeVar

from kohort.wire._base import Message
from kohort.wire._schema import Definition
from kohort.wire._types import Buffer

T = TypeVar("T", bound=tuple[Any, ...])

class Layout: ...

class Decoder:
    def __init__(
        self, cls: type[Message], layout: Layout, generate: Callable[[], Callable[..., Any]]
    ) -> None: ...
    def __call__(
        self, data: object, memory: memoryview | None, at: int, end: int, left: int, most: int
    ) -> tuple[Any, int]: ...

class Encoder:
    def __init__(
        self,
        cls: type[Message],
        version: int,
        layout: Layout,
        generate: Callable[[], Callable[..., Any]],
    ) -> None: ...
    def __call__(self, message: object, out: list[Any], large: list[int]) -> None: ...
    def response(self, message: Message, correlation_id: int) -> list[Buffer] | None: ...

CONSTANTS: dict[int, Message]
READERS: dict[int, Decoder]

def layout_of(definition: Definition, module: ModuleType, version: int) -> Layout: ...
def request_head(frame: Buffer, kind: type[T]) -> T | None: ...
def request_body(frame: bytes, head: tuple[Any, ...]) -> Message | None: ...
