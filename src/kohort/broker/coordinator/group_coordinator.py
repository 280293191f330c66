"""The shell of the group coordinator: `GroupShard`s over the partitions of `__consumer_offsets`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kohort.broker.base.config import OFFSETS_TOPIC
from kohort.broker.coordinator.shard_host import CoordinatorShards
from kohort.broker.state.partition import Partition
from kohort.broker.state.topics import Topic
from kohort.errors import ErrorCode
from kohort.group.coordinator.state.effects import RequestContext
from kohort.wire import Message

if TYPE_CHECKING:
    from kohort.broker.base.request import Responder
    from kohort.broker.coordinator.group_shard_host import GroupHost
    from kohort.broker.fast_path._fast_path import GroupCall


class Groups(CoordinatorShards["GroupHost"]):
    """The coordinator of the groups whose partitions a node leads."""

    topic = OFFSETS_TOPIC

    def new_host(self, partition: Partition) -> GroupHost:
        """A host for the shard of a partition."""
        from kohort.broker.coordinator.group_shard_host import GroupHost

        return GroupHost(self._node, partition)

    def make_topic(self) -> Topic:
        """The internal topic, made if it is not there. Raises BrokerError."""
        return self._node.offsets_topic()

    def refuse(self, request: Message, responder: Responder, code: ErrorCode) -> None:
        """Answer that says an error code and nothing else."""
        from kohort.group.coordinator.handlers.error_responses import refusal_of

        context = RequestContext(
            responder, responder.api_version, responder.client_id, responder.client_host
        )
        responder.answer(refusal_of(request, context, code))

    def try_fast(self, call: GroupCall) -> bool:
        """Answer a request on the fast path; False: nothing was done, take the slow path."""
        host = self.host_near(call.group_id)
        return host is not None and host.try_fast(call)

    def configured(self) -> None:
        """The group configuration changed: pass it to every shard."""
        timeouts = self._node.group_configs.timeouts()
        for host in self.hosts():
            host.shard.groups_configured(timeouts)

    def access_changed(self) -> None:
        """Who may see which topics has changed: regular expressions are to be resolved again."""
        for host in self.hosts():
            host.shard.access_changed()

    def topics_changed(self) -> None:
        """Topics were made, deleted or grown: every shard gets the new image."""
        image = self._node.topics.image
        for host in self.hosts():
            host.topics_changed(image)
