"""What the release before this one writes and speaks, for plans in which processes are upgraded.

Rules:
- Every version here exists: values of Apache Kafka's internal topics as its brokers have written
  them under an older `inter.broker.protocol.version`, API versions of its 2.5 and 3.9, and files
  of the data directory as Kohort wrote them before 0.1.0. What reads them is the code that ships.
- A broker goes back only as patch releases do (docs/versioning.md): its APIs and features stay, and
  so does the value version that those need.
- A client and a broker agree as ever, on the newest version that both know: the answer to
  ApiVersions names what the older of the two knows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from struct import Struct
from typing import Final
from zlib import crc32

from kohort.broker.base.config import OFFSETS_TOPIC
from kohort.broker.log.directory import CLEAN_MARKER, TOPICS_FILE
from kohort.broker.log.segment import SNAPSHOT_SUFFIX
from kohort.group.coordinator.state.classic_records import GROUP, NO_EXPIRY, OFFSET
from kohort.group.coordinator.state.effects import GroupRecord
from kohort.simulator.schedule import Random
from kohort.wire import decode, decode_versioned, encode, encode_versioned, record_type
from kohort.wire.messages.api_versions_response import ApiVersionsResponse
from kohort.wire.messages.group_metadata_value import GroupMetadataValue
from kohort.wire.messages.offset_commit_value import OffsetCommitValue
from kohort.wire.messages.transaction_log_value import TransactionLogValue

RETENTION_MS: Final = 7 * 86_400_000
"""After which a commit expires where the release says so in the commit."""


def _newest(versions: str) -> Mapping[int, int]:
    pairs = (each.partition(":") for each in versions.split())
    return {int(api): int(version) for api, _, version in pairs}


NO_APIS: Final[Mapping[int, int]] = {}
_KAFKA_2_5: Final = _newest(
    "0:8 1:11 2:5 3:9 8:8 9:7 10:3 11:7 12:4 13:4 14:5 19:5 20:4 21:1 22:3 23:3 24:1 25:1 26:1 28:3"
)
_KAFKA_3_9: Final = _newest(
    "0:11 1:17 2:9 3:12 8:9 9:9 10:6 11:9 12:4 13:5 14:5 "
    "19:7 20:6 21:2 22:5 23:4 24:5 25:4 26:4 28:4"
)
"""By API key. Of KIP-848 our clients speak only what 4.0 knows, so that it is left out."""
_BY_ID: Final = {0, 1, 3}
"""Produce, Fetch, Metadata: their newest versions know topics by id."""
CHANGES: Final = tuple(
    f"{who} {what}graded" for who in ("broker", "clients") for what in ("up", "down")
)
"""What becomes of processes, as `--coverage` names it."""
_NEWER_FIELDS: Final = ("nodes", "groups", "brokers", "acls", "quotas")
"""Of `topics.json`, which the release before had not; an empty one says nothing."""
_SNAPSHOT_HEAD: Final = Struct(">hIi")
_PRODUCER_1, _PRODUCER_2, _BATCH = Struct(">qhqi"), Struct(">qhqiiq"), Struct(">iiqq")


@dataclass(frozen=True)
class Release:
    """What one release writes and speaks.

    Args:
        name: for the story.
        offsets, groups, transactions: versions of the values that its coordinators write.
        expires: whether commits carry the time at which they expire (KIP-211 ended that).
        apis: the newest version of APIs that it knows; of those not named, ours.
        older_files: whether it writes its own files in the form before the present one.
    """

    name: str
    offsets: int = 3
    groups: int = 3
    transactions: int = 1
    expires: bool = False
    apis: Mapping[int, int] = field(default_factory=lambda: NO_APIS)
    older_files: bool = False

    def patch(self) -> Release:
        """The release to which a broker may go back."""
        return replace(self, name=f"{self.name}, a patch", transactions=1, apis=NO_APIS)


NOW: Final = Release("this release")
_CLASSIC: Final = (
    Release("0.10.0", offsets=1, groups=0, transactions=0, expires=True),
    Release("2.0", offsets=1, groups=1, transactions=0, expires=True),
    Release("2.5 as 2.0", offsets=1, groups=1, transactions=0),
    Release("2.5 as 2.1-IV0", offsets=2, groups=2, transactions=0),
    Release("2.5 as 2.2", offsets=3, groups=2, transactions=0),
)
"""The values' versions by the protocol version that brokers kept between them."""
_CONSUMER: Final = Release("3.9", transactions=0, apis=_KAFKA_3_9, older_files=True)


def release_before(seed: int, protocol: str, *, by_id: bool = False) -> Release:
    """The release from which a plan begins. Consumer groups (KIP-848) are not in the oldest.

    `by_id`: topics are deleted and made again, and producers name them by id as of this release.
    One that names them by name cannot know that, and what it sent to the former comes late.
    """
    before = _CONSUMER
    if protocol == "classic":
        chosen = Random(f"release/{seed}").choice(_CLASSIC)
        before = replace(chosen, apis=_KAFKA_2_5, older_files=True)
    if by_id:
        kept = {api: newest for api, newest in before.apis.items() if api not in _BY_ID}
        before = replace(before, apis=kept)
    return before


