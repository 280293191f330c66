"""The shell of the group coordinator: `GroupShard`s over the partitions of `__consumer_offsets`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING
from uuid import UUID

from kohort.broker.config import OFFSETS_TOPIC
from kohort.broker.shards import ShardHost
from kohort.errors import BrokerError, ErrorCode
from kohort.group.effects import RequestContext
from kohort.group.refusals import refusal_of
from kohort.group.routing import coordinator_partition
from kohort.group.shard import GroupShard
from kohort.group.topics import TopicsImage
from kohort.wire import Message

if TYPE_CHECKING:
    from kohort.broker.calls import Asker
    from kohort.broker.node import Node


class GroupHost(ShardHost[GroupShard]):
    """One shard of groups."""

    def new_shard(self) -> GroupShard:
        """A shard that has seen nothing yet."""
        env = self._node.env
        shard = GroupShard(
            self.partition.index,
            self._node.config.group_config(),
            lambda: str(UUID(bytes=env.new_uuid())),
            env.wall_ms() - env.now_ms(),
        )
        shard.topics_changed(self._node.topics.image, env.now_ms())
        return shard

    def topics_deleted(self, names: Iterable[str]) -> None:
        """Topics are gone, and so are their offsets."""
        self.run(self.shard.topics_deleted(names, self._node.env.now_ms()))

    def topics_changed(self, image: TopicsImage) -> None:
        """Topics were made, deleted or grown."""
        self.run(self.shard.topics_changed(image, self._node.env.now_ms()))

    def marker_written(self, producer_id: int, committed: bool) -> None:
        """A transaction that committed offsets here has ended."""
        self.shard.replay_marker(producer_id, committed)


class Groups:
    """The coordinator of every group."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._hosts: dict[int, GroupHost] = {}
        topic = node.topics.get(OFFSETS_TOPIC)
        for partition in topic.partitions if topic is not None else ():
            self._hosts[partition.index] = GroupHost(node, partition)

    def host_of(self, group_id: str) -> GroupHost:
        """The shard that a group lives in. Raises BrokerError."""
        topic = self._node.offsets_topic()
        index = coordinator_partition(group_id, len(topic.partitions))
        host = self._hosts.get(index)
        if host is None:
            host = self._hosts[index] = GroupHost(self._node, topic.partitions[index])
        return host

    def hosts(self) -> list[GroupHost]:
        """Every shard that has been used."""
        return list(self._hosts.values())

    def handle(self, group_id: str, request: Message, asker: Asker) -> None:
        """A request about one group, answered by its shard."""
        try:
            host = self.host_of(group_id)
        except BrokerError:
            context = RequestContext(asker, asker.api_version, asker.client_id, asker.client_host)
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE
            asker.answer(refusal_of(request, context, code))
            return
        host.handle(request, asker)

    def set_wall_offset(self, offset_ms: int) -> None:
        """The wall clock may have been set since the shards were made."""
        for host in self.hosts():
            host.shard.wall_offset_ms = offset_ms

    def topics_deleted(self, names: Iterable[str]) -> None:
        """Offsets of deleted topics go too."""
        for host in self.hosts():
            host.topics_deleted(names)

    def topics_changed(self) -> None:
        """Topics were made, deleted or grown: every shard gets the new image."""
        image = self._node.topics.image
        for host in self.hosts():
            host.topics_changed(image)

    def takes_markers(self, index: int) -> bool:
        """Not while the shard is being loaded: it might see the marker twice, or never."""
        host = self._hosts.get(index)
        return host is None or host.loaded

    def marker_written(self, index: int, producer_id: int, committed: bool) -> None:
        """The end of a transaction stands in a partition of `__consumer_offsets`."""
        host = self._hosts.get(index)
        if host is not None:
            host.marker_written(producer_id, committed)

    def close(self) -> None:
        """Send everybody away."""
        for host in self.hosts():
            host.close()
