"""Whether a copy is small enough for its topic and for the client that sends it. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from kohort.client.common.config import ProducerConfig
from kohort.records import BatchBuilder, Compression
from kohort.retry.copies import Copy


@dataclass(frozen=True, slots=True)
class SizeLimit:
    """How large a record may be.

    Args:
        config: of the producer, which has a limit before compression (`max_request_size`).
        topic_bytes: the topic's `max.message.bytes`, after compression; None: not known.
    """

    config: ProducerConfig
    topic_bytes: int | None

    def takes(self, copy: Copy) -> bool:
        """Whether a copy can be sent, in a batch of its own."""
        codec = Compression.parse(self.config.compression_type)
        batch = BatchBuilder(codec, level=self.config.compression_level)
        batch.append(copy.retry.last_failed_at_ms, copy.key, copy.value, copy.headers)
        if batch.size > self.config.max_request_size:
            return False
        if self.topic_bytes is None or batch.size <= self.topic_bytes:
            return True
        return codec is not Compression.NONE and len(batch.build()) <= self.topic_bytes
