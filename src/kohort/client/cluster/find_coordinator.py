"""FindCoordinator, whose shape changed with version 4 (KIP-699: several keys at once). Pure."""

from __future__ import annotations

from kohort.client.cluster.client import Versioned
from kohort.client.cluster.metadata import Node
from kohort.errors import BrokerError, GroupError
from kohort.wire import Message
from kohort.wire.messages.find_coordinator_request import FindCoordinatorRequest
from kohort.wire.messages.find_coordinator_response import FindCoordinatorResponse

_KEYS_FROM = 4
GROUP, TRANSACTION = 0, 1


def find_coordinator(key: str, kind: int = GROUP) -> Versioned:
    """The request for the coordinator of a group or transactional id; any broker answers it."""

    def build(version: int) -> Message:
        if version >= _KEYS_FROM:
            return FindCoordinatorRequest(coordinator_keys=[key], key_type=kind)
        return FindCoordinatorRequest(key=key, key_type=kind)

    return Versioned(FindCoordinatorRequest, build)


def coordinator_in(answer: FindCoordinatorResponse, group_id: str) -> Node | BrokerError:
    """The coordinator that an answer names, or its error."""
    coordinator = answer.coordinators[0] if answer.coordinators else answer
    if coordinator.error_code:
        return GroupError(
            coordinator.error_code,
            f"finding the coordinator of group {group_id!r}"
            + (f": {coordinator.error_message}" if coordinator.error_message else ""),
        )
    return Node(coordinator.node_id, coordinator.host, coordinator.port)
