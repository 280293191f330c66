"""The admin client's calls about consumer groups and their offsets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kohort.client.admin.calls import AdminCalls, each_of, raise_failed
from kohort.client.admin.group_descriptions import DEAD, classic_group, consumer_group, dead_group
from kohort.client.admin.types import GroupDescription, GroupListing
from kohort.client.cluster.client import Versioned
from kohort.client.cluster.metadata import Node
from kohort.client.common import arguments as arguments
from kohort.client.common.types import ByPartition, OffsetAndMetadata, TopicPartition
from kohort.errors import ErrorCode, GroupError, UnsupportedVersionError
from kohort.group.explain import timeline
from kohort.group.explain.timeline import Rebalance
from kohort.wire import Message
from kohort.wire.messages.consumer_group_describe_request import ConsumerGroupDescribeRequest
from kohort.wire.messages.consumer_group_describe_response import ConsumerGroupDescribeResponse
from kohort.wire.messages.delete_groups_request import DeleteGroupsRequest
from kohort.wire.messages.delete_groups_response import DeleteGroupsResponse
from kohort.wire.messages.describe_groups_request import DescribeGroupsRequest
from kohort.wire.messages.describe_groups_response import DescribeGroupsResponse
from kohort.wire.messages.leave_group_request import LeaveGroupRequest, MemberIdentity
from kohort.wire.messages.leave_group_response import LeaveGroupResponse
from kohort.wire.messages.list_groups_request import ListGroupsRequest
from kohort.wire.messages.list_groups_response import ListGroupsResponse
from kohort.wire.messages.offset_commit_request import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kohort.wire.messages.offset_commit_response import OffsetCommitResponse
from kohort.wire.messages.offset_delete_request import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from kohort.wire.messages.offset_delete_response import OffsetDeleteResponse
from kohort.wire.messages.offset_fetch_request import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from kohort.wire.messages.offset_fetch_response import (
    OffsetFetchResponse,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)

_TAGS_FROM = 5  # DescribeGroups: tagged fields (KIP-482)
_GROUPS_FROM = 8  # OffsetFetch: several groups a request (KIP-709)
_NAMES_UNTIL = 9  # OffsetFetch and OffsetCommit: topics by id from version 10 on (KIP-848)
_STATES_FROM = 4  # ListGroups: states (KIP-518)
_REASON_FROM = 5  # LeaveGroup: why (KIP-800)


class AdminGroups(AdminCalls):
    """`Admin`'s calls about groups."""

    def list_groups(
        self, *, states: Iterable[str] = (), timeout_s: float | None = None
    ) -> list[GroupListing]:
        """The groups of all brokers, by id; `states` (`Stable`, `empty`, ...) picks some."""
        deadline_ms, state_names = self._deadline(timeout_s), arguments.names(states, "list_groups")

        chosen = {name.lower() for name in state_names}  # as brokers compare them

        def build(version: int) -> Message:
            return ListGroupsRequest(states_filter=state_names if version >= _STATES_FROM else [])

        def attempt() -> list[GroupListing]:
            nodes = self._refresh(deadline_ms).nodes
            requests: dict[int, Message | Versioned] = {
                node_id: Versioned(ListGroupsRequest, build) for node_id in nodes
            }
            answers = self._ask_all(ListGroupsResponse, requests, deadline_ms)
            raise_failed(
                "listing the groups of broker",
                {str(node_id): (a.error_code, None) for node_id, a in answers.items()},
            )
            groups = {
                g.group_id: GroupListing(g.group_id, g.protocol_type, g.group_state, g.group_type)
                for answer in answers.values()
                for g in answer.groups
                if not chosen or not g.group_state or g.group_state.lower() in chosen
            }
            return [groups[group_id] for group_id in sorted(groups)]

        return self._until(deadline_ms, attempt)

    def describe_groups(
        self, group_ids: Iterable[str], *, timeout_s: float | None = None
    ) -> dict[str, GroupDescription]:
        """Groups of both protocols with their members; one that does not exist is `Dead`."""
        ids, deadline_ms = (
            arguments.names(group_ids, "describe_groups"),
            self._deadline(timeout_s),
        )
        return {group_id: self._describe(group_id, deadline_ms) for group_id in ids}

    def _describe(self, group_id: str, deadline_ms: int) -> GroupDescription:
        def attempt() -> GroupDescription:
            node = self._coordinator(group_id, deadline_ms)
            answer = self._ask(
                DescribeGroupsResponse,
                node.node_id,
                DescribeGroupsRequest(groups=[group_id]),
                deadline_ms,
            )
            group = answer.groups[0]
            # Since v6 an unknown group is an error instead of the state Dead (KIP-1043).
            if group.error_code == ErrorCode.GROUP_ID_NOT_FOUND or group.group_state == DEAD:
                description = self._describe_consumer(group_id, node, deadline_ms)
                return description or dead_group(group_id, node)
            _check(group.error_code, f"describing group {group_id!r}")
            return classic_group(group, node)

        return self._until(deadline_ms, attempt)

    def _describe_consumer(
        self, group_id: str, node: Node, deadline_ms: int
    ) -> GroupDescription | None:
        """A group of the consumer protocol (KIP-848), None where there is none of that name."""
        request = ConsumerGroupDescribeRequest(group_ids=[group_id])
        try:
            answer = self._ask(ConsumerGroupDescribeResponse, node.node_id, request, deadline_ms)
        except UnsupportedVersionError:  # a broker before 4.0 has no such groups
            return None
        group = answer.groups[0]
        if group.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
            return None
        _check(group.error_code, f"describing group {group_id!r}")
        return consumer_group(group, node)

    def group_timeline(
        self, group_id: str, *, last: int = timeline.LAST_DEFAULT, timeout_s: float | None = None
    ) -> list[Rebalance] | None:
        """The last rebalances that the group's coordinator remembers, the oldest first.

        None when the coordinator keeps no such history: only Kohort's does, and it starts empty on
        each node that takes over the group. `client.group_timeline` reads the same from the log.
        """
        arguments.name(group_id, "group_timeline(): the group")
        arguments.whole_number(last, "group_timeline(): last")

        def build(version: int) -> Message:
            request = DescribeGroupsRequest(groups=[group_id])
            if version >= _TAGS_FROM:
                request.unknown_tags = timeline.ask(last)
            return request

        def check(answer: DescribeGroupsResponse) -> None:
            code = answer.groups[0].error_code
            if code != ErrorCode.GROUP_ID_NOT_FOUND:  # what it says of consumer groups
                _check(code, f"describing group {group_id!r}")

        answer = self._on_coordinator(
            DescribeGroupsResponse,
            group_id,
            Versioned(DescribeGroupsRequest, build),
            self._deadline(timeout_s),
            check,
        )
        return timeline.from_tags(answer.groups[0].unknown_tags)

    def delete_groups(self, group_ids: Iterable[str], *, timeout_s: float | None = None) -> None:
        """Delete groups that have no members, with their offsets.

        All are tried. Raises GroupError (NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND) when some were
        refused, ConnectionFailedError or KafkaTimeoutError when it is not known whether some are
        deleted; either names them.
        """
        deadline_ms = self._deadline(timeout_s)

        def check(answer: DeleteGroupsResponse) -> None:
            for result in answer.results:
                _check(result.error_code, "")

        def delete(group_id: str) -> None:
            request = DeleteGroupsRequest(groups_names=[group_id])
            self._on_coordinator(
                DeleteGroupsResponse, group_id, request, deadline_ms, check, mutates=True
            )

        each_of("deleting group", arguments.names(group_ids, "delete_groups"), delete, GroupError)

    def list_group_offsets(
        self,
        group_id: str,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """The committed offsets of a group; partitions without one are left out.

        Args:
            group_id: of the group.
            partitions: which; None: all with a committed offset that this user may read.
            timeout_s: the longest wait; `default.api.timeout.ms` by default.

        Returns:
            Offsets by partition.

        Raises:
            GroupError: a partition's offset may not be read (TOPIC_AUTHORIZATION_FAILED), ...
        """
        arguments.name(group_id, "list_group_offsets(): the group")
        by_topic = None
        if partitions is not None:
            by_topic = _by_topic(arguments.partitions(partitions, "list_group_offsets"))

        def build(version: int) -> Message:
            if version >= _GROUPS_FROM:
                topics = None
                if by_topic is not None:
                    topics = [
                        OffsetFetchRequestTopics(name=name, partition_indexes=numbers)
                        for name, numbers in by_topic.items()
                    ]
                return OffsetFetchRequest(
                    groups=[OffsetFetchRequestGroup(group_id=group_id, topics=topics)]
                )
            old = None
            if by_topic is not None:
                old = [
                    OffsetFetchRequestTopic(name=name, partition_indexes=numbers)
                    for name, numbers in by_topic.items()
                ]
            return OffsetFetchRequest(group_id=group_id, topics=old)

        def check(answer: OffsetFetchResponse) -> None:
            code = answer.groups[0].error_code if answer.groups else answer.error_code
            _check(code, f"fetching the offsets of group {group_id!r}")
            if by_topic is not None:
                raise_failed(
                    f"fetching the offsets of group {group_id!r}:",
                    {
                        f"{topic.name}-{p.partition_index}": (p.error_code, None)
                        for topic in _fetched(answer)
                        for p in topic.partitions
                        if p.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                    },
                    GroupError,
                )

        answer = self._on_coordinator(
            OffsetFetchResponse,
            group_id,
            Versioned(OffsetFetchRequest, build, at_most=_NAMES_UNTIL),
            self._deadline(timeout_s),
            check,
        )
        return {
            TopicPartition(topic.name, p.partition_index): OffsetAndMetadata(
                p.committed_offset, p.metadata or "", p.committed_leader_epoch
            )
            for topic in _fetched(answer)
            for p in topic.partitions
            if not p.error_code and p.committed_offset >= 0
        }

    def alter_group_offsets(
        self,
        group_id: str,
        offsets: ByPartition[OffsetAndMetadata | int],
        *,
        timeout_s: float | None = None,
    ) -> None:
        """Set committed offsets of a group that has no members (else GroupError)."""
        topics: dict[str, OffsetCommitRequestTopic] = {}
        arguments.name(group_id, "alter_group_offsets(): the group")
        checked = arguments.offsets(offsets, "alter_group_offsets")
        for (name, partition), place in checked.items():
            topic = topics.setdefault(name, OffsetCommitRequestTopic(name=name))
            topic.partitions.append(
                OffsetCommitRequestPartition(
                    partition_index=partition,
                    committed_offset=place.offset,
                    committed_leader_epoch=place.leader_epoch,
                    committed_metadata=place.metadata,
                )
            )
        request = OffsetCommitRequest(group_id=group_id, topics=list(topics.values()))

        def check(answer: OffsetCommitResponse) -> None:
            raise_failed(
                f"setting offsets of group {group_id!r} (does it have members?):",
                {
                    f"{t.name}-{p.partition_index}": (p.error_code, None)
                    for t in answer.topics
                    for p in t.partitions
                },
                GroupError,
            )

        self._on_coordinator(
            OffsetCommitResponse,
            group_id,
            Versioned(OffsetCommitRequest, lambda version: request, at_most=_NAMES_UNTIL),
            self._deadline(timeout_s),
            check,
            mutates=True,
        )

    def delete_group_offsets(
        self,
        group_id: str,
        partitions: Iterable[TopicPartition],
        *,
        timeout_s: float | None = None,
    ) -> None:
        """Forget committed offsets of topics to which no member subscribes (else GroupError)."""
        arguments.name(group_id, "delete_group_offsets(): the group")
        chosen = arguments.partitions(partitions, "delete_group_offsets")
        request = OffsetDeleteRequest(
            group_id=group_id,
            topics=[
                OffsetDeleteRequestTopic(
                    name=name,
                    partitions=[OffsetDeleteRequestPartition(partition_index=n) for n in numbers],
                )
                for name, numbers in _by_topic(chosen).items()
            ],
        )

        def check(answer: OffsetDeleteResponse) -> None:
            _check(answer.error_code, f"deleting offsets of group {group_id!r}")
            raise_failed(
                f"deleting offsets of group {group_id!r}:",
                {
                    f"{t.name}-{p.partition_index}": (p.error_code, None)
                    for t in answer.topics
                    for p in t.partitions
                },
                GroupError,
            )

        self._on_coordinator(
            OffsetDeleteResponse,
            group_id,
            request,
            self._deadline(timeout_s),
            check,
            mutates=True,
        )

    def remove_group_members(
        self,
        group_id: str,
        instance_ids: Iterable[str],
        *,
        reason: str = "removed by an administrator",
        timeout_s: float | None = None,
    ) -> None:
        """Remove static members (KIP-345), so that their partitions move at once.

        A member that still runs is fenced, and does not come back by itself.

        Args:
            group_id: of the group.
            instance_ids: `group.instance.id` of each member to remove.
            reason: the coordinator logs it (KIP-800).
            timeout_s: the longest wait; `default.api.timeout.ms` by default.

        Raises:
            GroupError: a member is not in the group (UNKNOWN_MEMBER_ID).
        """
        arguments.name(group_id, "remove_group_members(): the group")
        chosen = arguments.names(instance_ids, "remove_group_members")
        arguments.name(reason, "remove_group_members(): the reason")

        def build(version: int) -> Message:
            why = reason if version >= _REASON_FROM else None
            return LeaveGroupRequest(
                group_id=group_id,
                members=[MemberIdentity(group_instance_id=one, reason=why) for one in chosen],
            )

        def check(answer: LeaveGroupResponse) -> None:
            _check(answer.error_code, f"removing members of group {group_id!r}")
            raise_failed(
                f"removing members of group {group_id!r}:",
                {m.group_instance_id or m.member_id: (m.error_code, None) for m in answer.members},
                GroupError,
            )

        self._on_coordinator(
            LeaveGroupResponse,
            group_id,
            Versioned(LeaveGroupRequest, build),
            self._deadline(timeout_s),
            check,
            mutates=True,
        )


def _check(code: int, what: str) -> None:
    if code:
        raise GroupError(code, what)


def _fetched(
    answer: OffsetFetchResponse,
) -> Sequence[OffsetFetchResponseTopic | OffsetFetchResponseTopics]:
    """The topics of the one group."""
    return answer.groups[0].topics if answer.groups else answer.topics


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    by_topic: dict[str, list[int]] = {}
    for name, number in partitions:
        by_topic.setdefault(name, []).append(number)
    return by_topic
