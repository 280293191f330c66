"""The shell of the group coordinator: `GroupShard`s over the partitions of `__consumer_offsets`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from kohort.broker.config import OFFSETS_TOPIC
from kohort.broker.partition import Partition
from kohort.broker.shards import Shards
from kohort.broker.topics import Topic
from kohort.errors import ErrorCode
from kohort.group.effects import RequestContext
from kohort.wire import Message

if TYPE_CHECKING:
    from kohort.broker._lane import Asked
    from kohort.broker.calls import Asker
    from kohort.broker.group_host import GroupHost


class Groups(Shards["GroupHost"]):
    """The coordinator of the groups whose partitions a node leads."""

    topic = OFFSETS_TOPIC

    def new_host(self, partition: Partition) -> GroupHost:
        """A host for the shard of a partition."""
        from kohort.broker.group_host import GroupHost

        return GroupHost(self._node, partition)

    def make_topic(self) -> Topic:
        """The internal topic, made if it is not there. Raises BrokerError."""
        return self._node.offsets_topic()

    def refuse(self, request: Message, asker: Asker, code: ErrorCode) -> None:
        """Answer that says an error code and nothing else."""
        from kohort.group.refusals import refusal_of

        context = RequestContext(asker, asker.api_version, asker.client_id, asker.client_host)
        asker.answer(refusal_of(request, context, code))

    def usual(self, asked: Asked) -> bool:
        """Serve a request of the lane; False: it is not for the lane, and nothing was done."""
        host = self.host_near(asked.group_id)
        return host is not None and host.usual(asked)

    def topics_deleted(self, names: Iterable[str]) -> None:
        """Offsets of deleted topics go too."""
        for host in self.hosts():
            host.topics_deleted(names)

    def configured(self) -> None:
        """Groups were configured: every shard is told."""
        timeouts = self._node.commons.group_configs.timeouts()
        for host in self.hosts():
            host.shard.groups_configured(timeouts)

    def topics_changed(self) -> None:
        """Topics were made, deleted or grown: every shard gets the new image."""
        image = self._node.topics.image
        for host in self.hosts():
            host.topics_changed(image)
