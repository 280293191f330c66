"""What a consumer group is to have: its topics, its epoch, and the target that an assignor makes.

Rules:
- The group epoch rises when what members read changes, or what is known of those topics does (by
  the metadata hash); the shell's image is looked at when the group is heard of the next time.
- Regular expressions are resolved here and nowhere else, at once, when a member brings one, and at
  the first heartbeat of a member that reads by it after the topics or the access control changed.
  Internal topics match like any other, as in Apache Kafka, which resolves them on a thread of its
  own and later; what it would answer meanwhile cannot be seen here.
- An expression never resolves to a topic that a member who uses it may not describe. Apache Kafka
  checks the rights of the member that had it resolved; here each further member of the group that
  uses it removes the topics it may not describe, before it gets any answer.
- The assignor is the one that most members name, else the first of the configuration. What it gives
  is checked (G2): a plan that breaks the contract, or an assignor that raises, fails the heartbeat,
  and the old target stays.
- Only what changed of the target is written, then its epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from kohort.group.assignors.base import (
    Assignor,
    AssignorError,
    GroupView,
    MemberView,
    Plan,
    TopicView,
    checked,
)
from kohort.group.coordinator.handlers.re2 import compiled
from kohort.group.coordinator.state.consumer_draft import Draft
from kohort.group.coordinator.state.consumer_records import MemberMetadata, Resolved
from kohort.group.coordinator.state.context import Workspace
from kohort.group.coordinator.state.effects import Effects
from kohort.group.coordinator.state.rebalance_history import Cause, ConsumerView, Trigger
from kohort.group.coordinator.state.topics_image import TopicsImage, by_name, metadata_hash

Hides = Callable[[str], bool]
"""Whether a member may not know of a topic."""


def refresh(ws: Workspace, draft: Draft, now_ms: int, *, changed: bool) -> None:
    """Bring the group's epoch up to date. `changed`: what some member reads did."""
    changed_regex = draft.regexes_changed
    draft.looked_at_topics = ws.checked_topics.get(draft.group.group_id) is not ws.topics
    if not (changed or changed_regex or draft.looked_at_topics):
        return
    new_hash = subscription_hash(ws.topics, draft)
    if changed or changed_regex or new_hash != draft.metadata_hash:
        if not changed:
            draft.causes.append(Cause(Trigger.TOPICS, ws.wall_ms(now_ms)))
        draft.set_epoch(draft.epoch + 1, new_hash)


def accept(ws: Workspace, draft: Draft, now_ms: int, out: Effects) -> None:
    """The proposed state is decided. Until here the topics count as unchecked (B12)."""
    remember(ws, draft, now_ms)
    out.records += draft.out.records
    out.heartbeat_hints += draft.out.heartbeat_hints
    group_id = draft.group.group_id
    if draft.looked_at_topics:
        ws.checked_topics[group_id] = ws.topics
    if draft.looked_at_regex:
        known = ws.checked_regexes.get(group_id, {})
        kept = {regex: known[regex] for regex in draft.regexes() if regex in known}
        ws.checked_regexes[group_id] = {**kept, draft.looked_at_regex: ws.topics}


def remember(ws: Workspace, draft: Draft, now_ms: int) -> None:
    """Let the history know when the epoch has risen, and when there is a target for it."""
    group, at_ms = draft.group, ws.wall_ms(now_ms)
    group_id = group.group_id
    if draft.epoch > group.epoch:
        before = ConsumerView(
            dict(group.members), dict(group.targets), dict(group.regexes), ws.topics
        )
        ws.history.raised(group_id, draft.epoch, before, draft.causes, at_ms)
    if draft.target_epoch > group.target_epoch:
        members = dict(draft.members())
        targets = {member_id: draft.target(member_id) for member_id in members}
        resolved = ((regex, draft.resolved(regex)) for regex in draft.regexes())
        regexes = {regex: topics for regex, topics in resolved if topics is not None}
        after = ConsumerView(members, targets, regexes, ws.topics)
        ws.history.targeted(group_id, draft.target_epoch, after, at_ms)


def subscription_hash(topics: TopicsImage, draft: Draft) -> int:
    """The hash of every topic that somebody reads."""
    names = frozenset[str]().union(*{draft.topics_of(member) for _, member in draft.members()})
    return metadata_hash(topics, names)


