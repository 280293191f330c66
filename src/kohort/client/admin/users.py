"""The part of `Admin` for the users that may log in by password (KIP-554).

Rules:
- Passwords are salted here: what the broker is sent lets it check a password, and not know it.
- A request for each mechanism: Apache Kafka takes one change of a user in a request.

Shell: randomness (salts).
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from typing import Final

from kohort.client.admin.calls import AdminCalls, raise_failed
from kohort.client.common import arguments as arguments
from kohort.errors import BrokerError, ConfigError
from kohort.sasl import SCRAM_SHA_256, SCRAM_SHA_512
from kohort.wire.messages.alter_user_scram_credentials_request import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from kohort.wire.messages.alter_user_scram_credentials_response import (
    AlterUserScramCredentialsResponse,
)
from kohort.wire.messages.describe_user_scram_credentials_request import (
    DescribeUserScramCredentialsRequest,
    UserName,
)
from kohort.wire.messages.describe_user_scram_credentials_response import (
    DescribeUserScramCredentialsResponse,
)

BOTH: Final = (SCRAM_SHA_256, SCRAM_SHA_512)
_SALT_BYTES: Final = 16


class AdminUsers(AdminCalls):
    """Makes, lists and removes users."""

    def describe_users(
        self, users: Iterable[str] | None = None, *, timeout_s: float | None = None
    ) -> dict[str, dict[str, int]]:
        """The SCRAM mechanisms of users (default: of all), each with its iterations.

        Raises BrokerError (RESOURCE_NOT_FOUND) for a user that is named and does not exist.
        """
        from kohort.sasl.scram import MECHANISM_IDS

        deadline_ms = self._deadline(timeout_s)
        named = None if users is None else arguments.names(users, "describe_users")
        names = None if named is None else [UserName(name=user) for user in named]
        if names == []:
            return {}
        request = DescribeUserScramCredentialsRequest(users=names)

        def attempt() -> dict[str, dict[str, int]]:
            kind = DescribeUserScramCredentialsResponse
            answer = self._on_controller(kind, request, deadline_ms)
            if answer.error_code:
                raise BrokerError(answer.error_code, answer.error_message or "describing users")
            raise_failed(
                "describing user",
                {r.user: (r.error_code, r.error_message) for r in answer.results},
            )
            return {
                r.user: {
                    MECHANISM_IDS.get(i.mechanism, f"mechanism {i.mechanism}"): i.iterations
                    for i in r.credential_infos
                }
                for r in answer.results
            }

        return self._until(deadline_ms, attempt)

    def upsert_user(
        self,
        user: str,
        password: str,
        *,
        mechanisms: Iterable[str] = BOTH,
        iterations: int = 4_096,
        timeout_s: float | None = None,
    ) -> None:
        """Make a user, or give one another password; connections that are open stay open.

        `mechanisms` are SCRAM-SHA-256 and SCRAM-SHA-512. Raises UsageError for a name or password
        that is no text or empty, ConfigError for one that clients would write differently (RFC
        4013), BrokerError.
        """
        from kohort.sasl.saslprep import require_prepared
        from kohort.sasl.scram import MECHANISM_IDS, salted_password

        arguments.name(user, "upsert_user(): the user")
        arguments.name(password, "upsert_user(): the password")
        arguments.whole_number(iterations, "upsert_user(): iterations", -1, 1 << 31)
        require_prepared(user, "the user's name")
        require_prepared(password, "the password")
        numbers = {name: number for number, name in MECHANISM_IDS.items()}
        for mechanism in _known(mechanisms, numbers):
            salt = secrets.token_bytes(_SALT_BYTES)
            salted = salted_password(mechanism, password, salt, max(1, iterations))
            upsertion = ScramCredentialUpsertion(
                name=user,
                mechanism=numbers[mechanism],
                iterations=iterations,
                salt=salt,
                salted_password=salted,
            )
            self._alter(AlterUserScramCredentialsRequest(upsertions=[upsertion]), timeout_s)

    def delete_user(
        self,
        user: str,
        *,
        mechanisms: Iterable[str] | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """Remove a user, or (`mechanisms`) some of the ways to log in.

        Raises BrokerError (RESOURCE_NOT_FOUND) when there is nothing to remove.
        """
        from kohort.sasl.scram import MECHANISM_IDS

        arguments.name(user, "delete_user(): the user")
        held = mechanisms
        if held is None:
            held = self.describe_users([user], timeout_s=timeout_s)[user]
        numbers = {name: number for number, name in MECHANISM_IDS.items()}
        for mechanism in _known(held, numbers):
            deletion = ScramCredentialDeletion(name=user, mechanism=numbers[mechanism])
            self._alter(AlterUserScramCredentialsRequest(deletions=[deletion]), timeout_s)

    def _alter(self, request: AlterUserScramCredentialsRequest, timeout_s: float | None) -> None:
        deadline_ms = self._deadline(timeout_s)

        def attempt() -> None:
            kind = AlterUserScramCredentialsResponse
            answer = self._on_controller(kind, request, deadline_ms)
            raise_failed(
                "altering user",
                {r.user: (r.error_code, r.error_message) for r in answer.results},
            )

        self._until(deadline_ms, attempt, mutates=True)


def _known(mechanisms: Iterable[str], numbers: Mapping[str, int]) -> list[str]:
    mechanism_names = list(dict.fromkeys(arguments.names(mechanisms, "mechanisms")))
    for mechanism in mechanism_names:
        if mechanism not in numbers:
            raise ConfigError(f"mechanism {mechanism!r}; there are {', '.join(BOTH)}")
    return mechanism_names
