"""Where to connect to, and with what settings: the options that every client command has.

Rules: flags win over the environment, the environment over the file, the file over the defaults.
A key that the command's clients do not know is refused, with the nearest name, before anything is
connected. A file may be shared by commands: in it a key needs to be known by any of the clients.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Callable, Collection, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kohort.config import nearest
from kohort.errors import BrokerError, ConfigError, ErrorCode

if TYPE_CHECKING:
    from kohort.client.admin import Admin
    from kohort.client.admin_types import TopicDescription
    from kohort.client.config import ClientConfig

F = TypeVar("F", bound=Callable[..., Any])
DEFAULT_BOOTSTRAP = "localhost:9092"
REACH_S = 5.0
"""A cluster that has not answered by then is reported as out of reach."""


@dataclass(frozen=True)
class Client:
    """What a command was told about its cluster."""

    flags: dict[str, Any] = field(default_factory=dict[str, Any])
    file: dict[str, Any] = field(default_factory=dict[str, Any])
    written: dict[str, str] = field(default_factory=dict[str, str])
    """How the keys of `flags` were spelt, for messages."""

    @property
    def bootstrap(self) -> str:
        """The brokers' addresses in force."""
        given = self.flags.get("bootstrap_servers") or self.file.get("bootstrap_servers")
        return str(given or DEFAULT_BOOTSTRAP)

    def for_role(self, role: type[ClientConfig], **defaults: Any) -> dict[str, Any]:
        """The settings of the command's own client; `defaults` are the command's."""
        known = set(role.field_names())
        for key in self.flags:
            refuse_unknown(role.role(), self.written.get(key, key), known)
        shared = {key: value for key, value in self.file.items() if _is_for(key, known)}
        given = {"bootstrap_servers": DEFAULT_BOOTSTRAP, **defaults, **shared, **self.flags}
        role.from_mapping(given)
        return given

    def common(self) -> dict[str, Any]:
        """The settings that all clients have, for the questions a command asks on the side."""
        from kohort.client.config import ClientConfig

        known = set(ClientConfig.field_names())
        given = {"bootstrap_servers": DEFAULT_BOOTSTRAP, **self.file, **self.flags}
        return {key: value for key, value in given.items() if _is_for(key, known)}


def client_options(function: F) -> F:
    """`-b/--bootstrap`, `-X key=value` and `--config FILE`, passed on as one `client`."""
    options = (
        click.option(
            "-b",
            "--bootstrap",
            envvar="KOHORT_BOOTSTRAP_SERVERS",
            help="Brokers, host:port separated by commas. "
            f"[default: $KOHORT_BOOTSTRAP_SERVERS, then {DEFAULT_BOOTSTRAP}]",
        ),
        click.option(
            "-X",
            "properties",
            multiple=True,
            metavar="KEY=VALUE",
            help="A client setting by Kafka's name; may be given again.",
        ),
        click.option(
            "--config",
            "config_file",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help="A .properties or .toml file with client settings.",
        ),
    )

    @functools.wraps(function)
    def with_client(
        *args: Any,
        bootstrap: str | None,
        properties: tuple[str, ...],
        config_file: Path | None,
        **rest: Any,
    ) -> Any:
        _show_warnings()
        flags = {"bootstrap_servers": bootstrap} if bootstrap else {}
        given = key_values(properties, "-X")
        flags |= {plain(key): value for key, value in given.items()}
        file = read_settings(config_file) if config_file is not None else {}
        if file:
            _refuse_strangers(file)
        file = {plain(key): value for key, value in file.items()}
        written = {plain(key): key for key in given}
        return function(*args, client=Client(flags, file, written), **rest)

    wrapped: Any = with_client
    for option in reversed(options):
        wrapped = option(wrapped)
    return wrapped


def _show_warnings() -> None:
    """What clients and pipelines log goes to standard error, in the form of our errors."""
    import logging  # here, because `--help` must not pay for it

    logging.basicConfig(level=logging.WARNING, format="warning: %(message)s")


def key_values(texts: Iterable[str], option: str) -> dict[str, Any]:
    """A mapping of `KEY=VALUE` texts. Raises ConfigError."""
    values: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"{option} {text!r} is not KEY=VALUE")
        values[key.strip()] = value.strip()
    return values


def read_settings(path: Path) -> dict[str, Any]:
    """Settings of a `.toml` file (its top level) or a Java `.properties` file."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read as settings: {error}") from error
    if path.suffix == ".toml":
        try:
            table = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"{path} is not TOML: {error}") from error
        return table
    values: dict[str, Any] = {}
    for number, line in enumerate(text.splitlines(), 1):
        entry = line.strip()
        if not entry or entry[0] in "#!":
            continue
        key, equals, value = entry.partition("=")
        if not equals:
            raise ConfigError(f"{path}:{number}: {entry!r} is not key=value")
        values[key.strip()] = value.strip()
    return values


def _refuse_strangers(values: Iterable[str]) -> None:
    """Raise ConfigError for a key that no client knows."""
    from kohort.client.config import AdminConfig, ConsumerConfig, ProducerConfig

    roles = (AdminConfig, ConsumerConfig, ProducerConfig)
    known = {name for role in roles for name in role.field_names()}
    for key in values:
        refuse_unknown("client", key, known)


def refuse_unknown(role: str, key: str, known: Collection[str]) -> None:
    """Raise ConfigError for a key that is not known, as it was written, naming the nearest."""
    if _is_for(plain(key), known):
        return
    near = nearest(plain(key), known)
    if near and "." in key:
        near = near.replace("_", ".")
    hint = f"; did you mean {near!r}?" if near else ""
    raise ConfigError(f"unknown {role} configuration key {key!r}{hint}")


def plain(key: str) -> str:
    """A key as configurations are written in Python: with underscores."""
    return key.replace(".", "_").replace("-", "_")


def _is_for(key: str, known: Collection[str]) -> bool:
    return key in known or key.startswith(("ssl_", "sasl_"))


@contextmanager
def open_admin(settings: dict[str, Any]) -> Generator[Admin]:
    """An admin client of a cluster that has answered. Raises ConnectionFailedError if it has not.

    `settings` are checked first, so that a wrong key is told without waiting for a broker.
    """
    from kohort.client.admin import Admin

    with Admin(**settings) as admin:
        admin.describe_cluster(timeout_s=min(REACH_S, admin.config.default_api_timeout_ms / 1000))
        yield admin


def existing_topics(admin: Admin, names: Iterable[str]) -> dict[str, TopicDescription]:
    """Topics with their partitions. Raises BrokerError for one that does not exist.

    Asking never creates a topic.
    """
    wanted = list(dict.fromkeys(names))
    known = {t.name for t in admin.list_topics(include_internal=True)}
    for name in wanted:
        if name not in known:
            near = nearest(name, known)
            hint = f" Did you mean {near!r}?" if near else ""
            raise BrokerError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"topic {name!r} does not exist, and nothing was created.{hint} `kohort topic "
                f"list` shows those there are; `kohort topic create {name}` makes it",
            )
    return admin.describe_topics(wanted) if wanted else {}
