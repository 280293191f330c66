"""ConsumerGroupHeartbeat (KIP-848): join, stay, and be led towards the target.

Rules:
- In this order: the request by itself, the group, room in it, the member, its epoch; then what the
  member says of itself, the group's epoch, the target, and the member's next step towards it.
- All of a heartbeat's records are one batch, and nothing of it happens when any step refuses it.
- A heartbeat of the previous epoch is accepted if the member owns no more than its assignment: the
  answer with the new epoch was lost. It gets its assignment again (KAFKA-16367, B5), and has not
  given anything up by it (B2).
- The assignment is in the answer of a join, of a full request, and whenever it has changed.
- A member that waits for partitions gets a shorter interval (`consumer_heartbeat_interval`).
- A member that joins again under its own id starts from what it has (B6).
- Where nothing is new on either side all of this comes to one answer, which `unchanged` gives
  at once: almost every heartbeat is one of these.
"""

from __future__ import annotations

from kohort.errors import BrokerError, ErrorCode
from kohort.group.assignors.base import AssignorError
from kohort.group.coordinator.handlers import upgrade
from kohort.group.coordinator.handlers.consumer_leave import leave, static_member, unknown_member
from kohort.group.coordinator.handlers.consumer_reconcile import Owned, reconcile
from kohort.group.coordinator.handlers.consumer_target_assignment import (
    Hides,
    accept,
    refresh,
    retarget,
    subscribed_ids,
    take_regex,
)
from kohort.group.coordinator.handlers.re2 import RegexError, compiled
from kohort.group.coordinator.state import consumer_timers
from kohort.group.coordinator.state.classic_records import group_tombstone
from kohort.group.coordinator.state.consumer_draft import Draft
from kohort.group.coordinator.state.consumer_group import ConsumerGroup
from kohort.group.coordinator.state.consumer_records import (
    LEFT_FOR_A_WHILE,
    NO_TIMEOUT,
    Current,
    MemberMetadata,
)
from kohort.group.coordinator.state.consumer_table import MemberState, RequestKind, Step, answer
from kohort.group.coordinator.state.context import MAX_CLIENT_ID_CHARS, MAX_ID_BYTES, Workspace
from kohort.group.coordinator.state.effects import Effects, Reply, RequestContext
from kohort.group.coordinator.state.group_kind import group_not_found, holder_of
from kohort.group.coordinator.state.rebalance_history import Cause, Trigger, cause_of
from kohort.wire.messages.consumer_group_heartbeat_request import ConsumerGroupHeartbeatRequest
from kohort.wire.messages.consumer_group_heartbeat_response import (
    Assignment,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)

MEMBER_MAKES_ID_FROM = 1
"""From this version on the member makes its own id (KIP-1082)."""


def heartbeat(
    ws: Workspace,
    request: ConsumerGroupHeartbeatRequest,
    context: RequestContext,
    now_ms: int,
    out: Effects,
) -> None:
    """Answer a ConsumerGroupHeartbeat."""
    short = _unchanged(ws, request, context, now_ms)
    if short is not None:
        out.replies.append(Reply(context.token, short))
        return
    try:
        _check(ws, request, context.api_version)
        if request.member_epoch < 0:
            response = _leave(ws, request, now_ms, out)
        else:
            response = _heartbeat(ws, request, context, now_ms, out)
    except BrokerError as error:
        response = ConsumerGroupHeartbeatResponse(
            error_code=error.code, error_message=error.detail or None
        )
    except AssignorError as error:
        response = ConsumerGroupHeartbeatResponse(
            error_code=ErrorCode.UNKNOWN_SERVER_ERROR, error_message=str(error)
        )
    out.replies.append(Reply(context.token, response))


