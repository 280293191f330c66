"""The users that may log in: their SCRAM credentials, durably, and never their passwords.

Rules:
- `users.json` is replaced in one step and durable before a change is answered. It holds salted keys
  (RFC 5802), which do not let anyone log in; the data directory is its owner's alone.
- A password is looked at in two places only: when a user of the configuration is made, and when
  PLAIN is verified.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from kohort.broker.log.directory import USERS_FILE, DataDirectory
from kohort.broker.log.files import disk_refusal, replace_file
from kohort.errors import BrokerError, ErrorCode, StorageError
from kohort.sasl.decoys import SALT_BYTES, Decoys, preferred
from kohort.sasl.saslprep import require_prepared
from kohort.sasl.scram import (
    HASHES,
    MIN_ITERATIONS,
    Held,
    ScramCredential,
    credential_of,
    salted_password,
    verifies,
)

MAX_USERS: Final = 10_000
_FORMAT: Final = 1

Credentials = dict[str, ScramCredential]
"""Of one user, by mechanism."""


class Users:
    """Who there is. Raises StorageError for a damaged file, OSError."""

    def __init__(self, directory: DataDirectory, random: Callable[[], bytes]) -> None:
        self._directory = directory
        self._random = random
        self._users: dict[str, Credentials] = {}
        self._verified: dict[str, bytes] = {}
        self._cache_key = random()
        data = directory.files.read_all(USERS_FILE)
        self.decoy_key = random()
        """Makes what is shown for users that do not exist; kept, so that it stays the same."""
        if data is not None:
            self._users, self.decoy_key = _decoded(data)
        self._decoys = Decoys(self.decoy_key, self._users.values())

    def __len__(self) -> int:
        return len(self._users)

    def names(self) -> list[str]:
        """Everybody, in order."""
        return sorted(self._users)

    def of(self, user: str) -> Mapping[str, ScramCredential]:
        """A user's credentials, by mechanism; empty: there is no such user."""
        return self._users.get(user, {})

    def held(self, mechanism: str, user: str) -> Held:
        """What is shown for a name in a login; as much work for names that do not exist."""
        credentials = self._users.get(user)
        decoy = self._decoys.credential(mechanism, user, credentials)
        credential = (credentials or {}).get(mechanism)
        return Held(credential or decoy, credential is not None)

    def ensure(self, entries: Sequence[str]) -> None:
        """Let the users of a configuration (`name:password`) exist with these passwords.

        Raises ConfigError for a name or password that clients would write differently, OSError.
        """
        changed = dict(self._users)
        for entry in entries:
            name, _, password = entry.partition(":")
            require_prepared(name, "a user's name")
            require_prepared(password, f"the password of user {name!r}")
            held = self._users.get(name, {})
            if not all(m in held and verifies(m, held[m], password) for m in HASHES):
                changed[name] = {m: self._made(m, password) for m in HASHES}
        if changed != self._users:
            self._save(changed)

    def _made(self, mechanism: str, password: str) -> ScramCredential:
        # not the bytes of a UUID, some of which are always the same
        salt = hashlib.sha512(self._random() + self._random()).digest()[:SALT_BYTES]
        salted = salted_password(mechanism, password, salt, MIN_ITERATIONS)
        return credential_of(mechanism, salted, salt, MIN_ITERATIONS)

    def alter(self, user: str, mechanism: str, credential: ScramCredential | None) -> None:
        """Set, or remove (None), a user's credential. Raises BrokerError and changes nothing."""
        changed = dict(self._users)
        held = {m: c for m, c in changed.pop(user, {}).items() if m != mechanism}
        if credential is not None:
            held[mechanism] = credential
        if held:
            changed[user] = held
        if len(changed) > max(MAX_USERS, len(self._users)):
            raise BrokerError(
                ErrorCode.POLICY_VIOLATION, f"there are {MAX_USERS} users, the most there may be"
            )
        try:
            self._save(changed)
        except OSError as error:
            raise disk_refusal(error) from error

    def verify(self, user: str, password: str) -> bool:
        """Whether this is the user's password; takes as long for users that do not exist."""
        seen = hmac.digest(self._cache_key, password.encode(), "sha256")
        known = self._verified.get(user)
        if known is not None and hmac.compare_digest(known, seen):
            return True
        credentials = self._users.get(user)
        drawn = self._decoys.preferred(user)
        mechanism = preferred(credentials) if credentials else drawn
        credential, exists = self.held(mechanism, user)
        if not verifies(mechanism, credential, password) or not exists:
            return False
        self._verified[user] = seen  # so that only the first of its connections takes long
        return True

    def _save(self, users: dict[str, Credentials]) -> None:
        document = {
            "format": _FORMAT,
            "decoy_key": self.decoy_key.hex(),
            "users": {
                name: {m: _encoded(c) for m, c in credentials.items()}
                for name, credentials in users.items()
            },
        }
        data = json.dumps(document, indent=1).encode()
        replace_file(self._directory.files, USERS_FILE, data, durable=self._directory.durable)
        self._users = users
        self._decoys = Decoys(self.decoy_key, users.values())
        self._verified.clear()


def _encoded(credential: ScramCredential) -> dict[str, Any]:
    return {
        "salt": b64encode(credential.salt).decode(),
        "stored_key": b64encode(credential.stored_key).decode(),
        "server_key": b64encode(credential.server_key).decode(),
        "iterations": credential.iterations,
    }


def _decoded(data: bytes) -> tuple[dict[str, Credentials], bytes]:
    try:
        document: dict[str, Any] = json.loads(data)
        if document["format"] != _FORMAT:
            raise StorageError(
                f"{USERS_FILE} has format {document['format']}, this version reads {_FORMAT}; use "
                "the version of Kohort that wrote it"
            )
        users: dict[str, Credentials] = {
            name: {
                m: ScramCredential(
                    b64decode(c["salt"]),
                    b64decode(c["stored_key"]),
                    b64decode(c["server_key"]),
                    int(c["iterations"]),
                )
                for m, c in credentials.items()
                if m in HASHES
            }
            for name, credentials in document["users"].items()
        }
        return users, bytes.fromhex(document["decoy_key"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StorageError(
            f"{USERS_FILE} in the data directory is damaged ({type(error).__name__}); restore it "
            "from a copy, or move it away and create the users again"
        ) from None
