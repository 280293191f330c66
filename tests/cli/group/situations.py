"""What tests of `kohort group why` with real clients share: is it healthy or sick, and why."""

from __future__ import annotations

from collections.abc import Callable

from tests.cli.conftest import Ran

Why = Callable[[str], Ran]


def words(ran: Ran) -> str:
    """All that is said of a group; its exit code and `stuck` agree."""
    assert (ran.code == 3) == ran.json["stuck"], ran.out + ran.err
    return "\n".join(
        [*ran.json["concerns"], *ran.json["notes"]]
        + [f"{row['state']}: {row['why']}" for row in ran.json["partitions"]]
    )


def healthy(ran: Ran) -> None:
    """No alarm."""
    assert ran.code == 0, words(ran)


def sick(ran: Ran, because: str) -> None:
    """An alarm, for this reason."""
    assert (ran.code, because in words(ran)) == (3, True), words(ran)
