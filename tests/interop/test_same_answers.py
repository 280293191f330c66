"""The same requests to Apache Kafka and to the embedded broker: the same answers, field by field.

What differs is in docs/differences.md with its reason; anything else fails, and so does a row there
that is no longer true.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kohort.broker.apis import APIS
from tests.clusters import Embedded as Cluster
from tests.interop import recorded, recorded_groups
from tests.interop.asking import Flat, World
from tests.interop.java import ROOT, ApacheKafka, needs_java

PAGE = ROOT / "docs" / "differences.md"
SASL_APIS = {"SaslHandshake", "SaslAuthenticate"}
SCRAM_APIS = {"AlterUserScramCredentials", "DescribeUserScramCredentials"}
NOTHING = "-"
Answers = dict[str, Flat]


class Row(NamedTuple):
    """One difference that is meant."""

    request: str
    field: str
    theirs: str
    ours: str

    def covers(self, difference: Row) -> bool:
        return all(_matches(mine, other) for mine, other in zip(self, difference, strict=True))


def _matches(pattern: str, text: str) -> bool:
    parts = (re.escape(part) for part in pattern.split("*"))
    return re.fullmatch(".*".join(parts), text, re.DOTALL) is not None


def rows() -> list[Row]:
    """The tables of the page."""
    found: list[Row] = []
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if line.startswith("| `"):
            assert len(cells) == 5, line
            assert cells[4], f"without a reason: {line}"
            found.append(Row(*(cell.strip("`") for cell in cells[:4])))
    return found


def answers_of(cluster: Any) -> Answers:
    cluster.create_topic("t", 2)
    cluster.create_topic("u", 1)
    world = World(cluster.bootstrap)
    try:
        for story in (*recorded.STORIES, *recorded_groups.STORIES):
            story(world)
            world.settle()
    finally:
        world.close()
    return world.answers


def ours(directory: Path) -> Answers:
    with Cluster(
        durability="os",
        data_dir=str(directory),
        log_message_timestamp_after_max_ms=(1 << 63) - 1,
        offsets_topic_num_partitions=3,
        transaction_state_log_num_partitions=3,
    ) as cluster:
        return answers_of(cluster)


def differences(theirs: Answers, mine: Answers) -> list[Row]:
    assert theirs.keys() == mine.keys()
    found: list[Row] = []
    for request, one in theirs.items():
        other = mine[request]
        for field in sorted(one.keys() | other.keys()):
            values = one.get(field, NOTHING), other.get(field, NOTHING)
            if values[0] != values[1] and not _is_empty_beside_elements(field, one, other):
                found.append(Row(request, field, *values))
    return found


def _is_empty_beside_elements(field: str, one: Flat, other: Flat) -> bool:
    """An array that has elements on one side alone: each of those is a difference already."""
    return any(name.startswith(f"{field}[") for name in (one if field in other else other))


@needs_java
@pytest.mark.slow
@pytest.mark.java
def test_every_answer_is_the_same_or_its_difference_is_listed(tmp_path: Path) -> None:
    with ApacheKafka() as kafka:
        theirs = answers_of(kafka)
    listed = rows()
    unlisted, used = [], set[Row]()
    for difference in differences(theirs, ours(tmp_path / "data")):
        row = next((row for row in listed if row.covers(difference)), None)
        if row is None:
            unlisted.append(difference)
        else:
            used.add(row)
    shown = "\n".join(f"{d.request}\n    {d.field}: {d.theirs} | {d.ours}" for d in unlisted[:60])
    assert not unlisted, f"{len(unlisted)} differences are not in {PAGE.name}:\n{shown}"
    assert [row for row in listed if row not in used] == [], "listed, and no longer true"


def test_every_api_is_recorded(tmp_path: Path) -> None:
    """And each recorded request is answered by the embedded broker at all."""
    answers = ours(tmp_path / "data")
    asked = {request.partition(".")[0] for request in answers}
    served = {api.request.NAME.removesuffix("Request") for api in APIS.values()}
    assert served - asked - SASL_APIS - SCRAM_APIS == set()
    assert [request for request, answer in answers.items() if "answer" in answer] == []
    assert len(answers) > 1_500
