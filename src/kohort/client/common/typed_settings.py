"""The settings of each client as keyword types, for editors and type checkers.

Written by `make configuration`; a test fails when it is stale. Text is accepted for
numbers, too: `5s`, `64MiB`. A mapping with dotted names is a client's first argument,
and the argument `client` of `App` and `Pipeline`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypedDict

from kohort.client.common.config import Partitioner
from kohort.group.assignors import Assignor


class SharedSettings(TypedDict, total=False):
    """Settings of every client."""

    security_protocol: str
    ssl_ca_location: str | None
    ssl_certificate_location: str | None
    ssl_key_location: str | None
    ssl_key_password: str | None
    ssl_endpoint_identification_algorithm: str
    ssl_enabled_protocols: str | tuple[str, ...]
    ssl_cipher_suites: str | tuple[str, ...]
    sasl_mechanism: str | None
    sasl_username: str | None
    sasl_password: str | None
    sasl_oauthbearer_token_provider: Callable[[], Any] | None
    sasl_oauthbearer_token_endpoint_url: str | None
    sasl_oauthbearer_client_id: str | None
    sasl_oauthbearer_client_secret: str | None
    sasl_oauthbearer_scope: str | None
    sasl_oauthbearer_extensions: str | tuple[str, ...]
    sasl_login_connect_timeout_ms: str | int
    client_id: str
    client_rack: str
    request_timeout_ms: str | int
    default_api_timeout_ms: str | int
    metadata_max_age_ms: str | int
    retry_backoff_ms: str | int
    retry_backoff_max_ms: str | int
    reconnect_backoff_ms: str | int
    reconnect_backoff_max_ms: str | int
    socket_connection_setup_timeout_ms: str | int
    connections_max_idle_ms: str | int
    receive_message_max_bytes: str | int


class AdminSettings(SharedSettings, total=False):
    """Keywords of `Admin` and `AsyncAdmin`."""

    bootstrap_servers: str | tuple[str, ...]


class AppClientSettings(SharedSettings, total=False):
    """Consumer settings of `App` and `Pipeline`, which set servers, group and commits."""

    group_instance_id: str | None
    group_protocol: str
    group_remote_assignor: str | None
    partition_assignment_strategy: str | Assignor | Iterable[str | Assignor]
    session_timeout_ms: str | int
    heartbeat_interval_ms: str | int
    max_poll_interval_ms: str | int
    max_poll_records: str | int
    auto_commit_interval_ms: str | int
    auto_offset_reset: str
    fetch_min_bytes: str | int
    fetch_max_wait_ms: str | int
    fetch_max_bytes: str | int
    max_partition_fetch_bytes: str | int | None
    fetch_buffer_bytes: str | int
    watchdog_ms: str | int
    check_crcs: str | bool
    local_reads: str | bool
    isolation_level: str
    exclude_internal_topics: str | bool
    allow_auto_create_topics: str | bool


class ConsumerSettings(AdminSettings, AppClientSettings, total=False):
    """Keywords of `Consumer` and `AsyncConsumer`."""

    group_id: str | None
    enable_auto_commit: str | bool


class ProducerSettings(AdminSettings, total=False):
    """Keywords of `Producer` and `AsyncProducer`."""

    acks: int | str
    enable_idempotence: str | bool | None
    linger_ms: str | int
    batch_size: str | int
    buffer_memory: str | int
    max_block_ms: str | int
    max_request_size: str | int
    delivery_timeout_ms: str | int
    retries: str | int
    max_in_flight_requests_per_connection: str | int
    compression_type: str
    compression_gzip_level: str | int | None
    compression_lz4_level: str | int | None
    compression_zstd_level: str | int | None
    transactional_id: str | None
    transaction_timeout_ms: str | int
    partitioner: str | Partitioner
    partitioner_ignore_keys: str | bool
    partitioner_adaptive_partitioning_enable: str | bool
