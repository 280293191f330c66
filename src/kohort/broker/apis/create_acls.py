"""CreateAcls (30), v1-3. KIP-290 (prefixed names).

Each entry is judged alone; those that are good are added together. One that is there already is no
fault.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kohort.acl import Acl, Operation, Pattern, Permission, Resource, fault_of
from kohort.broker.base.request import Call
from kohort.errors import BrokerError, ErrorCode
from kohort.wire.messages.create_acls_request import AclCreation, CreateAclsRequest
from kohort.wire.messages.create_acls_response import AclCreationResult, CreateAclsResponse

if TYPE_CHECKING:
    from kohort.broker.coordinator.node_services import NodeServices

DISABLED = "this broker has no access control; start it with acls=true"


def handle(node: NodeServices, request: CreateAclsRequest, call: Call) -> None:
    """Add entries."""
    results = [AclCreationResult(error_code=0, error_message=None) for _ in request.creations]
    good: dict[int, Acl] = {}
    for number, creation in enumerate(request.creations):
        try:
            good[number] = _acl(creation)
        except BrokerError as error:
            results[number] = _refused(error)
    try:
        if node.acls.authorizer is None:
            raise BrokerError(ErrorCode.SECURITY_DISABLED, DISABLED)
        node.acls.change(add=good.values())
    except BrokerError as error:
        for number in good:
            results[number] = _refused(error)
    call.answer(CreateAclsResponse(results=results))


def _refused(error: BrokerError) -> AclCreationResult:
    return AclCreationResult(error_code=error.code, error_message=error.detail)


def _acl(creation: AclCreation) -> Acl:
    try:
        acl = Acl(
            Resource(creation.resource_type),
            creation.resource_name,
            Pattern(creation.resource_pattern_type),
            creation.principal,
            creation.host,
            Operation(creation.operation),
            Permission(creation.permission_type),
        )
    except ValueError as error:
        raise BrokerError(ErrorCode.INVALID_REQUEST, str(error)) from None
    fault = fault_of(acl)
    if fault:
        raise BrokerError(ErrorCode.INVALID_REQUEST, fault)
    return acl
