"""The group of a run as the coordinator in charge has it, for conditions and checks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from kohort.client.common.types import TopicPartition
from kohort.group.coordinator.state.classic_records import StoredGroup
from kohort.simulator.application import Application
from kohort.simulator.cluster import SimCluster
from kohort.simulator.views import GroupLook, look_at


class KnowsUnowned(Protocol):
    """The checks, as far as a group is settled by them."""

    def unowned(self) -> list[str]:
        """Partitions without an owner."""
        ...


class ObservedGroup:
    """One group, read from the shard of the coordinator in charge."""

    def __init__(
        self,
        cluster: SimCluster,
        group: str,
        live: Callable[[], list[Application]],
        checks: KnowsUnowned,
    ) -> None:
        self._cluster = cluster
        self._group = group
        self._live = live
        self._checks = checks

    def stored(self) -> StoredGroup | None:
        """The classic group as the coordinator in charge has it in its log."""
        host = self._cluster.coordinator(self._group)
        if host is None or not host.loaded:
            return None
        return host.shard.durable.groups.get(self._group)

    def look(self) -> GroupLook | None:
        """The group as the coordinator in charge has it."""
        host = self._cluster.coordinator(self._group)
        if host is None or not host.loaded:
            return None
        return look_at(host.shard, self._group)

    def is_written(self) -> bool:
        """Whether the log has all that the coordinator in charge has decided."""
        host = self._cluster.coordinator(self._group)
        return host is not None and not host.unwritten

    def generation(self) -> int:
        """The group's generation or epoch, -1 without a group or coordinator."""
        group = self.look()
        return -1 if group is None else group.epoch

    def state(self) -> str | None:
        """The coordinator's state of the group, as one word."""
        group = self.look()
        return None if group is None else group.state

    def committed(self, tp: TopicPartition) -> int | None:
        """The group's committed offset, as the coordinator in charge has it."""
        host = self._cluster.coordinator(self._group)
        if host is None:
            return None
        stored = host.shard.durable.offsets.get(self._group, {}).get((tp.topic, tp.partition))
        return None if stored is None else stored.offset

    def is_settled(self) -> bool:
        """Everybody alive is a stable member of one stable group, with nothing left to do."""
        live = self._live()
        if not live:
            return self.state() in {None, "empty", "dead"}
        if self.state() != "stable":
            return False
        for app in live:
            session = app.consumer.core.session
            member = None if session is None else session.member
            if member is None or member.state.name != "STABLE" or app.consumer.core.inbox.steps:
                return False
            if member.generation != self.generation():
                return False
        return not self._checks.unowned()