def take_regex(
    ws: Workspace, draft: Draft, old: str, new: str, hides: Hides | None, now_ms: int
) -> bool:
    """A member that `hides` topics reads by a regular expression; True when the expression is new,
    or was resolved only now.

    The old one goes with the last member that reads by it.
    """
    if old and old != new and not any(member.regex == old for _, member in draft.members()):
        draft.set_regex(old, None)
    if not new:
        return old != new
    known = draft.resolved(new)
    checked = ws.checked_regexes.get(draft.group.group_id, {}).get(new)
    if known is None or checked is not ws.topics:
        pattern = compiled(new)
        topics = tuple(sorted(name for name in ws.topics.by_name if pattern.matches(name)))
        draft.looked_at_regex = new
    else:
        topics = known.topics
    if hides is not None:
        topics = tuple(name for name in topics if not hides(name))
    if known is None or known.topics != topics:
        draft.set_regex(new, Resolved(topics, ws.wall_ms(now_ms)))
    return known is None or old != new


def retarget(ws: Workspace, draft: Draft) -> None:
    """Make the target for the group's epoch, if it is of an older one. Raises AssignorError."""
    if draft.epoch <= draft.target_epoch:
        return
    members = dict(draft.members())
    assignor = preferred_assignor(ws, members.values())
    view = group_view(ws.topics, draft, members)
    plan = checked(
        assignor.name, _assign(assignor, view), view, "the group keeps its old assignment"
    )
    for member_id in members:
        target: dict[bytes, tuple[int, ...]] = {}
        for topic, numbers in plan.assignments.get(member_id, {}).items():
            if numbers:
                target[ws.topics.by_name[topic].topic_id] = tuple(sorted(numbers))
        if not draft.has_target(member_id) or draft.target(member_id) != target:
            draft.set_target(member_id, target)
    draft.set_target_epoch(draft.epoch)


def preferred_assignor(ws: Workspace, members: Iterable[MemberMetadata]) -> Assignor:
    """The assignor that most members name; in a tie the first one in the configuration.

    A name that the configuration has lost since counts for nothing.
    """
    assignors = ws.config.consumer_assignors
    votes = dict.fromkeys((a.name for a in assignors), 0)
    for member in members:
        if member.server_assignor in votes:
            votes[member.server_assignor] += 1
    return max(assignors, key=lambda assignor: votes[assignor.name])


def group_view(
    topics: TopicsImage, draft: Draft, members: Mapping[str, MemberMetadata]
) -> GroupView:
    """The group as an assignor sees it: what each member owns is its present target."""
    seen: dict[frozenset[str], frozenset[str]] = {}
    views: dict[str, MemberView] = {}
    for member_id, member in members.items():
        reads = draft.topics_of(member)
        known = seen.get(reads)
        if known is None:
            known = seen[reads] = frozenset(n for n in reads if n in topics.by_name)
        views[member_id] = MemberView(
            member_id,
            known,
            member.instance_id,
            by_name(topics, draft.target(member_id)),
            draft.target_epoch,
            member.rack_id,
        )
    names = frozenset[str]().union(*seen.values())
    return GroupView(views, {name: _topic_view(topics, name) for name in sorted(names)})


def _topic_view(topics: TopicsImage, name: str) -> TopicView:
    topic = topics.by_name[name]
    return TopicView(topic.partitions, topic.racks)


def subscribed_ids(topics: TopicsImage, draft: Draft, member: MemberMetadata) -> frozenset[bytes]:
    """The ids of the topics that a member reads and that exist."""
    reads = draft.topics_of(member)
    return frozenset(topics.by_name[n].topic_id for n in reads if n in topics.by_name)


def _assign(assignor: Assignor, view: GroupView) -> Plan:
    try:
        return assignor.assign(view)
    except AssignorError:
        raise
    except Exception as error:  # a user's own code may raise anything; it fails this heartbeat only
        raise AssignorError(
            f"assignor {assignor.name!r} failed: {type(error).__name__}: {error}. The group keeps "
            "its old assignment; mend the assignor's assign()"
        ) from error
