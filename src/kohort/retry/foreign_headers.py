"""Headers of dead letters under the names that other makes use, so that their tools show reasons.

Rules:
- They repeat what Kohort's own headers say, come after them, and are on copies in the dead-letter
  topic alone; Kohort does not read them. A redrive leaves them out again.
- Types are those of the make: Spring Kafka writes numbers as big-endian integers, Kafka Connect and
  Kafka Streams as text. What Kohort does not know (a connector's name, its stage) is absent.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final

from kohort.errors import ConfigError
from kohort.retry.headers import (
    MAX_MESSAGE_BYTES,
    MAX_STACK_BYTES,
    MAX_TEXT_BYTES,
    Header,
    RetryHeaders,
    cut_utf8,
)

Write = Callable[[RetryHeaders], list[Header]]


def makes_of(makes: str | Collection[str]) -> tuple[str, ...]:
    """Names of makes, checked.

    Args:
        makes: `spring`, `connect`, `streams`, or several of them.

    Raises:
        ConfigError: another name.
    """
    names = (makes,) if isinstance(makes, str) else tuple(makes)
    for name in names:
        if name not in MAKES:
            raise ConfigError(f"dead_letter_headers={name!r}: one of {', '.join(MAKES)}")
    return names


def foreign_headers(makes: Collection[str], retry: RetryHeaders) -> list[Header]:
    """What a dead letter's headers say, under the names of other makes."""
    return [header for make in makes for header in MAKES[make](retry)]


def _spring(retry: RetryHeaders) -> list[Header]:
    origin = retry.origin
    return [
        ("kafka_dlt-original-topic", origin.topic.encode()),
        ("kafka_dlt-original-partition", _big_endian(origin.partition, 4)),
        ("kafka_dlt-original-offset", _big_endian(origin.offset, 8)),
        ("kafka_dlt-original-timestamp", _big_endian(origin.timestamp_ms, 8)),
        ("kafka_dlt-original-consumer-group", retry.group.encode()),
        ("kafka_dlt-exception-fqcn", cut_utf8(retry.error_class, MAX_TEXT_BYTES)),
        ("kafka_dlt-exception-message", cut_utf8(retry.error_message, MAX_MESSAGE_BYTES)),
        ("kafka_dlt-exception-stacktrace", cut_utf8(retry.error_stack, MAX_STACK_BYTES)),
    ]


def _connect(retry: RetryHeaders) -> list[Header]:
    origin = retry.origin
    return [
        ("__connect.errors.topic", origin.topic.encode()),
        ("__connect.errors.partition", str(origin.partition).encode()),
        ("__connect.errors.offset", str(origin.offset).encode()),
        ("__connect.errors.exception.class.name", cut_utf8(retry.error_class, MAX_TEXT_BYTES)),
        ("__connect.errors.exception.message", cut_utf8(retry.error_message, MAX_MESSAGE_BYTES)),
        ("__connect.errors.exception.stacktrace", cut_utf8(retry.error_stack, MAX_STACK_BYTES)),
    ]


def _streams(retry: RetryHeaders) -> list[Header]:
    """As Kafka Streams writes them (KIP-1034): the exception is its class and message."""
    origin, text = retry.origin, f"{retry.error_class}: {retry.error_message}".removesuffix(": ")
    return [
        ("__streams.errors.exception", cut_utf8(text, MAX_TEXT_BYTES)),
        ("__streams.errors.message", cut_utf8(retry.error_message, MAX_MESSAGE_BYTES)),
        ("__streams.errors.stacktrace", cut_utf8(retry.error_stack, MAX_STACK_BYTES)),
        ("__streams.errors.topic", origin.topic.encode()),
        ("__streams.errors.partition", str(origin.partition).encode()),
        ("__streams.errors.offset", str(origin.offset).encode()),
    ]


def _big_endian(number: int, size: int) -> bytes:
    return number.to_bytes(size, "big", signed=True)


MAKES: Final[Mapping[str, Write]] = {
    "spring": _spring,
    "connect": _connect,
    "streams": _streams,
}
