"""Where to connect to, and with what settings: the options that every client command has.

Rules: flags win over the environment, the environment over the file, the file over the defaults
(kohort.settings). A key that the command's clients do not know is refused, with the nearest name,
before anything is connected. So is a key of another client, which would do nothing. A file and the
environment may be shared by commands: there a key needs to be known by any of the clients.

Shell: sockets.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kohort.cli.common.paths import FILE
from kohort.errors import BrokerError, ConfigError, ConnectionFailedError, ErrorCode, UsageError
from kohort.lean import dataclass, replace
from kohort.setting_keys import nearest
from kohort.settings import COMMAND_LINE, Setting, choose, gather, refuse_unknown

if TYPE_CHECKING:
    from pathlib import Path

    from kohort.client.admin.admin import Admin
    from kohort.client.admin.types import TopicDescription
    from kohort.client.common.config import ClientConfig
    from kohort.client.common.types import TopicPartition

F = TypeVar("F", bound=Callable[..., Any])
DEFAULT_PORT = 9092
DEFAULT_BOOTSTRAP = f"localhost:{DEFAULT_PORT}"
REACH_S = 5.0
"""A cluster that has not answered by then is reported as out of reach."""
REFUSAL_S = 1.0
"""An address that has not refused by then is left to the client."""


@dataclass(frozen=True)
class Client:
    """The command line's settings for a cluster."""

    shared: tuple[Setting, ...] = ()
    """Of files and the environment, weakest first; they may hold keys of other clients."""
    flags: tuple[Setting, ...] = ()
    """Of the command line; each must be a key of the command's own client."""

    def with_flags(self, **values: Any) -> Client:
        """The same, with more settings from the command line."""
        more = (Setting(key, value, COMMAND_LINE) for key, value in values.items())
        return replace(self, flags=(*self.flags, *more))

    def for_role(self, role: type[ClientConfig], **defaults: Any) -> dict[str, Any]:
        """The settings of the command's own client; `defaults` are the command's."""
        chosen = choose(role, self.shared, strict=self.flags)
        values = {name: setting.value for name, setting in chosen.items()}
        values = {"bootstrap_servers": DEFAULT_BOOTSTRAP, **defaults, **values}
        role.from_mapping(values)
        return values

    def common(self) -> dict[str, Any]:
        """The settings that all clients have, for the questions a command asks on the side."""
        from kohort.client.common.config import ClientConfig

        chosen = choose(ClientConfig, (*self.shared, *self.flags))
        values = {name: setting.value for name, setting in chosen.items()}
        return {"bootstrap_servers": DEFAULT_BOOTSTRAP, **values}

    def all_roles(self) -> dict[str, Any]:
        """The settings of a command whose clients are of several roles: each takes its own.

        Raises ConfigError for a value that cannot be read.
        """
        from kohort.client.common.config import ClientConfig

        common = set(ClientConfig.field_names())
        of_roles = {
            name: setting.value
            for role in ClientConfig.relatives()
            for name, setting in choose(role, (*self.shared, *self.flags)).items()
            if name not in common and name in role.field_names()
        }
        return {**of_roles, **self.common()}

    def given(self) -> dict[str, Any]:
        """All settings, whichever clients they are for."""
        return {each.name: each.value for each in (*self.shared, *self.flags) if not each.role}


def client_options(function: F) -> F:
    """`-b/--bootstrap`, `-X`, `--config FILE` and `--profile NAME`, passed on as one `client`."""
    options = (
        click.option(
            "-b",
            "--bootstrap",
            help="Brokers, host:port separated by commas. "
            f"[default: $KOHORT_BOOTSTRAP_SERVERS, then {DEFAULT_BOOTSTRAP}]",
        ),
        click.option(
            "-X",
            "--property",
            "properties",
            multiple=True,
            metavar="KEY=VALUE",
            help="A client setting by Kafka's name; may be given again.",
        ),
        click.option(
            "--config",
            "config_file",
            type=FILE,
            help="A .properties or .toml file with client settings.",
        ),
        click.option(
            "--profile",
            metavar="NAME",
            help="The settings of this profile.  [default: $KOHORT_PROFILE, then `profile use`]",
        ),
    )

    @functools.wraps(function)
    def with_client(
        *args: Any,
        bootstrap: str | None,
        properties: tuple[str, ...],
        config_file: Path | None,
        profile: str | None,
        **rest: Any,
    ) -> Any:
        _show_warnings()
        client = client_of(bootstrap, properties, config_file, profile, os.environ)
        return function(*args, client=client, **rest)

    wrapped: Any = with_client
    for option in reversed(options):
        wrapped = option(wrapped)
    return wrapped


