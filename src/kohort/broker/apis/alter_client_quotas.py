"""AlterClientQuotas (49), v0-1. KIP-546.

Differs from Apache Kafka: quotas are kept and shown, but not enforced; an address is
written in digits, names of hosts are not looked up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kohort.broker.base.request import Call
from kohort.errors import BrokerError
from kohort.wire.messages.alter_client_quotas_request import AlterClientQuotasRequest
from kohort.wire.messages.alter_client_quotas_request import EntryData as WantedEntry
from kohort.wire.messages.alter_client_quotas_response import (
    AlterClientQuotasResponse,
    EntityData,
    EntryData,
)

if TYPE_CHECKING:
    from kohort.broker.coordinator.node_services import NodeServices


def handle(node: NodeServices, request: AlterClientQuotasRequest, call: Call) -> None:
    """Change quotas, of each entity on its own."""
    entries = [_alter(node, entry, request.validate_only) for entry in request.entries]
    call.answer(AlterClientQuotasResponse(entries=entries))


def _alter(node: NodeServices, change: WantedEntry, validate_only: bool) -> EntryData:
    parts = {part.entity_type: part.entity_name for part in change.entity}
    entry = EntryData(
        error_message=None,
        entity=[EntityData(entity_type=kind, entity_name=name) for kind, name in parts.items()],
    )
    changes = {op.key: None if op.remove else op.value for op in change.ops}
    try:
        node.quotas.alter(parts.items(), changes, validate_only=validate_only)
    except BrokerError as error:
        entry.error_code, entry.error_message = error.code, error.detail
    return entry
