"""A plain consumer as remote processes are shown: its health, and nothing to command.

Rules: only the program that polls can pause or end a consumer, so a remote one answers `status`
alone. An `App` and a pipeline obey more.

Shell: threads.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol

from kohort.errors import ConfigError
from kohort.remote.agent import Agent, Look
from kohort.remote.messages import Action, Command

if TYPE_CHECKING:
    from kohort.client.consumer.health import ConsumerHealth, PartitionHealth

KIND: Final = "consumer"
LATE_MS: Final = 30_000
"""A program that polls less often is reported: its records wait for it."""


class Watchable(Protocol):
    """The part of a `Consumer` or `AsyncConsumer` that others may look at."""

    @property
    def config(self) -> Any:
        """Its configuration."""
        ...

    def health(self) -> ConsumerHealth:
        """What every partition is doing."""
        ...


@contextmanager
def publish(
    consumer: Watchable, prefix: str = "kohort", *, client: Mapping[str, Any] | None = None
) -> Generator[Agent]:
    """While inside, a consumer's health is published to the topic PREFIX.status.

        with Consumer(group_id="billing") as consumer, publish(consumer):
            ...

    Args:
        consumer: a `Consumer` or an `AsyncConsumer`; the caller closes it.
        prefix: of the topics PREFIX.status and PREFIX.commands.
        client: the settings of the clients that publish; by default how the consumer reaches its
            cluster.

    Returns:
        The agent; its `process` is the name under which the consumer is listed.

    Raises:
        ConfigError: the consumer has no `group_id` to be listed under, or a prefix that topics
            cannot have.
    """
    group = consumer.config.group_id
    if not group:
        raise ConfigError("publish() lists a consumer under its group_id; this one has none")
    way = dict(client) if client is not None else _way(consumer.config)

    def status(_: Command) -> str:
        return str(consumer.health()).partition("\n")[0]

    actions = {Action.STATUS: status}
    agent = Agent(prefix, way, KIND, group, lambda: look_at(consumer.health()), actions)
    agent.start()
    try:
        yield agent
    finally:
        agent.stop()


def _way(config: Any) -> dict[str, Any]:
    """What clients of every role share of a configuration."""
    from kohort.client.common.config import AdminConfig

    return {
        name: value
        for name in AdminConfig.field_names()
        if (value := getattr(config, name, None)) is not None
    }


def look_at(health: ConsumerHealth) -> Look:
    """A consumer at this instant; the partitions that do not move come first."""
    parts = health.partitions
    lags = [each.lag for each in parts if each.lag is not None]
    state = "paused" if parts and all(each.paused for each in parts) else "running"
    figures: dict[str, Any] = {
        "partitions": len(parts),
        "moving": sum(each.moving for each in parts),
        "lag": sum(lags) if len(lags) == len(parts) else None,
        "polled_ms": health.polled_ms,
        "buffered_bytes": health.buffered_bytes,
        "group": health.group or None,
        "last_rebalance": health.last_rebalance or None,
    }
    late = f"poll() was called last {health.polled_ms / 1000:.0f} s ago"
    troubles = [late] * (health.polled_ms > LATE_MS) + list(health.concerns)
    ordered = sorted(parts, key=lambda each: (each.moving, -(each.lag or 0)))
    return Look(state, figures, [_row(each) for each in ordered], troubles)


def _row(each: PartitionHealth) -> dict[str, Any]:
    return {
        "topic": each.partition.topic,
        "partition": each.partition.partition,
        "state": each.state,
        "since_ms": each.since_ms,
        "lag": each.lag,
        "position": each.position,
        "why": each.why or None,
    }
