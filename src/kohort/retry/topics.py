"""The retry topics of one group: their required properties, and how to repair them.

Rules (A2):
- Created with the broker's append time, deletion (never compaction, which merges failures by key),
  a retention that outlives the delay, the source's partition count and 64 KiB more a message.
- The source topic is never touched.
- At each start the configurations are verified; a wrong one is an error that prints the commands
  which mend it. Without the right to create topics, the same commands are printed.
- A retry topic whose delay the policy no longer has is not read: records still in it are reported.
"""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kohort.config import format_duration, parse_duration_ms
from kohort.errors import ConfigError
from kohort.retry.policy import RetryTopics

WEEK_MS: Final = 7 * 24 * 3_600_000
RETENTION_DELAYS: Final = 24
ROOM_FOR_HEADERS_BYTES: Final = 64 * 1024
DEFAULT_MAX_MESSAGE_BYTES: Final = 1_048_588
MOST_MESSAGE_BYTES: Final = 2**31 - 1
MAX_MESSAGE_BYTES: Final = "max.message.bytes"
MAX_PARTITIONS: Final = 64
_RETRY_TOPIC: Final = ".retry."


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """One retry topic as it must be."""

    name: str
    partitions: int
    replication_factor: int
    configs: Mapping[str, str]
    delay_ms: int | None
    """None for the dead-letter topic."""

    def command(self, bootstrap: str) -> str:
        """The `kafka-topics` line that creates it."""
        words = [
            "kafka-topics",
            "--bootstrap-server",
            bootstrap,
            "--create",
            "--topic",
            self.name,
            "--partitions",
            str(self.partitions),
        ]
        if self.replication_factor > 0:
            words += ["--replication-factor", str(self.replication_factor)]
        for key, value in self.configs.items():
            words += ["--config", f"{key}={value}"]
        return shlex.join(words)


@dataclass(frozen=True, slots=True)
class Existing:
    """A topic as it is: its partition count, and the configurations that were described."""

    partitions: int
    configs: Mapping[str, str | None]


def plan_topics(
    topics: RetryTopics,
    *,
    partitions: int,
    replication_factor: int = -1,
    source_max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
    min_insync: str | None = None,
) -> list[TopicSpec]:
    """All retry topics of one (topic, group): entry, delays, dead letters.

    Raises ConfigError when two of them, or one of them and the source, share a name.
    """
    count = max(1, min(partitions, MAX_PARTITIONS))
    common = {
        "message.timestamp.type": "LogAppendTime",
        "cleanup.policy": "delete",
        MAX_MESSAGE_BYTES: str(source_max_message_bytes + ROOM_FOR_HEADERS_BYTES),
    }
    if min_insync is not None:
        common["min.insync.replicas"] = min_insync
    specs = [
        TopicSpec(
            name,
            count,
            replication_factor,
            {**common, "retention.ms": str(max(WEEK_MS, RETENTION_DELAYS * delay))},
            delay,
        )
        for name, delay in topics.delays_ms.items()
    ]
    kept = {**common, "retention.ms": "-1"}
    specs.append(TopicSpec(topics.dead_letter, count, replication_factor, kept, None))
    _refuse_shared_names(topics, specs)
    return specs


def room_for_rows(largest_message_bytes: int) -> int:
    """The largest batch of a topic that has the rows of records: as JSON, bytes are a third longer,
    and a row has the names of its columns."""
    return min(2 * largest_message_bytes + ROOM_FOR_HEADERS_BYTES, MOST_MESSAGE_BYTES)


def most_bytes(described: Mapping[str, Mapping[str, str | None]]) -> dict[str, int]:
    """The largest batch that each topic takes, of those whose configurations say so."""
    sizes = {name: configs.get(MAX_MESSAGE_BYTES) for name, configs in described.items()}
    return {name: int(size) for name, size in sizes.items() if size is not None}


@dataclass(frozen=True, slots=True)
class TopicState:
    """What is to be done about one retry topic; nothing when `wrong` is empty.

    Args:
        wrong: "it does not exist", which configurations are unfit, or what waits there unread.
        command: the line of Kafka's own tools that mends it, if there is one.
    """

    spec: TopicSpec
    exists: bool
    wrong: str = ""
    command: str = ""


