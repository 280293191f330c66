"""`Admin.survey_groups`: every group with members and offsets, in a few requests for each broker.

Rules:
- Each broker lists the groups that it coordinates, so no coordinator is looked up.
- All brokers are asked for their lists at once, and looked at in the order of their answers: one
  that hangs costs the others no time.
- Share groups and streams groups are listed, and not looked at.
- A broker that does not answer costs its own groups alone; they are named in `unreachable`. A group
  that its broker refuses to describe is listed with the error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from kohort.client.admin.calls import AdminCalls, as_they_end
from kohort.client.admin.group_descriptions import DEAD, classic_group, consumer_group
from kohort.client.admin.types import (
    GroupDescription,
    GroupListing,
    GroupsSurvey,
    SurveyedGroup,
)
from kohort.client.cluster.client import Versioned
from kohort.client.cluster.metadata import Node
from kohort.client.common.types import OffsetAndMetadata, TopicPartition
from kohort.errors import ErrorCode, KohortError, UnsupportedVersionError
from kohort.lean import quick
from kohort.wire import Message
from kohort.wire.messages.consumer_group_describe_request import ConsumerGroupDescribeRequest
from kohort.wire.messages.consumer_group_describe_response import ConsumerGroupDescribeResponse
from kohort.wire.messages.describe_groups_request import DescribeGroupsRequest
from kohort.wire.messages.describe_groups_response import DescribeGroupsResponse
from kohort.wire.messages.list_groups_request import ListGroupsRequest
from kohort.wire.messages.list_groups_response import ListGroupsResponse
from kohort.wire.messages.offset_fetch_request import OffsetFetchRequest, OffsetFetchRequestGroup
from kohort.wire.messages.offset_fetch_response import (
    OffsetFetchResponse,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)

GROUPS_AT_ONCE: Final = 100
"""In one request: an answer stays well below a broker's and a client's largest frame."""
_GROUPS_FROM: Final = 8  # OffsetFetch: several groups a request (KIP-709)
_NAMES_UNTIL: Final = 9  # OffsetFetch: topics by id from version 10 on (KIP-848)
_Errors = dict[str, str]


class AdminSurvey(AdminCalls):
    """`Admin`'s view of all groups at once."""

    def survey_groups(self, *, timeout_s: float | None = None) -> GroupsSurvey:
        """All groups with their members and committed offsets, as far as brokers answer.

        Args:
            timeout_s: for the whole call, in seconds; `default_api_timeout_ms` by default.

        Returns:
            The groups by id, and the brokers that did not answer with the reason.

        Raises:
            ConnectionFailedError: no broker answers at all.
        """
        deadline_ms = self._deadline(timeout_s)
        nodes = self._refresh(deadline_ms).nodes
        unreachable: dict[int, str] = {}
        groups: dict[str, SurveyedGroup] = {}
        started = {n: self._start(n, ListGroupsRequest(), deadline_ms) for n in nodes}
        for node_id, future in as_they_end(started):
            try:
                answer = future.result()
                assert isinstance(answer, ListGroupsResponse)
                surveyed = self._survey_node(nodes[node_id], answer, deadline_ms)
            except KohortError as error:
                unreachable[node_id] = str(error)
            else:
                groups |= {one.listing.group_id: one for one in surveyed}
        return GroupsSurvey(dict(sorted(groups.items())), dict(sorted(unreachable.items())))

    def _survey_node(
        self, node: Node, answer: ListGroupsResponse, deadline_ms: int
    ) -> list[SurveyedGroup]:
        if answer.error_code:
            raise KohortError(
                f"broker {node.node_id} lists no groups: {ErrorCode.name_of(answer.error_code)}"
            )
        listed = [
            GroupListing(g.group_id, g.protocol_type, g.group_state, g.group_type)
            for g in answer.groups
        ]
        groups = [
            SurveyedGroup(one, None, {}, f"a {one.group_type.lower()} group: not looked at")
            for one in listed
            if not one.describable
        ]
        listed = [one for one in listed if one.describable]
        for start in range(0, len(listed), GROUPS_AT_ONCE):
            groups += self._survey_page(node, listed[start : start + GROUPS_AT_ONCE], deadline_ms)
        return groups

    def _survey_page(
        self, node: Node, listed: list[GroupListing], deadline_ms: int
    ) -> list[SurveyedGroup]:
        names = [one.group_id for one in listed]
        errors: _Errors = {}
        described = self._survey_described(node, listed, errors, deadline_ms)
        offsets = self._survey_offsets(node, names, errors, deadline_ms)
        return [
            SurveyedGroup(
                one,
                described.get(one.group_id),
                offsets.get(one.group_id, {}),
                errors.get(one.group_id, ""),
            )
            for one in listed
        ]

    def _survey_described(
        self, node: Node, listed: Iterable[GroupListing], errors: _Errors, deadline_ms: int
    ) -> dict[str, GroupDescription]:
        """By the protocol that the listing names; what an older listing hides is asked again."""
        consumer = [g.group_id for g in listed if g.group_type.lower() == "consumer"]
        classic = [g.group_id for g in listed if g.group_type.lower() in ("", "classic")]
        descriptions: dict[str, GroupDescription] = {}
        if classic:
            answer = self._ask(
                DescribeGroupsResponse,
                node.node_id,
                DescribeGroupsRequest(groups=classic),
                deadline_ms,
            )
            for group in answer.groups:
                unknown = group.error_code == ErrorCode.GROUP_ID_NOT_FOUND
                if unknown or group.group_state == DEAD:
                    consumer.append(group.group_id)
                elif group.error_code:
                    errors[group.group_id] = ErrorCode.name_of(group.error_code)
                else:
                    descriptions[group.group_id] = classic_group(group, node)
        return descriptions | self._survey_consumer_protocol(node, consumer, errors, deadline_ms)

    def _survey_consumer_protocol(
        self, node: Node, names: list[str], errors: _Errors, deadline_ms: int
    ) -> dict[str, GroupDescription]:
        if not names:
            return {}
        request = ConsumerGroupDescribeRequest(group_ids=names)
        try:
            answer = self._ask(ConsumerGroupDescribeResponse, node.node_id, request, deadline_ms)
        except UnsupportedVersionError:  # a broker before 4.0 has no such groups
            return {}
        errors |= {
            g.group_id: ErrorCode.name_of(g.error_code)
            for g in answer.groups
            if g.error_code and g.error_code != ErrorCode.GROUP_ID_NOT_FOUND
        }
        return {g.group_id: consumer_group(g, node) for g in answer.groups if not g.error_code}

    def _survey_offsets(
        self, node: Node, names: list[str], errors: _Errors, deadline_ms: int
    ) -> dict[str, Mapping[TopicPartition, OffsetAndMetadata]]:
        def build(version: int) -> Message:
            if version < _GROUPS_FROM:
                raise UnsupportedVersionError("OffsetFetch of several groups needs version 8")
            groups = [OffsetFetchRequestGroup(group_id=name, topics=None) for name in names]
            return OffsetFetchRequest(groups=groups)

        request = Versioned(OffsetFetchRequest, build, at_most=_NAMES_UNTIL)
        try:
            answer = self._ask(OffsetFetchResponse, node.node_id, request, deadline_ms)
        except UnsupportedVersionError:  # before Kafka 3.0
            return {
                name: self._survey_offsets_of(node, name, errors, deadline_ms) for name in names
            }
        errors |= {
            g.group_id: ErrorCode.name_of(g.error_code) for g in answer.groups if g.error_code
        }
        return {g.group_id: _committed(g.topics) for g in answer.groups if not g.error_code}

    def _survey_offsets_of(
        self, node: Node, name: str, errors: _Errors, deadline_ms: int
    ) -> Mapping[TopicPartition, OffsetAndMetadata]:
        request = OffsetFetchRequest(group_id=name, topics=None)
        old = Versioned(OffsetFetchRequest, lambda _: request, at_most=_GROUPS_FROM - 1)
        answer = self._ask(OffsetFetchResponse, node.node_id, old, deadline_ms)
        if answer.error_code:
            errors[name] = ErrorCode.name_of(answer.error_code)
            return {}
        return _committed(answer.topics)


def _committed(
    topics: Iterable[OffsetFetchResponseTopics | OffsetFetchResponseTopic],
) -> dict[TopicPartition, OffsetAndMetadata]:
    return {
        quick(TopicPartition, (topic.name, p.partition_index)): quick(
            OffsetAndMetadata, (p.committed_offset, p.metadata or "", p.committed_leader_epoch)
        )
        for topic in topics
        for p in topic.partitions
        if not p.error_code and p.committed_offset >= 0
    }
