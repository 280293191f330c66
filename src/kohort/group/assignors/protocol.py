"""The bytes of Kafka's "consumer" protocol: what members send the leader and the leader sends back.

Rules:
- Written as the Java client writes them: subscription and assignment v3, partitions by topic.
- Read at any version: an older one lacks fields, a newer one is read as the newest known, and what
  follows is ignored, as Java does. So members of any age share a group.
- Damaged bytes raise `DecodeError`; the leader then treats that one member as subscribed to nothing
  instead of failing the group. Counts are compared with the bytes left before anything is made.
- A leader reads one of these a member and writes one back, thousands at a time on the network
  thread, and most of them name the same topics: so partitions are read and written by `loops` and
  not by the general codec, and a subscription read before is recognised by its bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from struct import Struct
from struct import error as struct_error
from typing import Final

from kohort.errors import DecodeError
from kohort.group.assignors.base import NO_GENERATION, MemberView, Partitions
from kohort.group.assignors.loops import array_size
from kohort.group.assignors.loops_implementation import PartitionReader, PartitionWriter

PROTOCOL_TYPE: Final = "consumer"
VERSION: Final = 3
"""The newest version of subscription and assignment, and what is written."""

_INT16, _INT32 = Struct(">h"), Struct(">i")
_NULL = _INT32.pack(-1)
_NO_BYTES = b""


class ProtocolWriter:
    """Writes subscriptions and assignments; remembers the bytes of topic names."""

    def __init__(self) -> None:
        self._partitions = PartitionWriter()

    def subscription(
        self,
        topics: Iterable[str],
        user_data: bytes | None,
        owned: Partitions,
        generation: int,
        rack: str | None,
        version: int = VERSION,
    ) -> bytes:
        """The metadata that a member joins with. Topics are sorted, as Java sorts them."""
        names = sorted(topics)
        out = [_INT16.pack(version), _INT32.pack(len(names)), *map(_named, names)]
        out.append(_optional(user_data))
        if version >= 1:
            out.append(self._partitions.write(owned))
        if version >= 2:
            out.append(_INT32.pack(generation))
        if version >= 3:
            out.append(_INT16.pack(-1) if rack is None else _named(rack))
        return b"".join(out)

    def assignment(
        self,
        partitions: Mapping[str, Sequence[int]],
        user_data: bytes | None = None,
        version: int = VERSION,
    ) -> bytes:
        """What one member gets, as bytes for `SyncGroup`."""
        return _INT16.pack(version) + self._partitions.write(partitions) + _optional(user_data)


def _named(text: str) -> bytes:
    raw = text.encode()
    return _INT16.pack(len(raw)) + raw


def _optional(data: bytes | None) -> bytes:
    return _NULL if data is None else _INT32.pack(len(data)) + data


class ProtocolReader:
    """Reads subscriptions and assignments; remembers names and the last list of topics."""

    def __init__(self) -> None:
        self.partitions = PartitionReader()
        self._topics_raw = _NO_BYTES
        self._topics = frozenset[str]()

    def subscription(
        self, member_id: str, data: bytes, instance_id: str | None = None
    ) -> MemberView:
        """A member as its metadata describes it. Raises DecodeError."""
        if not data:
            # A client that has nothing to say (an old or foreign one) subscribes to nothing.
            return MemberView(member_id, frozenset(), instance_id)
        try:
            version = _version(data)
            topics, at = self._topic_list(data)
            user_data, at = _bytes(data, at)
            owned, generation, rack = dict[str, tuple[int, ...]](), NO_GENERATION, None
            if version >= 1:
                owned, at = self.partitions.read(data, at)
            if version >= 2:
                generation, at = _INT32.unpack_from(data, at)[0], at + 4
            if version >= 3 and _INT16.unpack_from(data, at)[0] >= 0:
                name, at = self._name(data, at)
                rack = name or None  # librdkafka writes an empty one by default
        except (struct_error, UnicodeDecodeError, DecodeError) as error:
            raise DecodeError(f"subscription of member {member_id!r}: {error}") from None
        return MemberView(member_id, topics, instance_id, owned, generation, rack, user_data)

    def assignment(self, data: bytes) -> tuple[dict[str, tuple[int, ...]], bytes | None]:
        """Partitions and user data; empty bytes are an empty assignment. Raises DecodeError."""
        if not data:
            return {}, None
        try:
            _version(data)
            partitions, at = self.partitions.read(data, 2)
            user_data, _ = _bytes(data, at)
        except (struct_error, UnicodeDecodeError) as error:
            raise DecodeError(f"assignment: {error}") from None
        return partitions, user_data

    def _topic_list(self, data: bytes) -> tuple[frozenset[str], int]:
        known = self._topics_raw
        if known and data.startswith(known, 2):
            return self._topics, 2 + len(known)
        names: list[str] = []
        at = 6
        for _ in range(array_size(data, 2, 2)):
            name, at = self._name(data, at)
            names.append(name)
        self._topics_raw, self._topics = data[2:at], frozenset(names)
        return self._topics, at

    def _name(self, data: bytes, at: int) -> tuple[str, int]:
        (length,) = _INT16.unpack_from(data, at)
        end = at + 2 + length
        if length < 0 or end > len(data):
            raise DecodeError(f"a name of {length} bytes at byte {at} of {len(data)}")
        return data[at + 2 : end].decode(), end


def _version(data: bytes) -> int:
    version = _INT16.unpack_from(data, 0)[0]
    if version < 0:
        raise DecodeError(f"version {version} of the consumer protocol")
    return version


def _bytes(data: bytes, at: int) -> tuple[bytes | None, int]:
    (length,) = _INT32.unpack_from(data, at)
    end = at + 4 + max(length, 0)
    if length < -1 or end > len(data):
        raise DecodeError(f"{length} bytes of user data at byte {at} of {len(data)}")
    return (None if length < 0 else data[at + 4 : end]), end


def encode_subscription(
    topics: Iterable[str],
    user_data: bytes | None,
    owned: Partitions,
    generation: int,
    rack: str | None,
    version: int = VERSION,
) -> bytes:
    """One member's metadata; see `ProtocolWriter.subscription`."""
    return ProtocolWriter().subscription(topics, user_data, owned, generation, rack, version)


def decode_subscription(member_id: str, data: bytes, instance_id: str | None = None) -> MemberView:
    """One member from its metadata; see `ProtocolReader.subscription`."""
    return ProtocolReader().subscription(member_id, data, instance_id)


def encode_assignment(
    partitions: Mapping[str, Sequence[int]], user_data: bytes | None = None, version: int = VERSION
) -> bytes:
    """One member's part; see `ProtocolWriter.assignment`."""
    return ProtocolWriter().assignment(partitions, user_data, version)


def decode_assignment(data: bytes) -> tuple[dict[str, tuple[int, ...]], bytes | None]:
    """One member's part; see `ProtocolReader.assignment`."""
    return ProtocolReader().assignment(data)
