"""The keys that tokens are signed by, read at the start and again from time to time.

Rules:
- https, or http to this machine, or a file; nothing that a token names is ever read.
- A token by a key that is not known makes them be read again, at most once in a minute. While they
  cannot be read the ones there are stay.

Shell: HTTP, files, threads, the clock.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from http.client import HTTPException
from typing import Any, Final, cast
from urllib.error import HTTPError
from urllib.parse import urlsplit

from kohort.broker.base.security_config import BrokerSecurity, is_loopback
from kohort.errors import ConfigError, KohortError
from kohort.http_opener import body_of, http_opener
from kohort.sasl.tokens import SignedTokens, TokenRules, verify_unsecured

log = logging.getLogger("kohort.broker")

_MAX_BYTES: Final = 1 << 20
_TIMEOUT_S: Final = 10.0
_SETTING: Final = "sasl_oauthbearer_jwks_endpoint_url"
_UNKNOWN_KEY_WAIT_S: Final = 60.0


def token_rules(config: BrokerSecurity) -> TokenRules:
    """What tokens must say."""
    return TokenRules(
        user_claim=config.sasl_oauthbearer_sub_claim_name,
        scope_claim=config.sasl_oauthbearer_scope_claim_name,
        required_scope=config.sasl_oauthbearer_required_scope,
        issuer=config.sasl_oauthbearer_expected_issuer,
        audience=config.sasl_oauthbearer_expected_audience,
        skew_ms=config.sasl_oauthbearer_clock_skew_seconds * 1_000,
    )


class UnsecuredTokens:
    """Accepts unsigned tokens."""

    def __init__(self, rules: TokenRules) -> None:
        self._rules = rules

    def verify(self, token: str, now_ms: int) -> tuple[str, int | None]:
        """Raises AuthenticationError."""
        return verify_unsecured(token, self._rules, now_ms)


class Jwks:
    """Believes tokens signed by the keys at `url`. Raises ConfigError when it cannot be read."""

    def __init__(
        self,
        url: str,
        rules: TokenRules,
        refresh_ms: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._url, self._rules = url, rules
        self._refresh_s = refresh_ms / 1_000
        self._clock = clock
        self._tokens = SignedTokens(_read(url), rules)
        self._read_s = clock()
        self._reading = threading.Lock()

    def verify(self, token: str, now_ms: int) -> tuple[str, int | None]:
        """Raises AuthenticationError."""
        age_s = self._clock() - self._read_s
        if age_s > self._refresh_s or (
            age_s > _UNKNOWN_KEY_WAIT_S and not self._tokens.knows(token)
        ):
            self._read_again()
        return self._tokens.verify(token, now_ms)

    def _read_again(self) -> None:
        """On a thread: the broker's own must not wait. This token is judged by the old keys."""
        if self._reading.acquire(blocking=False):
            threading.Thread(target=self._replace, name="kohort-jwks", daemon=True).start()

    def _replace(self) -> None:
        try:
            self._tokens = SignedTokens(_read(self._url), self._rules)
        except KohortError as error:
            log.warning("the keys of tokens are those of before: %s", error)
        finally:
            self._read_s = self._clock()
            self._reading.release()


def _read(url: str) -> dict[str, Any]:
    parts = urlsplit(url)
    try:
        if parts.scheme == "file":
            with open(parts.path, "rb") as file:
                data = file.read(_MAX_BYTES)
        elif parts.scheme == "https" or (
            parts.scheme == "http" and parts.hostname is not None and is_loopback(parts.hostname)
        ):
            with http_opener().open(url, timeout=_TIMEOUT_S) as answer:
                data = body_of(answer, _MAX_BYTES)
        else:
            raise ConfigError(
                f"{_SETTING}={url}: it must begin with https:// (http:// on this machine only) "
                "or file:/"
            )
        document: Any = json.loads(data)
    except (OSError, HTTPException, ValueError, RecursionError) as error:
        if isinstance(error, HTTPError):
            error.close()  # it has the connection
        raise ConfigError(f"{_SETTING}={url} cannot be read: {error}") from error
    if not isinstance(document, dict):
        raise ConfigError(f"{_SETTING}={url} is not a JWKS document")
    return cast("dict[str, Any]", document)
