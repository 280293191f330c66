"""AlterUserScramCredentials (51), v0. KIP-554.

The client salts the password, so that the broker never sees it. One change of a user is taken in a
request, as Apache Kafka (KRaft) does it; it is durable before it is answered, and holds for the
next login.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kohort.broker.base.request import Call
from kohort.errors import BrokerError, ErrorCode
from kohort.sasl.scram import (
    MAX_ITERATIONS,
    MECHANISM_IDS,
    MIN_ITERATIONS,
    ScramCredential,
    credential_of,
)
from kohort.wire.messages.alter_user_scram_credentials_request import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from kohort.wire.messages.alter_user_scram_credentials_response import (
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
)

if TYPE_CHECKING:
    from kohort.broker.coordinator.node_services import NodeServices

_Change = ScramCredentialDeletion | ScramCredentialUpsertion


def handle(node: NodeServices, request: AlterUserScramCredentialsRequest, call: Call) -> None:
    """Set and remove credentials."""
    by_user: dict[str, list[_Change]] = {}
    for change in (*request.deletions, *request.upsertions):
        by_user.setdefault(change.name, []).append(change)
    results = [_altered(node, user, changes) for user, changes in by_user.items()]
    call.answer(AlterUserScramCredentialsResponse(results=results))


def _altered(
    node: NodeServices, user: str, changes: list[_Change]
) -> AlterUserScramCredentialsResult:
    try:
        if not user:
            raise BrokerError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
        if len(changes) > 1:
            raise BrokerError(
                ErrorCode.DUPLICATE_RESOURCE,
                "A user credential cannot be altered twice in the same request",
            )
        change = changes[0]
        mechanism = MECHANISM_IDS.get(change.mechanism)
        if mechanism is None:
            raise BrokerError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
        node.users.alter(user, mechanism, _credential(node, mechanism, change))
    except BrokerError as error:
        return AlterUserScramCredentialsResult(
            user=user, error_code=error.code, error_message=error.detail
        )
    return AlterUserScramCredentialsResult(user=user)


def _credential(node: NodeServices, mechanism: str, change: _Change) -> ScramCredential | None:
    if isinstance(change, ScramCredentialDeletion):
        if mechanism not in node.users.of(change.name):
            raise BrokerError(
                ErrorCode.RESOURCE_NOT_FOUND,
                "Attempt to delete a user credential that does not exist",
            )
        return None
    for too, wrong in (
        ("few", change.iterations < MIN_ITERATIONS),
        ("many", change.iterations > MAX_ITERATIONS),
    ):
        if wrong:
            raise BrokerError(ErrorCode.UNACCEPTABLE_CREDENTIAL, f"Too {too} iterations")
    if not change.salt or not change.salted_password:
        raise BrokerError(
            ErrorCode.UNACCEPTABLE_CREDENTIAL, "Salt and salted password must not be empty"
        )
    salt, salted = bytes(change.salt), bytes(change.salted_password)
    return credential_of(mechanism, salted, salt, change.iterations)