def _unchanged(
    ws: Workspace,
    request: ConsumerGroupHeartbeatRequest,
    context: RequestContext,
    now_ms: int,
) -> ConsumerGroupHeartbeatResponse | None:
    """The answer where nothing is new, else None."""
    if _says_anything(request):
        return None
    member_id, epoch = request.member_id, request.member_epoch
    client = context.client_id, context.client_host
    interval_ms = unchanged(ws, request.group_id, member_id, epoch, client, now_ms)
    if interval_ms is None:
        return None
    return ConsumerGroupHeartbeatResponse(
        member_id=member_id, member_epoch=epoch, heartbeat_interval_ms=interval_ms
    )


def unchanged(
    ws: Workspace,
    group_id: str,
    member_id: str,
    epoch: int,
    client: tuple[str, str],
    now_ms: int,
) -> int | None:
    """When a member that has arrived in a group at rest, and says nothing new of itself, is to
    heartbeat again, in milliseconds. `client` is its client's id and host.

    None where any of it is in doubt. Otherwise what is decided for others would be the same.
    """
    group = ws.durable.consumer_groups.get(group_id)
    if group is None or not epoch == group.epoch == group.target_epoch_stored:
        return None
    member, current = group.members.get(member_id), group.currents.get(member_id)
    if (
        member is None
        or current is None
        or epoch != current.epoch
        or current.state is not MemberState.STABLE
        or member.classic is not None
        or member.regex
        or client != (member.client_id, member.client_host)
        or ws.checked_topics.get(group_id) is not ws.topics
    ):
        return None
    for topic_id in current.assigned:
        topic = ws.topics.by_id.get(topic_id)
        if topic is None or topic.name not in member.topics:
            return None
    consumer_timers.arm_session(ws, group_id, member_id, member, now_ms)
    return ws.timeouts_of(group_id).heartbeat_interval_ms


def _says_anything(request: ConsumerGroupHeartbeatRequest) -> bool:
    return not (
        request.topic_partitions is None
        and request.instance_id is None
        and request.rack_id is None
        and request.rebalance_timeout_ms == NO_TIMEOUT
        and request.subscribed_topic_names is None
        and request.subscribed_topic_regex is None
        and request.server_assignor is None
    )


# The request by itself


def _check(ws: Workspace, request: ConsumerGroupHeartbeatRequest, api_version: int) -> None:
    """Raises BrokerError for a request that no group would take."""
    epoch = request.member_epoch
    if api_version >= MEMBER_MAKES_ID_FROM or epoch > 0 or epoch == -1:
        _need(request.member_id.strip(), "MemberId can't be empty.")
    _need(request.group_id.strip(), "GroupId can't be empty.")
    _need(request.instance_id is None or request.instance_id.strip(), "InstanceId can't be empty.")
    _need(request.rack_id is None or request.rack_id.strip(), "RackId can't be empty.")
    if epoch == 0:
        _need(
            request.rebalance_timeout_ms != NO_TIMEOUT,
            "RebalanceTimeoutMs must be provided in first request.",
        )
        _need(request.topic_partitions == [], "TopicPartitions must be empty when (re-)joining.")
        named = request.subscribed_topic_names, request.subscribed_topic_regex
        _need(
            named != (None, None),
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when "
            "(re-)joining.",
        )
    elif epoch == LEFT_FOR_A_WHILE:
        _need(request.instance_id is not None, "InstanceId can't be null.")
    else:
        _need(epoch >= -1, "MemberEpoch is invalid.")
    texts = (request.group_id, request.member_id, request.instance_id, request.rack_id)
    for text in texts:
        _need(text is None or len(text.encode()) <= MAX_ID_BYTES, "An id or rack is too long.")
    names_bytes = sum(map(len, request.subscribed_topic_names or ()))
    _need(
        names_bytes <= ws.config.group_record_max_bytes,
        f"SubscribedTopicNames has {names_bytes} characters; at most "
        f"{ws.config.group_record_max_bytes} are stored (group_record_max_bytes).",
    )
    known = [assignor.name for assignor in ws.config.consumer_assignors]
    if request.server_assignor is not None and request.server_assignor not in known:
        raise BrokerError(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {request.server_assignor[:200]} is not supported. Supported "
            f"assignors: {', '.join(known)}.",
        )
    if request.subscribed_topic_regex:
        try:
            compiled(request.subscribed_topic_regex)
        except RegexError as error:
            raise BrokerError(ErrorCode.INVALID_REGULAR_EXPRESSION, str(error)) from error


