"""The topics of one consumer in the cluster's metadata: watched, matched, changed, missing.

On the network thread. A topic with another id is another topic under the old name (KIP-516).
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Protocol

from kohort.client.cluster.client import ClusterClient
from kohort.client.cluster.metadata import (
    ALL,
    MAX_ASKED_TOPICS,
    TOPIC_IDLE_MS,
    ClusterMetadata,
)
from kohort.client.common.config import ConsumerConfig
from kohort.client.common.types import TopicPartition
from kohort.client.consumer.caller_inbox import CallerInbox
from kohort.client.consumer.group_session import GroupSession
from kohort.client.consumer.plan.missing_topics import (
    TOPIC_ERRORS,
    UNKNOWN_TOPIC_CODES,
    MissingPartitions,
    MissingTopics,
)
from kohort.client.consumer.plan.positions import Positions
from kohort.client.consumer.plan.subscription import Subscription
from kohort.client.consumer.setup import warn
from kohort.errors import BrokerError


class TopicOwner(Protocol):
    """The parts of a consumer that its watch over topics uses."""

    config: ConsumerConfig
    cluster: ClusterClient
    positions: Positions
    subscription: Subscription
    session: GroupSession | None
    inbox: CallerInbox

    @property
    def lock(self) -> AbstractContextManager[object]:
        """Guards positions and plans."""
        ...


class TopicWatch:
    """One consumer's. `matched` are the topics of a pattern, or of a list, at present."""

    def __init__(self, owner: TopicOwner) -> None:
        self._owner = owner
        self._loop = owner.cluster.loop
        self.matched: frozenset[str] = frozenset()
        self.missing = MissingTopics(creates=owner.config.allow_auto_create_topics)
        self.nowhere = MissingPartitions()
        self._looked_up: dict[str, int] = {}
        """Topics whose offsets were asked for, and when last; forgotten after `TOPIC_IDLE_MS`."""
        self._ids: dict[str, bytes] = {}

    def take_over(self, tps: Iterable[TopicPartition]) -> None:
        """These partitions are this consumer's from now on. Any thread."""
        owner, metadata = self._owner, self._owner.cluster.metadata
        with owner.lock:
            for position in owner.positions.add(tps, self._loop.now_ms()):
                tp = position.tp
                position.leader_epoch = metadata.leader_epoch(tp.topic, tp.partition)

    def look_up(self, topics: Iterable[str]) -> None:
        """Watch topics whose offsets are asked for, too. Under the lock."""
        if len(self._looked_up) >= MAX_ASKED_TOPICS:
            self._looked_up.clear()
        self._looked_up.update(dict.fromkeys(topics, self._loop.now_ms()))

    def watch(self) -> None:
        """Let the cluster keep metadata of every topic that is needed now."""
        owner = self._owner
        subscription, cluster = owner.subscription, owner.cluster
        if subscription.pattern is not None:
            cluster.watch_topics(ALL)
            return
        names = {*subscription.topics, *self._looked_up}
        names.update(tp.topic for tp in subscription.partitions)
        if owner.session is not None:
            names |= owner.session.watched
        if names != cluster.watched_topics:
            cluster.watch_topics(names)

    def match(self) -> frozenset[str]:
        """Match the subscription against the present metadata."""
        owner = self._owner
        hide = owner.config.exclude_internal_topics
        return owner.subscription.matches(owner.cluster.metadata, exclude_internal=hide)

    def changed(self, metadata: ClusterMetadata) -> None:
        """The cluster's metadata is new: leaders, ids, matches and errors."""
        owner, now_ms = self._owner, self._loop.now_ms()
        self._forget_idle(now_ms)
        self._look_at_ids(metadata)
        with owner.lock:
            for position in owner.positions:
                tp = position.tp
                epoch = metadata.leader_epoch(tp.topic, tp.partition)
                owner.positions.leader_moved(tp, epoch, can_validate=True, now_ms=now_ms)
            self.nowhere.look(owner.positions.partitions, metadata, now_ms)
        if owner.session is not None:
            if self.nowhere.overdue(now_ms) is not None:
                owner.session.doubt_assignment()
            matched = self.match()
            if owner.subscription.pattern is not None and matched != self.matched:
                self.matched = matched
                owner.session.subscribe(matched)
            owner.session.metadata_changed(metadata)
        self._look_at_errors(metadata)

    def _forget_idle(self, now_ms: int) -> None:
        """Else one look-up would create a topic again and again that somebody deletes (KIP-526)."""
        with self._owner.lock:
            idle = [n for n, at in self._looked_up.items() if now_ms - at >= TOPIC_IDLE_MS]
            for name in idle:
                del self._looked_up[name]
        if idle:
            self.watch()

    def look_at_codes(self, codes: Iterable[int]) -> None:
        """Ask for new metadata when a coordinator does not know one of its topics."""
        if not UNKNOWN_TOPIC_CODES.isdisjoint(codes):
            self._owner.cluster.refresh_soon()

    def _look_at_ids(self, metadata: ClusterMetadata) -> None:
        owner = self._owner
        with owner.lock:
            names = {position.tp.topic for position in owner.positions}
            ids = {name: t.topic_id for name in names if (t := metadata.topics.get(name))}
            changed = [n for n, i in ids.items() if self._ids.get(n, i) != i]
            for name in changed:
                owner.positions.topic_recreated(name)
            kept = {name: i for name, i in self._ids.items() if name in names}
            self._ids = {**kept, **ids}
        for name in changed:
            warn(
                f"topic {name!r} was deleted and created again; positions in it are kept, and are "
                "reset if they are out of range. seek() to choose where reading continues"
            )

    def _look_at_errors(self, metadata: ClusterMetadata) -> None:
        owner = self._owner
        names = owner.subscription.topics | {tp.topic for tp in owner.subscription.partitions}
        for name in names:
            if (code := metadata.errors.get(name, 0)) in TOPIC_ERRORS:
                owner.inbox.report(BrokerError(code, f"topic {name!r}"))
        for event in self.missing.look(names, metadata):
            warn(event)
