"""How a client proves who it is, and whom it believes: Kafka's `security`, `ssl` and `sasl` keys.

Rules:
- Files are PEM. Java's names for them are read too (`ssl.truststore.location`, `sasl.jaas.config`);
  a Java key store (JKS, PKCS12) is refused with what makes PEM of it.
- With `security_protocol=PLAINTEXT` every key that begins with `ssl` or `sasl` is accepted and
  unused, as Kafka does; with any other, one that is not known here is refused.
- Secrets are in no `repr` and no error (`Config`). `sasl.password.file` names a file that holds one
  (so with every secret), which keeps it out of command lines, plans and settings.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from kohort.errors import ConfigError
from kohort.lean import dataclass
from kohort.sasl import MECHANISMS, OAUTHBEARER
from kohort.setting_keys import is_secret, plain

PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_SPELT_OTHERWISE: Final = {
    "ssl_truststore_location": "ssl_ca_location",
    "ssl_keystore_location": "ssl_certificate_location",
    "sasl_mechanisms": "sasl_mechanism",
    "sasl_oauthbearer_client_credentials_client_id": "sasl_oauthbearer_client_id",
    "sasl_oauthbearer_client_credentials_client_secret": "sasl_oauthbearer_client_secret",
}
_UNUSED: Final = frozenset(
    {
        "ssl_protocol",
        "ssl_provider",
        "ssl_secure_random_implementation",
        "ssl_keymanager_algorithm",
        "ssl_trustmanager_algorithm",
        "sasl_login_callback_handler_class",
        "sasl_login_class",
        "sasl_client_callback_handler_class",
        "sasl_kerberos_service_name",
        "sasl_kerberos_kinit_cmd",
        "sasl_login_retry_backoff_ms",
        "sasl_login_retry_backoff_max_ms",
        "sasl_login_refresh_window_factor",
        "sasl_login_refresh_window_jitter",
        "sasl_login_refresh_min_period_seconds",
        "sasl_login_refresh_buffer_seconds",
        "sasl_login_read_timeout_ms",
        "sasl_oauthbearer_method",
    }
)
"""Kafka's keys that name Java classes, or how fast Java does what is done here by itself."""
_STORE_TYPES: Final = ("ssl_truststore_type", "ssl_keystore_type")
_JAAS: Final = re.compile(
    r"\s*([\w.$]+)\s+(?:required|requisite|sufficient|optional)\s+(.*?);\s*", re.S
)
_JAAS_OPTION: Final = re.compile(
    r"""\s*([\w.]+)\s*=\s*(?:"((?:\\.|[^"\\])*)"|'((?:\\.|[^'\\])*)'|([^\s"',]+))""", re.S
)
_JAAS_KEYS: Final = {
    "username": "sasl_username",
    "password": "sasl_password",
    "clientId": "sasl_oauthbearer_client_id",
    "clientSecret": "sasl_oauthbearer_client_secret",
    "scope": "sasl_oauthbearer_scope",
}
_JAAS_EXTENSION: Final = "extension_"
_EXTENSIONS: Final = "sasl_oauthbearer_extensions"
_EXTENSION: Final = re.compile(r"(?!auth=)[A-Za-z]+=[\x20-\x7E\t\r\n]+")


@dataclass(frozen=True, repr=False)
class SecurityConfig:
    """What every client has of Kafka's security settings; a part of `ClientConfig`."""

    security_protocol: str = "PLAINTEXT"
    """PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL; both sides must name the same."""
    ssl_ca_location: str | None = None
    """A PEM file with the trusted CA certificates; None: the system's."""
    ssl_certificate_location: str | None = None
    """A PEM file with this client's certificate, for brokers that require one."""
    ssl_key_location: str | None = None
    """A PEM file with its private key; None: the key is in the certificate's file."""
    ssl_key_password: str | None = None
    """The password of the private key."""
    ssl_endpoint_identification_algorithm: str = "https"
    """`https`: the broker's name must be in its certificate; `none` trusts any name."""
    ssl_enabled_protocols: tuple[str, ...] = ("TLSv1.2", "TLSv1.3")
    """The accepted versions of TLS."""
    ssl_cipher_suites: tuple[str, ...] = ()
    """OpenSSL's names, for TLS 1.2; empty: OpenSSL's choice."""
    sasl_mechanism: str | None = None
    """PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER."""
    sasl_username: str | None = None
    """For PLAIN and SCRAM."""
    sasl_password: str | None = None
    """For PLAIN and SCRAM; `sasl_password_file` names a file that contains it."""
    sasl_oauthbearer_token_provider: Callable[[], Any] | None = None
    """A function that returns a `sasl.oauthbearer.Token` or its text; runs on a separate thread."""
    sasl_oauthbearer_token_endpoint_url: str | None = None
    """The token endpoint for client id and secret (OIDC, KIP-768); https, or this machine."""
    sasl_oauthbearer_client_id: str | None = None
    """The client id for the token endpoint."""
    sasl_oauthbearer_client_secret: str | None = None
    """The client secret for the token endpoint."""
    sasl_oauthbearer_scope: str | None = None
    """The scope to request from the token endpoint."""
    sasl_oauthbearer_extensions: tuple[str, ...] = ()
    """SASL extensions to send to the broker with these tokens: `NAME=VALUE` (KIP-342)."""
    sasl_login_connect_timeout_ms: int = 10_000
    """The time limit of a request to the token endpoint."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "security_protocol", self.security_protocol.upper())
        if self.security_protocol not in PROTOCOLS:
            raise ConfigError(
                f"security_protocol={self.security_protocol!r}; it is one of {', '.join(PROTOCOLS)}"
            )
        if self.uses_sasl:
            self._check_sasl()

    @property
    def uses_tls(self) -> bool:
        """Whether connections are encrypted."""
        return self.security_protocol in ("SSL", "SASL_SSL")

    @property
    def uses_sasl(self) -> bool:
        """Whether a login comes before everything else."""
        return self.security_protocol in ("SASL_PLAINTEXT", "SASL_SSL")

    @property
    def verifies_hostname(self) -> bool:
        """Whether the broker's name must be in its certificate."""
        return self.ssl_endpoint_identification_algorithm.lower() not in ("", "none")

    def _check_sasl(self) -> None:
        mechanism = (self.sasl_mechanism or "").upper()
        object.__setattr__(self, "sasl_mechanism", mechanism)
        if mechanism not in MECHANISMS:
            raise ConfigError(
                f"sasl_mechanism={mechanism!r}; with {self.security_protocol} it is one of "
                f"{', '.join(MECHANISMS)}"
            )
        if mechanism != OAUTHBEARER:
            for name in ("sasl_username", "sasl_password"):
                if not getattr(self, name):
                    raise ConfigError(f"sasl_mechanism={mechanism} needs {name}; give it")
            return
        if self.sasl_oauthbearer_token_provider is not None:
            return
        url = self.sasl_oauthbearer_token_endpoint_url
        if not (url and self.sasl_oauthbearer_client_id and self.sasl_oauthbearer_client_secret):
            raise ConfigError(
                "sasl_mechanism=OAUTHBEARER needs sasl_oauthbearer_token_provider, or "
                "sasl_oauthbearer_token_endpoint_url with sasl_oauthbearer_client_id and "
                "sasl_oauthbearer_client_secret"
            )
        require_safe_url("sasl_oauthbearer_token_endpoint_url", url)
        if not all(map(_EXTENSION.fullmatch, self.sasl_oauthbearer_extensions)):
            raise ConfigError(
                f"{_EXTENSIONS} are NAME=VALUE each, with a name of letters that is not auth, and "
                "with commas between them"
            )


