"""Compares a changed pipeline file with stored fences, ledger, topics and checkpoint. Pure.

Rules (spec 6.10):
- Everything is compared with what the store and the cluster hold; the older file is not needed.
- A change that `run` refuses is marked, with the cure. All others say what `run` does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kohort.retry.ledger import FenceRow
from kohort.retry.offset_queries import TopicPartition, TopicView
from kohort.retry.policy import RetryTopics


@dataclass(frozen=True, slots=True)
class Change:
    """One difference.

    Args:
        topic: the topic that it is about.
        what: what differs.
        effect: what the next run does, or what to do first.
        refused: the next run ends with an error instead.
    """

    topic: str
    what: str
    effect: str
    refused: bool = False


@dataclass(frozen=True)
class Stored:
    """What outlives a run.

    Args:
        fences: of every partition that was ever read.
        waiting: records that wait for a retry, by retry topic.
        views: the topics of the cluster.
        starts: the first offset that is still there, by partition.
        checkpoint: the topics that each query's checkpoint was made for; None without one.
        place: where the pipeline's checkpoint is.
    """

    fences: Sequence[FenceRow]
    waiting: Mapping[str, int]
    views: Mapping[str, TopicView]
    starts: Mapping[TopicPartition, int] = field(default_factory=dict[TopicPartition, int])
    checkpoint: Mapping[str, Sequence[str] | None] = field(
        default_factory=dict[str, "Sequence[str] | None"]
    )
    place: str = ""


def changes(
    topics: Mapping[str, RetryTopics],
    stored: Stored,
    handled: Mapping[str, RetryTopics] | None = None,
) -> list[Change]:
    """Every difference between a pipeline's topics and what is stored, refusals first.

    Args:
        handled: the part of `topics` that row handlers read, and that the checkpoints of their two
            queries were made for; all of them by default.
    """
    handled = topics if handled is None else handled
    found = [
        *_sources(topics, handled, stored),
        *_retry_topics(topics, stored),
        *_gone(topics, stored),
        *_checkpoint(handled, stored),
    ]
    return sorted(found, key=lambda change: not change.refused)


def _sources(
    topics: Mapping[str, RetryTopics], handled: Mapping[str, RetryTopics], stored: Stored
) -> Iterable[Change]:
    for topic in topics:
        fences = [f for f in stored.fences if f.topic == topic]
        view = stored.views.get(topic)
        if view is None:
            yield Change(
                topic,
                "the topic does not exist",
                f"`kohort topic create {topic}` makes it; or take out its handler",
                refused=True,
            )
        elif not fences:
            yield Change(
                topic,
                "a new handler",
                f"is read from the beginning of its {view.partitions} partitions",
            )
        else:
            yield from _of_known(view, fences, stored.starts, _position(topic, handled, stored))


def _position(topic: str, handled: Mapping[str, RetryTopics], stored: Stored) -> str:
    """The checkpoint that has the position of a topic, beside the topic's fences."""
    if topic in handled:
        return f"the checkpoint {stored.place}/source"
    return f"the checkpoints {stored.place}/stage-NAME of the steps without state that read it"


def _of_known(
    view: TopicView,
    fences: Sequence[FenceRow],
    starts: Mapping[TopicPartition, int],
    position: str,
) -> Iterable[Change]:
    topic = fences[0].topic
    others = {f.topic_id for f in fences} - {view.topic_id, ""}
    if others and view.topic_id:
        yield Change(
            topic,
            f"was deleted and created again (id {min(others)} became {view.topic_id})",
            "its offsets have another meaning: start under another pipeline name; or, to read it "
            f"from its beginning, delete its rows of kohort_fence and {position}",
            refused=True,
        )
        return
    grown = view.partitions - len(fences)
    if grown > 0:
        yield Change(topic, f"has {grown} more partitions", "they are read from their beginning")
    lost = {
        f.partition: starts[topic, f.partition] - f.next_offset
        for f in fences
        if starts.get((topic, f.partition), 0) > f.next_offset
    }
    if lost:
        yield Change(
            topic,
            f"{sum(lost.values()):,} records were deleted before they were read",
            f"partitions {', '.join(map(str, sorted(lost)))}: retention was shorter than the "
            "pause. To continue without them, move their rows of kohort_fence to the log's start "
            f"and delete {position}",
            refused=True,
        )


def _retry_topics(topics: Mapping[str, RetryTopics], stored: Stored) -> Iterable[Change]:
    for source, names in topics.items():
        for name in names.delays_ms:
            if name not in stored.views:
                yield Change(name, f"a new retry topic of {source}", "is created")
        if names.dead_letter not in stored.views:
            yield Change(names.dead_letter, f"the dead-letter topic of {source}", "is created")


def _gone(topics: Mapping[str, RetryTopics], stored: Stored) -> Iterable[Change]:
    known = {n for topic, names in topics.items() for n in (topic, *names.delays_ms)}
    for topic in sorted({f.topic for f in stored.fences} | set(stored.waiting)):
        if topic in known:
            continue
        waiting = stored.waiting.get(topic, 0)
        if waiting:
            yield Change(
                topic,
                f"is not read any more, and {waiting:,} records wait in it",
                "put back the handler or the delay of retries=, run with --mode until_idle until "
                "none of them waits, then take it out",
                refused=True,
            )
        else:
            yield Change(
                topic,
                "is not read any more",
                "its fence is kept: when the handler comes back, it continues from there",
            )


def _checkpoint(topics: Mapping[str, RetryTopics], stored: Stored) -> Iterable[Change]:
    retry_topics = sorted(n for names in topics.values() for n in names.delays_ms)
    for label, before in stored.checkpoint.items():
        now = retry_topics if label == "retry_topics" else sorted(topics)
        if before is not None and sorted(before) != now:
            yield Change(
                ", ".join(now) or "-",
                f"the {label} query reads other topics than before",
                "its checkpoint is created again; it continues at the store's fences",
            )
