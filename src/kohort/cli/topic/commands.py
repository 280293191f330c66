"""`kohort topic`: list, describe, create, grow, delete, and their configurations.

Rules:
- Looking never creates a topic.
- What cannot be undone (`delete`, `grow`) only says what it would do, until `--execute`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import click

from kohort.cli.common.completing import topics as complete_topics
from kohort.cli.common.connect import Client, client_options, existing_topics, open_admin
from kohort.cli.common.output import as_table, output_option, printable, show
from kohort.cli.common.root import CommandGroup
from kohort.cli.topic.records import delete_records
from kohort.config import parse_duration_ms, parse_size_bytes
from kohort.errors import BrokerError, ConfigError, ErrorCode, UsageError
from kohort.sampling.log_offsets import offsets
from kohort.setting_keys import nearest

if TYPE_CHECKING:
    from kohort.client.admin.admin import Admin
    from kohort.client.admin.types import TopicDescription
    from kohort.client.common.types import TopicPartition

LIST_COLUMNS = ("topic", "partitions", "replicas", "internal")
PARTITION_COLUMNS = (
    "topic",
    "partition",
    "leader",
    "replicas",
    "isr",
    "first_offset",
    "log_end_offset",
)
CONFIG_COLUMNS = ("name", "value", "source")


@click.group(cls=CommandGroup)
def topic() -> None:
    """List, describe, create, grow and delete topics."""


@topic.command(
    "list",
    epilog="""\b
Examples:
  kohort topic list
  kohort topic list --internal -o json
""",
)
@click.option("--internal", is_flag=True, help="Include Kafka's internal topics.")
@output_option
@client_options
def list_topics(internal: bool, output: str, client: Client) -> None:
    """All topics, with their partition and replica counts."""
    with open_admin(_settings(client)) as admin:
        names = [t.name for t in admin.list_topics(include_internal=internal)]
        descriptions = admin.describe_topics(names) if names else {}
    rows = [
        {
            "topic": name,
            "partitions": len(t.partitions),
            "replicas": min((len(p.replicas) for p in t.partitions), default=None),
            "internal": t.is_internal,
        }
        for name, t in descriptions.items()
    ]
    show(rows, LIST_COLUMNS if internal else LIST_COLUMNS[:-1], output)


@topic.command(
    epilog="""\b
Examples:
  kohort topic describe orders
  kohort topic describe orders payments -o json
"""
)
@click.argument(
    "topics", nargs=-1, required=True, shell_complete=complete_topics, metavar="TOPIC..."
)
@output_option
@client_options
def describe(topics: tuple[str, ...], output: str, client: Client) -> None:
    """Partitions, offsets and configuration of topics.

    Only what the topic itself sets is shown; everything by `kohort topic config show --all`.
    """
    with open_admin(_settings(client)) as admin:
        names = existing_topics(admin, topics)
        firsts = offsets(admin, names.values(), "earliest")
        ends = offsets(admin, names.values(), "latest")
        configs = {name: _own_configs(admin, name) for name in names}
    rows = [row for t in names.values() for row in _partition_rows(t, firsts, ends)]
    if output in ("csv", "jsonl"):
        show(rows, PARTITION_COLUMNS, output)
    elif output == "json":
        whole = [_as_json(t, configs[t.name], rows) for t in names.values()]
        click.echo(json.dumps({"schema": 1, "topics": whole}, indent=2))
    else:
        for t in names.values():
            click.echo(printable(_summary(t, configs[t.name])))
        click.echo()
        click.echo(as_table(rows, PARTITION_COLUMNS))


def _summary(t: TopicDescription, configs: Mapping[str, str | None]) -> str:
    set_here = " ".join(f"{name}={value}" for name, value in configs.items()) or "defaults"
    return f"{t.name}: {_partitions(len(t.partitions))}, id {_uuid(t.topic_id)}, {set_here}"


def _as_json(
    t: TopicDescription, configs: Mapping[str, str | None], rows: Iterable[dict[str, Any]]
) -> dict[str, Any]:
    return {
        "topic": t.name,
        "topic_id": _uuid(t.topic_id),
        "internal": t.is_internal,
        "configs": dict(configs),
        "partitions": [
            {key: value for key, value in row.items() if key != "topic"}
            for row in rows
            if row["topic"] == t.name
        ],
    }


def _partition_rows(
    t: TopicDescription,
    firsts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
) -> list[dict[str, Any]]:
    from kohort.client.common.types import TopicPartition

    return [
        {
            "topic": t.name,
            "partition": p.partition,
            "leader": p.leader if p.leader >= 0 else None,
            "replicas": list(p.replicas),
            "isr": list(p.isr),
            "first_offset": firsts.get(TopicPartition(t.name, p.partition)),
            "log_end_offset": ends.get(TopicPartition(t.name, p.partition)),
        }
        for p in t.partitions
    ]


def _own_configs(admin: Admin, name: str) -> dict[str, str | None]:
    entries = admin.describe_configs(name)
    return {e.name: e.value for e in sorted(entries.values(), key=_by_name) if e.source == "topic"}


@topic.command(
    epilog="""\b
