"""The data directory: what topics there are, and where their logs were flushed to.

Rules:
- `topics.json` is the truth about topics, ids, partitions, configurations, the cluster's id and the
  producer ids handed out; it is replaced in one step and durable before anything is answered.
- A partition's directory (`TOPIC-N`, as Kafka names it) is made when it is first written to. A
  deleted topic leaves `topics.json` first and stays in its list of deletions until its directories
  are gone, so that a crash between the two leaves nothing behind for a new topic of that name.
- On a full disk what frees space is still possible: the deletion of a topic, its retention,
  DeleteRecords find room in a reserve, a small file that is there for nothing else.
- The clean-shutdown marker is deleted before anything is loaded and written last of all
  (KAFKA-10471).
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from kohort.broker.log.checkpoints import (
    TopicPartition,
    decode_offsets,
    decode_segments,
    encode_offsets,
    encode_segments,
)
from kohort.broker.log.files import DISK_FULL, Files, replace_file
from kohort.errors import StorageError
from kohort.lean import dataclass, field

log = logging.getLogger("kohort.broker")
CLEAN_MARKER = ".kafka_cleanshutdown"
RECOVERY_POINTS = "recovery-point-offset-checkpoint"
LOG_STARTS = "log-start-offset-checkpoint"
TOPICS_FILE = "topics.json"
USERS_FILE = "users.json"
RESERVE = ".reserve"
RESERVE_BYTES_MIN = 64 << 10
_FORMAT = 1
_PARTITION_DIR = re.compile(r"(.+)-(\d+)")
_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")
PRODUCER_ID_BLOCK = 1_000
Entity = tuple[tuple[str, str | None], ...]
"""The entity of a quota: kinds and names, by kind; None is the default entity."""


AclRow = list[str]
"""Resource, name, pattern, principal, host, operation, permission."""


def topic_name_fault(name: str) -> str | None:
    """Why a topic cannot have this name, or None."""
    if not name:
        return "the empty string is not a topic name"
    if name in (".", ".."):
        return "'.' and '..' are not topic names"
    if len(name) > 249:
        return f"a topic name has at most 249 characters, this one has {len(name)}"
    if not _TOPIC_NAME.fullmatch(name):
        return "a topic name consists of ASCII letters, digits, '.', '_' and '-'"
    return None


@dataclass(slots=True)
class TopicRecord:
    """One topic's entry in `topics.json`."""

    name: str
    topic_id: bytes
    partitions: int
    config: dict[str, str] = field(default_factory=dict[str, str])
    replicas: list[list[int]] = field(default_factory=list[list[int]])
    """The nodes of each partition, where not every node may lead all of them."""
    leaders: dict[int, tuple[int, int]] = field(default_factory=dict[int, tuple[int, int]])
    """`(leader, leader epoch)` of the partitions that are not led as in a new topic."""

    def encode(self) -> dict[str, Any]:
        """The entry as written to the file; empty fields are left out."""
        fields: dict[str, Any] = {
            "name": self.name,
            "id": self.topic_id.hex(),
            "partitions": self.partitions,
            "config": self.config,
        }
        if self.replicas:
            fields["replicas"] = self.replicas
        if self.leaders:
            fields["leaders"] = [[p, *led] for p, led in sorted(self.leaders.items())]
        return fields

    @classmethod
    def decode(cls, fields: dict[str, Any]) -> TopicRecord:
        return cls(
            fields["name"],
            bytes.fromhex(fields["id"]),
            fields["partitions"],
            fields["config"],
            fields.get("replicas", []),
            {p: (leader, epoch) for p, leader, epoch in fields.get("leaders", [])},
        )


