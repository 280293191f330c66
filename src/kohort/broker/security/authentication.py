"""Who is at the other end of a connection, and what may be asked before that is known.

Rules:
- Before a client is known, and while it logs in again (KIP-368), only ApiVersions, SaslHandshake
  and SaslAuthenticate are taken, in frames of `sasl_server_max_receive_size`; anything else closes
  the connection.
- A login again must be of the same user by the same mechanism, else the connection is closed.
- A session that is over its time takes nothing but a new login. Time comes with each call.
- The mechanisms are imported with the first login by them.
- What a client hears of a refusal is the same for a wrong name and a wrong password; the log says
  more, and never a secret.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from kohort.broker.base.request import ANONYMOUS
from kohort.broker.base.security_config import BrokerSecurity, PrincipalRules
from kohort.errors import AuthenticationError, ConfigError, ErrorCode
from kohort.sasl import OAUTHBEARER, PLAIN, SCRAM_SHA_256, SCRAM_SHA_512

if TYPE_CHECKING:
    from kohort.broker.security.users import Users
    from kohort.sasl.mechanism import Accepted, ServerExchange

API_VERSIONS: Final = 18
SASL_HANDSHAKE: Final = 17
SASL_AUTHENTICATE: Final = 36
_OF_LOGIN: Final = frozenset({API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE})


class TokenVerifier(Protocol):
    """Whose a token is, and its end; raises AuthenticationError."""

    def verify(self, token: str, now_ms: int) -> tuple[str, int | None]: ...


def token_verifier(config: BrokerSecurity) -> TokenVerifier | None:
    """What believes tokens; None: nothing does. Raises ConfigError (keys cannot be read)."""
    if not config.uses_sasl or OAUTHBEARER not in config.sasl_enabled_mechanisms:
        return None
    from kohort.broker.security.jwks import (  # HTTP is slow to import
        Jwks,
        UnsecuredTokens,
        token_rules,
    )

    rules = token_rules(config)
    url = config.sasl_oauthbearer_jwks_endpoint_url
    if url is None:
        return UnsecuredTokens(rules)
    return Jwks(url, rules, config.sasl_oauthbearer_jwks_endpoint_refresh_ms)


class Authenticator:
    """What all connections of a broker share. Raises ConfigError when nobody could log in."""

    def __init__(
        self,
        config: BrokerSecurity,
        users: Callable[[], Users],
        tokens: TokenVerifier | None,
        random: Callable[[], bytes],
    ) -> None:
        by_password = {PLAIN, SCRAM_SHA_256, SCRAM_SHA_512} & set(config.sasl_enabled_mechanisms)
        if config.uses_sasl and by_password and tokens is None and not len(users()):
            raise ConfigError(
                "nobody could log in, because there are no users; name one: sasl_users, or "
                "`kohort broker run --user NAME:PASSWORD`"
            )
        self.config = config
        self._users = users
        self._tokens = tokens
        self._random = random
        self._rules = PrincipalRules(config.ssl_principal_mapping_rules)

    def principal_of(self, subject: str | None) -> str:
        """Who shows a certificate with this subject (None: no certificate)."""
        user = None if subject is None else self._rules.user_of(subject)
        return ANONYMOUS if user is None else f"User:{user}"

    def exchange(self, mechanism: str, wall_ms: int) -> ServerExchange:
        """The broker's side of one login by a mechanism that is enabled."""
        users = self._users()
        if mechanism == PLAIN:
            from kohort.sasl.plain import PlainServer

            return PlainServer(users.verify)
        if mechanism == OAUTHBEARER:
            tokens = self._tokens
            assert tokens is not None, "the configuration was checked"
            from kohort.sasl.oauthbearer import OAuthBearerServer

            return OAuthBearerServer(lambda token: tokens.verify(token, wall_ms))
        from kohort.sasl.scram import ScramServer

        nonce = (self._random() + self._random()).hex()
        return ScramServer(mechanism, nonce, lambda user: users.held(mechanism, user))


