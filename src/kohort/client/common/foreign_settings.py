"""Settings of other clients that are called otherwise here, or are not needed.

Rules: a key of theirs is refused like any unknown one, and the error says what to write instead.
`docs/migration.md` has the same table; a test compares the two.
"""

from __future__ import annotations

from typing import Final

FOREIGN_KEYS: Final = {
    # librdkafka (confluent-kafka)
    "metadata_broker_list": "bootstrap.servers",
    "auto_commit_enable": "enable.auto.commit",
    "enable_auto_offset_store": "what a poll returned is stored when the next call is made; with "
    "enable.auto.commit=false, commit() what you choose",
    "enable_partition_eof": "position() and end_offsets(), or limit() to read up to an offset",
    "fetch_wait_max_ms": "fetch.max.wait.ms",
    "fetch_message_max_bytes": "max.partition.fetch.bytes",
    "queued_max_messages_kbytes": "fetch.buffer.bytes (bytes, of the whole consumer)",
    "queued_min_messages": "fetch.buffer.bytes (bytes, of the whole consumer)",
    "queue_buffering_max_ms": "linger.ms",
    "queue_buffering_max_messages": "buffer.memory (bytes)",
    "queue_buffering_max_kbytes": "buffer.memory (bytes)",
    "batch_num_messages": "batch.size (bytes)",
    "message_max_bytes": "max.request.size",
    "message_timeout_ms": "delivery.timeout.ms",
    "message_send_max_retries": "retries",
    "request_required_acks": "acks",
    "compression_codec": "compression.type",
    "socket_timeout_ms": "request.timeout.ms",
    "statistics_interval_ms": "metrics(), at any time",
    "debug": "the log of `kohort`",
    "broker_address_family": "nothing: both are tried",
    "topic_metadata_refresh_interval_ms": "metadata.max.age.ms",
    "error_cb": "health(), and errors raised by the call that they concern",
    "stats_cb": "metrics(), and consumer.events to subscribe to",
    "on_commit": "commit_async(callback=...)",
    # kafka-python and aiokafka
    "api_version": "nothing: the versions of each broker are asked for",
    "api_version_auto_timeout_ms": "default.api.timeout.ms",
    "key_deserializer": "kohort.serdes, around the records that poll returns",
    "value_deserializer": "kohort.serdes, around the records that poll returns",
    "key_serializer": "kohort.serdes, before send",
    "value_serializer": "kohort.serdes, before send",
    "consumer_timeout_ms": "poll(timeout), which returns an empty list",
    "rebalance_timeout_ms": "max.poll.interval.ms",
    "max_in_flight_requests": "max.in.flight.requests.per.connection",
    "max_batch_size": "batch.size",
    "loop": "nothing: the network has a thread of its own",
    "selector": "nothing",
}


def instead_of(name: str) -> str:
    """What to write instead of another client's key; "" for an unknown key."""
    return FOREIGN_KEYS.get(name, "")
