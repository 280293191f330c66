"""What `on_failure="hold_key"` needs of a group: a partition and its retry topics with one member.

Rules:
- Retry topics have as many partitions as their source, and partition n of all of them goes to one
  member: that is what the range assignor does for topics of one size that all members subscribe to.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from kohort.errors import ConfigError
from kohort.processing.engine.partition_state import OnFailure, Route

RANGE: Final = "range"


def holding_client(routes: Iterable[Route], client: Mapping[str, Any]) -> dict[str, Any]:
    """The consumer's configuration, with the range assignor where keys are held.

    Raises ConfigError when another assignor was asked for.
    """
    held = [route.topic for route in routes if _holds(route)]
    if not held:
        return dict(client)
    by_broker = client.get("group_protocol") == "consumer"
    name = "group_remote_assignor" if by_broker else "partition_assignment_strategy"
    value = client.get(name)
    if value is not None and value not in (RANGE, [RANGE], (RANGE,)):
        raise ConfigError(
            f'{name}={value!r}: on_failure="hold_key" of {held[0]!r} needs "range", so that a '
            "partition and its retry topics are with one member; leave it out"
        )
    return {**client, name: RANGE if by_broker else (RANGE,)}


def check_holding(routes: Iterable[Route], counts: Mapping[str, int]) -> None:
    """Raise ConfigError for retry topics that cannot be with the member that has their source."""
    for route in routes:
        if not _holds(route):
            continue
        count = counts[route.topic]
        for retry_topic in route.topics.delays_ms:
            if counts[retry_topic] != count:
                raise ConfigError(
                    f"{retry_topic} has {counts[retry_topic]} partitions and {route.topic} has "
                    f"{count}; "
                    'on_failure="hold_key" needs as many. Add partitions:\n'
                    f"  kafka-topics --alter --topic {retry_topic} --partitions {count}"
                )


def _holds(route: Route) -> bool:
    return route.on_failure is OnFailure.HOLD_KEY and bool(route.topics.policy.delays_ms)
