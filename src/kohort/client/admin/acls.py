"""The admin client's calls about access control: entries of who may do what (KIP-290).

Rules: as `admin`; an entry is judged alone by the broker, and one that is refused is raised after
the others have been added.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kohort.acl import Acl, AclFilter, Operation, Pattern, Permission, Resource
from kohort.client.admin.calls import AdminCalls, raise_failed
from kohort.client.cluster.client import ANY
from kohort.client.common import arguments as arguments
from kohort.errors import BrokerError
from kohort.wire.messages.create_acls_request import AclCreation, CreateAclsRequest
from kohort.wire.messages.create_acls_response import CreateAclsResponse
from kohort.wire.messages.delete_acls_request import DeleteAclsFilter, DeleteAclsRequest
from kohort.wire.messages.delete_acls_response import DeleteAclsMatchingAcl, DeleteAclsResponse
from kohort.wire.messages.describe_acls_request import DescribeAclsRequest
from kohort.wire.messages.describe_acls_response import DescribeAclsResponse

EVERYTHING = AclFilter()


class AdminAcls(AdminCalls):
    """`Admin`'s calls about access control."""

    def create_acls(self, acls: Iterable[Acl], *, timeout_s: float | None = None) -> None:
        """Add entries; one that is there already is no fault.

        Raises BrokerError (SECURITY_DISABLED, CLUSTER_AUTHORIZATION_FAILED, INVALID_REQUEST).
        """
        new_acls, deadline_ms = arguments.several(acls, "create_acls"), self._deadline(timeout_s)
        for acl in new_acls:
            arguments.one_of(acl, Acl, "create_acls()")
        request = CreateAclsRequest(
            creations=[
                AclCreation(
                    resource_type=acl.resource,
                    resource_name=acl.name,
                    resource_pattern_type=acl.pattern,
                    principal=acl.principal,
                    host=acl.host,
                    operation=acl.operation,
                    permission_type=acl.permission,
                )
                for acl in new_acls
            ]
        )

        def attempt() -> None:
            answer = self._on_controller(CreateAclsResponse, request, deadline_ms)
            results = zip(new_acls, answer.results, strict=True)
            raise_failed(
                "adding the entry",
                {str(acl): (result.error_code, result.error_message) for acl, result in results},
            )

        self._until(deadline_ms, attempt)

    def describe_acls(
        self, acl_filter: AclFilter = EVERYTHING, *, timeout_s: float | None = None
    ) -> list[Acl]:
        """The entries that a filter meets; all of them without one. Raises BrokerError."""
        arguments.one_of(acl_filter, AclFilter, "this call")
        deadline_ms = self._deadline(timeout_s)
        request = DescribeAclsRequest(**_fields(acl_filter))

        def attempt() -> list[Acl]:
            answer = self._ask(DescribeAclsResponse, ANY, request, deadline_ms)
            if answer.error_code:
                text = _with_reason("describing entries", answer.error_message)
                raise BrokerError(answer.error_code, text)
            return sorted(
                Acl(
                    Resource(of.resource_type),
                    of.resource_name,
                    Pattern(of.pattern_type),
                    acl.principal,
                    acl.host,
                    Operation(acl.operation),
                    Permission(acl.permission_type),
                )
                for of in answer.resources
                for acl in of.acls
            )

        return self._until(deadline_ms, attempt)

    def delete_acls(self, acl_filter: AclFilter, *, timeout_s: float | None = None) -> list[Acl]:
        """Remove the entries that a filter meets; those that were. Raises BrokerError."""
        arguments.one_of(acl_filter, AclFilter, "this call")
        deadline_ms = self._deadline(timeout_s)
        request = DeleteAclsRequest(filters=[DeleteAclsFilter(**_fields(acl_filter))])

        def attempt() -> list[Acl]:
            answer = self._on_controller(DeleteAclsResponse, request, deadline_ms)
            (result,) = answer.filter_results
            if result.error_code:
                text = _with_reason("removing entries", result.error_message)
                raise BrokerError(result.error_code, text)
            met = [(_removed(match), match) for match in result.matching_acls]
            errors = {str(acl): (match.error_code, match.error_message) for acl, match in met}
            raise_failed("removing the entry", errors)
            return sorted(acl for acl, _ in met)

        return self._until(deadline_ms, attempt)


def _fields(acl_filter: AclFilter) -> dict[str, Any]:
    """A filter as both requests have it."""
    return {
        "resource_type_filter": acl_filter.resource,
        "resource_name_filter": acl_filter.name,
        "pattern_type_filter": acl_filter.pattern,
        "principal_filter": acl_filter.principal,
        "host_filter": acl_filter.host,
        "operation": acl_filter.operation,
        "permission_type": acl_filter.permission,
    }


def _with_reason(what: str, reason: str | None) -> str:
    return f"{what}: {reason}" if reason else what


def _removed(match: DeleteAclsMatchingAcl) -> Acl:
    return Acl(
        Resource(match.resource_type),
        match.resource_name,
        Pattern(match.pattern_type),
        match.principal,
        match.host,
        Operation(match.operation),
        Permission(match.permission_type),
    )
