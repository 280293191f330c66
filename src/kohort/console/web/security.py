"""Who may use the console: hosts, a login beyond this machine, and tokens against forged requests.

Rules:
- On a loopback address without a token, every user of this machine may look; a request that names
  another host is refused (DNS rebinding).
- A session is a random id in a cookie, signed with a key that lives as long as the process. The
  form token is derived from it, so that no other page can make one.
- A POST needs the form token, and an Origin that is the console's own where a browser sends one.

Shell: randomness.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from kohort.errors import ConfigError

COOKIE: Final = "kohort_console"
HEADERS: Final = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; worker-src 'self'; form-action 'self'; "
    "frame-ancestors 'none'; base-uri 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cache-control": "no-store",
}
LEAST_TOKEN: Final = 12


def is_loopback(host: str) -> bool:
    """Whether an address to listen on is of this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def session_cookie(host: str) -> str:
    """The name of the session's cookie for a Host header: with its port, since a browser sends the
    cookies of a host to all of its ports, and another console may be behind one of them."""
    port = host.rpartition("]")[2].rpartition(":")[2]
    return f"{COOKIE}_{port}" if port.isdecimal() else COOKIE


class Guard:
    """Decides about requests.

    Args:
        host: the address that the console listens on.
        token: what has to be known to log in; "" for nothing, on a loopback address only.

    Raises:
        ConfigError: it would listen beyond this machine without a token, or with a short one.
    """

    def __init__(self, host: str, token: str = "") -> None:
        if not token and not is_loopback(host):
            raise ConfigError(
                f"the console would show {host} to the network without a login: set a token in "
                "$KOHORT_CONSOLE_TOKEN (or --token-file), or listen on 127.0.0.1"
            )
        if token and len(token) < LEAST_TOKEN:
            raise ConfigError(f"the console's token has less than {LEAST_TOKEN} characters")
        self._host, self._token = host, token
        self._key = secrets.token_bytes(32)
        self.login_needed = bool(token)

    def host_is_ours(self, host: str) -> bool:
        """Whether a request's Host names this console; any name beyond loopback."""
        if self._token:
            return True
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:  # no host at all, such as "["
            return False
        return is_loopback(name) or name == self._host

    def token_is_right(self, token: str) -> bool:
        """Whether a token is right."""
        return _same(token, self._token)

    def new_session(self) -> str:
        """A cookie for a browser that has logged in."""
        name = secrets.token_hex(16)
        return f"{name}.{self._sign('session', name)}"

    def session_is_ours(self, cookie: str | None) -> bool:
        """Whether a cookie was made by this process."""
        name, dot, signature = (cookie or "").partition(".")
        return bool(dot) and _same(signature, self._sign("session", name))

    def form_token(self, cookie: str) -> str:
        """What a form of this session carries."""
        return self._sign("form", cookie)

    def post_is_ours(
        self, cookie: str | None, form: Mapping[str, str], origin: str | None, host: str
    ) -> bool:
        """Whether a POST comes from a page of this session."""
        if cookie is None or not self.session_is_ours(cookie):
            return False
        if origin is not None and origin.partition("://")[2] != host:
            return False
        return _same(form.get("form_token", ""), self.form_token(cookie))

    def who(self, cookie: str | None, address: str) -> str:
        """A name for the audit: the address, and which session it is."""
        return f"{address} session {(cookie or 'none')[:8]}"

    def _sign(self, purpose: str, text: str) -> str:
        return hmac.new(self._key, f"{purpose}:{text}".encode(), hashlib.sha256).hexdigest()


def _same(text: str, secret: str) -> bool:
    """Compared as bytes: `compare_digest` refuses texts beyond ASCII."""
    return hmac.compare_digest(text.encode(), secret.encode())
