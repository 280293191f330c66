"""What the `group` commands share: which groups they were asked about, and how they ask."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from kohort.config import nearest
from kohort.errors import ErrorCode, GroupError

if TYPE_CHECKING:
    from kohort.cli.connect import Client
    from kohort.client.admin import Admin
    from kohort.client.admin_types import GroupDescription

DEAD = "Dead"


def existing(admin: Admin, names: Iterable[str]) -> list[GroupDescription]:
    """The groups. Raises GroupError for one that does not exist."""
    wanted = list(dict.fromkeys(names))
    found = admin.describe_groups(wanted)
    for name, described in found.items():
        if described.state == DEAD:
            near = nearest(name, [g.group_id for g in admin.list_groups()])
            hint = f" Did you mean {near!r}?" if near else ""
            raise GroupError(
                ErrorCode.GROUP_ID_NOT_FOUND,
                f"there is no group {name!r}.{hint} `kohort group list` shows those there are; "
                "a group appears when its first member joins or commits",
            )
    return [found[name] for name in wanted]


def settings(client: Client) -> dict[str, Any]:
    """What the administrator of a `group` command connects with."""
    from kohort.client.config import AdminConfig

    return client.for_role(AdminConfig)
