"""What a client's connections share to prove who it is: certificates, password, tokens.

What few clients need is imported when it is needed: importing the client must stay cheap.

Rules:
- One object for each client. It reads TLS files when it is created, so that a wrong one fails
  early.
- Tokens are fetched on a thread of their own, one fetch at a time for all connections, and used for
  80 % of their life. While no new one can be got, the old one is used until it ends.

Shell: threads, randomness (nonces), the clock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from kohort.client.common.security_config import SecurityConfig
from kohort.errors import AuthenticationError, ConnectionFailedError, KohortError
from kohort.lean import replace
from kohort.net import Loop
from kohort.sasl import OAUTHBEARER, PLAIN
from kohort.sasl.mechanism import ClientExchange

if TYPE_CHECKING:
    from kohort.net.tls import TlsClient
    from kohort.sasl.oauthbearer import Token

Ready = Callable[[ClientExchange | KohortError], object]
_USED_PERCENT: Final = 80
_NONCE_BYTES: Final = 24
_FETCH_AGAIN_MS: Final = 10_000
_LOGIN_MS: Final = 1_000
"""A token that ends sooner may end on the way, and a broker that refuses it ends the client."""


class Credentials:
    """For the connections of one client. Raises ConfigError for files that cannot be used."""

    def __init__(self, config: SecurityConfig) -> None:
        self._config = config
        self._context: Any = None
        self._salted: dict[tuple[str, bytes, int], bytes] = {}
        self._token: Token | None = None
        self._use_until_ms = 0
        self._waiting: list[Ready] = []
        if config.uses_tls:
            from kohort.net.tls import TlsOptions, client_context  # `ssl` is slow to import

            self._context = client_context(
                TlsOptions(
                    ca_file=config.ssl_ca_location,
                    certificate_file=config.ssl_certificate_location,
                    key_file=config.ssl_key_location,
                    key_password=config.ssl_key_password,
                    protocols=config.ssl_enabled_protocols,
                    ciphers=config.ssl_cipher_suites,
                    verify_hostname=config.verifies_hostname,
                )
            )

    @property
    def logs_in(self) -> bool:
        """Whether a login is needed."""
        return self._config.uses_sasl

    def tls(self, host: str) -> TlsClient | None:
        """What a connection to `host` is encrypted by; None: it is not."""
        if self._context is None:
            return None
        from kohort.net.tls import TlsClient

        return TlsClient(self._context, host)

    def begin(self, loop: Loop, ready: Ready) -> None:
        """Call `ready`, on the loop's thread, with the client's side of a new login."""
        config = self._config
        mechanism, user = config.sasl_mechanism or "", config.sasl_username or ""
        password = config.sasl_password or ""
        if mechanism == OAUTHBEARER:
            self._begin_with_token(loop, ready)
        elif mechanism == PLAIN:
            from kohort.sasl.plain import PlainClient

            ready(PlainClient(user, password))
        else:
            import secrets

            from kohort.sasl.scram import ScramClient

            nonce = secrets.token_urlsafe(_NONCE_BYTES)
            ready(ScramClient(mechanism, user, password, nonce, self._salted))

    # -- tokens

    def _begin_with_token(self, loop: Loop, ready: Ready) -> None:
        from kohort.sasl.oauthbearer import OAuthBearerClient

        if self._token is not None and loop.wall_ms() < self._use_until_ms:
            ready(OAuthBearerClient(self._token))
            return
        self._waiting.append(ready)
        if len(self._waiting) == 1:
            threading.Thread(
                target=self._fetch, args=(loop,), name="kohort-token", daemon=True
            ).start()

    def _fetch(self, loop: Loop) -> None:
        """On the thread of its own."""
        outcome: Token | KohortError
        try:
            outcome = self._fetched(loop.wall_ms())
        except KohortError as error:
            outcome = error
        except OSError as error:  # what a provider of the user's could not reach
            outcome = ConnectionFailedError(f"no token could be got: {error!r}; is its source up?")
        except Exception as error:  # the user's own code; its text might hold the token
            outcome = AuthenticationError(
                f"the token provider raised {type(error).__name__}",
                mechanism=OAUTHBEARER,
                advice="see the cause, and fix the provider",
            )
            outcome.__cause__ = error
        loop.call_soon_threadsafe(self._got, loop, outcome)

    def _fetched(self, now_ms: int) -> Token:
        config = self._config
        provider = config.sasl_oauthbearer_token_provider

        if provider is not None:
            return _token_of(provider())
        from kohort.client.cluster.oidc import fetch_token

        token = fetch_token(
            config.sasl_oauthbearer_token_endpoint_url or "",
            config.sasl_oauthbearer_client_id or "",
            config.sasl_oauthbearer_client_secret or "",
            config.sasl_oauthbearer_scope,
            config.ssl_ca_location,
            config.sasl_login_connect_timeout_ms,
            now_ms,
        )
        pairs = (each.partition("=") for each in config.sasl_oauthbearer_extensions)
        return replace(token, extensions={name: value for name, _, value in pairs})

    def _got(self, loop: Loop, outcome: Token | KohortError) -> None:
        from kohort.sasl.oauthbearer import OAuthBearerClient

        waiting, self._waiting = self._waiting, []
        now_ms = loop.wall_ms()
        if isinstance(outcome, KohortError):
            outcome = self._still_valid(outcome, now_ms)
        else:
            end_ms = now_ms if outcome.expires_ms is None else outcome.expires_ms
            self._token = outcome
            self._use_until_ms = now_ms + (end_ms - now_ms) * _USED_PERCENT // 100
        for ready in waiting:
            ready(outcome if isinstance(outcome, KohortError) else OAuthBearerClient(outcome))

    def _still_valid(self, error: KohortError, now_ms: int) -> Token | KohortError:
        """The old token while it lasts; the error of its renewal when there is none."""
        token = self._token
        if token is None or token.expires_ms is None or token.expires_ms - now_ms <= _LOGIN_MS:
            return error
        left_ms = token.expires_ms - now_ms
        self._use_until_ms = now_ms + min(_FETCH_AGAIN_MS, left_ms * _USED_PERCENT // 100)
        import logging  # here, because making a client must not pay for it

        logging.getLogger("kohort.client").warning(
            "no new token can be got; the old one is used for at most %d s more: %s",
            left_ms // 1_000,
            error,
        )
        return token


def _token_of(value: Any) -> Token:
    """What a token provider returned, as a token. Raises AuthenticationError for anything else."""
    from kohort.sasl.oauthbearer import Token

    token: Any = Token(value) if isinstance(value, str) else value
    wrong = ""
    if not isinstance(token, Token):
        wrong = f"a {type(token).__name__}, not a str or a Token"
    else:
        parts: Any = (("value", str), ("expires_ms", int | None), ("extensions", Mapping))
        for name, kind in parts:
            part = getattr(token, name)
            if not isinstance(part, kind):
                wrong = f"a Token whose {name} is of type {type(part).__name__}"
    if wrong:
        raise AuthenticationError(
            f"the token provider returned {wrong}",
            mechanism=OAUTHBEARER,
            advice="fix the provider",
        )
    return token