def client_of(
    bootstrap: str | None,
    properties: Iterable[str],
    config_file: Path | None,
    profile: str | None,
    environ: Mapping[str, str],
) -> Client:
    """What the command line, the environment and files say together. Raises ConfigError."""
    if bootstrap is not None and not bootstrap.strip():
        raise ConfigError("-b is empty; name at least one host:port, or leave -b out")
    from kohort.client.common.config import AdminConfig

    named = {**environ, "KOHORT_PROFILE": profile} if profile else environ
    shared = gather(config_file, named, AdminConfig)
    flags = [Setting(k, v, COMMAND_LINE) for k, v in key_values(properties, "-X").items()]
    refuse_unknown(flags, AdminConfig)
    client = Client(tuple(shared), tuple(flags))
    return client.with_flags(bootstrap_servers=_with_port(bootstrap)) if bootstrap else client


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


@contextmanager
def open_admin(settings: dict[str, Any]) -> Generator[Admin]:
    """An admin client of a cluster that has answered. Raises ConnectionFailedError if it has not.

    `settings` are checked first, so that a wrong key is reported without waiting for a broker.
    """
    from kohort.client.admin.admin import Admin

    with Admin(**settings) as admin:
        _refuse_at_once(admin.config.addresses)
        with _warnings_suppressed():
            limit_s = min(REACH_S, admin.config.default_api_timeout_ms / 1000)
            admin.describe_cluster(timeout_s=limit_s)
        yield admin


def _refuse_at_once(addresses: Sequence[tuple[str, int]]) -> None:
    """Raise ConnectionFailedError where no address has a listener: waiting changes nothing."""
    import socket  # here, because `--help` must not pay for it

    for address in addresses:
        try:
            socket.create_connection(address, REFUSAL_S).close()
        except ConnectionRefusedError:
            continue
        except OSError:  # the client tells it better
            return
        return
    named = ", ".join(f"{host}:{port}" for host, port in addresses)
    raise ConnectionFailedError(
        f"no broker could be reached: {named} refused the connection. Is the broker running, and "
        "is this its address (-b HOST:PORT, or the profile's)? `kohort broker run` starts one on "
        "this machine"
    )


def _with_port(bootstrap: str) -> str:
    """`localhost` as `localhost:9092`; an address with a port as it is."""
    parts = [part.strip() for part in bootstrap.split(",")]
    return ",".join(
        part if not part or ":" in part.rpartition("]")[2] else f"{part}:{DEFAULT_PORT}"
        for part in parts
    )


@contextmanager
def _warnings_suppressed() -> Generator[None]:
    """While a bounded wait ends in an error that says the same, its warnings are not shown."""
    import logging

    logger = logging.getLogger("kohort")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def existing_topics(admin: Admin, names: Iterable[str]) -> dict[str, TopicDescription]:
    """Topics with their partitions. Raises BrokerError for one that does not exist.

    Asking never creates a topic.
    """
    distinct = list(dict.fromkeys(names))
    known = {t.name for t in admin.list_topics(include_internal=True)}
    for name in distinct:
        if name not in known:
            near = nearest(name, known)
            hint = f" Did you mean {near!r}?" if near else ""
            raise BrokerError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"topic {name!r} does not exist{_or_hidden(admin)}, and nothing was changed.{hint} "
                f"`kohort topic list` shows those there are; `kohort topic create {name}` makes it",
            )
    return admin.describe_topics(distinct) if distinct else {}


def topic_and_numbers(text: str) -> tuple[str, list[str]]:
    """`orders:0,2` as its name and numbers; `orders` has no numbers and means all partitions.

    Raises UsageError for `orders:`, which a script with an unset variable writes: it means nothing.
    """
    name, colon, numbers = text.partition(":")
    if colon and not numbers.strip():
        raise UsageError(
            f"{text!r} names no partition; write {name}:0,2, or {name} for all of them"
        )
    return name, numbers.split(",") if numbers else []


def named_partitions(admin: Admin, texts: Iterable[str]) -> list[TopicPartition]:
    """The partitions of `orders` or `orders:0,2`. Raises BrokerError, UsageError."""
    from kohort.client.common.types import TopicPartition

    pairs = [topic_and_numbers(text) for text in texts]
    topics = existing_topics(admin, [name for name, _ in pairs])
    chosen: set[TopicPartition] = set()
    for name, numbers in pairs:
        count = len(topics[name].partitions)
        for number in numbers or map(str, range(count)):
            if not number.isdecimal() or int(number) >= count:
                raise UsageError(
                    f"topic {name} has no partition {number!r}; it has {count}: 0 to {count - 1}"
                )
            chosen.add(TopicPartition(name, int(number)))
    return sorted(chosen)


def _or_hidden(admin: Admin) -> str:
    """Brokers hide from a user what it may not know of."""
    anonymous = admin.config.security_protocol == "PLAINTEXT"
    return "" if anonymous else " (or this user may not see it)"
