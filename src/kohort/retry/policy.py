"""Which delay a failed record waits next, and what its topics are called.

Rules:
- A policy is a sequence of delays, one for each retry. `5m 5m 30m 30m 30m 1h` allows six retries
  over three retry topics: each distinct delay has one topic, so that its records fall due in the
  order in which they were appended (invariant R6). Two delays never share a topic.
- The next retry topic follows from the attempt number, not from the topic the record came from. A
  handler that asks for more time (`RetryAfter`) gets a retry topic with a longer delay; the number
  still grows by one.
- A topic's name is a function of (topic, group, delay) alone, so that two groups on one topic never
  meet, and a changed delay never meets the records of the old one.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from kohort.config import format_duration, parse_duration_ms
from kohort.errors import ConfigError

DEFAULT_RETRIES: Final = "5m 5m 30m 30m 30m 1h"
MAX_RETRIES: Final = 64
MAX_DELAY_MS: Final = 30 * 24 * 3_600_000
MAX_TOPIC_NAME_CHARS: Final = 249
REDRIVE_LABEL: Final = "0s"
"""The label of the group's own entry topic, into which the dead-letter topic is sent back."""

_ILLEGAL_IN_TOPIC = re.compile(r"[^a-zA-Z0-9._-]")
_HASH_CHARS = 12
INTERMEDIATE_TOPIC: Final = re.compile(r"kohort\..*\.intermediate")
"""The topics between the stages of pipelines, which come and go with the stages."""
_RETRY_TOPIC = re.compile(r"(.+)\.(?:retry\.\d+(?:ms|s|m|h|d)|dlt)")


@dataclass(frozen=True, slots=True)
class Step:
    """One retry: its attempt number (1 is the first retry) and how long it waits."""

    number: int
    delay_ms: int


@dataclass(frozen=True)
class RetryPolicy:
    """The delays of all retries in order; empty means that nothing is retried.

    Build one with `RetryPolicy.parse("5m 5m 30m")`. Raises ConfigError for a delay of zero or over
    30 days, and for more than 64 retries.
    """

    delays_ms: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.delays_ms) > MAX_RETRIES:
            raise ConfigError(f"{len(self.delays_ms)} retries are too many; at most {MAX_RETRIES}")
        for delay in self.delays_ms:
            if delay <= 0:
                raise ConfigError(
                    "a retry delay must be longer than zero (0s is the entry of redriven records); "
                    "to try again at once, do so inside the handler"
                )
            if delay > MAX_DELAY_MS:
                raise ConfigError(
                    f"a retry delay of {format_duration(delay)} is too long; at most "
                    f"{format_duration(MAX_DELAY_MS)}, since the copy must outlive it in its topic"
                )

    @classmethod
    def parse(cls, text: str) -> RetryPolicy:
        """A policy of delays parted by spaces or commas; `""` and `none` retry nothing."""
        if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"retries={text!r}: write the delays as a text, such as '5m 30m 1h'")
        words = text.replace(",", " ").split()
        if words == ["none"]:
            words = []
        return cls(tuple(parse_duration_ms(word) for word in words))

    @classmethod
    def default(cls) -> RetryPolicy:
        """The product's default, `5m 5m 30m 30m 30m 1h`."""
        return cls.parse(DEFAULT_RETRIES)

    def __str__(self) -> str:
        return " ".join(format_duration(d) for d in self.delays_ms) or "none"

    @property
    def retries(self) -> int:
        """How many retries a record gets before it goes to the dead-letter topic."""
        return len(self.delays_ms)

    @cached_property
    def distinct_delays_ms(self) -> tuple[int, ...]:
        """The distinct delays, in the order of their first use: one retry topic each."""
        return tuple(dict.fromkeys(self.delays_ms))

    def step(self, number: int) -> Step | None:
        """The retry with this attempt number (1 is the first), or None past the end."""
        if not 1 <= number <= self.retries:
            return None
        return Step(number, self.delays_ms[number - 1])

    def next_step(self, attempted: int, min_delay_ms: int = 0) -> Step | None:
        """Where a record goes whose attempt `attempted` (0 is the first try) failed for now.

        The attempt number grows by one, also where `min_delay_ms` (a `RetryAfter`) asks for more:
        a longer wait chooses another topic, it does not use up retries (spec 5.3). None: no retry
        is left, the dead-letter topic is next.
        """
        step = self.step(attempted + 1)
        if step is None or step.delay_ms >= min_delay_ms:
            return step
        return Step(step.number, self.delay_for(min_delay_ms))

    def delay_for(self, wait_ms: int) -> int:
        """The shortest delay that covers a wait, else the longest one; in milliseconds.

        Raises ConfigError for a policy without delays.
        """
        if not self.delays_ms:
            raise ConfigError("a policy without retries has no topic to wait in")
        return min((ms for ms in self.delays_ms if ms >= wait_ms), default=max(self.delays_ms))


@dataclass(frozen=True)
class RetryTopics:
    """The names of all retry topics of one (topic, group)."""

    topic: str
    group: str
    policy: RetryPolicy
    dead_letter_headers: tuple[str, ...] = ()
    """The makes under whose names dead letters carry their reasons, too; see `foreign_headers`."""

    def __post_init__(self) -> None:
        if not self.group:
            raise ConfigError("retries need a group: its name is part of every retry topic's name")

    def retry_topic(self, delay_ms: int) -> str:
        """`TOPIC.GROUP.retry.5m`, whether or not the policy has this delay."""
        return topic_name(self.topic, self.group, f"retry.{format_duration(delay_ms)}")

    @cached_property
    def entry(self) -> str:
        """`TOPIC.GROUP.retry.0s`: where redriven records enter, for this group alone."""
        return topic_name(self.topic, self.group, f"retry.{REDRIVE_LABEL}")

    @cached_property
    def dead_letter(self) -> str:
        """`TOPIC.GROUP.dlt`."""
        return topic_name(self.topic, self.group, "dlt")

    @cached_property
    def delays_ms(self) -> dict[str, int]:
        """Delay by topic, of the entry topic (0) and of every retry topic."""
        return {self.entry: 0, **{self.retry_topic(d): d for d in self.policy.distinct_delays_ms}}


def retry_topics_among(names: Collection[str]) -> set[str]:
    """The names that are retry topics of some group: those whose entry topic exists."""
    entries = {_owner(name) for name in names if name.endswith(f".retry.{REDRIVE_LABEL}")}
    return {name for name in names if (owner := _owner(name)) is not None and owner in entries}


def _owner(name: str) -> str | None:
    """What all retry topics of one (topic, group) have in common; None for another topic."""
    match = _RETRY_TOPIC.fullmatch(name)
    if match is None:
        return None
    return match[1][-_HASH_CHARS:] if len(name) == MAX_TOPIC_NAME_CHARS else match[1]


def topic_name(topic: str, group: str, suffix: str) -> str:
    """A legal topic name of at most 249 characters for (topic, group, suffix).

    A group may hold any character; illegal ones become `_`, and since two groups could then meet
    in one name, a hash of the group is added. A name that is too long is cut, and hashed too.
    """
    clean = _ILLEGAL_IN_TOPIC.sub("_", group)
    if clean != group:
        clean = f"{clean}-{_digest(group)}"
    name = f"{topic}.{clean}.{suffix}"
    if len(name) <= MAX_TOPIC_NAME_CHARS:
        return name
    tail = f"-{_digest(f'{topic}/{group}')}.{suffix}"
    return f"{topic}.{clean}"[: MAX_TOPIC_NAME_CHARS - len(tail)] + tail


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_HASH_CHARS]