Examples:
  kohort topic create orders --partitions 6
  kohort topic create audit -p 1 -c cleanup.policy=compact -c retention.ms=-1
"""
)
@click.argument(
    "topics", nargs=-1, required=True, shell_complete=complete_topics, metavar="TOPIC..."
)
@click.option("-p", "--partitions", type=click.IntRange(min=1), help="[default: broker setting]")
@click.option("-r", "--replicas", type=click.IntRange(min=1), help="[default: broker setting]")
@click.option(
    "-c", "configs", multiple=True, metavar="KEY=VALUE", help="A topic setting; repeatable."
)
@click.option("--if-not-exists", is_flag=True, help="Do not fail if a topic exists.")
@client_options
def create(
    topics: tuple[str, ...],
    partitions: int | None,
    replicas: int | None,
    configs: tuple[str, ...],
    if_not_exists: bool,
    client: Client,
) -> None:
    """Create topics."""
    from kohort.client.admin.types import BROKER_DEFAULT, NewTopic

    chosen = _config_changes(configs, "-c")
    count = BROKER_DEFAULT if partitions is None else partitions
    copies = BROKER_DEFAULT if replicas is None else replicas
    with open_admin(_settings(client)) as admin:
        names = list(dict.fromkeys(topics))
        there = {t.name for t in admin.list_topics(include_internal=True)} & set(names)
        missing = [name for name in names if name not in there]
        if there and not if_not_exists:
            raise BrokerError(
                ErrorCode.TOPIC_ALREADY_EXISTS,
                f"{', '.join(sorted(there))}; nothing was created. --if-not-exists passes over "
                "topics that are there",
            )
        for name in sorted(there):
            click.echo(f"{name} is there already", err=True)
        if not missing:
            return
        new = [NewTopic(name, count, copies, chosen) for name in missing]
        admin.create_topics(new, validate_only=True)
        for name, made in admin.create_topics(new).items():
            number = made.partition_count
            click.echo(f"created {name}" + (f" with {_partitions(number)}" if number > 0 else ""))


@topic.command(
    epilog="""\b
Examples:
  kohort topic delete orders
  kohort topic delete orders --execute
"""
)
@click.argument(
    "topics", nargs=-1, required=True, shell_complete=complete_topics, metavar="TOPIC..."
)
@click.option("--execute", is_flag=True, help="Delete the topics; default: a dry run.")
@client_options
def delete(topics: tuple[str, ...], execute: bool, client: Client) -> None:
    """Delete topics with all their records. Only with --execute."""
    with open_admin(_settings(client)) as admin:
        names = existing_topics(admin, topics)
        firsts = offsets(admin, names.values(), "earliest")
        ends = offsets(admin, names.values(), "latest")
        if execute:
            admin.delete_topics(names)
    for t in names.values():
        done = "deleted" if execute else "would delete"
        records = _records(t, firsts, ends)
        click.echo(f"{done} {t.name}: {_partitions(len(t.partitions))}, {records}")
    if not execute:
        click.echo("nothing was changed; add --execute to do it", err=True)


@topic.command(
    epilog="""\b
Examples:
  kohort topic grow orders --partitions 12
  kohort topic grow orders --partitions 12 --execute
"""
)
@click.argument("name", shell_complete=complete_topics, metavar="TOPIC")
@click.option(
    "-p",
    "--partitions",
    type=click.IntRange(min=1),
    required=True,
    help="The new total number of partitions.",
)
@click.option("--execute", is_flag=True, help="Add the partitions; default: a dry run.")
@client_options
def grow(name: str, partitions: int, execute: bool, client: Client) -> None:
    """Add partitions to a topic. Only with --execute: it cannot be undone.

    New records of a key may then go to another partition than its old ones.
    """
    with open_admin(_settings(client)) as admin:
        now = len(existing_topics(admin, [name])[name].partitions)
        if partitions <= now:
            raise UsageError(
                f"topic {name} has {_partitions(now)} and cannot shrink or stay; "
                f"--partitions is the new total, at least {now + 1}"
            )
        if execute:
            admin.create_partitions({name: partitions})
    click.echo(f"{'grown' if execute else 'would grow'} {name}: {now} to {partitions} partitions")
    if not execute:
        click.echo("nothing was changed; add --execute to do it", err=True)


topic.add_command(delete_records)


# -- configurations


@topic.group()
def config() -> None:
    """Show and change the configuration of a topic."""


@config.command(
    "show",
    epilog="""\b
