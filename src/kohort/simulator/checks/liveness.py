"""Checks of liveness, after the last fault: GL1-GL5, CL2, CL3."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kohort.client.common.types import TopicPartition
from kohort.simulator.checks.violation import demand
from kohort.simulator.conditions import state_of

if TYPE_CHECKING:
    from kohort.client.consumer.plan.subscription import Subscription
    from kohort.simulator.checks.consumer import ConsumerChecks
    from kohort.simulator.world import World

SLACK_MS = 5_000


class Liveness:
    """What must have come about once nothing goes wrong any more."""

    def __init__(self, world: World, consumer: ConsumerChecks) -> None:
        self._world = world
        self._consumer = consumer

    def bound_ms(self) -> int:
        """GL1: within a rebalance and a session timeout; then the same for one round more."""
        times = self._world.settings
        return 2 * (times.max_poll_ms + times.session_ms) + 2 * times.request_ms + SLACK_MS

    def read_bound_ms(self) -> int:
        """GL5: a record is handed out within some polls."""
        times = self._world.settings
        return times.fetch_wait_ms + times.request_ms + times.metadata_age_ms + SLACK_MS

    def wanted(self) -> set[TopicPartition]:
        """Every partition that some living consumer subscribes to."""
        wishes = [app.consumer.core.subscription for app in self._world.live()]
        topics = {t for t in self._world.cluster.topics if any(_reads(w, t) for w in wishes)}
        return {
            TopicPartition(log.topic, log.partition)
            for log in self._world.cluster.all_logs()
            if log.topic in topics
        }

    def unowned(self) -> list[str]:
        """Partitions that do not have exactly one owner, and their owners."""
        owners: dict[TopicPartition, list[str]] = {}
        for app in self._world.live():
            for tp in app.consumer.core.positions.partitions:
                owners.setdefault(tp, []).append(app.name)
        subscribed = self.wanted()
        wrong = [tp for tp in subscribed | set(owners) if len(owners.get(tp, ())) != 1]
        return [f"{tp}: {', '.join(owners.get(tp, ['nobody']))}" for tp in sorted(wrong)]

    def settled(self) -> None:
        """GL1, GL2, GL4: all in, all stable, every partition owned once."""
        if self._world.observed.is_settled():
            return
        states = ", ".join(self._state(app.name) for app in self._world.live())
        group = self._world.observed.state()
        demand(
            group in {"stable", None},
            "GL4",
            f"the group is {group} long after the last fault; consumers: {states}",
        )
        demand(
            False,
            "GL1",
            f"not settled {self._world.schedule.now_ms - (self._world.healed_ms or 0)} ms after "
            f"the last fault: group {group}, {states}; without one owner: {self.unowned()}",
        )

    def _state(self, who: str) -> str:
        return f"{who} {state_of(self._world, who) or 'is no member'}"

    def unread(self) -> list[str]:
        """Partitions whose last visible record nobody has been handed."""
        unread: list[str] = []
        groups = sorted({app.plan.group for app in self._world.live()})
        subscribed = sorted(self.wanted())
        for group_id in groups:
            for tp in subscribed:
                log = self._world.cluster.topic_log(*tp)
                assert log is not None, "wanted partitions exist"
                read = self._consumer.read.get((group_id, tp), 0)
                if log.visible and read <= log.visible[-1]:
                    unread.append(f"{tp} (read to {read}, ends at {log.end})")
        return unread

    def all_read(self) -> bool:
        """Whether every record has been handed out."""
        return not self.unread()

    def everything_read(self) -> None:
        """GL5, CL3: every partition with data is fetched and delivered (assigned is not enough)."""
        unread = self.unread()
        demand(not unread, "GL5", f"owned, and not read: {', '.join(unread)}")


def _reads(wish: Subscription, topic: str) -> bool:
    """Whether a consumer reads a topic, by name or because its pattern matches it."""
    pattern = wish.remote.pattern if wish.remote is not None else wish.pattern
    return topic in wish.topics or (pattern is not None and bool(re.fullmatch(pattern, topic)))
