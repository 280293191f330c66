"""JSON web tokens as a broker believes them: signed by a key it knows, or unsecured if named so.

Rules:
- A signed token's algorithm must be one with a public key; `none` and shared secrets are refused
  even if the token names one. No key is ever fetched from a token's address (`jku`, `x5u`).
- Times are compared with the argument `now_ms`. A token without an end is refused.
- Reasons name claims, never the token.

Signatures are checked by PyJWT (the extra `oauth`).
"""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode
from collections.abc import Mapping
from typing import Any, Final, cast

from kohort.errors import AuthenticationError, ConfigError
from kohort.lean import dataclass
from kohort.sasl import OAUTHBEARER

PUBLIC_KEY_ALGORITHMS: Final = (
    "RS256",
    "RS384",
    "RS512",
    "PS256",
    "PS384",
    "PS512",
    "ES256",
    "ES384",
    "ES512",
    "EdDSA",
)


@dataclass(frozen=True, slots=True)
class TokenRules:
    """What a token must say."""

    user_claim: str = "sub"
    scope_claim: str = "scope"
    required_scope: tuple[str, ...] = ()
    issuer: str | None = None
    audience: tuple[str, ...] = ()
    """One of these must be among the token's; empty: any."""
    skew_ms: int = 30_000
    """How far the clocks of the two sides may lie apart."""


def verify_unsecured(token: str, rules: TokenRules, now_ms: int) -> tuple[str, int]:
    """Whose an unsigned token says it is, and its end. Anybody can make one: for tests only."""
    parts = token.split(".")
    if len(parts) != 3 or parts[2]:
        raise _refused("it is signed, and this broker takes unsecured tokens only")
    if _decoded(parts[0]).get("alg") != "none":
        raise _refused("its algorithm is not 'none', and this broker takes unsecured tokens only")
    return _judged(_decoded(parts[1]), rules, now_ms)


class SignedTokens:
    """Believes tokens that are signed by one of the keys of a JWKS document.

    Raises ConfigError when the document has no usable key, or PyJWT is not installed.
    """

    def __init__(self, jwks: Mapping[str, Any], rules: TokenRules) -> None:
        try:
            import jwt
        except ImportError:
            raise ConfigError("checking signed tokens needs PyJWT; install kohort[oauth]") from None
        self._jwt: Any = jwt
        self._rules = rules
        self._keys: dict[str, Any] = {}
        for entry in cast("list[Any]", jwks.get("keys") or []):
            try:
                key = jwt.PyJWK.from_dict(entry)
            except (jwt.PyJWTError, TypeError, AttributeError):
                continue  # a kind that we do not know does not spoil the others
            if key.algorithm_name in PUBLIC_KEY_ALGORITHMS and key.public_key_use != "enc":
                self._keys[key.key_id or ""] = key
        if not self._keys:
            raise ConfigError("the JWKS document has no public key that can be used")

    def knows(self, token: str) -> bool:
        """Whether the key that a token names is here; False: the keys may have been changed."""
        return self._key_of(token) is not None

    def _key_of(self, token: str) -> Any:
        named = _decoded(token.partition(".")[0]).get("kid")
        if named is None and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        return self._keys.get(str(named))

    def verify(self, token: str, now_ms: int) -> tuple[str, int]:
        """Whose a token is, and its end. Raises AuthenticationError."""
        key = self._key_of(token)
        if key is None:
            raise _refused("it is signed by a key that is not known here")
        try:
            claims: dict[str, Any] = self._jwt.decode(
                token,
                key=key.key,
                algorithms=[key.algorithm_name],
                options=dict.fromkeys(_CHECKED_HERE, False),
            )
        except self._jwt.PyJWTError as error:
            raise _refused(f"its signature is invalid ({type(error).__name__})") from None
        return _judged(claims, self._rules, now_ms)


_CHECKED_HERE: Final = (
    "verify_exp",
    "verify_nbf",
    "verify_iat",
    "verify_aud",
    "verify_iss",
    "verify_sub",
    "verify_jti",
)


def _judged(claims: Mapping[str, Any], rules: TokenRules, now_ms: int) -> tuple[str, int]:
    expires_ms = _time(claims, "exp")
    if expires_ms is None:
        raise _refused("it has no 'exp' claim, so it would never expire")
    if expires_ms + rules.skew_ms <= now_ms:
        raise _refused("it has expired")
    for name in ("nbf", "iat"):
        begins_ms = _time(claims, name)
        if begins_ms is not None and begins_ms - rules.skew_ms > now_ms:
            raise _refused(f"it is not valid yet (claim {name!r}); are the clocks correct?")
    if rules.issuer is not None and claims.get("iss") != rules.issuer:
        raise _refused(f"its issuer is not {rules.issuer!r}")
    if rules.audience and not set(rules.audience) & set(_texts(claims.get("aud"))):
        raise _refused(f"it is not meant for {' or '.join(rules.audience)} (claim 'aud')")
    missing = set(rules.required_scope) - set(_texts(claims.get(rules.scope_claim)))
    if missing:
        raise _refused(f"it lacks the scope {' '.join(sorted(missing))}")
    user = claims.get(rules.user_claim)
    if not isinstance(user, str) or not user.strip():
        raise _refused(f"it names no user (claim {rules.user_claim!r} is missing)")
    return user, expires_ms


def _time(claims: Mapping[str, Any], name: str) -> int | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e11:
        raise _refused(f"its claim {name!r} is not a time")
    return int(value * 1_000)


def _texts(value: object) -> list[str]:
    if isinstance(value, str):
        return value.split()
    if isinstance(value, list):
        return [str(one) for one in cast("list[object]", value)]
    return []


def _decoded(part: str) -> dict[str, Any]:
    try:
        value = json.loads(urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    except (ValueError, RecursionError):  # nested too deeply
        raise _refused("it is not a JSON web token") from None
    if not isinstance(value, dict):
        raise _refused("it is not a JSON web token")
    return cast("dict[str, Any]", value)


def _refused(reason: str) -> AuthenticationError:
    return AuthenticationError(
        f"the token is refused: {reason}",
        mechanism=OAUTHBEARER,
        advice="check the token's issuer, audience, scope and time",
    )