Examples:
  kohort topic config show orders
  kohort topic config show orders --all -o json
""",
)
@click.argument("name", shell_complete=complete_topics, metavar="TOPIC")
@click.option("--all", "everything", is_flag=True, help="Include defaults.")
@output_option
@client_options
def show_config(name: str, everything: bool, output: str, client: Client) -> None:
    """What a topic is configured with, and where each value comes from."""
    with open_admin(_settings(client)) as admin:
        existing_topics(admin, [name])
        entries = sorted(admin.describe_configs(name).values(), key=_by_name)
    rows = [
        {"name": e.name, "value": "(secret)" if e.is_sensitive else e.value, "source": e.source}
        for e in entries
        if everything or not e.is_default
    ]
    if not rows and output == "table":
        click.echo(f"{name} has no configuration of its own; --all shows the defaults", err=True)
    show(rows, CONFIG_COLUMNS, output)


@config.command(
    "set",
    epilog="""\b
Examples:
  kohort topic config set orders retention.ms=7d segment.bytes=64MiB
  kohort topic config set orders --unset retention.ms
""",
)
@click.argument("name", shell_complete=complete_topics, metavar="TOPIC")
@click.argument("changes", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--unset", multiple=True, metavar="KEY", help="Restore the default.")
@client_options
def set_config(name: str, changes: tuple[str, ...], unset: tuple[str, ...], client: Client) -> None:
    """Change some values of a topic's configuration; the others stay."""
    values: dict[str, str | None] = dict(_config_changes(changes, ""))
    values |= dict.fromkeys(unset)
    if not values:
        raise click.UsageError("say what to change: KEY=VALUE, or --unset KEY")
    with open_admin(_settings(client)) as admin:
        existing_topics(admin, [name])
        before = admin.describe_configs(name)
        for key in values:
            if key not in before:
                near = nearest(key, before)
                hint = f"; did you mean {near!r}?" if near else ""
                raise ConfigError(f"unknown topic configuration key {key!r}{hint}")
        admin.alter_configs(name, values)
        after = admin.describe_configs(name)
    for key in values:
        click.echo(printable(f"{name} {key}: {before[key].value} -> {after[key].value}"))


def _settings(client: Client) -> dict[str, Any]:
    from kohort.client.common.config import AdminConfig

    return client.for_role(AdminConfig)


def _config_changes(texts: Iterable[str], option: str) -> dict[str, str]:
    """`KEY=VALUE` texts, keys as Kafka writes them."""
    values: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"{option} {text!r} is not KEY=VALUE".strip())
        values[key.strip()] = _in_kafkas_unit(key.strip(), value.strip())
    return values


def _in_kafkas_unit(key: str, value: str) -> str:
    """`7d` of a time and `1GiB` of a size as the number that brokers take. Raises ConfigError."""
    if value.lstrip("-").isdecimal():
        return value
    try:
        if key.endswith(".ms"):
            return str(parse_duration_ms(value))
        return str(parse_size_bytes(value)) if key.endswith(".bytes") else value
    except ConfigError as error:
        raise ConfigError(f"{key}: {error}") from None


def _by_name(entry: Any) -> str:
    return entry.name


def _records(
    t: TopicDescription, firsts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> str:
    """How many records a topic has, as far as its leaders tell."""
    known = [ends[tp] - firsts[tp] for tp in ends if tp.topic == t.name and tp in firsts]
    silent = len(t.partitions) - len(known)
    if not silent:
        return f"{sum(known):,} records"
    count = f"at least {sum(known):,} records" if known else "records not known"
    return f"{count} (no leader answers for {_partitions(silent)})"


def _partitions(count: int) -> str:
    return "1 partition" if count == 1 else f"{count:,} partitions"


def _uuid(raw: bytes) -> str | None:
    """A topic id as Kafka writes it: URL-safe base64 without padding; None from old brokers."""
    import base64

    return base64.urlsafe_b64encode(raw).decode().rstrip("=") if any(raw) else None
