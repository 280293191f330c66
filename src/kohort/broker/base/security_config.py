"""A broker's security settings: who may connect, and how they prove who they are.

Rules:
- Names are Kafka's (`ssl_*` as in the client: PEM files). No `repr` contains a secret.
- A configuration that opens the broker to other machines by accident is refused: no authentication,
  or passwords in
  the clear, on an address beyond loopback need `allow_open`.
"""

from __future__ import annotations

import ipaddress
import re
from typing import TYPE_CHECKING, Final

from kohort.errors import ConfigError
from kohort.lean import dataclass
from kohort.sasl import MECHANISMS, OAUTHBEARER, PLAIN, SCRAM_SHA_256, SCRAM_SHA_512

if TYPE_CHECKING:
    from kohort.net.tls import TlsServer

PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_RULE: Final = re.compile(r"RULE:((?:\\/|[^/])*)/((?:\\/|[^/])*)/([LU]?)")


@dataclass(frozen=True, repr=False)
class BrokerSecurity:
    """A part of `BrokerConfig`."""

    host: str = "127.0.0.1"
    allow_open: bool = False
    """Must be set by name to listen on more than loopback without authentication, or with
    passwords in the clear."""
    security_protocol: str = "PLAINTEXT"
    """PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL."""
    ssl_certificate_location: str | None = None
    """A PEM file with the broker's certificate."""
    ssl_key_location: str | None = None
    """A PEM file with its key; None: the certificate's file holds it."""
    ssl_key_password: str | None = None
    ssl_ca_location: str | None = None
    """A PEM file with the authorities whose client certificates are believed."""
    ssl_client_auth: str = "none"
    """Whether clients show a certificate: none, requested, required."""
    ssl_enabled_protocols: tuple[str, ...] = ("TLSv1.2", "TLSv1.3")
    ssl_cipher_suites: tuple[str, ...] = ()
    ssl_principal_mapping_rules: str = "DEFAULT"
    """From a certificate's subject to a user: `RULE:^CN=(.*?),.*$/$1/L,DEFAULT` (KIP-371)."""
    sasl_enabled_mechanisms: tuple[str, ...] = (SCRAM_SHA_512, SCRAM_SHA_256, PLAIN)
    """Kafka: GSSAPI."""
    sasl_users: tuple[str, ...] = ()
    """`name:password` of users that there are to be; kept as salted hashes only."""
    sasl_oauthbearer_jwks_endpoint_url: str | None = None
    """Where the keys are that tokens are signed by: https, or a file (`file:/path`)."""
    sasl_oauthbearer_jwks_endpoint_refresh_ms: int = 3_600_000
    sasl_oauthbearer_unsecured: bool = False
    """Believe unsigned tokens, which anybody can make: for tests only."""
    sasl_oauthbearer_expected_issuer: str | None = None
    sasl_oauthbearer_expected_audience: tuple[str, ...] = ()
    sasl_oauthbearer_sub_claim_name: str = "sub"
    sasl_oauthbearer_scope_claim_name: str = "scope"
    sasl_oauthbearer_required_scope: tuple[str, ...] = ()
    sasl_oauthbearer_clock_skew_seconds: int = 30
    sasl_server_max_receive_size: int = 65_536
    """Kafka: 524288. The largest request before a client is known."""
    authentication_timeout_ms: int = 10_000
    """A client that has not authenticated in this time is disconnected; its TLS handshake has as
    long."""
    connection_failed_authentication_delay_ms: int = 100
    """A refusal is delayed by this time, so that guessing passwords is slow (KIP-306)."""
    connections_max_reauth_ms: int = 0
    """How long a login lasts (KIP-368); 0: as long as its connection, or its token."""

    def check_security(self) -> None:
        """Raise ConfigError for what cannot work, or would be open by accident."""
        protocol = self.security_protocol.upper()
        object.__setattr__(self, "security_protocol", protocol)
        if protocol not in PROTOCOLS:
            raise ConfigError(
                f"security_protocol={protocol!r}; it is one of {', '.join(PROTOCOLS)}"
            )
        self._check_reach()
        if self.uses_tls and self.ssl_certificate_location is None:
            raise ConfigError(
                f"security_protocol={protocol} needs the broker's certificate and key (PEM); name "
                "them in ssl_certificate_location and ssl_key_location"
            )
        PrincipalRules(self.ssl_principal_mapping_rules)
        if self.uses_sasl:
            self._check_sasl()
        for user in self.sasl_users:
            if not all(user.partition(":")):
                raise ConfigError("sasl_users has an entry that is not name:password")

    def _check_reach(self) -> None:
        if self.allow_open or is_loopback(self.host):
            return
        known = self.uses_sasl or (self.uses_tls and self.ssl_client_auth == "required")
        if not known:
            raise ConfigError(
                f"host={self.host!r} can be reached from other machines and this broker asks "
                "nobody who they are; use 127.0.0.1, or security_protocol=SASL_SSL with users "
                "(docs/security.md), or allow_open=True (--allow-open) if you mean it"
            )
        if not self.uses_tls and {PLAIN, OAUTHBEARER} & set(self.sasl_enabled_mechanisms):
            raise ConfigError(
                f"host={self.host!r} can be reached from other machines, and with SASL_PLAINTEXT "
                "PLAIN and OAUTHBEARER show their secrets to eavesdroppers; use SASL_SSL, or "
                "sasl_enabled_mechanisms=SCRAM-SHA-512, or allow_open=True if you mean it"
            )

    def _check_sasl(self) -> None:
        names = tuple(name.upper() for name in self.sasl_enabled_mechanisms)
        object.__setattr__(self, "sasl_enabled_mechanisms", names)
        unknown = [name for name in names if name not in MECHANISMS]
        if unknown or not names:
            raise ConfigError(
                f"sasl_enabled_mechanisms={','.join(unknown)}; there are {', '.join(MECHANISMS)}"
            )
        keys = self.sasl_oauthbearer_jwks_endpoint_url is not None
        if OAUTHBEARER in names and keys == self.sasl_oauthbearer_unsecured:
            raise ConfigError(
                "OAUTHBEARER needs sasl_oauthbearer_jwks_endpoint_url, the keys that tokens are "
                "signed by (or, for tests only, sasl_oauthbearer_unsecured=true instead)"
            )

    @property
    def uses_tls(self) -> bool:
        """Whether connections are encrypted."""
        return self.security_protocol in ("SSL", "SASL_SSL")

    @property
    def uses_sasl(self) -> bool:
        """Whether clients log in."""
        return self.security_protocol in ("SASL_PLAINTEXT", "SASL_SSL")

    def tls_server(self) -> TlsServer | None:
        """What a listener encrypts with; None: nothing. Raises ConfigError (files)."""
        if not self.uses_tls:
            return None
        from kohort.net.tls import TlsOptions, TlsServer, server_context  # `ssl` is slow to import

        context = server_context(
            TlsOptions(
                ca_file=self.ssl_ca_location,
                certificate_file=self.ssl_certificate_location,
                key_file=self.ssl_key_location,
                key_password=self.ssl_key_password,
                protocols=self.ssl_enabled_protocols,
                ciphers=self.ssl_cipher_suites,
                client_auth=self.ssl_client_auth,
            )
        )
        return TlsServer(context, self.authentication_timeout_ms)


