"""The configurations of a topic: Kafka's names, types and defaults, and what this broker does.

Rules:
- A topic's own value overrides the broker's (`broker_field`), that one Kafka's default.
- Names and values are checked when they are set, also of those that have no effect here: they are
  kept and shown, because clients and tools send them (docs/skipped.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

from kohort.errors import ConfigError
from kohort.lean import dataclass
from kohort.setting_keys import nearest

INT64_MAX = (1 << 63) - 1


class Kind(IntEnum):
    """The type of a configuration, with Kafka's number for it."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7
    PASSWORD = 9


@dataclass(frozen=True, slots=True)
class Setting:
    """One topic configuration that Kafka knows."""

    kind: Kind
    default: str
    doc: str
    broker_field: str | None = None
    """The broker's field that is its default; Kafka calls it so, with dots."""
    low: float | None = None
    high: float | None = None
    choices: frozenset[str] = frozenset()


_B, _S, _I, _L, _D, _C = (
    Kind.BOOLEAN,
    Kind.STRING,
    Kind.INT,
    Kind.LONG,
    Kind.DOUBLE,
    Kind.LIST,
)

SETTINGS: dict[str, Setting] = {
    "cleanup.policy": Setting(
        _C,
        "delete",
        "what becomes of old segments",
        "log_cleanup_policy",
        choices=frozenset({"delete", "compact"}),
    ),
    "compression.type": Setting(
        _S,
        "producer",
        "shown only: batches are stored as they were sent",
        choices=frozenset({"producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"}),
    ),
    "delete.retention.ms": Setting(
        _L,
        "86400000",
        "how long compaction keeps a tombstone",
        "log_cleaner_delete_retention_ms",
        low=0,
    ),
    "index.interval.bytes": Setting(
        _I,
        "4096",
        "how many bytes lie between two entries of an index",
        "log_index_interval_bytes",
        low=0,
    ),
    "max.message.bytes": Setting(
        _I, "1048588", "the largest batch that is accepted", "message_max_bytes", low=0
    ),
    "message.timestamp.type": Setting(
        _S,
        "CreateTime",
        "whose clock a record's time is of: its producer's or the broker's",
        "log_message_timestamp_type",
        choices=frozenset({"CreateTime", "LogAppendTime"}),
    ),
    "message.timestamp.before.max.ms": Setting(
        _L,
        str(INT64_MAX),
        "how far in the past a record's time may lie",
        "log_message_timestamp_before_max_ms",
        low=0,
    ),
    "message.timestamp.after.max.ms": Setting(
        _L,
        "3600000",
        "how far in the future a record's time may lie",
        "log_message_timestamp_after_max_ms",
        low=0,
    ),
    "min.insync.replicas": Setting(_I, "1", "there is one copy of everything", low=1),
    "retention.bytes": Setting(
        _L,
        "-1",
        "the size from which on the oldest segments are deleted; -1: none",
        "log_retention_bytes",
    ),
    "retention.ms": Setting(
        _L,
        "604800000",
        "the age from which on segments are deleted; -1: none",
        "log_retention_ms",
        low=-1,
    ),
    "segment.bytes": Setting(
        _I, "134217728", "the size at which a new segment begins", "log_segment_bytes", low=14
    ),
    "segment.ms": Setting(
        _L, "604800000", "the age at which a new segment begins", "log_roll_ms", low=1
    ),
}
"""Every topic configuration that is acted upon."""

_IDLE = "kept and shown, without effect here"
ACCEPTED_AND_IGNORED: dict[str, Setting] = {
    "compression.gzip.level": Setting(_I, "-1", _IDLE, low=-1, high=9),
    "compression.lz4.level": Setting(_I, "9", _IDLE, low=1, high=17),
    "compression.zstd.level": Setting(_I, "3", _IDLE, low=-131_072, high=22),
    "file.delete.delay.ms": Setting(_L, "60000", _IDLE, "log_segment_delete_delay_ms", low=0),
    "flush.messages": Setting(_L, str(INT64_MAX), _IDLE, "log_flush_interval_messages", low=1),
    "flush.ms": Setting(_L, str(INT64_MAX), _IDLE, "log_flush_interval_ms", low=0),
    "follower.replication.throttled.replicas": Setting(_C, "", _IDLE),
    "leader.replication.throttled.replicas": Setting(_C, "", _IDLE),
    "local.retention.bytes": Setting(_L, "-2", _IDLE, "log_local_retention_bytes", low=-2),
    "local.retention.ms": Setting(_L, "-2", _IDLE, "log_local_retention_ms", low=-2),
    "max.compaction.lag.ms": Setting(
        _L, str(INT64_MAX), _IDLE, "log_cleaner_max_compaction_lag_ms", low=1
    ),
    "min.cleanable.dirty.ratio": Setting(
        _D, "0.5", _IDLE, "log_cleaner_min_cleanable_ratio", low=0, high=1
    ),
    "min.compaction.lag.ms": Setting(_L, "0", _IDLE, "log_cleaner_min_compaction_lag_ms", low=0),
    "preallocate": Setting(_B, "false", _IDLE, "log_preallocate"),
    "remote.log.copy.disable": Setting(_B, "false", _IDLE),
    "remote.log.delete.on.disable": Setting(_B, "false", _IDLE),
    "remote.storage.enable": Setting(
        _B, "false", "nothing is tiered here", choices=frozenset({"false"})
    ),
    "segment.index.bytes": Setting(_I, "10485760", _IDLE, "log_index_size_max_bytes", low=4),
    "segment.jitter.ms": Setting(_L, "0", _IDLE, "log_roll_jitter_ms", low=0),
    "unclean.leader.election.enable": Setting(_B, "false", _IDLE),
}
"""Configurations of Kafka's that are stored and shown and have no effect here (docs/skipped.md)."""