@dataclass(slots=True)
class Registry:
    """Everything in `topics.json`."""

    cluster_id: str
    next_producer_id: int = 0
    topics: dict[str, TopicRecord] = field(default_factory=dict[str, TopicRecord])
    deleting: list[str] = field(default_factory=list[str])
    nodes: list[int] = field(default_factory=list[int])
    """The nodes that shared the directory last, where there were several."""
    groups: dict[str, dict[str, str]] = field(default_factory=dict[str, dict[str, str]])
    """What single groups were configured with."""
    brokers: dict[str, dict[str, str]] = field(default_factory=dict[str, dict[str, str]])
    """What brokers were configured with while they ran; "" is all of them."""
    acls: list[AclRow] = field(default_factory=list[AclRow])
    """Who may do what."""
    quotas: list[tuple[Entity, dict[str, float]]] = field(
        default_factory=list[tuple["Entity", dict[str, float]]]
    )
    """Quotas of clients."""

    def encode(self) -> bytes:
        document = {
            "format": _FORMAT,
            "cluster_id": self.cluster_id,
            "next_producer_id": self.next_producer_id,
            "deleting": self.deleting,
            "nodes": self.nodes,
            "groups": self.groups,
            "brokers": self.brokers,
            "acls": self.acls,
            "quotas": self.quotas,
            "topics": [topic.encode() for topic in self.topics.values()],
        }
        return json.dumps(document, indent=1).encode()

    @classmethod
    def decode(cls, data: bytes) -> Registry:
        try:
            document: dict[str, Any] = json.loads(data)
            if document["format"] != _FORMAT:
                raise StorageError(
                    f"{TOPICS_FILE} has format {document['format']}, this version reads {_FORMAT}; "
                    "use the version of Kohort that wrote it"
                )
            topics = [TopicRecord.decode(t) for t in document["topics"]]
            return cls(
                document["cluster_id"],
                document["next_producer_id"],
                {t.name: t for t in topics},
                document["deleting"],
                document.get("nodes", []),
                document.get("groups", {}),
                document.get("brokers", {}),
                document.get("acls", []),
                [
                    (tuple((kind, name) for kind, name in entity), values)
                    for entity, values in document.get("quotas", [])
                ],
            )
        except (ValueError, KeyError, TypeError) as error:
            raise StorageError(
                f"{TOPICS_FILE} in the data directory is damaged ({error!r}); restore it from a "
                "copy, or move the directory away to start over"
            ) from error


