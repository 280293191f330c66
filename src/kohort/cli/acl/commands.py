"""`kohort acl`: who may do what in a cluster.

Rules:
- `remove` only says what it would remove, until `--execute`.
- Exactly one of `--topic`, `--group`, `--transactional-id`, `--cluster` names what is meant; a name
  that ends with `*` means all that begin so, and `*` alone means all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import click

from kohort.cli.common.connect import Client, client_options, open_admin
from kohort.cli.common.output import output_option, printable, show
from kohort.cli.common.root import CommandGroup

if TYPE_CHECKING:
    from collections.abc import Callable

    from kohort.acl import Acl, AclFilter

F = TypeVar("F", bound="Callable[..., Any]")
COLUMNS = ("permission", "principal", "host", "operation", "resource", "name", "pattern")
_OPERATIONS = (
    "all",
    "read",
    "write",
    "create",
    "delete",
    "alter",
    "describe",
    "cluster_action",
    "describe_configs",
    "alter_configs",
    "idempotent_write",
    "two_phase_commit",
)


def _resource_options(function: F) -> F:
    for option, text in (
        ("--cluster", "The cluster itself."),
        ("--transactional-id", "A transactional id."),
        ("--group", "A consumer group."),
        ("--topic", "A topic."),
    ):
        if option == "--cluster":
            function = click.option(option, is_flag=True, help=text)(function)
        else:
            function = click.option(option, metavar="NAME", help=text)(function)
    return function


def _who_options(function: F) -> F:
    operation = click.option(
        "--operation",
        "-o",
        "operations",
        type=click.Choice(_OPERATIONS, case_sensitive=False),
        multiple=True,
        help="The operation; repeatable.",
    )
    principal = click.option(
        "--principal", metavar="User:NAME", help="The principal; User:* means everyone."
    )
    host = click.option("--host", metavar="ADDRESS", help="The client address.")
    return operation(principal(host(function)))


@click.group(cls=CommandGroup)
def acl() -> None:
    """List, add and remove ACLs."""


@acl.command(
    "list",
    epilog="""\b
Examples:
  kohort acl list
  kohort acl list --topic orders            # every entry that applies to this topic
  kohort acl list --principal User:alice --output json
""",
)
@_resource_options
@click.option("--principal", metavar="User:NAME", help="Only entries of this principal.")
@output_option
@client_options
def list_acls(
    topic: str | None,
    group: str | None,
    transactional_id: str | None,
    cluster: bool,
    principal: str | None,
    output: str,
    client: Client,
) -> None:
    """List the ACLs."""
    filter_ = _filter(topic, group, transactional_id, cluster, principal)
    with open_admin(_settings(client)) as admin:
        acls = admin.describe_acls(filter_)
    show([_row(each) for each in acls], COLUMNS, output)


@acl.command(
    epilog="""\b
Examples:
  kohort acl add --principal User:alice -o read --topic orders
  kohort acl add --principal User:alice -o read --group 'billing-*'
  kohort acl add --deny --principal 'User:*' -o write --topic audit
"""
)
@_resource_options
@_who_options
@click.option("--deny", is_flag=True, help="Deny instead of allow; a deny overrides an allow.")
@client_options
def add(
    topic: str | None,
    group: str | None,
    transactional_id: str | None,
    cluster: bool,
    principal: str | None,
    host: str | None,
    operations: tuple[str, ...],
    deny: bool,
    client: Client,
) -> None:
    """Allow (or deny) a principal an operation."""
    from kohort.acl import Acl, Operation, Pattern, Permission, fault_of

    if principal is None or not operations:
        raise click.UsageError("say who and what: --principal User:NAME -o OPERATION")
    resource, name, pattern = _named(topic, group, transactional_id, cluster)
    permission = Permission.DENY if deny else Permission.ALLOW
    of = (resource, name, Pattern(pattern), principal, host or "*")
    entries = [Acl(*of, Operation[each.upper()], permission) for each in operations]
    for entry in entries:
        if fault := fault_of(entry):
            raise click.UsageError(fault)
    with open_admin(_settings(client)) as admin:
        admin.create_acls(entries)
    for entry in entries:
        click.echo(f"added: {printable(str(entry))}")


@acl.command(
    epilog="""\b
Examples:
  kohort acl remove --principal User:alice                  # what would go
  kohort acl remove --principal User:alice --execute
"""
)
@_resource_options
@_who_options
@click.option("--execute", is_flag=True, help="Remove the entries; default: a dry run.")
@client_options
def remove(
    topic: str | None,
    group: str | None,
    transactional_id: str | None,
    cluster: bool,
    principal: str | None,
    host: str | None,
    operations: tuple[str, ...],
    execute: bool,
    client: Client,
) -> None:
    """Remove the matching ACLs."""
    from kohort.acl import Operation

    if not any((topic, group, transactional_id, cluster, principal, host, operations)):
        raise click.UsageError("say which entries are meant, for example --principal User:NAME")
    filter_ = _filter(topic, group, transactional_id, cluster, principal, exact=True)
    chosen = {Operation[o.upper()] for o in operations}
    with open_admin(_settings(client)) as admin:
        acls = [
            each
            for each in admin.describe_acls(filter_)
            if (not chosen or each.operation in chosen) and host in (None, each.host)
        ]
        for each in acls:
            if execute:
                admin.delete_acls(each.as_filter())
            click.echo(f"{'removed' if execute else 'would remove'}: {printable(str(each))}")
    if not acls:
        click.echo("no entry is meant by that; `kohort acl list` shows those there are", err=True)
    elif not execute:
        click.echo("nothing was changed; add --execute to do it", err=True)


def _named(
    topic: str | None, group: str | None, transactional_id: str | None, cluster: bool
) -> tuple[Any, str, Any]:
    from kohort.acl import CLUSTER_NAME, Pattern, Resource

    named = [
        (kind, name)
        for kind, name in (
            (Resource.TOPIC, topic),
            (Resource.GROUP, group),
            (Resource.TRANSACTIONAL_ID, transactional_id),
            (Resource.CLUSTER, CLUSTER_NAME if cluster else None),
        )
        if name is not None
    ]
    if len(named) != 1:
        raise click.UsageError("name one of --topic, --group, --transactional-id, --cluster")
    kind, name = named[0]
    if len(name) > 1 and name.endswith("*"):
        return kind, name[:-1], Pattern.PREFIXED
    return kind, name, Pattern.LITERAL


def _filter(
    topic: str | None,
    group: str | None,
    transactional_id: str | None,
    cluster: bool,
    principal: str | None,
    *,
    exact: bool = False,
) -> AclFilter:
    """`exact`: the entries of that very name; else all that apply to it."""
    from kohort.acl import AclFilter, Pattern

    if topic is group is transactional_id is None and not cluster:
        return AclFilter(principal=principal)
    resource, name, pattern = _named(topic, group, transactional_id, cluster)
    applies = pattern is Pattern.LITERAL and not exact
    how = Pattern.MATCH if applies else pattern
    return AclFilter(resource, name, how, principal)


def _row(acl: Acl) -> dict[str, Any]:
    return {
        "permission": acl.permission.name.lower(),
        "principal": acl.principal,
        "host": acl.host,
        "operation": acl.operation.name.lower(),
        "resource": acl.resource.name.lower(),
        "name": acl.name,
        "pattern": acl.pattern.name.lower(),
    }


def _settings(client: Client) -> dict[str, Any]:
    from kohort.client.common.config import AdminConfig

    return client.for_role(AdminConfig)