def _need(good: object, otherwise: str) -> None:
    if not good:
        raise BrokerError(ErrorCode.INVALID_REQUEST, otherwise)


# Leaving


def _leave(
    ws: Workspace, request: ConsumerGroupHeartbeatRequest, now_ms: int, out: Effects
) -> ConsumerGroupHeartbeatResponse:
    step = answer(RequestKind.LEAVE, holder_of(ws, request.group_id))
    if isinstance(step, ErrorCode):
        raise _refusal(step, request)
    group = ws.durable.consumer_groups[request.group_id]
    member_id = leave(ws, group, request, now_ms, out)
    return ConsumerGroupHeartbeatResponse(member_id=member_id, member_epoch=request.member_epoch)


def _refusal(code: ErrorCode, request: ConsumerGroupHeartbeatRequest) -> BrokerError:
    if code is ErrorCode.UNKNOWN_MEMBER_ID:
        return unknown_member(request.member_id)
    return group_not_found(request.group_id)


# Staying


def _heartbeat(
    ws: Workspace,
    request: ConsumerGroupHeartbeatRequest,
    context: RequestContext,
    now_ms: int,
    out: Effects,
) -> ConsumerGroupHeartbeatResponse:
    """Decide all of it, then let it happen."""
    group_id = request.group_id
    step = answer(
        RequestKind.HEARTBEAT if request.member_epoch else RequestKind.JOIN, holder_of(ws, group_id)
    )
    if isinstance(step, ErrorCode):
        raise _refusal(step, request)
    proposed = Effects()
    draft = Draft(_group_for(ws, group_id, step, proposed), proposed)
    member_id, replaced = _admit(ws, draft, request)
    before = draft.current(member_id)
    owned = _owned(request)
    _check_epoch(request, before, owned)
    old, member = _described(draft, member_id, request, context)
    # The classic group may have lost a member before the upgrade; its partitions need an owner.
    anew = step is Step.UPGRADE
    take_word(ws, draft, member_id, old, member, now_ms, hides=context.hides, anew=anew)
    retarget(ws, draft)
    step_on(ws, draft, member_id, member, _reliable(request, before, owned))
    accept(ws, draft, now_ms, out)
    if step in (Step.REPLACE, Step.UPGRADE) and group_id in ws.groups:
        upgrade.retire(ws, ws.groups[group_id], now_ms, out)
    if replaced is not None:
        consumer_timers.cancel(ws, group_id, replaced)
    after = draft.current(member_id)
    _arm(ws, group_id, member_id, member, before, after, now_ms)
    reached(ws, group_id, member_id, after, now_ms)
    response = ConsumerGroupHeartbeatResponse(
        member_id=member_id,
        member_epoch=after.epoch,
        heartbeat_interval_ms=_interval_ms(ws, group_id, member_id, after, now_ms),
    )
    is_new_to_it = request.member_epoch != before.epoch or after.assigned != before.assigned
    if request.member_epoch == 0 or is_new_to_it or _is_full(request):
        response.assignment = Assignment(
            topic_partitions=[
                TopicPartitions(topic_id=topic_id, partitions=sorted(after.assigned[topic_id]))
                for topic_id in sorted(after.assigned)
            ]
        )
    return response


def _group_for(ws: Workspace, group_id: str, step: Step, out: Effects) -> ConsumerGroup:
    """The group as it is, or as it comes to be. Raises BrokerError."""
    match step:
        case Step.UPGRADE:
            return upgrade.upgraded(ws, ws.groups[group_id], out)
        case Step.REPLACE:
            out.records.append(group_tombstone(group_id))
            # Kafka starts again from 0; then a member of before could pass for one of now (G3).
            return ConsumerGroup(group_id, ws.generation(ws.groups[group_id]))
        case Step.CREATE:
            ws.check_room_for_group()
            return ConsumerGroup(group_id)
        case _:
            return ws.durable.consumer_groups[group_id]