def require_safe_url(setting: str, url: str) -> None:
    """Only https, and http to this machine: never a file (CVE-2025-27817). Raises ConfigError."""
    from urllib.parse import urlsplit  # few need it, and importing it takes its time

    parts = urlsplit(url)
    local = parts.hostname in ("localhost", "127.0.0.1", "::1")
    if parts.hostname is None or not (
        parts.scheme == "https" or (parts.scheme == "http" and local)
    ):
        raise ConfigError(f"{setting} must begin with https:// (http:// on this machine only)")


def in_our_words(values: Mapping[str, Any], known: set[str]) -> dict[str, Any]:
    """Java's and librdkafka's keys as ours. Raises ConfigError."""
    protocol = next((v for k, v in values.items() if plain(k) == "security_protocol"), "PLAINTEXT")
    secured = str(protocol).upper() != "PLAINTEXT"
    translated: dict[str, Any] = {}
    for key, value in values.items():
        name = plain(key)
        ours = name in known or not name.startswith(("ssl_", "sasl_"))
        if ours or name in _SPELT_OTHERWISE:
            key = key if ours else _SPELT_OTHERWISE[name]
            if key in translated:
                raise ConfigError(f"{key!r} is given twice, in two spellings")
            translated[key] = value
        elif (stem := name.removesuffix("_file")) != name and stem in known and is_secret(stem):
            translated[stem] = _held(key, str(value))
        elif secured and name == "sasl_jaas_config":
            for option, text in jaas_options(str(value)).items():
                translated.setdefault(option, text)
        elif name in _STORE_TYPES:
            _require_pem(name, str(value))
        elif secured and name not in _UNUSED:
            raise ConfigError(
                f"unknown security setting {key!r}; known ones: "
                f"{', '.join(sorted(n for n in known if n.startswith(('ssl_', 'sasl_'))))}"
            )
    return translated


def _held(key: str, path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{key}={path} cannot be read: {error}") from None


def _require_pem(name: str, kind: str) -> None:
    if kind.upper() != "PEM":
        raise ConfigError(
            f"{name}={kind}: only PEM is read; `keytool -exportcert -rfc -keystore STORE` or "
            "`openssl pkcs12 -in STORE -out FILE.pem -nodes` makes it"
        )


def jaas_options(text: str) -> dict[str, str | tuple[str, ...]]:
    """The options of a `sasl.jaas.config`, under our names. Raises ConfigError."""
    match = _JAAS.fullmatch(text)
    if match is None:
        raise _no_jaas()
    options: dict[str, str | tuple[str, ...]] = {}
    extensions: list[str] = []
    for name, value in _jaas_pairs(match[2]):
        if name in _JAAS_KEYS:
            options[_JAAS_KEYS[name]] = value
        elif name.startswith(_JAAS_EXTENSION):
            extensions.append(f"{name.removeprefix(_JAAS_EXTENSION)}={value}")
        else:
            raise ConfigError(
                f"sasl.jaas.config has an option {name!r}, which is not known; take it out. Those "
                f"there are: {', '.join(_JAAS_KEYS)}, {_JAAS_EXTENSION}NAME"
            )
    if extensions:
        options[_EXTENSIONS] = tuple(extensions)
    return options


def _jaas_pairs(text: str) -> Iterator[tuple[str, str]]:
    """Names and values, with nothing else between them. Raises ConfigError."""
    at, end = 0, len(text.rstrip())
    while at < end:
        option = _JAAS_OPTION.match(text, at)
        if option is None:
            raise _no_jaas()
        name, double, single, bare = option.groups()
        quoted = single if double is None else double
        yield name, bare if quoted is None else re.sub(r"\\(.)", r"\1", quoted)
        at = option.end()


def _no_jaas() -> ConfigError:
    """Without its text, which holds a password."""
    return ConfigError('sasl.jaas.config is not `MODULE required username="..." password="...";`')
