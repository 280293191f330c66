"""DescribeAcls (29), v1-3. KIP-290 (prefixed names)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kohort.acl import Acl, AclFilter, Operation, Pattern, Permission, Resource
from kohort.broker.apis.create_acls import DISABLED
from kohort.broker.base.request import Call
from kohort.errors import ErrorCode
from kohort.wire.messages.describe_acls_request import DescribeAclsRequest
from kohort.wire.messages.describe_acls_response import (
    AclDescription,
    DescribeAclsResource,
    DescribeAclsResponse,
)

if TYPE_CHECKING:
    from kohort.broker.coordinator.node_services import NodeServices


def handle(node: NodeServices, request: DescribeAclsRequest, call: Call) -> None:
    """The entries that a filter meets, by resource."""
    if node.acls.authorizer is None:
        code = ErrorCode.SECURITY_DISABLED
        call.answer(DescribeAclsResponse(error_code=code, error_message=DISABLED))
        return
    try:
        acl_filter = AclFilter(
            Resource(request.resource_type_filter),
            request.resource_name_filter,
            Pattern(request.pattern_type_filter),
            request.principal_filter,
            request.host_filter,
            Operation(request.operation),
            Permission(request.permission_type),
        )
    except ValueError as error:
        code = ErrorCode.INVALID_REQUEST
        call.answer(DescribeAclsResponse(error_code=code, error_message=str(error)))
        return
    resources: dict[tuple[Resource, str, Pattern], DescribeAclsResource] = {}
    for acl in node.acls.find(acl_filter):
        key = (acl.resource, acl.name, acl.pattern)
        if key not in resources:
            resources[key] = DescribeAclsResource(
                resource_type=acl.resource, resource_name=acl.name, pattern_type=acl.pattern
            )
        resources[key].acls.append(_described(acl))
    call.answer(DescribeAclsResponse(error_message=None, resources=list(resources.values())))


def _described(acl: Acl) -> AclDescription:
    return AclDescription(
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission_type=acl.permission,
    )
