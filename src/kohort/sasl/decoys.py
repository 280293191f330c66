"""Decoys: the credentials that a broker shows for users who do not exist (RFC 5802 shows salt and
iterations before any proof).

Rules:
- A decoy is drawn from what the users who exist show: kinds of salts (each program that makes users
  has its own) and iterations, as often as they occur. With one kind of user there is one of decoy.
- It is made of the broker's secret key and the name alone, so that it is the same in every attempt
  and after every restart. It changes when the kinds of users do, as a user's own does when
  an administrator sets a new password.
- A decoy is a whole user, with each mechanism: asked by both, decoys agree as users do.
"""

from __future__ import annotations

import hmac
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from hashlib import sha512
from math import log
from typing import Final, NamedTuple

from kohort.sasl import SCRAM_SHA_256, SCRAM_SHA_512
from kohort.sasl.scram import HASHES, MIN_ITERATIONS, ScramCredential

SALT_BYTES: Final = 16
"""Of the salts that this broker makes."""
LOOKS_MAX: Final = 64
"""The most kinds of users that decoys are drawn from."""
_BASE_36: Final = b"0123456789abcdefghijklmnopqrstuvwxyz"
_JAVA_BITS: Final = 130
_JAVA_SIZES: Final = range(22, 27)
_UUID_BYTES: Final = 16
_PREFERRED: Final = (SCRAM_SHA_512, SCRAM_SHA_256)

Credentials = Mapping[str, ScramCredential]
"""Of one user, by mechanism."""


class Look(NamedTuple):
    """What a client sees of a credential before it proves anything."""

    salt: str
    """`java` (130 bits in base 36, of Apache Kafka's tools), `uuid` (of this broker, once), or the
    number of random bytes."""
    iterations: int


Looks = tuple[tuple[str, Look], ...]
"""Of one user, by mechanism, in order."""
USUAL: Final[Looks] = tuple((m, Look(str(SALT_BYTES), MIN_ITERATIONS)) for m in sorted(HASHES))
"""Of a user that this broker has made."""


def look_of(credential: ScramCredential) -> Look:
    """What a client sees of it."""
    salt = credential.salt
    kind = str(len(salt))
    if len(salt) in _JAVA_SIZES and all(char in _BASE_36 for char in salt):
        kind = "java"
    elif len(salt) == _UUID_BYTES and salt[6] >> 4 == 4 and salt[8] >> 6 == 2:
        kind = "uuid"
    return Look(kind, credential.iterations)


def looks_of(credentials: Credentials) -> Looks:
    """What a client sees of a user."""
    return tuple((m, look_of(credentials[m])) for m in sorted(credentials))


class Decoys:
    """Makes them from a secret key. `users`: those who exist."""

    def __init__(self, key: bytes, users: Iterable[Credentials] = ()) -> None:
        self._key = key
        counts = Counter(looks_of(credentials) for credentials in users)
        self._looks = counts.most_common(LOOKS_MAX) or [(USUAL, 1)]

    def credential(
        self, mechanism: str, user: str, like: Credentials | None = None
    ) -> ScramCredential:
        """What is shown for a name; `like`: of a user who exists, and has another mechanism."""
        looks = dict(looks_of(like) if like else self._drawn(user))
        look = looks.get(mechanism) or next(iter(looks.values()))
        salt = _salt(look.salt, lambda size: self._bytes(f"salt,{mechanism},{user}", size))
        size = hmac.new(b"", b"", HASHES[mechanism]).digest_size
        key = self._bytes(f"key,{mechanism},{user}", size)
        return ScramCredential(salt, key, key, look.iterations)

    def preferred(self, user: str) -> str:
        """The mechanism by which a password is verified (PLAIN), for a name."""
        return preferred(dict(self._drawn(user)))

    def _drawn(self, user: str) -> Looks:
        """One of the kinds of users, by their numbers; few names change theirs with the numbers
        (weighted rendezvous hashing)."""

        def score(each: tuple[Looks, int]) -> float:
            looks, weight = each
            drawn = int.from_bytes(self._bytes(f"draw,{looks},{user}", 8))
            return -weight / log((drawn + 0.5) / (1 << 64))

        return max(self._looks, key=score)[0]

    def _bytes(self, label: str, size: int) -> bytes:
        """As many secret bytes, always the same for a label."""
        blocks = range(-(-size // sha512().digest_size))
        made = (hmac.digest(self._key, f"{n},{label}".encode(), "sha512") for n in blocks)
        return b"".join(made)[:size]


def preferred(mechanisms: Mapping[str, object]) -> str:
    """The mechanism by which a password is verified (PLAIN)."""
    return next(m for m in _PREFERRED if m in mechanisms)


def _salt(kind: str, random: Callable[[int], bytes]) -> bytes:
    if kind == "java":
        number = int.from_bytes(random(-(-_JAVA_BITS // 8))) % (1 << _JAVA_BITS)
        return _in_base_36(number)
    if kind == "uuid":
        salt = bytearray(random(_UUID_BYTES))
        salt[6], salt[8] = salt[6] & 0x0F | 0x40, salt[8] & 0x3F | 0x80
        return bytes(salt)
    return random(int(kind))


def _in_base_36(number: int) -> bytes:
    digits = bytearray()
    while number:
        number, digit = divmod(number, 36)
        digits.append(_BASE_36[digit])
    return bytes(reversed(digits)) or b"0"
