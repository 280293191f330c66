"""DescribeUserScramCredentials (50), v0. KIP-554.

Mechanisms and iterations only: salts and keys leave the broker in a login, and no other way.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from kohort.broker.base.request import Call
from kohort.errors import ErrorCode
from kohort.sasl.scram import MECHANISM_IDS
from kohort.wire.messages.describe_user_scram_credentials_request import (
    DescribeUserScramCredentialsRequest,
)
from kohort.wire.messages.describe_user_scram_credentials_response import (
    CredentialInfo,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)

if TYPE_CHECKING:
    from kohort.broker.coordinator.node_services import NodeServices

_IDS: Final = {name: number for number, name in MECHANISM_IDS.items()}


def handle(node: NodeServices, request: DescribeUserScramCredentialsRequest, call: Call) -> None:
    """Describe the users that are named; no names: everybody."""
    users = node.users
    requested = Counter([user.name for user in request.users or []] or users.names())
    results: list[DescribeUserScramCredentialsResult] = []
    for name, times in requested.items():
        held = users.of(name)
        result = DescribeUserScramCredentialsResult(
            user=name,
            credential_infos=[
                CredentialInfo(mechanism=_IDS[m], iterations=c.iterations)
                for m, c in sorted(held.items())
            ],
        )
        if times > 1:
            result = DescribeUserScramCredentialsResult(
                user=name,
                error_code=ErrorCode.DUPLICATE_RESOURCE,
                error_message="Cannot describe SCRAM credentials for the same user twice in a "
                f"single request: {name}",
            )
        elif not held:
            result = DescribeUserScramCredentialsResult(
                user=name,
                error_code=ErrorCode.RESOURCE_NOT_FOUND,
                error_message=f"Attempt to describe a user credential that does not exist: {name}",
            )
        results.append(result)
    call.answer(DescribeUserScramCredentialsResponse(results=results))
