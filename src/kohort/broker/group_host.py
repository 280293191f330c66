"""One shard of the group coordinator in its host. Imported with the first group: the coordinator is
the largest part of a broker."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from kohort.broker.shards import ShardHost
from kohort.group.shard import GroupShard
from kohort.group.topics import TopicsImage


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
        shard.groups_configured(self._node.commons.group_configs.timeouts())
        return shard

    def topics_deleted(self, names: Iterable[str]) -> None:
        """Topics are gone, and so are their offsets."""
        self.run(self.shard.topics_deleted(names, self._node.env.now_ms()))

    def topics_changed(self, image: TopicsImage) -> None:
        """Topics were made, deleted or grown."""
        self.run(self.shard.topics_changed(image, self._node.env.now_ms()))
