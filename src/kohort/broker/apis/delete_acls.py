"""DeleteAcls (31), v1-3. KIP-290 (prefixed names).

Everything that any of the filters meets is removed together; each filter is answered with what it
met.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kohort.acl import Acl, AclFilter, Operation, Pattern, Permission, Resource
from kohort.broker.apis.create_acls import DISABLED
from kohort.broker.base.request import Call
from kohort.errors import BrokerError, ErrorCode
from kohort.wire.messages.delete_acls_request import DeleteAclsFilter, DeleteAclsRequest
from kohort.wire.messages.delete_acls_response import (
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsResponse,
)

if TYPE_CHECKING:
    from kohort.broker.coordinator.node_services import NodeServices


def handle(node: NodeServices, request: DeleteAclsRequest, call: Call) -> None:
    """Remove entries."""
    acls = node.acls
    results: list[DeleteAclsFilterResult] = []
    met: list[Acl] = []
    for each in request.filters:
        try:
            if acls.authorizer is None:
                raise BrokerError(ErrorCode.SECURITY_DISABLED, DISABLED)
            matching = acls.find(_filter(each))
        except BrokerError as error:
            results.append(_refused(error))
            continue
        met += matching
        shown = [_matching(acl) for acl in matching]
        results.append(DeleteAclsFilterResult(error_message=None, matching_acls=shown))
    try:
        acls.change(remove=met)
    except BrokerError as error:
        results = [_refused(error) for _ in request.filters]
    call.answer(DeleteAclsResponse(filter_results=results))


def _refused(error: BrokerError) -> DeleteAclsFilterResult:
    return DeleteAclsFilterResult(error_code=error.code, error_message=error.detail)


def _filter(each: DeleteAclsFilter) -> AclFilter:
    try:
        return AclFilter(
            Resource(each.resource_type_filter),
            each.resource_name_filter,
            Pattern(each.pattern_type_filter),
            each.principal_filter,
            each.host_filter,
            Operation(each.operation),
            Permission(each.permission_type),
        )
    except ValueError as error:
        raise BrokerError(ErrorCode.INVALID_REQUEST, str(error)) from None


def _matching(acl: Acl) -> DeleteAclsMatchingAcl:
    return DeleteAclsMatchingAcl(
        error_message=None,
        resource_type=acl.resource,
        resource_name=acl.name,
        pattern_type=acl.pattern,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission_type=acl.permission,
    )
