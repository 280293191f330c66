"""Groups that are looked up by name, of which some coordinators do not answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest

from kohort.cli.common.group_lookup import BRIEF_S, existing, known, surveyed
from kohort.client.admin.types import (
    GroupDescription,
    GroupListing,
    GroupsSurvey,
    SurveyedGroup,
)
from kohort.client.cluster.metadata import Node
from kohort.errors import BrokerError, ErrorCode, GroupError, KafkaTimeoutError
from tests.known import fake


class Away:
    """An admin client for whom every coordinator is away; `waits` are the limits of its calls."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.waits: list[float | None] = []

    def describe_groups(self, names: Iterable[str], *, timeout_s: float | None) -> object:
        self.waits.append(timeout_s)
        raise self.errors.pop(0)


def test_groups_behind_one_without_an_answer_wait_briefly() -> None:
    """A coordinator that is away may have hundreds: the command would take a minute for each."""
    refused = BrokerError(ErrorCode.GROUP_AUTHORIZATION_FAILED, "group a")
    admin = Away(refused, KafkaTimeoutError("b"), KafkaTimeoutError("c"))
    with pytest.raises(BrokerError, match="group a"):
        known(fake(admin), ["a", "b", "c"])
    assert admin.waits == [None, None, BRIEF_S]


class Listing:
    """An admin client of a cluster that lists groups, and describes none."""

    def list_groups(self) -> list[GroupListing]:
        return [
            GroupListing("billing", "consumer", "Empty", "classic"),
            GroupListing("share1", "share", "Stable", "Share"),
            GroupListing("share2", "share", "Stable", "Share"),
        ]

    def describe_groups(
        self, names: Iterable[str], *, timeout_s: float | None = None
    ) -> dict[str, GroupDescription]:
        node = Node(1, "broker", 9092)
        return {name: GroupDescription(name, "Dead", "", "", node, ()) for name in names}


class Surveying:
    """An admin client whose brokers describe some groups, refuse one, and have lost one."""

    def __init__(self, unreachable: Mapping[int, str]) -> None:
        self.unreachable = unreachable

    def survey_groups(self) -> GroupsSurvey:
        def one(name: str, error: str, *, described: bool) -> SurveyedGroup:
            group = GroupDescription(name, "Empty", "consumer", "", Node(1, "b", 9092), ())
            listing = GroupListing(name, "consumer", "Empty", "classic")
            return SurveyedGroup(listing, group if described else None, {}, error)

        groups = (
            one("good", "", described=True),
            one("shut", "GROUP_AUTHORIZATION_FAILED", described=False),
            one("silent", "GROUP_AUTHORIZATION_FAILED", described=True),
            one("ended", "GROUP_ID_NOT_FOUND", described=False),
        )
        return GroupsSurvey({each.listing.group_id: each for each in groups}, self.unreachable)


def test_of_all_groups_those_that_are_refused_are_named_and_those_that_ended_are_not() -> None:
    held, errors = surveyed(fake(Surveying({})), None)
    assert [group.group_id for group, _ in held] == ["good"]
    assert [str(error) for error in errors] == [
        "group 'shut': GROUP_AUTHORIZATION_FAILED",
        "group 'silent': GROUP_AUTHORIZATION_FAILED",
    ]


def test_of_named_groups_those_that_ended_or_are_with_a_silent_broker_are_errors() -> None:
    names = ["good", "ended", "nope", "good"]
    held, errors = surveyed(fake(Surveying({})), names)
    assert len(held) == 1
    assert [str(error).partition(".")[0] for error in errors] == [
        "GROUP_ID_NOT_FOUND (69): there is no group 'ended'",
        "GROUP_ID_NOT_FOUND (69): there is no group 'nope'",
    ]
    _, errors = surveyed(fake(Surveying({2: "it hangs"})), names)
    assert [str(error) for error in errors][1:] == [
        "group 'nope' is unknown to the brokers that answer",
        "broker 2 does not answer for its groups: it hangs",
    ]
    _, errors = surveyed(fake(Surveying({2: "it hangs"})), ["good"])
    assert errors == []


def test_a_share_group_is_no_group_that_does_not_exist() -> None:
    with pytest.raises(GroupError, match="group 'share1' is a share group") as raised:
        existing(fake(Listing()), ["share1"])
    assert "Did you mean" not in str(raised.value)


def test_no_group_is_suggested_for_itself() -> None:
    """It may have ended between two requests."""
    with pytest.raises(GroupError, match="there is no group 'billing'") as raised:
        known(fake(Listing()), ["billing"])
    assert "Did you mean" not in str(raised.value)
