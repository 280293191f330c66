"""`kohort cluster`: brokers, their settings and disks; what is offline or under-replicated."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from kohort.cli.common.connect import Client, client_options, open_admin
from kohort.cli.common.output import as_table, output_option, remark, show
from kohort.cli.common.root import EXIT_CHECK_FAILED, CommandGroup
from kohort.errors import ConnectionFailedError, ErrorCode, KafkaTimeoutError

if TYPE_CHECKING:
    from kohort.client.admin.admin import Admin
    from kohort.client.admin.types import ConfigEntry, LogDirDescription, LogDirsSurvey
    from kohort.observe.cluster import ClusterHealth

COLUMNS = (
    "broker",
    "address",
    "rack",
    "controller",
    "leads",
    "replicas",
    "out_of_sync",
    "stored_bytes",
    "trouble",
)
DISK_COLUMNS = (
    "broker",
    "directory",
    "replicas",
    "stored_bytes",
    "total_bytes",
    "usable_bytes",
    "error",
)
CONFIG_COLUMNS = ("broker", "name", "value", "source", "read_only")
ANSWER_S = 5.0
"""How long every broker is waited for; one that has just died stays in the metadata for a while."""
NAMED = 10
"""Partitions that are named in text; JSON has all."""


@click.group(cls=CommandGroup)
def cluster() -> None:
    """Brokers, racks, controller; what is offline or under-replicated."""


@cluster.command(
    epilog="""\b
Examples:
  kohort cluster describe
  kohort cluster describe --check      # exit code 3 when anything is offline or not in sync
  kohort cluster describe -o json
"""
)
@click.option("--check", is_flag=True, help="Exit code 3 when something is not as it should be.")
@output_option
@client_options
def describe(check: bool, output: str, client: Client) -> int:
    """Show brokers with their leaders and stored bytes, and partitions with problems.

    A dash is an unknown number: the broker does not answer within 5 s, or this user may
    not ask.
    """
    from kohort.client.common.config import AdminConfig
    from kohort.observe.cluster import cluster_health

    with open_admin(client.for_role(AdminConfig)) as admin:
        names = [t.name for t in admin.list_topics(include_internal=True)]
        survey, topics = _survey(admin), admin.describe_topics(names)
        nodes = admin.describe_cluster()  # last: who has left since the survey does not run
    health = cluster_health(nodes, topics.values(), survey.unreachable)
    rows = _rows(health, survey.log_dirs)
    if output == "json":
        whole = {k: v for k, v in asdict(health).items() if k != "brokers"}
        click.echo(json.dumps({"schema": 1, **whole, "brokers": rows}, indent=2))
    elif output == "table":
        click.echo(_text(health, rows))
    else:
        show(rows, COLUMNS, output)
    return EXIT_CHECK_FAILED if check and not health.healthy else 0


@cluster.command(
    "log-dirs",
    epilog="""\b
Examples:
  kohort cluster log-dirs
  kohort cluster log-dirs --broker 2 -o json
""",
)
@click.option(
    "--broker", "brokers", type=int, multiple=True, help="Only this one; may be given again."
)
@output_option
@client_options
def log_dirs(brokers: tuple[int, ...], output: str, client: Client) -> None:
    """Every log directory with its contents, and how full its disk is."""
    from kohort.client.common.config import AdminConfig

    with open_admin(client.for_role(AdminConfig)) as admin:
        directories = admin.describe_log_dirs(brokers) if brokers else _survey(admin).log_dirs
    rows = [
        {
            "broker": node,
            "directory": one.path,
            "replicas": len(one.replicas),
            "stored_bytes": sum(replica.size_bytes for replica in one.replicas.values()),
            "total_bytes": one.total_bytes if one.total_bytes >= 0 else None,
            "usable_bytes": one.usable_bytes if one.usable_bytes >= 0 else None,
            "error": ErrorCode(one.error).name if one.error else None,
        }
        for node, some in sorted(directories.items())
        for one in some
    ]
    show(rows, DISK_COLUMNS, output)


@cluster.command(
    "config",
    epilog="""\b
Examples:
  kohort cluster config
  kohort cluster config --broker 2 --all
""",
)
@click.option(
    "--broker", "brokers", type=int, multiple=True, help="Only this one; may be given again."
)
@click.option("--all", "everything", is_flag=True, help="Defaults, too.")
@output_option
@client_options
def show_config(brokers: tuple[int, ...], everything: bool, output: str, client: Client) -> None:
    """What brokers are configured with, and where each value comes from."""
    from kohort.client.common.config import AdminConfig

    with open_admin(client.for_role(AdminConfig)) as admin:
        nodes = brokers or [node.node_id for node in admin.describe_cluster().nodes]
        configs = _broker_configs(admin, nodes, must_answer=bool(brokers))
    rows = [
        {
            "broker": node,
            "name": name,
            "value": "(secret)" if e.is_sensitive else e.value,
            "source": e.source,
            "read_only": e.is_read_only,
        }
        for node, entries in configs.items()
        for name, e in sorted(entries.items())
        if everything or not e.is_default
    ]
    show(rows, CONFIG_COLUMNS, output)


def _survey(admin: Admin) -> LogDirsSurvey:
    """The disks of the brokers that answer soon; standard error names the others."""
    survey = admin.survey_log_dirs(timeout_s=_wait_s(admin))
    for broker, reason in survey.unreachable.items():
        _warn(broker, reason)
    return survey


def _broker_configs(
    admin: Admin, brokers: Sequence[int], *, must_answer: bool
) -> dict[int, dict[str, ConfigEntry]]:
    """The settings of brokers; standard error names those that do not answer soon."""
    configs: dict[int, dict[str, ConfigEntry]] = {}
    wait_s = None if must_answer else _wait_s(admin)
    for broker in brokers:
        try:
            configs[broker] = admin.describe_configs(str(broker), broker=True, timeout_s=wait_s)
        except (ConnectionFailedError, KafkaTimeoutError) as error:
            if must_answer:
                raise
            _warn(broker, error)
    return configs


def _wait_s(admin: Admin) -> float:
    return min(ANSWER_S, admin.config.default_api_timeout_ms / 1000)


def _warn(broker: int, reason: object) -> None:
    remark(f"warning: broker {broker} does not answer: {reason}")


def _rows(
    health: ClusterHealth, log_dirs: Mapping[int, Sequence[LogDirDescription]]
) -> list[dict[str, Any]]:
    stored = {
        node: sum(replica.size_bytes for one in some for replica in one.replicas.values())
        for node, some in log_dirs.items()
    }
    return [
        {
            "broker": one.node,
            "address": one.address,
            "rack": one.rack,
            "controller": one.controller,
            "leads": one.leads,
            "replicas": one.replicas,
            "out_of_sync": one.out_of_sync,
            "stored_bytes": stored.get(one.node),
            "trouble": one.trouble or None,
        }
        for one in health.brokers
    ]


def _text(health: ClusterHealth, rows: list[dict[str, Any]]) -> str:
    lines = [
        f"cluster {health.cluster_id or '-'}, controller "
        f"{health.controller if health.controller >= 0 else '-'}, topics {health.topics:,}, "
        f"partitions {health.partitions:,} ({len(health.offline):,} offline, "
        f"{len(health.under_replicated):,} under-replicated)",
        "",
        as_table(rows, COLUMNS),
    ]
    for what, names in (("offline", health.offline), ("under-replicated", health.under_replicated)):
        if names:
            more = f" and {len(names) - NAMED:,} more" if len(names) > NAMED else ""
            lines += ["", f"{what}: {', '.join(names[:NAMED])}{more}"]
    return "\n".join(lines)
