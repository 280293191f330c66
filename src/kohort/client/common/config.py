"""One frozen configuration a role, with Kafka's names and defaults.

Rules:
- Names are Kafka's, dotted or with underscores. Durations are milliseconds (`_ms`), sizes bytes.
- A value that can never work is refused when the client is made, before anything is started.
- `ssl` and `sasl` keys: see `security_config`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Self

from kohort.client.common.offset_reset import ResetPolicy
from kohort.client.common.security_config import SecurityConfig, in_our_words
from kohort.config import Config
from kohort.errors import ConfigError
from kohort.lean import dataclass, fields
from kohort.setting_keys import is_secret, plain

INT32_MAX: Final = 2**31 - 1
_ADDRESS = re.compile(r"\[([0-9a-fA-F:.]+)\]:(\d+)|([^:\s\[\]]+):(\d+)")
CLASSIC_PROTOCOL: Final = "classic"
CONSUMER_PROTOCOL: Final = "consumer"
_CLASSIC_ONLY: Final = {
    "session_timeout_ms": "group.consumer.session.timeout.ms",
    "heartbeat_interval_ms": "group.consumer.heartbeat.interval.ms",
    "partition_assignment_strategy": "group.consumer.assignors; ask by group_remote_assignor",
}
"""What `group_protocol=consumer` has no use for, and where the broker has it instead."""
CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")

Partitioner = Callable[[str, bytes | None, int], int]
"""A partition for (topic, key, number of partitions)."""


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of `host:9092` or `[::1]:9092`."""
    match = _ADDRESS.fullmatch(text.strip())
    if match is None or not 0 < int(match[2] or match[4]) < 65_536:
        raise ConfigError(
            f"bootstrap_servers has {text!r}; write host:port, for example localhost:9092"
        )
    return match[1] or match[3], int(match[2] or match[4])


@dataclass(frozen=True)
class ClientConfig(SecurityConfig, Config):
    """What every role has in common."""

    bootstrap_servers: tuple[str, ...] = ("localhost:9092",)
    """Addresses to learn the cluster from; one that answers is enough."""
    client_id: str = "kohort"
    """Named in broker logs, quotas and group descriptions."""
    client_rack: str = ""
    """This client's rack, for fetching from the closest replica (KIP-392)."""
    request_timeout_ms: int = 30_000
    """A request without an answer for this long fails; its connection is closed."""
    default_api_timeout_ms: int = 60_000
    """The time limit of a blocking call without a timeout argument."""
    metadata_max_age_ms: int = 300_000
    """Maximum age of metadata before it is refreshed, even without a sign of change."""
    retry_backoff_ms: int = 100
    """The first wait before a request is retried; it doubles up to `retry_backoff_max_ms`."""
    retry_backoff_max_ms: int = 1_000
    """The longest of those waits."""
    reconnect_backoff_ms: int = 50
    """The first wait before a reconnect to a broker; it doubles up to the next setting."""
    reconnect_backoff_max_ms: int = 1_000
    """The longest of those waits."""
    socket_connection_setup_timeout_ms: int = 10_000
    """A connection that is not open after this time has failed."""
    connections_max_idle_ms: int = 540_000
    """A connection without a request for this long is closed."""
    receive_message_max_bytes: int = 128 << 20
    """The largest accepted answer; a larger one closes its connection."""

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Self:
        """As `Config.from_mapping`, with Java's names of security settings (see `security`)."""
        return super().from_mapping(in_our_words(values, set(cls.field_names())))

    @classmethod
    def settled(cls, config: Self | Mapping[str, Any] | None, settings: Mapping[str, Any]) -> Self:
        """The configuration of a client: an object or a mapping, and keywords, which win.

        Raises ConfigError for an unknown key, or for another client's configuration.
        """
        if config is None:
            return cls.from_mapping(settings)
        changed = {plain(key) for key in in_our_words(settings, set(cls.field_names()))}
        if isinstance(config, Mapping):
            mapping = in_our_words(config, set(cls.field_names()))
            kept = {key: value for key, value in mapping.items() if plain(key) not in changed}
            return cls.from_mapping(kept | dict(settings))
        received = type(config).__name__
        if not isinstance(config, ClientConfig):
            raise ConfigError(
                f"settings are keywords, a mapping or a {cls.__name__}; this is a {received}"
            )
        if not isinstance(config, cls):  # a type checker sees it; programs without one do not
            raise ConfigError(f"this client takes a {cls.__name__}, not a {received}")
        if not settings:
            return config
        held = {f.name: v for f in fields(config) if (v := getattr(config, f.name)) != f.default}
        return cls.from_mapping(
            {n: v for n, v in held.items() if n not in changed} | dict(settings)
        )

    @classmethod
    def unknown(cls, key: str, origin: str = "") -> ConfigError:
        """As `Config.unknown`; for a key of another client it says what to write here."""
        from kohort.client.common.foreign_settings import instead_of  # only errors need it

        replacement = instead_of(plain(key))
        if not replacement:
            return super().unknown(key, origin)
        where = f" ({origin})" if origin else ""
        return ConfigError(
            f"unknown {cls.role()} configuration key {key!r}{where}; it is another client's. Here "
            f"instead: {replacement} (docs/migration.md)"
        )

    def __post_init__(self) -> None:
        super().__post_init__()
        servers: Any = self.bootstrap_servers
        if isinstance(servers, str):
            servers = servers.split(",")
        object.__setattr__(
            self, "bootstrap_servers", tuple(s.strip() for s in servers if s.strip())
        )
        if not self.bootstrap_servers:
            raise ConfigError("bootstrap_servers is empty; name at least one host:port")
        for server in self.bootstrap_servers:
            parse_address(server)
        self._at_least(1, "request_timeout_ms", "default_api_timeout_ms", "metadata_max_age_ms")
        self._at_least(1, "socket_connection_setup_timeout_ms", "connections_max_idle_ms")
        self._at_least(0, "retry_backoff_ms", "reconnect_backoff_ms")
        self._at_least(1 << 10, "receive_message_max_bytes")
        self._ordered("retry_backoff_ms", "retry_backoff_max_ms")
        self._ordered("reconnect_backoff_ms", "reconnect_backoff_max_ms")

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """The bootstrap addresses as (host, port)."""
        return [parse_address(server) for server in self.bootstrap_servers]

    def _refuse(self, name: str, why: str) -> ConfigError:
        value = "***" if is_secret(name) else repr(getattr(self, name))
        return ConfigError(f"{self.role()} configuration {name}={value}: {why}")

    def _at_least(self, low: int, *names: str) -> None:
        for name in names:
            value: Any = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < low:
                raise self._refuse(name, f"a whole number of at least {low} is needed")

    def _ordered(self, lower: str, upper: str) -> None:
        if getattr(self, lower) > getattr(self, upper):
            raise self._refuse(lower, f"must not be more than {upper}={getattr(self, upper)}")

    def _one_of(self, name: str, allowed: tuple[str, ...]) -> None:
        if getattr(self, name) not in allowed:
            raise self._refuse(name, f"must be one of {', '.join(allowed)}")