class PrincipalRules:
    """`ssl.principal.mapping.rules`: the first rule whose pattern fits names the user (KIP-371)."""

    def __init__(self, text: str) -> None:
        self._rules: list[tuple[re.Pattern[str], str, str] | None] = []
        rest = text.strip() or "DEFAULT"
        while rest:
            if rest.startswith("DEFAULT"):
                self._rules.append(None)
                rest = rest.removeprefix("DEFAULT")
            elif match := _RULE.match(rest):
                pattern, replacement, case = (part.replace("\\/", "/") for part in match.groups())
                try:
                    compiled = re.compile(pattern)
                except re.error as error:
                    raise ConfigError(
                        f"ssl_principal_mapping_rules: {pattern!r}: {error}"
                    ) from error
                self._rules.append((compiled, re.sub(r"\$(\d)", r"\\\1", replacement), case))
                rest = rest[match.end() :]
            else:
                raise ConfigError(
                    f"ssl_principal_mapping_rules: {rest!r} is neither DEFAULT nor "
                    "RULE:PATTERN/REPLACEMENT/ (with L or U behind it, if wanted)"
                )
            rest = rest.lstrip(", ")

    def user_of(self, subject: str) -> str | None:
        """The user that a certificate's subject maps to; None when no rule matches."""
        for rule in self._rules:
            if rule is None:
                return subject
            pattern, replacement, case = rule
            if match := pattern.fullmatch(subject):
                user = match.expand(replacement)
                return {"L": user.lower(), "U": user.upper()}.get(case, user)
        return None


def is_loopback(host: str) -> bool:
    """Whether an address can be reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
