"""SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677): neither side shows the other its secret.

Rules:
- Iterations lie between `MIN_ITERATIONS` and a maximum on both sides: a hostile broker must not
  make a client compute for hours, nor a stored credential be weak.
- Secrets are compared in constant time. A user that does not exist is answered like one that does
  (`kohort.sasl.decoys`), so that no client learns who exists.
- The client's last nonce must end with the broker's part (CVE-2024-56128). It is not compared as a
  whole, because librdkafka before 2.6.1 put its own part in front twice.
- A broker keeps `ScramCredential`s, from which no password and no login can be made.
"""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from kohort.errors import AuthenticationError
from kohort.lean import dataclass, field
from kohort.sasl import SCRAM_SHA_256, SCRAM_SHA_512
from kohort.sasl.mechanism import MAX_MESSAGE_BYTES, Accepted, Challenge

HASHES: Final = {SCRAM_SHA_256: "sha256", SCRAM_SHA_512: "sha512"}
MECHANISM_IDS: Final = {1: SCRAM_SHA_256, 2: SCRAM_SHA_512}
"""Kafka's numbers of the mechanisms (KIP-554)."""
MIN_ITERATIONS: Final = 4_096
MAX_ITERATIONS: Final = 16_384
"""The most that is stored, as in Apache Kafka (KIP-554)."""
MAX_CLIENT_ITERATIONS: Final = 131_072
"""The most that a client computes for a broker: about a tenth of a second."""
_GS2_HEADER: Final = "n,,"
_NONCE: Final = frozenset(map(chr, range(0x21, 0x7F))) - {","}


@dataclass(frozen=True, slots=True)
class ScramCredential:
    """What a broker keeps of a user's password, for one mechanism."""

    salt: bytes
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)
    iterations: int = MIN_ITERATIONS


def salted_password(mechanism: str, password: str, salt: bytes, iterations: int) -> bytes:
    """Hi(password, salt, iterations): what takes the time, about 0.4 us an iteration."""
    return hashlib.pbkdf2_hmac(HASHES[mechanism], password.encode(), salt, iterations)


def credential_of(mechanism: str, salted: bytes, salt: bytes, iterations: int) -> ScramCredential:
    """What is kept, made from the salted password."""
    return ScramCredential(
        salt,
        hashlib.new(HASHES[mechanism], _hmac(mechanism, salted, b"Client Key")).digest(),
        _hmac(mechanism, salted, b"Server Key"),
        iterations,
    )


def verifies(mechanism: str, credential: ScramCredential, password: str) -> bool:
    """Whether this is the password that a credential was made from."""
    salted = salted_password(mechanism, password, credential.salt, credential.iterations)
    made = credential_of(mechanism, salted, credential.salt, credential.iterations)
    return hmac.compare_digest(made.stored_key, credential.stored_key)


def escaped(name: str) -> str:
    """A name as messages contain it: `=` and `,` have a meaning there."""
    return name.replace("=", "=3D").replace(",", "=2C")


def unescaped(text: str) -> str:
    """The name of its form in a message. Raises ValueError."""
    parts = text.split("=")
    if any(part[:2] not in ("3D", "2C") for part in parts[1:]):
        raise ValueError("a '=' in a name is written =3D or =2C")
    return parts[0] + "".join({"3D": "=", "2C": ","}[p[:2]] + p[2:] for p in parts[1:])