@dataclass(frozen=True)
class ConsumerConfig(ClientConfig):
    """A consumer's configuration; defaults are Kafka's."""

    group_id: str | None = None
    """The consumer group; None for a consumer that only assigns and never commits."""
    group_instance_id: str | None = None
    """A name that outlives restarts makes this a static member (KIP-345)."""
    group_protocol: str = CLASSIC_PROTOCOL
    """`classic`: a member assigns for all; `consumer`: the broker does (KIP-848, Kafka 4.0)."""
    group_remote_assignor: str | None = None
    """With `consumer`: the broker's assignor to ask for (`uniform`, `range`); None: its default."""
    partition_assignment_strategy: tuple[Any, ...] = ("range", "cooperative-sticky")
    """Names of assignors, or assignor objects, the most preferred first."""
    session_timeout_ms: int = 45_000
    """The coordinator removes a member that sends no heartbeat for this long."""
    heartbeat_interval_ms: int = 3_000
    """The longest time between two heartbeats: a member that has just joined, or owns nothing,
    heartbeats sooner."""
    max_poll_interval_ms: int = 300_000
    """A consumer that does not poll for this long leaves its group (spec 1.3)."""
    max_poll_records: int = 500
    """The maximum number of records that one `poll` returns."""
    enable_auto_commit: bool = True
    """Commit the offsets of records that previous calls returned; needs a `group_id`."""
    auto_commit_interval_ms: int = 5_000
    """The interval of automatic commits."""
    auto_offset_reset: str = "latest"
    """Where a partition without a committed offset begins: `earliest`, `latest`, `none` (an error),
    or `by_duration:PT1H` (KIP-1106)."""
    fetch_min_bytes: int = 1
    """A broker waits for so much data, but not longer than `fetch_max_wait_ms`."""
    fetch_max_wait_ms: int = 500
    """How long a broker waits for `fetch_min_bytes`."""
    fetch_max_bytes: int = 50 << 20
    """The most data of one answer."""
    max_partition_fetch_bytes: int | None = None
    """The most data of one partition in one answer, and of the pieces decoded. None: 4 MiB (Kafka's
    is 1 MiB); of fewer than four partitions up to 16 MiB in one answer where it stays in the
    broker's files until it is decoded (`local_reads`)."""
    fetch_buffer_bytes: int = 64 << 20
    """Fetched data that `poll` has not returned yet; at this limit fetching stops."""
    watchdog_ms: int = 0
    """`poll` raises ConsumerStalledError when a partition with records to read has not moved for so
    long although it is polled; 0 (Kafka's behaviour) waits for ever."""
    check_crcs: bool = True
    """Verify the CRC of every batch; a wrong CRC stops its partition."""
    local_reads: bool = True
    """Kohort's own. Read the files of an embedded broker on this machine directly, where it offers
    that and they may be opened."""
    isolation_level: str = "read_uncommitted"
    """`read_committed`: nothing of a transaction before it has committed, nothing of aborted ones
    ever, and nothing behind the first one that is open (KIP-98)."""
    exclude_internal_topics: bool = True
    """A pattern never matches internal topics. Under `group_protocol=consumer` the broker matches,
    and it knows nothing of this: there `.*` means the internal topics too."""
    allow_auto_create_topics: bool = True
    """Let the broker create a subscribed topic that is missing, if it may."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.partition_assignment_strategy, str):
            names = tuple(self.partition_assignment_strategy.split(","))
            object.__setattr__(self, "partition_assignment_strategy", names)
        elif not isinstance(self.partition_assignment_strategy, Iterable):
            only = (self.partition_assignment_strategy,)  # one ready assignor
            object.__setattr__(self, "partition_assignment_strategy", only)
        if not self.partition_assignment_strategy:
            raise self._refuse("partition_assignment_strategy", "name at least one assignor")
        self._at_least(1, "session_timeout_ms", "heartbeat_interval_ms", "max_poll_interval_ms")
        self._at_least(1, "max_poll_records", "auto_commit_interval_ms", "fetch_buffer_bytes")
        self._at_least(1, "fetch_max_bytes")
        if self.max_partition_fetch_bytes is not None:
            self._at_least(1, "max_partition_fetch_bytes")
        self._at_least(0, "fetch_min_bytes", "fetch_max_wait_ms", "watchdog_ms")
        object.__setattr__(self, "group_protocol", self.group_protocol.lower())
        self._one_of("group_protocol", (CLASSIC_PROTOCOL, CONSUMER_PROTOCOL))
        self._fits_protocol([n for n in _CLASSIC_ONLY if getattr(self, n) != _DEFAULTS[n]])
        self._one_of("isolation_level", ("read_uncommitted", "read_committed"))
        if self.heartbeat_interval_ms >= self.session_timeout_ms:
            raise self._refuse(
                "heartbeat_interval_ms",
                f"must be less than session_timeout_ms={self.session_timeout_ms}, best a third",
            )
        if self.fetch_max_wait_ms >= self.request_timeout_ms:
            raise self._refuse(
                "fetch_max_wait_ms",
                f"must be less than request_timeout_ms={self.request_timeout_ms}",
            )
        for name in ("group_id", "group_instance_id", "group_remote_assignor"):
            if getattr(self, name) == "":
                raise self._refuse(name, "must not be empty; leave it out instead")
        if self.group_instance_id is not None and self.group_id is None:
            raise self._refuse("group_instance_id", "needs a group_id")
        ResetPolicy.parse(self.auto_offset_reset)

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Self:
        """As `ClientConfig.from_mapping`; what the group protocol has no use for is refused."""
        made = super().from_mapping(values)
        made._fits_protocol([n for n in _CLASSIC_ONLY if n in {plain(key) for key in values}])
        return made

    def _fits_protocol(self, classic_only: list[str]) -> None:
        """Each protocol has keys of its own; one that would do nothing is refused, as Java does."""
        if self.group_protocol == CONSUMER_PROTOCOL:
            for name in classic_only:
                raise self._refuse(
                    name,
                    "cannot be used with group_protocol=consumer, where the broker decides it ("
                    f"{_CLASSIC_ONLY[name]}); leave it out, or use group_protocol=classic",
                )
        elif self.group_remote_assignor is not None:
            raise self._refuse(
                "group_remote_assignor",
                "needs group_protocol=consumer; with classic, name assignors in "
                "partition_assignment_strategy",
            )


_DEFAULTS: Final = {field.name: field.default for field in fields(ConsumerConfig)}


@dataclass(frozen=True)
class ProducerConfig(ClientConfig):
    """A producer's configuration; defaults are Kafka's."""

    acks: int | str = "all"
    """`all` (-1): every in-sync replica has it; 1: the leader has it; 0: no answer."""
    enable_idempotence: bool | None = None
    """No duplicates and no reordering by retries (KIP-98). None: on, if `acks`, `retries` and
    `max_in_flight_requests_per_connection` allow it."""
    linger_ms: int = 5
    """A batch waits this long for more records, unless it is full (KIP-1030)."""
    batch_size: int = 16_384
    """Bytes of one partition's batch before compression; up to 64 times as many (and
    `max_request_size`) while batches wait to be sent, and twice that of a topic which a codec
    packs into less than 45 %."""
    buffer_memory: int = 32 << 20
    """Bytes of waiting and in-flight records; beyond this limit `send` blocks."""
    max_block_ms: int = 60_000
    """How long `send` waits for memory or for a topic's metadata."""
    max_request_size: int = 1 << 20
    """The largest record, and the largest request."""
    delivery_timeout_ms: int = 120_000
    """From `send` to success or failure, all retries included."""
    retries: int = INT32_MAX
    """Tries after the first; `delivery_timeout_ms` is the better bound."""
    max_in_flight_requests_per_connection: int = 5
    """Produce requests under way to one broker; at most 5 keep order and idempotence."""
    compression_type: str = "none"
    """none, gzip, snappy, lz4 or zstd."""
    compression_gzip_level: int | None = None
    """1 to 9; None for the codec's own default (6)."""
    compression_lz4_level: int | None = None
    """1 to 12; None for the fast compressor (1)."""
    compression_zstd_level: int | None = None
    """1 to 22; None for the fastest (1). 3, Kafka's default, packs text up to a sixth smaller."""
    transactional_id: str | None = None
    """Enables transactions; a new producer with the same id fences the old one."""
    transaction_timeout_ms: int = 60_000
    """The coordinator aborts a transaction that is open for longer."""
    partitioner: str | Partitioner = "default"
    """`default`: murmur2 of the key as Java does, sticky without a key (KIP-794); or a function."""
    partitioner_ignore_keys: bool = False
    """Spread records with a key, too, as those without."""
    partitioner_adaptive_partitioning_enable: bool = True
    """Records without a key go rather to partitions with fewer batches in line (KIP-794)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        acks = str(self.acks).strip().lower()
        if acks not in ("all", "-1", "0", "1"):
            raise self._refuse("acks", "must be all (or -1), 1 or 0")
        object.__setattr__(self, "acks", -1 if acks == "all" else int(acks))
        self._at_least(0, "linger_ms", "retries", "max_block_ms", "batch_size")
        self._at_least(1, "buffer_memory", "max_request_size", "delivery_timeout_ms")
        self._at_least(1, "max_in_flight_requests_per_connection")
        self._one_of("compression_type", CODECS)
        for name, top in (("gzip", 9), ("lz4", 12), ("zstd", 22)):
            level = getattr(self, f"compression_{name}_level")
            if level is not None and not 1 <= level <= top:
                raise self._refuse(f"compression_{name}_level", f"must be 1 to {top}")
        if self.delivery_timeout_ms < self.linger_ms + self.request_timeout_ms:
            raise self._refuse(
                "delivery_timeout_ms",
                "must be at least linger_ms + request_timeout_ms "
                f"({self.linger_ms + self.request_timeout_ms})",
            )
        if isinstance(self.partitioner, str) and self.partitioner != "default":
            raise self._refuse("partitioner", "must be 'default' or a function")
        self._settle_idempotence()
        if self.transactional_id == "":
            raise self._refuse("transactional_id", "must not be empty; leave it out instead")
        if self.transactional_id is not None and not self.enable_idempotence:
            raise self._refuse(
                "transactional_id",
                "needs enable_idempotence, and so acks=all, retries above 0 and at most 5 "
                "max_in_flight_requests_per_connection",
            )
        self._at_least(1, "transaction_timeout_ms")

    def _settle_idempotence(self) -> None:
        """Kafka's rule: on by default, off when something else that was set excludes it."""
        possible = (
            self.acks == -1 and self.retries > 0 and self.max_in_flight_requests_per_connection <= 5
        )
        if self.enable_idempotence and not possible:
            raise self._refuse(
                "enable_idempotence",
                "needs acks=all, retries above 0 and at most 5 "
                "max_in_flight_requests_per_connection",
            )
        if self.enable_idempotence is None:
            object.__setattr__(self, "enable_idempotence", possible)

    @property
    def compression_level(self) -> int | None:
        """The level of the chosen codec, None for its default."""
        if self.compression_type in ("none", "snappy"):
            return None
        return getattr(self, f"compression_{self.compression_type}_level")


@dataclass(frozen=True)
class AdminConfig(ClientConfig):
    """An admin client's configuration; defaults are Kafka's."""


def known_to(role: type[ClientConfig], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that clients of several roles are made with, without those of other roles alone.

    Names are written with `_`. What no role knows stays, so that `role` refuses it.
    """
    roles = (ConsumerConfig, ProducerConfig, AdminConfig)
    others = {name for each in roles for name in each.field_names()} - set(role.field_names())
    named = {plain(key): value for key, value in settings.items()}
    return {name: value for name, value in named.items() if name not in others}