class DataDirectory:
    """The files beside the partitions'."""

    def __init__(
        self, files: Files, registry: Registry, *, durable: bool, reserves: bool = False
    ) -> None:
        self.files = files
        self.registry = registry
        self.durable = durable
        self._refusing = False
        """Whether the log says that `topics.json` cannot be written."""
        self._reserves = reserves
        self._reserve = len(files.read_all(RESERVE) or b"") >= RESERVE_BYTES_MIN
        """Whether it is there, whole."""
        self.clean = CLEAN_MARKER in files.list("")
        """Whether the last broker here shut down cleanly."""
        self.segments = decode_segments(files.read_all(CLEAN_MARKER))
        """The base offsets of each log's segments and its end, as a clean shutdown left them."""
        self._settled = True
        """Whether `topics.json` is up to date; if not, it is written with checkpoints."""
        self.recovery_points = decode_offsets(files.read_all(RECOVERY_POINTS))
        self.log_starts = decode_offsets(files.read_all(LOG_STARTS))

    @classmethod
    def open(
        cls, files: Files, cluster_id: str, *, durable: bool, reserves: bool = False
    ) -> DataDirectory:
        """Read the directory, or begin a new one with the given cluster id.

        `reserves`: keep some of the disk for the day it is full.
        """
        data = files.read_all(TOPICS_FILE)
        if data is None:
            strays = [n for n in files.list("") if _PARTITION_DIR.fullmatch(n)]
            if strays:
                raise StorageError(
                    f"the data directory has partitions ({strays[0]}, ...) and no {TOPICS_FILE}; "
                    "restore that file, or move the directory away to start over"
                )
            self = cls(files, Registry(cluster_id), durable=durable, reserves=reserves)
            self.save()
        else:
            self = cls(files, Registry.decode(data), durable=durable, reserves=reserves)
        if self.clean:
            files.remove(CLEAN_MARKER)
        # With `os`, too, the marker must not come back with a power cut. And a crash may have left
        # directories whose names are not on the disk yet.
        if durable or self.clean:
            files.sync_dir("")
        self.finish_deletions()
        self._take_reserve()
        return self

    def save(self, *, frees: bool = False) -> None:
        """Write `topics.json`, to the disk also at `os`: only records may be lost there.

        `frees`: space may be free after this, so that it may use the reserve.
        Raises OSError; then the old content stays: a refused change must not take effect at the
        next start.
        """
        before = self.files.read_all(TOPICS_FILE)
        try:
            self._replace(TOPICS_FILE, self.registry.encode(), durable=True, frees=frees)
        except OSError as error:
            if not self._refusing:
                self._refusing = True
                log.error("cannot write %s: %s; clients are refused", TOPICS_FILE, error)
            if before is not None and self.files.read_all(TOPICS_FILE) != before:
                self._settled = False  # it was renamed, and only its name could not be synced
                replace_file(self.files, TOPICS_FILE, before)
                self._settled = True
            raise
        self._settled = True
        if self._refusing:
            self._refusing = False
            log.warning("%s can be written again", TOPICS_FILE)

    def save_at_start(self) -> None:
        """The same before anything is served. On a full disk it is written with checkpoints: who is
        to free space needs a broker that starts. Raises OSError."""
        try:
            self.save(frees=True)
        except OSError as error:
            if error.errno not in DISK_FULL:
                raise
            self._settled = False

    def finish_deletions(self) -> None:
        """Remove the directories of deleted topics."""
        if not self.registry.deleting:
            return
        gone = set(self.registry.deleting)
        self._forget_checkpoints(gone)
        for name in self.files.list(""):
            match = _PARTITION_DIR.fullmatch(name)
            if match and match[1] in gone:
                self.files.remove_tree(name)
        self.registry.deleting = []
        self.save(frees=True)
        self._take_reserve()

    def _forget_checkpoints(self, topics: Collection[str]) -> None:
        """A later topic of such a name starts at 0, and nothing of it is flushed."""
        for path, known in (
            (RECOVERY_POINTS, self.recovery_points),
            (LOG_STARTS, self.log_starts),
        ):
            for key in [key for key in known if key[0] in topics]:
                del known[key]
            stored = decode_offsets(self.files.read_all(path))
            left = {key: offset for key, offset in stored.items() if key[0] not in topics}
            if len(left) < len(stored):
                self._replace(path, encode_offsets(left), durable=True, frees=True)

    def take_producer_ids(self) -> range:
        """A block of producer ids that are never assigned twice."""
        first = self.registry.next_producer_id
        self.registry.next_producer_id = first + PRODUCER_ID_BLOCK
        self.save()
        return range(first, first + PRODUCER_ID_BLOCK)

    def checkpoint(
        self, recovery: Mapping[TopicPartition, int], starts: Mapping[TopicPartition, int]
    ) -> None:
        """Remember up to where logs are flushed, and where they start. Raises OSError."""
        if not self._settled:
            self.save()
        replace_file(self.files, RECOVERY_POINTS, encode_offsets(recovery), durable=self.durable)
        self.save_log_starts(starts)
        self._take_reserve()

    def save_log_starts(self, starts: Mapping[TopicPartition, int]) -> None:
        """DeleteRecords is answered after this. Raises OSError."""
        data = encode_offsets(starts)
        self._replace(LOG_STARTS, data, durable=self.durable, frees=True)
        self.log_starts = dict(starts)

    def _replace(self, path: str, data: bytes, *, durable: bool, frees: bool) -> None:
        """Replace a file, if need be where the reserve has been. Raises OSError."""
        try:
            replace_file(self.files, path, data, durable=durable)
        except OSError as error:
            if not (frees and self._reserve and error.errno in DISK_FULL):
                raise
            self._reserve = False
            self.files.remove(RESERVE)
            replace_file(self.files, path, data, durable=durable)
            self._take_reserve()

    def _take_reserve(self) -> None:
        """Have a reserve (again), if there is room; the next checkpoint tries it, too."""
        if self._reserve or not self._reserves:
            return
        size = max(RESERVE_BYTES_MIN, 2 * len(self.registry.encode()))
        try:
            file = self.files.open(RESERVE, create=True)
            try:
                file.append([bytes(max(0, size - file.size))])
            except OSError:
                self.files.remove(RESERVE)
                raise
            finally:
                file.close()
        except OSError:  # the disk is full; the writer gets the error
            return
        self._reserve = True

    def mark_clean(self, segments: Mapping[TopicPartition, Sequence[int]]) -> None:
        """The last thing a broker does: `segments` are those of each log, and its end."""
        data = encode_segments(segments)
        replace_file(self.files, CLEAN_MARKER, data, durable=self.durable)


def partition_dir(topic: str, partition: int) -> str:
    """The directory of a partition."""
    return f"{topic}-{partition}"


def existing(files: Files) -> set[str]:
    """The partition directories that are there."""
    return {n for n in files.list("") if _PARTITION_DIR.fullmatch(n)}


def only(
    points: Mapping[TopicPartition, int], keep: Iterable[TopicPartition]
) -> dict[TopicPartition, int]:
    """The entries of a checkpoint for partitions that still exist."""
    kept = set(keep)
    return {tp: offset for tp, offset in points.items() if tp in kept}