class ScramClient:
    """The client's side. `nonce` is printable, without commas, and never used again.

    `salted` is a cache of salted passwords that connections of one user share: what costs the time
    is then computed once.
    """

    def __init__(
        self,
        mechanism: str,
        user: str,
        password: str,
        nonce: str,
        salted: dict[tuple[str, bytes, int], bytes] | None = None,
    ) -> None:
        self.mechanism = mechanism
        self.user = user
        self._password = password
        self._nonce = nonce
        self._salted = {} if salted is None else salted
        self._bare = f"n={escaped(user)},r={nonce}"
        self._server_signature: bytes | None = None
        self._over = False

    def first(self) -> bytes:
        """client-first-message."""
        return (_GS2_HEADER + self._bare).encode()

    def answer(self, challenge: bytes) -> bytes | None:
        """client-final-message, and then the look at the broker's proof."""
        if self._over or len(challenge) > MAX_MESSAGE_BYTES:
            raise self._refused("the broker's message is too long, or one too many")
        try:
            text = challenge.decode()
        except UnicodeDecodeError:
            raise self._refused("the broker's message is not text") from None
        if self._server_signature is None:
            return self._prove(text)
        self._over = True
        self._believe(text)
        return None

    def _prove(self, text: str) -> bytes:
        try:
            nonce, salt, iterations = _server_first(text)
        except ValueError as error:
            raise self._refused(f"the broker's first message is not SCRAM: {error}") from None
        if not nonce.startswith(self._nonce) or len(nonce) == len(self._nonce):
            raise self._refused("the broker's nonce does not continue ours")
        if not MIN_ITERATIONS <= iterations <= MAX_CLIENT_ITERATIONS:
            raise self._refused(
                f"the broker asks for {iterations} iterations; "
                f"{MIN_ITERATIONS} to {MAX_CLIENT_ITERATIONS} are computed here"
            )
        key = (self.mechanism, salt, iterations)
        salted = self._salted.get(key)
        if salted is None:
            salted = salted_password(self.mechanism, self._password, salt, iterations)
            self._salted.clear()  # one broker, one salt: more would be another's doing
            self._salted[key] = salted
        kept = credential_of(self.mechanism, salted, salt, iterations)
        final = f"c={b64encode(_GS2_HEADER.encode()).decode()},r={nonce}"
        message = f"{self._bare},{text},{final}".encode()
        signature = _hmac(self.mechanism, kept.stored_key, message)
        proof = _xor(_hmac(self.mechanism, salted, b"Client Key"), signature)
        self._server_signature = _hmac(self.mechanism, kept.server_key, message)
        return f"{final},p={b64encode(proof).decode()}".encode()

    def _believe(self, text: str) -> None:
        name, _, value = text.partition(",")[0].partition("=")
        if name == "e":
            raise self._refused(f"the broker says {value[:100]!r}")
        try:
            signature = b64decode(value, validate=True) if name == "v" else b""
        except ValueError:
            signature = b""
        assert self._server_signature is not None
        if not hmac.compare_digest(signature, self._server_signature):
            raise AuthenticationError(
                "the broker does not prove that it knows this user",
                mechanism=self.mechanism,
                user=self.user,
                advice="it may not be the broker you mean: check its address, and use TLS",
            )

    def _refused(self, reason: str) -> AuthenticationError:
        return AuthenticationError(reason, mechanism=self.mechanism, user=self.user)


class Held(NamedTuple):
    """What a broker has for a user's name."""

    credential: ScramCredential
    exists: bool
    """False: it is a decoy, and no password is the right one."""