ALL_SETTINGS = {**SETTINGS, **ACCEPTED_AND_IGNORED}


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """The values that hold for one topic."""

    compact: bool
    delete: bool
    delete_retention_ms: int
    index_interval_bytes: int
    max_message_bytes: int
    log_append_time: bool
    timestamp_before_max_ms: int
    timestamp_after_max_ms: int
    retention_ms: int
    retention_bytes: int
    segment_bytes: int
    segment_ms: int

    @classmethod
    def of(cls, broker: object, own: Mapping[str, str]) -> TopicConfig:
        """From the broker's defaults and a topic's own values; raises ConfigError."""
        for name, value in own.items():
            check_setting(name, value)

        def value_of(name: str) -> str:
            return own[name] if name in own else default_of(broker, name)

        policy = {part.strip() for part in value_of("cleanup.policy").split(",")}
        check_setting("message.timestamp.type", value_of("message.timestamp.type"))
        return cls(
            compact="compact" in policy,
            delete="delete" in policy,
            delete_retention_ms=int(value_of("delete.retention.ms")),
            index_interval_bytes=int(value_of("index.interval.bytes")),
            max_message_bytes=int(value_of("max.message.bytes")),
            log_append_time=value_of("message.timestamp.type") == "LogAppendTime",
            timestamp_before_max_ms=int(value_of("message.timestamp.before.max.ms")),
            timestamp_after_max_ms=int(value_of("message.timestamp.after.max.ms")),
            retention_ms=int(value_of("retention.ms")),
            retention_bytes=int(value_of("retention.bytes")),
            segment_bytes=min(int(value_of("segment.bytes")), (1 << 31) - 1),
            segment_ms=int(value_of("segment.ms")),
        )


def default_of(broker: object, name: str) -> str:
    """The value that holds when a topic does not set one."""
    setting = ALL_SETTINGS[name]
    field = setting.broker_field
    value = getattr(broker, field, None) if field else None
    return setting.default if value is None else str(value)


def check_setting(name: str, value: str) -> None:
    """Raises ConfigError for a name Kafka does not know or a value it would refuse."""
    setting = ALL_SETTINGS.get(name)
    if setting is None:
        near = nearest(name, ALL_SETTINGS)
        hint = f"; did you mean {near!r}?" if near else ""
        raise ConfigError(f"Unknown topic config name: {name}{hint}")
    fault = fault_of(setting, value)
    if fault:
        raise ConfigError(f"Invalid value {value} for configuration {name}: {fault}")


def fault_of(setting: Setting, value: str) -> str | None:
    """Why a configuration cannot have this value, or None."""
    parts = [value]
    if setting.kind is Kind.LIST:
        parts = [part.strip() for part in value.split(",")] if value else []
    if setting.choices and not set(parts) <= setting.choices:
        return f"it is one of {', '.join(sorted(setting.choices))}"
    if setting.kind is Kind.BOOLEAN:
        return None if value.lower() in ("true", "false") else "it is true or false"
    if setting.kind not in (Kind.INT, Kind.LONG, Kind.DOUBLE):
        return None
    try:
        number = float(value) if setting.kind is Kind.DOUBLE else int(value)
    except ValueError:
        return "it is not a number"
    if setting.low is not None and number < setting.low:
        return f"at least {setting.low:g}"
    high = setting.high if setting.high is not None else _LIMITS.get(setting.kind)
    return f"at most {high}" if high is not None and number > high else None


_LIMITS = {Kind.INT: (1 << 31) - 1, Kind.LONG: INT64_MAX}