def look_at_topics(
    specs: Sequence[TopicSpec], existing: Mapping[str, Existing], *, bootstrap: str
) -> list[TopicState]:
    """The state of every retry topic.

    A larger partition count is fit. Only what the gate and the ledger rest on is insisted upon:
    append time, deletion, and a retention longer than the delay.
    """
    states: list[TopicState] = []
    for spec in specs:
        topic = existing.get(spec.name)
        if topic is None:
            made_by = spec.command(bootstrap)
            states.append(TopicState(spec, False, "it does not exist", made_by))
            continue
        wrong = _wrong_configs(spec, topic)
        if not wrong:
            states.append(TopicState(spec, True))
            continue
        alter = shlex.join(
            [
                "kafka-configs",
                "--bootstrap-server",
                bootstrap,
                "--alter",
                "--entity-type",
                "topics",
                "--entity-name",
                spec.name,
                "--add-config",
                ",".join(f"{key}={spec.configs[key]}" for key, _ in wrong),
            ]
        )
        problem = "; ".join(f"{key} is {value!r}" for key, value in wrong)
        states.append(TopicState(spec, True, problem, alter))
    return states


def other_retry_topics(topics: RetryTopics, names: Iterable[str]) -> dict[str, int]:
    """Retry topics of (topic, group) whose delays the policy does not name (any more), by delay."""
    others: dict[str, int] = {}
    for name in names:
        with contextlib.suppress(ConfigError):  # another topic, whose name only looks like one
            delay_ms = parse_duration_ms(name.rpartition(_RETRY_TOPIC)[2])
            if name not in topics.delays_ms and name == topics.retry_topic(delay_ms):
                others[name] = delay_ms
    return others


def left_behind(
    topics: RetryTopics, name: str, delay_ms: int, partitions: int, waiting: int
) -> TopicState:
    """The state of a retry topic whose records have no reader (spec 5.4: nor forgotten)."""
    delay = format_duration(delay_ms)
    return TopicState(
        TopicSpec(name, partitions, -1, {}, delay_ms),
        True,
        f"about {waiting:,} record{'s' * (waiting != 1)} of {topics.topic!r} wait in it, and "
        f"retries={str(topics.policy)!r} does not read it: run a program whose retries name "
        f"{delay}, too, until it is empty",
    )


def check_topics(
    specs: list[TopicSpec], existing: Mapping[str, Existing], *, bootstrap: str
) -> list[TopicSpec]:
    """The specs that do not exist yet. Raises ConfigError for one that exists and is unfit."""
    states = look_at_topics(specs, existing, bootstrap=bootstrap)
    for state in states:
        if state.exists and state.wrong:
            raise ConfigError(
                f"retry topic {state.spec.name} exists with unfit configuration ({state.wrong}). "
                f"Mend it with:\n  {state.command}"
            )
    return [state.spec for state in states if not state.exists]


def creation_refused(specs: list[TopicSpec], *, bootstrap: str, reason: str) -> ConfigError:
    """The error for a user who may not create topics: every command to run, ready to copy."""
    lines = "\n".join(f"  {spec.command(bootstrap)}" for spec in specs)
    return ConfigError(f"the retry topics could not be created ({reason}). Create them:\n{lines}")


def _wrong_configs(spec: TopicSpec, topic: Existing) -> list[tuple[str, str | None]]:
    wrong: list[tuple[str, str | None]] = []
    for key in ("message.timestamp.type", "cleanup.policy"):
        value = topic.configs.get(key)
        if key in topic.configs and value != spec.configs[key]:
            wrong.append((key, value))
    retention = topic.configs.get("retention.ms")
    if retention is not None and spec.delay_ms is not None:
        kept_ms = int(retention)
        if kept_ms >= 0 and kept_ms <= spec.delay_ms:
            wrong.append(("retention.ms", f"{format_duration(kept_ms)}, not over the delay"))
    return wrong


def _refuse_shared_names(topics: RetryTopics, specs: list[TopicSpec]) -> None:
    owner: dict[str, str] = {topics.topic: "the source topic"}
    for spec in specs:
        what = "the dead-letter topic" if spec.delay_ms is None else format_duration(spec.delay_ms)
        if spec.name in owner:
            raise ConfigError(
                f"{spec.name} would be both {owner[spec.name]} and {what}; give the group or the "
                f"topic another name"
            )
        owner[spec.name] = what
