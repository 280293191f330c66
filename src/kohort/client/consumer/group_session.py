"""A consumer's tie to its group: where the coordinator is, and the member machine's shell.

Rules:
- Lives on the network thread. It carries out what the member (`group.member.classic`) decides and
  returns the outcome; it decides nothing about membership itself.
- The coordinator is looked for once at a time, for the member, for commits and for look-ups alike.
- What the caller's thread has to do (`Revoke`, `Assign`) is handed up, in order, and confirmed from
  there.
- Topics that the member was assigned by id alone are asked for by id until their names are known,
  and are watched by name then (KIP-848, B7).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

from kohort.client.cluster.client import ANY, ClusterClient, ConnectionKind
from kohort.client.cluster.find_coordinator import coordinator_in, find_coordinator
from kohort.client.cluster.metadata import ClusterMetadata
from kohort.client.cluster.refusal_log import Refusals
from kohort.client.common.config import CONSUMER_PROTOCOL, ConsumerConfig
from kohort.client.consumer.caller_inbox import CallerInbox
from kohort.client.consumer.plan.commit_queue import NO_MEMBER, Identity
from kohort.client.consumer.rebalance_watch import RebalanceWatch
from kohort.client.consumer.setup import new_member, warn
from kohort.client.consumer.topic_names import TopicNames
from kohort.errors import RETRIABLE_CODES, BrokerError, ErrorCode, KohortError
from kohort.group.member.effects import (
    Assign,
    Effect,
    Fatal,
    FindCoordinator,
    Revoke,
    Send,
    Warn,
    WatchTopics,
)
from kohort.wire import Message
from kohort.wire.messages.find_coordinator_response import FindCoordinatorResponse
from kohort.wire.messages.join_group_request import JoinGroupRequest
from kohort.wire.messages.sync_group_request import SyncGroupRequest

if TYPE_CHECKING:  # the machines are imported when a member is made
    from kohort.client.consumer.setup import GroupMember
    from kohort.group.assignors.base import TopicView

WAITING = (JoinGroupRequest, SyncGroupRequest)
"""Requests that the coordinator answers when all members have sent theirs."""
DOUBT_MS = 10_000
HINTS_MS = 50
"""A hint waits this long after the previous one; hints in between count as one."""


class SessionOwner(Protocol):
    """The consumer of a session."""

    inbox: CallerInbox

    def failed(self, error: KohortError) -> None:
        """The member has left permanently."""
        ...

    def changed(self) -> None:
        """Coordinator, membership or watched topics have changed: plan again."""
        ...


class GroupSession:
    """One group, one consumer. `member` is None while nothing is subscribed."""

    def __init__(
        self,
        config: ConsumerConfig,
        cluster: ClusterClient,
        owner: SessionOwner,
        refusals: Refusals,
    ) -> None:
        assert config.group_id is not None, "a session needs a group"
        self.group_id = config.group_id
        self.coordinator: int | None = None
        self.member: GroupMember | None = None
        self.watched: frozenset[str] = frozenset()
        self._config = config
        self._cluster = cluster
        self._loop = cluster.loop
        self._owner = owner
        self._watch = RebalanceWatch()
        self.name = f"group {config.group_id!r}"
        """The group's name in `refusals`."""
        self._refusals = refusals
        self._finding = False
        self._waiting = 0
        """Joins and syncs that the coordinator has not answered."""
        self._find_again_ms = 0
        self._hinted_ms = 0
        self._doubt_again_ms = 0
        self.last_identity = NO_MEMBER
        """Who commits with a transaction: a member that is none any more stays who it was.

        So it is refused (KIP-447). Without a member it would be accepted: every group accepts a
        TxnOffsetCommit that names no member, since producers before KIP-447 name none.
        """
        self._topic_names = TopicNames(cluster, config, self._named)

    # -- for the core --------------------------------------------------------------------------

    @property
    def identity(self) -> Identity | None:
        """Who commits now; None for a subscribed consumer that is not a member at present."""
        member = self.member
        if member is None:
            return NO_MEMBER
        if member.generation < 0 or not member.member_id:
            return NO_MEMBER if member.subscription is None else None
        return Identity(member.generation, member.member_id, self._config.group_instance_id)

    @property
    def free_connection(self) -> ConnectionKind:
        """The connection to the coordinator on which no join or sync waits for other members.

        They may wait for as long as the session of a member that died. A leave, the last commit
        before it, and the group's offsets that are asked for meanwhile do not.
        """
        return "general" if self._waiting else "group"

    @property
    def may_commit(self) -> bool:
        """Whether the coordinator would take a commit now. It refuses one behind a waiting join: a
        consumer that reads on through a rebalance (KIP-429) commits when it is over."""
        return self.member is None or self.member.may_commit

    @property
    def asker(self) -> Identity:
        """Who asks for committed offsets: a member only under the consumer protocol (KIP-848)."""
        if self._config.group_protocol != CONSUMER_PROTOCOL:
            return NO_MEMBER
        return self.identity or NO_MEMBER

    def subscribe(self, topics: Iterable[str]) -> None:
        """Join with these topics, or rejoin with them."""
        self._run(self._member().subscribe(frozenset(topics), self._now()))
        self.metadata_changed(self._cluster.metadata)

    def subscribe_pattern(self, pattern: str) -> None:
        """Join with the topics that `pattern` matches at the broker; consumer protocol only."""
        member = self._member()
        from kohort.group.member.consumer import ConsumerMember

        assert isinstance(member, ConsumerMember), "patterns of the broker were refused before"
        self._run(member.subscribe_pattern(pattern, self._now()))

    def _member(self) -> GroupMember:
        if self.member is None:
            self.member = new_member(self._config, self._cluster.uniform)
            if self.coordinator is not None:
                self._run(self.member.coordinator_found(self.coordinator, self._now()))
        return self.member

    def coordinator_answered(self, *codes: int) -> None:
        """Codes of an answer: whether the coordinator serves this group."""
        refused = [code for code in codes if code in RETRIABLE_CODES]
        if refused:
            self._refusals.note(self.name, refused[0], self._now())
        else:
            self._refusals.served(self.name)

    def unsubscribe(self) -> None:
        """Leave the group; the partitions are given up first, on the caller's thread."""
        if self.member is not None:
            self._run(self.member.unsubscribe(self._now()))

    def close(self) -> None:
        """Leave permanently, as `unsubscribe`; a static member stays (KIP-345)."""
        if self.member is not None:
            self._run(self.member.close(self._now()))

    def polled(self, at_ms: int) -> None:
        """The caller polls, or polled last, at `at_ms`."""
        if self.member is not None:
            self._run(self.member.polled(at_ms))

    @property
    def overdue(self) -> bool:
        """True when the member has left for lack of polls; the next poll brings it back."""
        return self.member is not None and self.member.overdue

    def revoked(self, token: int) -> None:
        """The caller has given up the partitions of this step."""
        if self.member is not None:
            self._run(self.member.revoked(token, self._now()))

    def assigned(self, token: int) -> None:
        """The caller has taken the assignment of this step."""
        if self.member is not None:
            self._run(self.member.assigned(token, self._now()))

    def commit_refused(self, code: int, identity: Identity) -> None:
        """A commit was refused because this member is not known in its generation (B40)."""
        member = self.member
        if member is not None and self.identity == identity:
            self._run(member.commit_refused(code, identity.generation, self._now()))

    def doubt_assignment(self) -> None:
        """Partitions were assigned that do not exist: ask again, at most every `DOUBT_MS`."""
        now_ms = self._now()
        if self.member is not None and now_ms >= self._doubt_again_ms:
            self._doubt_again_ms = now_ms + DOUBT_MS
            self._run(self.member.doubt_assignment(now_ms))

    def hurry(self) -> None:
        """Something hints that the coordinator has news for the member."""
        if self.member is not None:
            self._run(self.member.hurry(self._now()))

    def hint(self) -> None:
        """As `hurry`, but not too often: a hint may be none."""
        now_ms = self._now()
        if now_ms >= self._hinted_ms:
            self._hinted_ms = max(now_ms, self._hinted_ms) + HINTS_MS
            self.hurry()
        elif self._hinted_ms < now_ms + HINTS_MS:  # one more when this one's time is over
            self._loop.call_at(self._hinted_ms, self.hurry)
            self._hinted_ms += HINTS_MS

    def need_coordinator(self) -> None:
        """Look for the coordinator unless it is known, being looked for, or just was not found."""
        if self.coordinator is None and self._now() >= self._find_again_ms:
            self._find()

    def coordinator_lost(self) -> None:
        """An answer reported another coordinator, or the connection is gone."""
        if self.coordinator is None:
            return
        self.coordinator = None
        if self.member is not None:
            self._run(self.member.coordinator_lost(self._now()))
        self._owner.changed()

    def metadata_changed(self, metadata: ClusterMetadata) -> None:
        """Tell the member about the topics that it or its group subscribes to."""
        if self.member is None or metadata.version == 0:
            return
        names = self.watched | (self.member.subscription or frozenset())
        names |= self._topic_names.known_to(metadata)
        views = {name: view(metadata, name) for name in names if known(metadata, name)}
        self._run(self.member.topics_changed(views, self._now()))

    def tick(self) -> None:
        """A deadline has passed."""
        if self.member is not None:
            self._run(self.member.tick(self._now()))

    def next_deadline(self) -> int | None:
        """When to call `tick`."""
        return None if self.member is None else self.member.next_deadline()

    # -- inside --------------------------------------------------------------------------------

    def _now(self) -> int:
        return self._loop.now_ms()

    def _run(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            self._run_one(effect)
        member = self.member
        if member is not None:
            who = self.identity
            if who is not None and (who is not NO_MEMBER or member.is_out):
                self.last_identity = who
            seen = self._watch.seen(member.state.name, member.last_reason, self._now())
            if seen is not None:
                self._cluster.events.emit(seen)
        self._owner.changed()

    def _run_one(self, effect: Effect) -> None:
        match effect:
            case Send():
                self._send(effect)
            case FindCoordinator():
                self._find()
            case Revoke() | Assign():
                self._owner.inbox.rebalance(effect)
            case WatchTopics():
                self._topic_names.want(effect.ids)
                self.watched = effect.topics | self._topic_names.names
                if effect.ids:
                    self._loop.call_soon(self._reread_metadata)
            case Warn():
                warn(effect.text)
            case Fatal():
                self._owner.failed(effect.error)

    def _send(self, effect: Send) -> None:
        """A broker serves a connection's requests in order: nothing may queue behind a join."""
        waits, token = isinstance(effect.message, WAITING), effect.token

        def answered(answer: Message | KohortError) -> None:
            self._waiting -= waits
            self._answered(token, answer)

        kind = "group" if waits else self.free_connection
        self._waiting += waits
        self._cluster.request(
            effect.node_id, effect.message, answered, timeout_ms=effect.timeout_ms, kind=kind
        )

    def _reread_metadata(self) -> None:
        self.metadata_changed(self._cluster.metadata)

    def _named(self) -> None:
        """Names of assigned topics were found out: watch them, and tell the member."""
        self.watched |= self._topic_names.names
        self._cluster.refresh_soon()
        self._owner.changed()

    def _answered(self, token: int, answer: Message | KohortError) -> None:
        if (code := getattr(answer, "error_code", None)) is not None:
            self.coordinator_answered(code)
        if self.member is not None:
            self._run(self.member.answered(token, answer, self._now()))

    def _find(self) -> None:
        if self._finding:
            return
        self._finding = True
        self._cluster.request(ANY, find_coordinator(self.group_id), self._coordinator_answered)

    def _coordinator_answered(self, answer: Message | KohortError) -> None:
        self._finding = False
        if isinstance(answer, KohortError):
            self._not_found(answer)
            return
        assert isinstance(answer, FindCoordinatorResponse)
        coordinator = coordinator_in(answer, self.group_id)
        if isinstance(coordinator, KohortError):
            self._not_found(coordinator)
            return
        self._cluster.connections.learn(coordinator)
        self.coordinator = coordinator.node_id
        if self.member is not None:
            self._run(self.member.coordinator_found(coordinator.node_id, self._now()))
        self._owner.changed()

    def _not_found(self, error: KohortError) -> None:
        self._find_again_ms = self._now() + self._config.retry_backoff_ms
        if isinstance(error, BrokerError):
            self.coordinator_answered(error.code)
            if error.code == ErrorCode.GROUP_AUTHORIZATION_FAILED:
                self._owner.failed(error)
        if self.member is not None:
            self._run(self.member.coordinator_not_found(error, self._now()))
        elif not self._cluster.is_closed:
            self._loop.call_at(self._find_again_ms, self._owner.changed)


def known(metadata: ClusterMetadata, name: str) -> bool:
    """Whether the cluster has confirmed that a topic exists, or that it does not."""
    code = metadata.errors.get(name)
    return name in metadata.topics or code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def view(metadata: ClusterMetadata, name: str) -> TopicView | None:
    """A topic as the group's leader wants it; None when it does not exist."""
    topic = metadata.topics.get(name)
    if topic is None:
        return None
    parts = [topic.partitions[number] for number in sorted(topic.partitions)]
    racks = tuple(
        frozenset(
            node.rack
            for replica in part.replicas
            if (node := metadata.nodes.get(replica)) is not None and node.rack is not None
        )
        for part in parts
    )
    leaders = tuple(part.leader for part in parts)
    leading = [metadata.nodes.get(leader) for leader in leaders]
    leader_racks = tuple(node.rack if node is not None else None for node in leading)
    from kohort.group.assignors.base import TopicView

    return TopicView(
        len(parts),
        racks if any(racks) else (),
        leaders,
        topic.topic_id,
        leader_racks if any(leader_racks) else (),
    )