# -- records


def older_group_record(record: GroupRecord, release: Release) -> GroupRecord:
    """A record of `__consumer_offsets` as the release writes it."""
    if record.value is None:
        return record
    kind = record_type(record.key)
    if kind == OFFSET and release.offsets < 3:
        _, offset = decode_versioned(OffsetCommitValue, record.value)
        offset.leader_epoch = -1
        if release.expires and offset.expire_timestamp == NO_EXPIRY:
            offset.expire_timestamp = offset.commit_timestamp + RETENTION_MS
        return GroupRecord(record.key, encode_versioned(offset, release.offsets))
    if kind == GROUP and release.groups < 3:
        _, group = decode_versioned(GroupMetadataValue, record.value)
        return GroupRecord(record.key, encode_versioned(group, release.groups))
    return record


def older_transaction_record(record: GroupRecord, release: Release) -> GroupRecord:
    """The same of `__transaction_state`, whose v0 has nothing of KIP-890."""
    if record.value is None or release.transactions:
        return record
    _, value = decode_versioned(TransactionLogValue, record.value)
    value.client_transaction_version = 0
    value.previous_producer_id = value.next_producer_id = value.next_producer_epoch = -1
    return GroupRecord(record.key, encode_versioned(value, 0))


OLDER_VALUES: Final = (
    *("OffsetCommitValue v1", "OffsetCommitValue v2"),
    *("GroupMetadataValue v0", "GroupMetadataValue v1", "GroupMetadataValue v2"),
    "TransactionLogValue v0",
)
"""All that a release before this one may write."""


def value_name(topic: str, record: GroupRecord) -> str:
    """Which of them a record of an internal topic has."""
    assert record.value is not None, "a tombstone has no version"
    kind = "TransactionLogValue"
    if topic == OFFSETS_TOPIC:
        is_offset = record_type(record.key) == OFFSET
        kind = "OffsetCommitValue" if is_offset else "GroupMetadataValue"
    return f"{kind} v{int.from_bytes(record.value[:2])}"


# -- files


_SNAPSHOT, _MARK, _TOPICS = (f"{n}.tmp" for n in (SNAPSHOT_SUFFIX, CLEAN_MARKER, TOPICS_FILE))
"""Small files are written under such a name, and then renamed."""
OLDER_FILES: Final = ("snapshot of producers v1", "empty clean mark", "bare topics.json")
"""The small files that the release before wrote otherwise."""


def file_name(path: str) -> str:
    """Which of them a file is."""
    if path.endswith(_SNAPSHOT):
        return OLDER_FILES[0]
    return OLDER_FILES[1] if path == _MARK else OLDER_FILES[2]


def older_file(path: str, content: bytes) -> bytes:
    """A small file of the data directory as the release before has written it."""
    if path.endswith(_SNAPSHOT):
        return _older_snapshot(content)
    if path == _TOPICS:
        document = json.loads(content)
        kept = {k: v for k, v in document.items() if v or k not in _NEWER_FIELDS}
        return json.dumps(kept, indent=1).encode()
    return b"" if path == _MARK else content


def _older_snapshot(content: bytes) -> bytes:
    """Version 1: neither open transactions nor the epochs of their coordinators."""
    _, _, count = _SNAPSHOT_HEAD.unpack_from(content)
    parts: list[bytes] = []
    at = _SNAPSHOT_HEAD.size
    for _ in range(count):
        producer_id, epoch, last_ms, batches, _, _ = _PRODUCER_2.unpack_from(content, at)
        at += _PRODUCER_2.size
        end = at + batches * _BATCH.size
        parts += [_PRODUCER_1.pack(producer_id, epoch, last_ms, batches), content[at:end]]
        at = end
    body = b"".join(parts)
    return _SNAPSHOT_HEAD.pack(1, crc32(body), count) + body


# -- versions of APIs


def lowered(answer: bytes, *sides: Mapping[int, int]) -> bytes:
    """An answer to ApiVersions without what an older side does not know: newer versions, and
    transactions as of KIP-890."""
    return answer[:4] + _lowered(answer[4:], tuple(tuple(side.items()) for side in sides))


@lru_cache(maxsize=32)
def _lowered(body: bytes, sides: tuple[tuple[tuple[int, int], ...], ...]) -> bytes:
    version = ApiVersionsResponse.STABLE_VERSION
    message = decode(ApiVersionsResponse, version, body)
    for side in sides:
        newest = dict(side)
        for api in message.api_keys:
            api.max_version = min(api.max_version, newest.get(api.api_key, api.max_version))
    message.api_keys = [api for api in message.api_keys if api.max_version >= api.min_version]
    message.finalized_features, message.supported_features = [], []
    return encode(message, version)
