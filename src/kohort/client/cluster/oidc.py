"""Tokens by client id and secret from an OAuth token endpoint (RFC 6749, 4.4; KIP-768).

Rules:
- https, or http to this machine; no redirect is followed, no other scheme is spoken (SSRF).
- An endpoint that refuses is an AuthenticationError; one that is down may be retried.
- Errors contain neither the secret nor a token.

Shell: HTTP.
"""

from __future__ import annotations

import json
import re
import ssl
from base64 import b64encode
from http.client import HTTPException
from typing import Any, Final, cast
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlencode
from urllib.request import Request

from kohort.client.common.security_config import require_safe_url
from kohort.errors import AuthenticationError, ConnectionFailedError
from kohort.http_opener import body_of, http_opener
from kohort.sasl import OAUTHBEARER
from kohort.sasl.oauthbearer import Token

_MAX_ANSWER_BYTES: Final = 1 << 20
_DIGITS: Final = re.compile(r"[0-9]{1,12}")
_LASTS_S_MAX: Final = 10**12
_SETTING: Final = "sasl_oauthbearer_token_endpoint_url"


def fetch_token(
    url: str,
    client_id: str,
    client_secret: str,
    scope: str | None,
    ca_file: str | None,
    timeout_ms: int,
    now_ms: int,
) -> Token:
    """Ask for a token. Raises AuthenticationError, ConnectionFailedError, ConfigError."""
    require_safe_url(_SETTING, url)
    form = {"grant_type": "client_credentials"}
    if scope:
        form["scope"] = scope
    pair = f"{quote(client_id, safe='')}:{quote(client_secret, safe='')}"
    request = Request(
        url,
        data=urlencode(form).encode(),
        headers={
            "Authorization": f"Basic {b64encode(pair.encode()).decode()}",
            "Accept": "application/json",
            "Content-Type": "application/x-www-form-urlencoded",
        },
    )
    try:
        with http_opener(_tls_context(ca_file)).open(request, timeout=timeout_ms / 1_000) as answer:
            body = body_of(answer, _MAX_ANSWER_BYTES)
    except HTTPError as error:
        error.close()
        if error.code >= 500 or error.code in (408, 429):
            raise ConnectionFailedError(
                f"{url} answers {error.code}; the token endpoint may be down"
            ) from None
        raise _refused(client_id, f"{url} answers {error.code}") from None
    except (URLError, OSError, HTTPException) as error:
        cause = getattr(error, "reason", error)
        raise ConnectionFailedError(f"{url} does not return a token: {cause}") from None
    return _token_of(body, client_id, url, now_ms)


def _tls_context(ca_file: str | None) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if ca_file is not None:
        context.load_verify_locations(ca_file)
    return context


def _token_of(body: bytes, client_id: str, url: str, now_ms: int) -> Token:
    try:
        answer: Any = json.loads(body)
    except (ValueError, RecursionError):
        answer = None
    document = cast("dict[str, Any]", answer) if isinstance(answer, dict) else {}
    value, lasts_s = document.get("access_token"), document.get("expires_in")
    if not isinstance(value, str) or not value:
        raise _refused(client_id, f"{url} answers without an access_token")
    lasts_ms = _milliseconds(lasts_s)
    return Token(value, None if lasts_ms is None else now_ms + lasts_ms, client_id)


def _milliseconds(seconds: object) -> int | None:
    """A number of seconds, which Azure AD v1 writes as text; None for what is none."""
    if isinstance(seconds, str) and _DIGITS.fullmatch(seconds):
        seconds = int(seconds)
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        return None
    return int(seconds * 1_000) if 0 <= seconds <= _LASTS_S_MAX else None


def _refused(client_id: str, reason: str) -> AuthenticationError:
    return AuthenticationError(
        reason,
        mechanism=OAUTHBEARER,
        user=client_id,
        advice="check sasl_oauthbearer_client_id, its secret and the scope",
    )
