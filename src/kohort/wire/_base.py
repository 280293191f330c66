"""What all message classes share: equality, a readable repr, and the raw unknown tags.

Rules:
- Objects are plain slotted classes; `__init__` takes keywords only and fills in Kafka's defaults.
- `unknown_tags` holds tagged fields that this version of the facts does not know, as
  `(tag, raw bytes)`; they are kept and written again (KIP-482).
- A tagged struct that was not sent is one shared, frozen default object: assign a new object to
  the field instead of changing it.
- Secrets (SASL tokens, salted passwords, HMACs) never show in a repr.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Final, TypeVar

from kohort.wire._limits import RESPONSE_LIMITS, Limits

EMPTY: Final[list[Any]] = []
"""Default of array parameters: "a fresh, empty list". Never stored in an object."""

FRESH: Final[Any] = object()
"""Default of nullable struct parameters whose default is not null: "a fresh struct"."""

ZERO_UUID: Final = bytes(16)
"""Kafka's "no id"."""

SECRET_FIELDS: Final = frozenset({"auth_bytes", "salted_password", "salt", "hmac"})


class Struct:
    """Base of every struct inside a message."""

    __slots__ = ("unknown_tags",)

    FIELDS: ClassVar[tuple[str, ...]] = ()
    """Names of the fields, in wire order."""

    unknown_tags: list[tuple[int, bytes]] | None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Struct) or other.FIELDS is not self.FIELDS:
            return NotImplemented
        for name in self.FIELDS:
            if getattr(self, name) != getattr(other, name):
                return False
        return (self.unknown_tags or None) == (other.unknown_tags or None)

    __hash__ = None  # type: ignore[assignment]  # mutable, so not hashable

    def __repr__(self) -> str:
        shown = [f"{name}={_shown(name, getattr(self, name))}" for name in self.FIELDS]
        if self.unknown_tags:
            shown.append(f"unknown_tags={self.unknown_tags!r}")
        return f"{type(self).__name__}({', '.join(shown)})"


class Message(Struct):
    """Base of every top-level message: request, response, header, internal record or user data."""

    __slots__ = ()

    NAME: ClassVar[str] = ""
    """Kafka's name of the message."""
    API_KEY: ClassVar[int] = -1
    """Key of its API (or of its record type), -1 for none."""
    MIN_VERSION: ClassVar[int] = 0
    """Oldest version that Kafka 4 knows."""
    MAX_VERSION: ClassVar[int] = 0
    """Newest version."""
    STABLE_VERSION: ClassVar[int] = 0
    """Newest version that is not marked unstable: the most that a broker should offer."""
    FLEXIBLE_FROM: ClassVar[int] = 1 << 15
    """First version with compact lengths and tagged fields; 32768 for never."""

    LIMITS: ClassVar[Limits] = RESPONSE_LIMITS
    """The limits of decoding by default."""
    DECODERS: ClassVar[dict[int, Callable[..., Any]]] = {}
    """Generated decoders by version; filled by `kohort.wire`."""
    ENCODERS: ClassVar[dict[int, Callable[..., Any]]] = {}
    """Generated encoders by version; filled by `kohort.wire`."""
    HAS_RECORDS: ClassVar[bool] = False
    """Whether the message carries record batches, which are never copied."""


S = TypeVar("S", bound=Struct)


def frozen_default(cls: type[S]) -> S:
    """One shared default object of `cls` that refuses to be changed."""

    def refuse(self: Struct, name: str, value: object) -> None:
        raise AttributeError(
            f"this {cls.__name__} is the shared default: assign a new {cls.__name__} to the field "
            f"instead of setting {name!r} to {value!r} here"
        )

    def reduce(self: Struct) -> tuple[type[Struct], tuple[()]]:
        return cls, ()

    frozen = cls()
    body = {"__slots__": (), "__setattr__": refuse, "__reduce__": reduce}
    object.__setattr__(frozen, "__class__", type(cls.__name__, (cls,), body))
    return frozen


def _shown(name: str, value: Any) -> str:
    if name in SECRET_FIELDS and value:
        return "<hidden>"
    if isinstance(value, memoryview):
        return f"<{value.nbytes} bytes>"
    if isinstance(value, bytes) and len(value) > 64:
        return f"<{len(value)} bytes>"
    return repr(value)
