"""One shard of the group coordinator in its host. Imported with the first group: the coordinator is
the largest part of a broker."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final
from uuid import UUID

from kohort.broker.coordinator.services import BY_ID_FROM
from kohort.broker.coordinator.shard_host import ShardHost
from kohort.group.coordinator.shard import GroupShard
from kohort.group.coordinator.state.effects import GroupRecord, Reply
from kohort.group.coordinator.state.topics_image import TopicsImage
from kohort.lean import quick

if TYPE_CHECKING:
    from kohort.broker.coordinator.services import HostServices
    from kohort.broker.fast_path._fast_path import GroupCall


_OFFSET_COMMIT: Final = 8
_HEARTBEAT: Final = 12


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
        shard.groups_configured(self._node.group_configs.timeouts())
        return shard

    def try_fast(self, call: GroupCall) -> bool:
        """Answer a request on the fast path, now or later; False: nothing was done, take the slow
        path."""
        shard, now_ms = self.shard, self._node.env.now_ms()
        api = call.api
        if api == _HEARTBEAT:
            answer = shard.beat(call.group_id, call.member_id, call.instance_id, call.epoch, now_ms)
            if answer is None:
                return False
            self._say(call, answer)
        elif api == _OFFSET_COMMIT:
            if not names_partitions(self._node, call):
                return False
            records: list[GroupRecord] = []
            codes = shard.commit(call, now_ms, records)
            if codes is None:
                return False
            if records:
                self._append_later(records, [quick(Reply, (call, codes))])
            else:
                self._say(call, codes)
        else:
            client = call.client_id, call.client_host
            answer = shard.unchanged(call.group_id, call.member_id, call.epoch, client, now_ms)
            if answer is None:
                return False
            self._say(call, answer)
        self._arm()
        return True

    def _say(self, call: GroupCall, answer: int | list[int]) -> None:
        """An answer without records, at once or when the records it depends on are durable."""
        if self._at_rest():
            call.settle(answer)
        else:
            self._held.append((self._end(), [quick(Reply, (call, answer))]))

    def topics_deleted(self, names: Iterable[str]) -> None:
        """Topics are gone, and so are their offsets."""
        self.run(self.shard.topics_deleted(names, self._node.env.now_ms()))

    def topics_changed(self, image: TopicsImage) -> None:
        """Topics were made, deleted or grown."""
        self.run(self.shard.topics_changed(image, self._node.env.now_ms()))


def names_partitions(node: HostServices, call: GroupCall) -> bool:
    """Whether all partitions of a commit exist; replaces topic names by ids."""
    if call.api_version < BY_ID_FROM:
        get = node.topics.get
        for offset in call.offsets:
            topic = get(offset[0])
            if topic is None or not 0 <= offset[1] < len(topic.partitions):
                return False
        return True
    named: list[tuple[str, int, int, int, str | None]] = []
    for topic_id, *offsets in call.offsets:
        topic = node.topics.by_id(topic_id)
        if topic is None or not 0 <= offsets[0] < len(topic.partitions):
            return False
        named.append((topic.name, *offsets))
    call.offsets = named
    return True
