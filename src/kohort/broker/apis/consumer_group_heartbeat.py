"""ConsumerGroupHeartbeat (68), v0-1. KIP-848, KIP-1082 (the member makes its id).

Join, heartbeat, leave and reconciliation are one request; the group's shard answers it.

Differs from Apache Kafka: regular expressions are resolved at once, not later on another thread; a
classic group whose assignments repeat its members' claims (librdkafka's, cooperative-sticky) is
taken over, where Kafka answers GROUP_ID_NOT_FOUND.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kohort.broker.base.request import Call
from kohort.wire.messages.consumer_group_heartbeat_request import ConsumerGroupHeartbeatRequest

if TYPE_CHECKING:
    from kohort.broker.coordinator.node_services import NodeServices


def handle(node: NodeServices, request: ConsumerGroupHeartbeatRequest, call: Call) -> None:
    """Keep a membership alive, and lead it towards its assignment."""
    node.groups.handle(request.group_id, request, call)
