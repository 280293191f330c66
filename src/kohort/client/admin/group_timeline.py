"""A group's rebalances out of `__consumer_offsets`, of any cluster that lets us read it.

Rules: the partition is read from its start, or from a time, to where it ended at the beginning;
nothing is committed and no group is joined. What the records mean is `group.inference`'s to say.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from kohort.client.admin.admin import Admin
from kohort.client.common.types import TopicPartition
from kohort.client.consumer.consumer import Consumer
from kohort.errors import BrokerError, ErrorCode, KafkaTimeoutError
from kohort.group.coordinator.state.effects import GroupRecord
from kohort.group.coordinator.state.routing import coordinator_partition
from kohort.group.coordinator.state.topics_image import TopicImage, TopicsImage
from kohort.group.explain.inference import Inference
from kohort.group.explain.timeline import Rebalance

OFFSETS_TOPIC: Final = "__consumer_offsets"
_AT_ONCE: Final = 5_000
_QUIET_S: Final = 10.0
"""A partition whose polls return nothing for this long counts as unreadable."""


def read_rebalances(
    admin: Admin, group_id: str, settings: Mapping[str, Any], *, since_ms: int | None = None
) -> list[Rebalance]:
    """What the log still says of a group's rebalances, the oldest first.

    Args:
        admin: of the cluster.
        group_id: the group.
        settings: those of a `Consumer`.
        since_ms: read only what was written since then, in milliseconds since 1970; None reads all.

    Raises:
        BrokerError: the topic is not there or may not be read.
        KafkaTimeoutError: it does not come.
    """
    topics = admin.list_topics(include_internal=True)
    counts = {topic.name: topic.partition_count for topic in topics}
    if OFFSETS_TOPIC not in counts:
        raise BrokerError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            f"there is no topic {OFFSETS_TOPIC} (or it may not be seen): nothing to read "
            f"rebalances of group {group_id!r} from",
        )
    image = TopicsImage.of(TopicImage(t.topic_id, t.name, t.partition_count) for t in topics)
    reader = Inference(group_id, image)
    place = TopicPartition(OFFSETS_TOPIC, coordinator_partition(group_id, counts[OFFSETS_TOPIC]))
    end = admin.list_offsets({place: "latest"})[place].offset
    begin = None
    if since_ms is not None:
        begin = admin.list_offsets({place: since_ms})[place].offset
        if begin < 0:
            return []
    own: dict[str, Any] = {**settings, "enable_auto_commit": False}
    with Consumer(None, **own) as consumer:
        consumer.assign([place])
        if begin is None:
            consumer.seek_to_beginning(place)
        else:
            consumer.seek(place, begin)
        while consumer.positions().get(place, 0) < end:
            records = consumer.poll(_QUIET_S, max_records=_AT_ONCE)
            for record in records:
                if record.key is not None:
                    reader.take(GroupRecord(record.key, record.value), record.timestamp)
            if not records and consumer.positions().get(place, 0) < end:
                raise KafkaTimeoutError(
                    f"{place} could not be read to its end ({end}) within {_QUIET_S:.0f} s"
                )
    return reader.rebalances()