def _admit(
    ws: Workspace, draft: Draft, request: ConsumerGroupHeartbeatRequest
) -> tuple[str, str | None]:
    """The member's id, and the id whose place it takes. Raises BrokerError."""
    member_id, instance_id = request.member_id, request.instance_id
    group, joins = draft.group, request.member_epoch == 0
    holder = group.static_members.get(instance_id) if instance_id is not None else None
    if not joins:
        if instance_id is not None:
            static_member(group, instance_id, member_id)
        elif member_id not in group.members:
            raise unknown_member(member_id)
        return member_id, None
    if member_id not in group.members and holder is None:
        # A static member that comes back has its place, also in a full group.
        check_size(ws, group)
    member_id = member_id or ws.new_id()
    if holder is None or holder == member_id:
        return member_id, None
    if group.members[holder].classic is None and group.current(holder).epoch != LEFT_FOR_A_WHILE:
        raise BrokerError(
            ErrorCode.UNRELEASED_INSTANCE_ID,
            f"Static member {member_id} with instance id {instance_id} cannot join the group: the "
            f"instance id is held by member {holder}.",
        )
    draft.replace(holder, member_id, group.current(holder)._replace(epoch=0, previous_epoch=0))
    return member_id, holder


def check_size(ws: Workspace, group: ConsumerGroup) -> None:
    """Raises BrokerError when the group has no room for one more (G12)."""
    if len(group.members) >= ws.config.group_consumer_max_size:
        raise BrokerError(
            ErrorCode.GROUP_MAX_SIZE_REACHED,
            "The consumer group has reached its maximum capacity of "
            f"{ws.config.group_consumer_max_size} members.",
        )


def _owned(request: ConsumerGroupHeartbeatRequest) -> Owned | None:
    if request.topic_partitions is None:
        return None
    return {t.topic_id: frozenset(t.partitions) for t in request.topic_partitions}


def _check_epoch(
    request: ConsumerGroupHeartbeatRequest, current: Current, owned: Owned | None
) -> None:
    """G6: the present epoch; or the one before, if the member owns no more than it was given."""
    epoch = request.member_epoch
    if epoch in (0, current.epoch):
        return
    lost = epoch == current.previous_epoch and epoch < current.epoch and owned is not None
    if lost and all(
        number in current.assigned.get(topic_id, ())
        for topic_id, numbers in (owned or {}).items()
        for number in numbers
    ):
        return
    kind = "greater" if epoch > current.epoch else "smaller"
    raise BrokerError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The member has a {kind} epoch ({epoch}) than the one known here ({current.epoch}). It "
        "must abandon all its partitions and rejoin.",
    )


def _reliable(
    request: ConsumerGroupHeartbeatRequest, current: Current, owned: Owned | None
) -> Owned | None:
    """A member's report from its previous epoch may be older than its latest assignment."""
    return owned if request.member_epoch in (0, current.epoch) else None


def _is_full(request: ConsumerGroupHeartbeatRequest) -> bool:
    """Whether the member sends its full state, and so needs the full answer."""
    return (
        request.rebalance_timeout_ms != NO_TIMEOUT
        and (request.subscribed_topic_names, request.subscribed_topic_regex) != (None, None)
        and request.topic_partitions is not None
    )


def _described(
    draft: Draft, member_id: str, request: ConsumerGroupHeartbeatRequest, context: RequestContext
) -> tuple[MemberMetadata | None, MemberMetadata]:
    """The member as it was (None: it is new) and as it describes itself; null is "as before"."""
    old = draft.member(member_id)
    known = old or MemberMetadata(None, None, "", "", (), "", NO_TIMEOUT, None)
    names, regex = request.subscribed_topic_names, request.subscribed_topic_regex
    timeout_ms = request.rebalance_timeout_ms
    return old, MemberMetadata(
        instance_id=known.instance_id if request.instance_id is None else request.instance_id,
        rack_id=known.rack_id if request.rack_id is None else request.rack_id,
        client_id=context.client_id[:MAX_CLIENT_ID_CHARS],
        client_host=context.client_host,
        topics=known.topics if names is None else tuple(sorted(set(names))),
        regex=known.regex if regex is None else regex,
        rebalance_timeout_ms=known.rebalance_timeout_ms if timeout_ms == NO_TIMEOUT else timeout_ms,
        server_assignor=known.server_assignor
        if request.server_assignor is None
        else request.server_assignor,
    )


