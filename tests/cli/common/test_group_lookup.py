"""Groups that are looked up by name, of which some coordinators do not answer."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from kohort.cli.common.group_lookup import BRIEF_S, known
from kohort.errors import BrokerError, ErrorCode, KafkaTimeoutError
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