class ScramServer:
    """The broker's side. `nonce` as in `ScramClient`; `lookup` finds what is held for any name."""

    def __init__(self, mechanism: str, nonce: str, lookup: Callable[[str], Held]) -> None:
        self.mechanism = mechanism
        self._nonce = nonce
        self._lookup = lookup
        self._user = ""
        self._known = False
        self._credential: ScramCredential | None = None
        self._header = self._so_far = ""
        self._over = False

    def evaluate(self, message: bytes) -> Challenge | Accepted:
        """client-first-message, then client-final-message."""
        if self._over or len(message) > MAX_MESSAGE_BYTES:
            raise self._refused("a message too long, or after the end of the exchange")
        try:
            text = message.decode()
            if self._credential is None:
                return self._challenge(text)
            self._over = True
            return self._judge(text, self._credential)
        except ValueError as error:  # of the parts that are not as the RFC says
            raise self._refused(f"the message is not SCRAM: {error}") from None

    def _challenge(self, text: str) -> Challenge:
        flag, authorization, bare = _split(text, 3)
        if flag not in ("n", "y"):
            raise self._refused("it asks for channel binding, which is not offered")
        attributes = _attributes(bare)
        if next(attributes, ("", ""))[0] == "m":
            raise ValueError("a mandatory extension is not known here")
        attributes = _attributes(bare)
        self._user = unescaped(_expect(attributes, "n"))
        nonce = _checked_nonce(_expect(attributes, "r"))
        extensions = dict(attributes)
        if authorization not in ("", f"a={escaped(self._user)}"):
            raise self._refused("it asks to act as somebody else")
        if extensions.get("tokenauth") == "true":
            raise self._refused("delegation tokens are not known here")
        self._credential, self._known = self._lookup(self._user)
        salt = b64encode(self._credential.salt).decode()
        answer = f"r={nonce}{self._nonce},s={salt},i={self._credential.iterations}"
        self._header = f"{flag},{authorization},"
        self._so_far = f"{bare},{answer}"
        return Challenge(answer.encode())

    def _judge(self, text: str, credential: ScramCredential) -> Accepted:
        final, comma, proof = text.rpartition(",p=")
        if not comma:
            raise ValueError("there is no proof")
        attributes = _attributes(final)
        header = b64decode(_expect(attributes, "c"), validate=True)
        nonce = _expect(attributes, "r")
        if header != self._header.encode():
            raise self._refused("the channel binding is not that of the first message")
        if not nonce.endswith(self._nonce):
            raise self._refused("the nonce is not ours")
        message = f"{self._so_far},{final}".encode()
        signature = _hmac(self.mechanism, credential.stored_key, message)
        key = _xor(b64decode(proof, validate=True), signature)
        stored = hashlib.new(HASHES[self.mechanism], key).digest()
        if not (hmac.compare_digest(stored, credential.stored_key) and self._known):
            raise self._refused("wrong name or password")
        proven = b64encode(_hmac(self.mechanism, credential.server_key, message)).decode()
        return Accepted(f"v={proven}".encode(), self._user)

    def _refused(self, reason: str) -> AuthenticationError:
        return AuthenticationError(reason, mechanism=self.mechanism, user=self._user)


def _server_first(text: str) -> tuple[str, bytes, int]:
    """Nonce, salt and iterations. Raises ValueError."""
    attributes = _attributes(text)
    nonce = _checked_nonce(_expect(attributes, "r"))
    salt = b64decode(_expect(attributes, "s"), validate=True)
    iterations = _expect(attributes, "i")
    if not salt or not (iterations.isascii() and iterations.isdigit() and len(iterations) < 10):
        raise ValueError("the salt or the iterations are missing")
    return nonce, salt, int(iterations)


def _checked_nonce(nonce: str) -> str:
    if not nonce or not _NONCE.issuperset(nonce):
        raise ValueError("a nonce is printable ASCII without commas")
    return nonce


def _split(text: str, count: int) -> list[str]:
    parts = text.split(",", count - 1)
    if len(parts) != count:
        raise ValueError("it is too short")
    return parts


def _attributes(text: str) -> Iterator[tuple[str, str]]:
    """`a=1,b=2` as pairs. Raises ValueError where there is no `=`."""
    for part in text.split(","):
        name, equals, value = part.partition("=")
        if not equals or not name:
            raise ValueError("an attribute has no '='")
        yield name, value


def _expect(attributes: Iterator[tuple[str, str]], expected: str) -> str:
    name, value = next(attributes, ("", ""))
    if name != expected:
        raise ValueError(f"attribute {expected!r} is missing")
    return value


def _hmac(mechanism: str, key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, HASHES[mechanism])


def _xor(one: bytes, other: bytes) -> bytes:
    if len(one) != len(other):
        raise ValueError("the proof has another length than the hash")
    return bytes(a ^ b for a, b in zip(one, other, strict=True))
