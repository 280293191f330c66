"""What the `group` commands share: which groups they were asked about, and how they ask."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from kohort.cli.common.root import EXIT_PARTIAL
from kohort.errors import ErrorCode, GroupError
from kohort.setting_keys import nearest

if TYPE_CHECKING:
    from kohort.cli.common.connect import Client
    from kohort.client.admin.admin import Admin
    from kohort.client.admin.types import GroupDescription

DEAD = "Dead"


def existing(admin: Admin, names: Iterable[str]) -> list[GroupDescription]:
    """The groups. Raises GroupError for one that does not exist."""
    groups, missing = known(admin, names)
    for error in missing:
        raise error
    return groups


def known(admin: Admin, names: Iterable[str]) -> tuple[list[GroupDescription], list[GroupError]]:
    """The groups that exist, and a message about the others.

    Raises GroupError where there is none of them.
    """
    distinct = list(dict.fromkeys(names))
    described = admin.describe_groups(distinct)
    there = [described[name] for name in distinct if described[name].state != DEAD]
    if len(there) == len(distinct):
        return there, []
    listed = [g.group_id for g in admin.list_groups()]
    missing = [_no_group(name, listed) for name in distinct if described[name].state == DEAD]
    if not there:
        raise missing[0]
    return there, missing


def without_members(group: GroupDescription, who: str) -> None:
    """Raise GroupError for a group with members; `who` says what these would do to the command."""
    if group.members:
        raise GroupError(
            ErrorCode.NON_EMPTY_GROUP,
            f"group {group.group_id!r} has members ({len(group.members)}), {who}; stop them first "
            "(`kohort group describe` shows them)",
        )


def _no_group(name: str, listed: list[str]) -> GroupError:
    near = nearest(name, listed)
    hint = f" Did you mean {near!r}?" if near else ""
    return GroupError(
        ErrorCode.GROUP_ID_NOT_FOUND,
        f"there is no group {name!r}.{hint} `kohort group list` shows those there are; "
        "a group appears when its first member joins or commits",
    )


def report_missing(missing: Sequence[GroupError]) -> int:
    """Say which groups there are not, beside those that were shown; the exit code of that."""
    for error in missing:
        click.echo(f"error: {error}", err=True)
    return EXIT_PARTIAL if missing else 0


def settings(client: Client) -> dict[str, Any]:
    """What the administrator of a `group` command connects with."""
    from kohort.client.common.config import AdminConfig

    return client.for_role(AdminConfig)
