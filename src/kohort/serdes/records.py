"""Records as their reader means them: key and value decoded when they are looked at, and only then.

Rules:
- A key or value that does not decode is a value: `Undecodable`, with the raw bytes and the error.
  No record stops its partition, and the poll that brought it knows nothing of it.
- None (no key, a tombstone) stays None.
- Each is decoded once a record, also when it fails.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Generic, TypedDict, TypeVar, overload

from kohort.errors import DeserializationError, KohortError
from kohort.records import Record
from kohort.serdes.basic import BytesSerde, Part, Serde

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")
_UNREAD: Final = object()
_BYTES: Final = BytesSerde()


@dataclass(frozen=True, slots=True)
class Undecodable:
    """The place of a key or value that did not decode.

    Attributes:
        raw: its bytes, as stored in the log.
        error: why. DeserializationError is permanent; an error that is `retriable` (the schema
            registry does not answer, or does not know the id yet) may be gone when the record is
            read again.
    """

    raw: bytes
    error: KohortError


class KeyAndValue(TypedDict):
    """The encoded parts of a record, as keyword arguments of `Producer.send`."""

    value: bytes | None
    key: bytes | None


class Decoded(Generic[K, V]):
    """A record whose `key` and `value` are what its bytes mean; all else as in `record`."""

    __slots__ = ("_key", "_serdes", "_value", "record")

    def __init__(self, record: Record, serdes: Serdes[K, V]) -> None:
        self.record = record
        self._serdes = serdes
        self._key: Any = _UNREAD
        self._value: Any = _UNREAD

    @property
    def key(self) -> K | Undecodable | None:
        """The key; None where there is none."""
        if self._key is _UNREAD:
            self._key = _decode(self._serdes.key, self.record, "key")
        return self._key

    @property
    def value(self) -> V | Undecodable | None:
        """The value; None for a tombstone."""
        if self._value is _UNREAD:
            self._value = _decode(self._serdes.value, self.record, "value")
        return self._value

    @property
    def failure(self) -> Undecodable | None:
        """The first of key and value that does not decode; looks at both."""
        for each in (self.key, self.value):
            if isinstance(each, Undecodable):
                return each
        return None

    @property
    def topic(self) -> str:
        """As `Record.topic`."""
        return self.record.topic

    @property
    def partition(self) -> int:
        """As `Record.partition`."""
        return self.record.partition

    @property
    def offset(self) -> int:
        """As `Record.offset`."""
        return self.record.offset

    @property
    def timestamp(self) -> int:
        """As `Record.timestamp`, ms since 1970."""
        return self.record.timestamp

    @property
    def headers(self) -> tuple[tuple[str, bytes | None], ...]:
        """As `Record.headers`."""
        return self.record.headers

    def __repr__(self) -> str:
        where = f"{self.topic}-{self.partition} {self.offset}"
        return f"Decoded({where}, key={self.key!r}, value={self.value!r})"


class Serdes(Generic[K, V]):
    """What keys and values of a topic are, both ways. Bytes where nothing is given."""

    @overload
    def __init__(self: Serdes[bytes, bytes]) -> None: ...
    @overload
    def __init__(self: Serdes[T, bytes], *, key: Serde[T]) -> None: ...
    @overload
    def __init__(self: Serdes[bytes, T], *, value: Serde[T]) -> None: ...
    @overload
    def __init__(self, *, key: Serde[K], value: Serde[V]) -> None: ...
    def __init__(self, *, key: Any = _BYTES, value: Any = _BYTES) -> None:
        self.key: Serde[K] = key
        self.value: Serde[V] = value

    def of(self, record: Record) -> Decoded[K, V]:
        """One record, to be decoded when it is looked at."""
        return Decoded(record, self)

    @overload
    def each(self, records: AsyncIterable[Record]) -> AsyncIterator[Decoded[K, V]]: ...
    @overload
    def each(self, records: Iterable[Record]) -> Iterator[Decoded[K, V]]: ...
    def each(self, records: Any) -> Any:
        """Each of these: a poll's list, a `Consumer`, or (`async for`) an `AsyncConsumer`."""
        if isinstance(records, AsyncIterable):
            return self._each_async(records)  # pyright: ignore[reportUnknownArgumentType]
        return (Decoded(record, self) for record in records)

    async def _each_async(self, records: AsyncIterable[Record]) -> AsyncIterator[Decoded[K, V]]:
        import asyncio

        async for record in records:
            decoded = Decoded(record, self)
            if self._waits_for(record):  # a schema is fetched: the loop has others to run
                await asyncio.to_thread(getattr, decoded, "failure")
            yield decoded

    def _waits_for(self, record: Record) -> bool:
        key, value = record.key, record.value
        return (key is not None and self.key.waits_for(key)) or (
            value is not None and self.value.waits_for(value)
        )

    def to_bytes(self, topic: str, value: V | None = None, key: K | None = None) -> KeyAndValue:
        """`value` and `key` for `producer.send(topic, **...)`. Raises what the formats raise."""
        return {
            "value": None if value is None else self.value.serialize(topic, value, "value"),
            "key": None if key is None else self.key.serialize(topic, key, "key"),
        }


def _decode(serde: Serde[Any], record: Record, part: Part) -> Any:
    raw = record.value if part == "value" else record.key
    if raw is None:
        return None
    try:
        return serde.deserialize(record.topic, raw, part)
    except KohortError as error:
        return Undecodable(raw, error)
    except Exception as error:  # the function is the user's, and may raise anything
        failure = DeserializationError(f"{type(error).__name__}: {error}")
        failure.__cause__ = error
        return Undecodable(raw, failure)
