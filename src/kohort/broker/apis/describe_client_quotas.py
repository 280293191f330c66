"""DescribeClientQuotas (48), v0-1. KIP-546: what was set; see AlterClientQuotas."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kohort.broker.base.request import Call
from kohort.broker.state.client_quotas import Component
from kohort.errors import BrokerError
from kohort.wire.messages.describe_client_quotas_request import DescribeClientQuotasRequest
from kohort.wire.messages.describe_client_quotas_response import (
    DescribeClientQuotasResponse,
    EntityData,
    EntryData,
    ValueData,
)

if TYPE_CHECKING:
    from kohort.broker.coordinator.node_services import NodeServices


def handle(node: NodeServices, request: DescribeClientQuotasRequest, call: Call) -> None:
    """Show the quotas of all who match."""
    components = (Component(c.entity_type, c.match_type, c.match) for c in request.components)
    try:
        matching = node.quotas.matching(components, strict=request.strict)
    except BrokerError as error:
        call.answer(
            DescribeClientQuotasResponse(
                error_code=error.code, error_message=error.detail, entries=None
            )
        )
        return
    entries = [
        EntryData(
            entity=[EntityData(entity_type=kind, entity_name=name) for kind, name in entity],
            values=[ValueData(key=key, value=value) for key, value in values.items()],
        )
        for entity, values in matching
    ]
    call.answer(DescribeClientQuotasResponse(entries=entries))
