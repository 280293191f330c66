"""What the `group` commands share: which groups they were asked about, and how they ask."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from kohort.cli.common.output import remark
from kohort.cli.common.root import EXIT_PARTIAL
from kohort.errors import (
    ConnectionFailedError,
    ErrorCode,
    GroupError,
    KafkaTimeoutError,
    KohortError,
)
from kohort.setting_keys import nearest

if TYPE_CHECKING:
    from kohort.cli.common.connect import Client
    from kohort.client.admin.admin import Admin
    from kohort.client.admin.types import (
        GroupDescription,
        GroupListing,
        GroupsSurvey,
        SurveyedGroup,
    )
    from kohort.client.common.types import OffsetAndMetadata, TopicPartition

    GroupOffsets = tuple[GroupDescription, Mapping[TopicPartition, OffsetAndMetadata]]

DEAD = "Dead"

FEW: Final = 3
"""As many groups are asked for one by one; of more, each broker tells all of its own at once."""
BRIEF_S: Final = 5.0
"""How long a group is waited for once another one had no answer."""


def existing(admin: Admin, names: Iterable[str]) -> list[GroupDescription]:
    """The groups. Raises GroupError for one that does not exist."""
    described = admin.describe_groups(list(dict.fromkeys(names)))
    for error in _missing(admin, described):
        raise error
    return list(described.values())


def known(admin: Admin, names: Iterable[str]) -> tuple[list[GroupDescription], list[KohortError]]:
    """The groups that exist and can be described, and an error for each of the others.

    Once one had no answer, the others wait only briefly: a coordinator that is away may have many.
    Raises the first error where there is none of them.
    """
    distinct = list(dict.fromkeys(names))
    if len(distinct) > FEW:
        held, failed = surveyed(admin, distinct)
        raise_if_none(held, failed)
        return [group for group, _ in held], failed
    described: dict[str, GroupDescription] = {}
    errors: list[KohortError] = []
    timeout_s: float | None = None
    for name in distinct:
        try:
            described |= admin.describe_groups([name], timeout_s=timeout_s)
        except KohortError as error:
            errors.append(error)
            if isinstance(error, ConnectionFailedError | KafkaTimeoutError):
                timeout_s = BRIEF_S
    errors += _missing(admin, described)
    there = [one for one in described.values() if one.state != DEAD]
    raise_if_none(there, errors)
    return there, errors


def raise_if_none(found: Sequence[object], errors: Sequence[KohortError]) -> None:
    """Raise the first error where nothing was found."""
    if errors and not found:
        raise errors[0]


def surveyed(
    admin: Admin, names: Iterable[str] | None, chosen: Callable[[str], object] = bool
) -> tuple[list[GroupOffsets], list[KohortError]]:
    """Groups with their committed offsets, in a few requests for each broker.

    Args:
        admin: of their cluster.
        names: of the groups; None for all classic and consumer groups.
        chosen: says of a name whether its group is wanted.

    Returns:
        The groups, and an error for each that cannot be looked at, and for each broker that does
        not answer where that may have cost a group.
    """
    survey = admin.survey_groups()
    listed = {name: one.listing for name, one in survey.groups.items()}
    everything = [name for name, one in listed.items() if one.describable]
    held: list[GroupOffsets] = []
    errors: list[KohortError] = []
    lost = names is None
    for name in filter(chosen, everything if names is None else dict.fromkeys(names)):
        one = survey.groups.get(name)
        if one is not None and one.description is not None and not one.error:
            held.append((one.description, one.offsets))
        elif one is not None and one.listing.describable and not is_gone(one):
            errors.append(KohortError(f"group {name!r}: {one.error}"))
        elif one is None and survey.unreachable:
            lost = True
            errors.append(KohortError(f"group {name!r} is unknown to the brokers that answer"))
        elif names is not None:  # of all groups, one has ended meanwhile
            errors.append(_no_group(name, listed))
    return held, [*errors, *unreachable(survey)] if lost else errors


def is_gone(one: SurveyedGroup) -> bool:
    """Whether a group was listed, and has ended before it was described."""
    nowhere = ErrorCode.GROUP_ID_NOT_FOUND.name
    return one.listing.describable and one.description is None and one.error in ("", nowhere)


def unreachable(survey: GroupsSurvey) -> list[KohortError]:
    """An error for each broker that does not answer for its groups."""
    return [
        KohortError(f"broker {node} does not answer for its groups: {why}")
        for node, why in survey.unreachable.items()
    ]


def _missing(admin: Admin, described: Mapping[str, GroupDescription]) -> list[GroupError]:
    names = [name for name, one in described.items() if one.state == DEAD]
    listed = {g.group_id: g for g in admin.list_groups()} if names else {}
    return [_no_group(name, listed) for name in names]


def without_members(group: GroupDescription, who: str) -> None:
    """Raise GroupError for a group with members; `who` says what these would do to the command."""
    if group.members:
        raise GroupError(
            ErrorCode.NON_EMPTY_GROUP,
            f"group {group.group_id!r} has members ({len(group.members)}), {who}; stop them first "
            "(`kohort group describe` shows them)",
        )


def _no_group(name: str, listed: Mapping[str, GroupListing]) -> GroupError:
    if name in listed and not listed[name].describable:
        return GroupError(
            ErrorCode.GROUP_ID_NOT_FOUND,
            f"group {name!r} is a {listed[name].group_type.lower()} group; only classic and "
            "consumer groups can be looked at here, and Kafka's own tools show it",
        )
    near = nearest(name, [one for one in listed if one != name])
    hint = f" Did you mean {near!r}?" if near else ""
    return GroupError(
        ErrorCode.GROUP_ID_NOT_FOUND,
        f"there is no group {name!r}.{hint} `kohort group list` shows those there are; "
        "a group appears when its first member joins or commits",
    )


def report_missing(errors: Sequence[KohortError]) -> int:
    """Say which groups are not among those that were shown, and why; the exit code of that."""
    for error in errors:
        remark(f"error: {error}")
    return EXIT_PARTIAL if errors else 0


def settings(client: Client) -> dict[str, Any]:
    """What the administrator of a `group` command connects with."""
    from kohort.client.common.config import AdminConfig

    return client.for_role(AdminConfig)
