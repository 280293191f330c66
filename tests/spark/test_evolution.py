"""What a changed pipeline means for what is stored (spec 6.10)."""

from __future__ import annotations

from typing import Any

import pytest

from kohort.retry.ledger import FenceRow
from kohort.retry.offset_queries import TopicView
from kohort.retry.policy import RetryPolicy, RetryTopics
from kohort.spark.evolution import Stored, changes

TOPICS = {"in": RetryTopics("in", "g", RetryPolicy.parse("5m 1h"))}
NAMES = [*TOPICS["in"].delays_ms, TOPICS["in"].dead_letter]
VIEWS = {name: TopicView(f"id-{name}", 1) for name in ["in", *NAMES]}
FENCES = [FenceRow(name, f"id-{name}", 0, 5) for name in ["in", *TOPICS["in"].delays_ms]]


def stored(**how: Any) -> Stored:
    return Stored(**{"fences": FENCES, "waiting": {}, "views": VIEWS, **how})  # type: ignore[arg-type]


def test_nothing_has_changed() -> None:
    names = list(TOPICS["in"].delays_ms)
    checkpoint = {"source": ["in"], "retry_topics": names[::-1]}
    assert changes(TOPICS, stored(checkpoint=checkpoint, starts={("in", 0): 5})) == []


@pytest.mark.parametrize(
    ("how", "topic", "what", "refused"),
    [
        ({"fences": []}, "in", "a new handler", False),
        ({"views": {}}, "in", "does not exist", True),
        ({"views": {**VIEWS, "in": TopicView("other", 1)}}, "in", "created again", True),
        ({"views": {**VIEWS, "in": TopicView("id-in", 3)}}, "in", "2 more partitions", False),
        ({"starts": {("in", 0): 9}}, "in", "4 records were deleted before they were read", True),
        ({"waiting": {"in.g.retry.30m": 7}}, "in.g.retry.30m", "7 records wait", True),
        ({"fences": [*FENCES, FenceRow("was", "x", 0, 1)]}, "was", "is not read any more", False),
        ({"checkpoint": {"source": ["in", "was"]}}, "in", "reads other topics", False),
        (
            {"views": {k: v for k, v in VIEWS.items() if k != NAMES[0]}},
            NAMES[0],
            "a new retry topic",
            False,
        ),
    ],
)
def test_a_change_is_named_with_its_effect(
    how: dict[str, Any], topic: str, what: str, refused: bool
) -> None:
    first = changes(TOPICS, stored(**how))[0]
    assert (first.topic, first.refused) == (topic, refused)
    assert what in first.what
    assert first.effect


@pytest.mark.parametrize(
    ("handled", "checkpoint"), [(TOPICS, "/place/source"), ({}, "/place/stage-NAME")]
)
@pytest.mark.parametrize(
    "how", [{"starts": {("in", 0): 9}}, {"views": {**VIEWS, "in": TopicView("other", 1)}}]
)
def test_what_continues_without_lost_records_names_the_checkpoint(
    how: dict[str, Any], handled: dict[str, RetryTopics], checkpoint: str
) -> None:
    """It has the old position, and the run after the fences were changed was refused."""
    first = changes(TOPICS, stored(place="/place", **how), handled)[0]
    assert "kohort_fence" in first.effect
    assert checkpoint in first.effect


def test_refusals_come_first() -> None:
    found = changes(
        TOPICS,
        stored(fences=[*FENCES, FenceRow("was", "x", 0, 1)], waiting={"in.g.retry.30m": 7}),
    )
    assert [change.refused for change in found] == [True, False]
