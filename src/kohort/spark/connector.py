"""Options of Spark's Kafka connector that have no effect here or are refused, with the reasons.

Rules:
- `docs/spark.md` has every option of the connector; a test compares the page with `options` and
  with this module.
- A refusal says what to do instead.
"""

from __future__ import annotations

import re
import warnings
from typing import Final

from kohort.errors import ConfigError

NO_EFFECT: Final = {
    "groupIdPrefix": "Kohort creates no consumer group unless you set group.id",
    "fetchOffset.numRetries": "offset requests are retried until kafka.default.api.timeout.ms",
    "fetchOffset.retryIntervalMs": "the wait between two tries is kafka.retry.backoff.ms",
}
"""Accepted, so that a query is carried over unchanged."""

STREAMS_ONLY: Final = (
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "maxBytesPerTrigger",
    "targetBatchDuration",
    "targetBatchFloor",
    "topicFloor",
    "topicPriorities",
    "alignWithin",
)
"""A batch read ignores them with a warning, as the connector's does."""

BATCHES_ONLY: Final = (
    "endingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "pushFilters",
)
"""A stream refuses them, as the connector's does."""

REFUSED: Final = {
    "auto.offset.reset": "use startingOffsets, and failOnDataLoss for records that are gone",
    "enable.auto.commit": "the source publishes progress itself when group.id is given",
    "key.deserializer": "keys are bytes; decode them with DataFrame functions",
    "value.deserializer": "values are bytes; decode them with DataFrame functions",
    "key.serializer": "keys are written as they are",
    "value.serializer": "values are written as they are",
    "interceptor.classes": "there are no interceptors; look at rows with DataFrame functions",
    "enable.partition.eof": "the driver plans where a read ends",
}
"""Settings of clients that the source or the sink decides. The connector refuses most of them."""

JAVAS_OWN: Final = {
    "client.dns.lookup": "every address of a name is tried",
    "config.providers": "name a file that holds the secret: kafka.sasl.password.file",
    "enable.metrics.push": "there are no pushed metrics (KIP-714)",
    "metadata.recovery.strategy": "bootstrap servers are asked again whenever none else answers",
    "metric.reporters": "metrics are those of Spark and of docs/metrics.md",
    "metrics.num.samples": "metrics are those of Spark and of docs/metrics.md",
    "metrics.recording.level": "metrics are those of Spark and of docs/metrics.md",
    "metrics.sample.window.ms": "metrics are those of Spark and of docs/metrics.md",
    "partitioner.class": "set the column partition",
    "receive.buffer.bytes": "the operating system sizes socket buffers",
    "security.providers": "TLS is Python's (OpenSSL)",
    "send.buffer.bytes": "the operating system sizes socket buffers",
}
"""Settings of Java's clients without a counterpart: leaving them out changes no result."""

_SET_OPERATION: Final = re.compile(r"&&|\[[^\]]*\[(?!:)")


def pattern_of(text: str) -> str:
    """The regular expression of `subscribePattern`, which is Java's, for Python's `re.fullmatch`.

    Raises:
        ConfigError: it is none, or it means something else in Python.
    """
    if _SET_OPERATION.search(text):
        raise ConfigError(
            f"subscribePattern {text!r}: Python has no set operations inside [...] as Java does; "
            "write the characters out"
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            re.compile(text)
    except (re.error, FutureWarning, DeprecationWarning) as error:
        raise ConfigError(
            f"subscribePattern {text!r} is not a regular expression of Python: {error}"
        ) from error
    return text
