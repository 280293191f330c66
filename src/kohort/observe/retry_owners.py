"""Whose retry topics and dead-letter topics a cluster has, by their names.

Rules: a name is TOPIC.GROUP and a suffix. A group and a topic that are there decide where the one
ends and the other begins; else the longest name of a topic does.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from kohort.config import parse_duration_ms
from kohort.retry.policy import RetryPolicy, RetryTopics, retry_topics_among, topic_name

_SUFFIX: Final = re.compile(r"\.(?:retry\.(\d+(?:ms|s|m|h|d))|dlt)$")


@dataclass(frozen=True)
class RetryOwner:
    """The retry topics of one (topic, group).

    Attributes:
        dead_letter: the dead-letter topic; None where there is none.
        retry_topics: delays in milliseconds, by topic, the shortest first; the entry topic (0) too.
    """

    topic: str
    group: str
    dead_letter: str | None
    retry_topics: Mapping[str, int] = field(default_factory=dict[str, int])

    @property
    def names(self) -> RetryTopics:
        """All names of this (topic, group); the policy is not known and not needed."""
        return RetryTopics(self.topic, self.group, RetryPolicy(()))


def retry_owners(topics: Collection[str], groups: Collection[str]) -> list[RetryOwner]:
    """The owners of all retry topics among these, by topic and group.

    Args:
        topics: the names of all topics.
        groups: the ids of all groups.

    Returns:
        One owner for each (topic, group) that has retry topics.
    """
    ours = retry_topics_among(topics)
    sources = [name for name in topics if name not in ours]
    by_stem: dict[str, list[str]] = {}
    for name in sorted(ours):
        match = _SUFFIX.search(name)
        if match is not None:
            by_stem.setdefault(name[: match.start()], []).append(name)
    owners = [_owner(stem, names, sources, groups) for stem, names in by_stem.items()]
    return sorted(owners, key=lambda owner: (owner.topic, owner.group))


def _owner(
    stem: str, names: list[str], sources: Collection[str], groups: Collection[str]
) -> RetryOwner:
    topic, group = _split(stem, names[0], sources, groups)
    delays = {n: parse_duration_ms(m[1]) for n in names if (m := _SUFFIX.search(n)) and m[1]}
    dead = next((name for name in names if name.endswith(".dlt")), None)
    return RetryOwner(topic, group, dead, dict(sorted(delays.items(), key=lambda item: item[1])))


def _split(
    stem: str, name: str, sources: Collection[str], groups: Collection[str]
) -> tuple[str, str]:
    suffix = name[len(stem) + 1 :]
    candidates = [s for s in sources if stem.startswith(f"{s}.") or len(name) >= 249]
    for topic in sorted(candidates, key=len, reverse=True):
        for group in groups:
            if topic_name(topic, group, suffix) == name:
                return topic, group
    topic = max(candidates, key=len, default=stem.partition(".")[0])
    return topic, stem[len(topic) + 1 :] or "?"
