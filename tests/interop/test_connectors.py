"""Spec 6.7: `format("kohort")` does what Spark's Kafka connector does, or the difference is listed.

A scenario fails when the two differ and no difference is listed, and when a listed one is no longer
true.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from tests.clusters import Embedded as Cluster
from tests.interop.connectors.reads import READS
from tests.interop.connectors.streams import STREAMS
from tests.interop.connectors.world import OURS, THEIRS, World
from tests.interop.connectors.writes import WRITES
from tests.known import fake

pytestmark = [
    pytest.mark.java,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(300),
]
SCENARIOS: Final = {
    f"{kind} {name}": run
    for kind, listed in (("read", READS), ("stream", STREAMS), ("write", WRITES))
    for name, run in listed.items()
}


class Difference(NamedTuple):
    """Why the two differ, and at which steps of the scenario."""

    reason: str
    steps: tuple[int, ...] = (0,)


DIFFERENCES: Final[dict[str, Difference]] = {
    "read a_pattern_without_a_topic": Difference("nothing that matches is an error"),
    "read unknown_topic": Difference(
        "a topic that is not there is an error that names the nearest one"
    ),
    "read a_misspelt_option": Difference("an unknown option is an error"),
    "read a_misspelt_kafka_option": Difference("an unknown setting of a client is an error"),
    "read assigned_none_there": Difference("a partition that is not there is an error"),
    "stream ending_in_a_stream": Difference(
        "endingTimestamp of a stream is refused as endingOffsets is", (1,)
    ),
    "stream recreated_with_fewer_leniently": Difference(
        "a recreated topic is read from its beginning", (1,)
    ),
    "stream recreated_with_more": Difference("a recreated topic is noticed by its id", (1,)),
    "stream a_topic_left_out": Difference(
        "a topic that is not subscribed to any more is no loss", (1,)
    ),
    "stream unknown_topic": Difference(
        "a topic that is not there is an error that names the nearest one"
    ),
    "stream with_a_group": Difference("progress is committed to the group"),
    "write headers_asked_for": Difference("includeHeaders=false leaves headers out", (1,)),
    "write no_value": Difference("a record needs a value or a key"),
    "write no_mode": Difference("Spark refuses a Python sink without mode('append')"),
    "write stream_update": Difference("Spark refuses update mode for a Python sink", (0, 1)),
}
"""By scenario, why the two differ. `docs/spark.md` has the same in its tables."""
_numbers = itertools.count()


@pytest.fixture(scope="module")
def broker() -> Iterator[Cluster]:
    with Cluster(log_cleaner_backoff_ms=100) as running:
        yield running


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario(connectors: Any, broker: Cluster, name: str, tmp_path: Path) -> None:
    world = World(connectors, broker, f"s{next(_numbers)}", tmp_path)
    SCENARIOS[name](world)
    check(world, DIFFERENCES.get(name))


def check(world: World, listed: Difference | None) -> None:
    """Fail on a difference that is not listed, and on a listed one that is no longer true."""
    if listed is None:
        assert not world.steps_apart(), f"an unlisted difference, {world.first_difference()}"
    else:
        assert world.steps_apart() == listed.steps, (
            f"not as listed: {listed}. Now {world.first_difference()}"
        )


@pytest.mark.parametrize(
    ("theirs", "ours", "listed"),
    [
        ([1, 2], [1, 3], None),
        ([1, 2], [1, 2], Difference("they differ", (1,))),
        ([1, 2], [0, 3], Difference("at one step, not at two", (1,))),
    ],
)
def test_what_is_not_as_listed_fails(
    theirs: list[int], ours: list[int], listed: Difference | None
) -> None:
    world = World(None, fake(None), "planted", Path())
    world.seen = {THEIRS: theirs, OURS: ours}
    with pytest.raises(AssertionError):
        check(world, listed)


def test_the_list() -> None:
    assert len(SCENARIOS) >= 60
    assert DIFFERENCES.keys() <= SCENARIOS.keys()