def take_word(
    ws: Workspace,
    draft: Draft,
    member_id: str,
    old: MemberMetadata | None,
    member: MemberMetadata,
    now_ms: int,
    *,
    hides: Hides | None = None,
    anew: bool = False,
) -> bool:
    """Take what a member says of itself; True when what it reads has changed.

    `hides`: topics that it may not describe. `anew`: the group's epoch rises in any case.
    """
    if member != old:
        draft.set_member(member_id, member)
    old_topics, old_regex = (old.topics, old.regex) if old is not None else ((), "")
    changed = member.topics != old_topics
    if member.regex or old_regex:
        changed = take_regex(ws, draft, old_regex, member.regex, hides, now_ms) or changed
    if anew:
        draft.causes.append(Cause(Trigger.UPGRADED, ws.wall_ms(now_ms)))
    if old is None or changed:
        trigger = Trigger.JOINED if old is None else Trigger.SUBSCRIPTION
        draft.causes.append(cause_of(trigger, member, member_id, ws.wall_ms(now_ms)))
    anew = anew or draft.group.target_epoch_stored is None
    refresh(ws, draft, now_ms, changed=changed or anew)
    return changed


def step_on(
    ws: Workspace, draft: Draft, member_id: str, member: MemberMetadata, owned: Owned | None
) -> None:
    """One step of the member towards the target."""
    before = draft.current(member_id)
    if before.state is MemberState.UNKNOWN and (owned is None or any(owned.values())):
        raise BrokerError(
            ErrorCode.FENCED_MEMBER_EPOCH,
            "The member is in a state of a newer broker's. It must abandon all its partitions and "
            "rejoin.",
        )
    after = reconcile(
        before,
        draft.target_epoch,
        draft.target(member_id),
        subscribed_ids(ws.topics, draft, member),
        owned,
        lambda topic_id, partition: draft.is_taken(member_id, topic_id, partition),
    )
    if after is not before:
        draft.set_current(member_id, after)


def reached(ws: Workspace, group_id: str, member_id: str, current: Current, now_ms: int) -> None:
    """Let the history know of a member that has all that it is to have."""
    if current.state is MemberState.STABLE:
        ws.history.reached(group_id, member_id, current.epoch, ws.wall_ms(now_ms))


def _interval_ms(
    ws: Workspace, group_id: str, member_id: str, current: Current, now_ms: int
) -> int:
    """When it is to heartbeat again: sooner while it waits for what others have to give up."""
    usual_ms = ws.timeouts_of(group_id).heartbeat_interval_ms
    if current.state is MemberState.UNRELEASED:
        return ws.waits.interval_ms(group_id, member_id, current.epoch, usual_ms, now_ms)
    ws.waits.over(group_id, member_id)
    return usual_ms


def _arm(
    ws: Workspace,
    group_id: str,
    member_id: str,
    member: MemberMetadata,
    before: Current,
    after: Current,
    now_ms: int,
) -> None:
    """Restart the session; the time to give partitions up runs from the request to do so."""
    consumer_timers.arm_session(ws, group_id, member_id, member, now_ms)
    consumer_timers.cancel(ws, group_id, member_id, consumer_timers.JOIN, consumer_timers.SYNC)
    if after == before:
        return
    if after.state is MemberState.UNREVOKED:
        consumer_timers.arm(ws, consumer_timers.REBALANCE, group_id, member_id, member, now_ms)
    else:
        consumer_timers.cancel(ws, group_id, member_id, consumer_timers.REBALANCE)