class SessionState(Enum):
    """The state of a connection."""

    OPEN = "open"
    """Known, or not asked for."""
    CLOSED = "closed"
    """Nothing but a login."""
    EXCHANGE = "exchange"
    """A mechanism was chosen; its messages are to come."""


class Step(NamedTuple):
    """What a message of a login is answered with."""

    data: bytes
    lifetime_ms: int = 0
    """How long the login lasts (KIP-368); 0: no end, or it is not over yet."""


class Session:
    """One connection's. `known` gets the principal at the first successful login."""

    def __init__(
        self, authenticator: Authenticator, subject: str | None, known: Callable[[str], object]
    ) -> None:
        self._authenticator = authenticator
        self._sasl = authenticator.config.uses_sasl
        self._known = known
        self.principal = ANONYMOUS if self._sasl else authenticator.principal_of(subject)
        self.state = SessionState.CLOSED if self._sasl else SessionState.OPEN
        self._exchange: ServerExchange | None = None
        self._mechanism = ""
        self._user = ""
        self._expires_ms: int | None = None
        self.bare = False
        """Whether the messages of this login come without headers (SaslHandshake v0)."""
        self.refused = False
        """Whether a login has failed: with its answer the connection ends."""

    def refuses(self, api_key: int, wall_ms: int) -> str | None:
        """Why a request may not be asked now; None: it may."""
        if not self._sasl or api_key in _OF_LOGIN:
            return None
        if self.state is SessionState.EXCHANGE:
            return f"API key {api_key} was asked in the middle of a login"
        if self.state is SessionState.CLOSED:
            return f"API key {api_key} was asked before a login (security_protocol?)"
        if self._expires_ms is not None and wall_ms >= self._expires_ms:
            return "its login is over its time, and it did not log in again"
        return None

    @property
    def mechanisms(self) -> list[str]:
        """What it may log in by."""
        return list(self._authenticator.config.sasl_enabled_mechanisms) if self._sasl else []

    def handshake(self, mechanism: str, *, bare: bool = False) -> ErrorCode:
        """Choose a mechanism."""
        if not self._sasl or self.state is SessionState.EXCHANGE:
            return ErrorCode.ILLEGAL_SASL_STATE
        changed = self._user and mechanism != self._mechanism
        if mechanism not in self.mechanisms or changed:
            return ErrorCode.UNSUPPORTED_SASL_MECHANISM
        self._mechanism = mechanism
        self._exchange = None
        self.bare = bare
        self.state = SessionState.EXCHANGE
        return ErrorCode.NONE

    def authenticate(self, data: bytes, wall_ms: int) -> Step:
        """Take a message of the login. Raises AuthenticationError: the connection is to end."""
        try:
            return self._evaluate(data, wall_ms)
        except AuthenticationError:
            self.refused = True
            raise

    def _evaluate(self, data: bytes, wall_ms: int) -> Step:
        if self.state is not SessionState.EXCHANGE:
            raise AuthenticationError("it did not choose a mechanism first (SaslHandshake)")
        if self._exchange is None:
            self._exchange = self._authenticator.exchange(self._mechanism, wall_ms)
        from kohort.sasl.mechanism import Accepted

        step = self._exchange.evaluate(data)
        if isinstance(step, Accepted):
            return self._accept(step, wall_ms)
        return Step(step.data)

    def _accept(self, step: Accepted, wall_ms: int) -> Step:
        if self._user and step.user != self._user:
            raise AuthenticationError(
                f"it logged in as {self._user!r} before; the user of a connection cannot change",
                mechanism=self._mechanism,
                user=step.user,
            )
        first, self._user = not self._user, step.user
        self.principal = f"User:{step.user}"
        self._exchange = None
        self.bare = False
        self.state = SessionState.OPEN
        limit_ms = self._authenticator.config.connections_max_reauth_ms
        ends = [wall_ms + limit_ms] if limit_ms else []
        ends += [step.expires_ms] if step.expires_ms is not None else []
        self._expires_ms = min(ends, default=None)
        if first:
            self._known(self.principal)
        lifetime_ms = 0 if self._expires_ms is None else max(1, self._expires_ms - wall_ms)
        return Step(step.data, lifetime_ms)
