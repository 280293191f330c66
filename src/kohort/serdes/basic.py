"""The built-in formats: bytes, text, integers as Java writes them, JSON.

Rules:
- `serialize` and `deserialize` are each other's inverse; None never comes to them (a tombstone).
- What does not fit raises DeserializationError, which is permanent: the same bytes never will.
- Whose bytes they are is a part of the call (`key` or `value` of a topic), because a schema
  registry keeps schemas by it; the built-in formats do not look.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final, Generic, Literal, Self, TypeVar

from kohort.errors import DeserializationError, UsageError

T = TypeVar("T")
Part = Literal["key", "value"]
_INTEGER_BYTES: Final = 4
_LONG_BYTES: Final = 8


class Serde(Generic[T]):
    """A format: make one by two functions, or derive from it.

    Pickling keeps its class and its constructor's arguments, and creates it again from them.
    """

    _arguments: tuple[tuple[Any, ...], dict[str, Any]]

    def __new__(cls, *args: Any, **settings: Any) -> Self:
        made = super().__new__(cls)
        made._arguments = (args, settings)
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), *self._arguments)

    def __init__(self, serialize: Callable[[T], bytes], deserialize: Callable[[bytes], T]) -> None:
        self._to, self._from = serialize, deserialize

    def serialize(self, topic: str, value: T, part: Part = "value") -> bytes:
        """The bytes of a value. Raises what its function raises."""
        return self._to(value)

    def deserialize(self, topic: str, data: bytes, part: Part = "value") -> T:
        """The value of these bytes. Raises DeserializationError, or what its function raises."""
        return self._from(data)

    def waits_for(self, data: bytes) -> bool:
        """Whether `deserialize` would have to ask a service first: then not on an event loop."""
        del data
        return False


def _rebuild(kind: Callable[..., Any], args: tuple[Any, ...], settings: dict[str, Any]) -> Any:
    return kind(*args, **settings)


class BytesSerde(Serde[bytes]):
    """Bytes as they are."""

    def __init__(self) -> None:
        super().__init__(bytes, bytes)


class StringSerde(Serde[str]):
    """Text in UTF-8, as Java's StringSerializer."""

    def __init__(self, encoding: str = "utf-8") -> None:
        def decode(data: bytes) -> str:
            try:
                return data.decode(encoding)
            except UnicodeDecodeError as error:
                raise DeserializationError(f"not {encoding} text: {error}") from error

        super().__init__(lambda text: text.encode(encoding), decode)


class _Number(Serde[int]):
    """A signed big-endian integer of a fixed width."""

    def __init__(self, width: int) -> None:
        most = 1 << (8 * width - 1)

        def encode(number: int) -> bytes:
            if not -most <= number < most:
                raise UsageError(f"{number} does not fit into {width} bytes; take a wider format")
            return number.to_bytes(width, "big", signed=True)

        def decode(data: bytes) -> int:
            if len(data) != width:
                raise DeserializationError(
                    f"{len(data)} bytes are not an integer of {width} bytes; was it written as "
                    "text, or by another width?"
                )
            return int.from_bytes(data, "big", signed=True)

        super().__init__(encode, decode)


class IntegerSerde(_Number):
    """4 bytes, as Java's IntegerSerializer."""

    def __init__(self) -> None:
        super().__init__(_INTEGER_BYTES)


class LongSerde(_Number):
    """8 bytes, as Java's LongSerializer."""

    def __init__(self) -> None:
        super().__init__(_LONG_BYTES)


class JsonSerde(Serde[Any]):
    """JSON in UTF-8, without spaces. `dumps` and `loads` may be another library's (orjson's)."""

    def __init__(
        self,
        dumps: Callable[[Any], str | bytes] | None = None,
        loads: Callable[[bytes], Any] = json.loads,
    ) -> None:
        to_text = dumps or json.JSONEncoder(separators=(",", ":")).encode

        def encode(value: Any) -> bytes:
            text = to_text(value)
            return text.encode() if isinstance(text, str) else text

        def decode(data: bytes) -> Any:
            try:
                return loads(data)
            except (ValueError, RecursionError) as error:
                raise DeserializationError(f"not JSON: {error}") from error

        super().__init__(encode, decode)
