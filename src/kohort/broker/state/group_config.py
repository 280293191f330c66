"""Configurations of single groups (resource type GROUP of the configuration APIs, KIP-848).

Rules:
- A group may be configured before it exists, and keeps its configuration when it is deleted.
- Values must lie within what the broker's own configuration allows; a change is durable before it
  is answered, and holds from each member's next heartbeat.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from kohort.broker.base.config import BrokerConfig
from kohort.broker.log.directory import DataDirectory
from kohort.broker.log.files import disk_refusal
from kohort.errors import BrokerError, ErrorCode
from kohort.group.coordinator.state.config import GroupTimeouts
from kohort.setting_keys import nearest

FIELDS: Final = {
    "consumer.session.timeout.ms": "session_timeout",
    "consumer.heartbeat.interval.ms": "heartbeat_interval",
}
"""Kafka's names, and the middle of the broker's fields that they override."""
GROUPS_MAX: Final = 10_000
"""Groups that may have a configuration of their own."""
_DIGITS_MAX: Final = 10
"""Of a 32-bit number."""


class GroupConfigs:
    """The groups that have a configuration of their own. `changed` is called when that changes."""

    def __init__(self, config: BrokerConfig, directory: DataDirectory) -> None:
        self._config, self._directory = config, directory
        self.changed: Callable[[], None] = lambda: None

    def own(self, group_id: str) -> Mapping[str, str]:
        """What was set for one group."""
        return self._directory.registry.groups.get(group_id, {})

    def groups(self) -> list[str]:
        """The groups for which something was set."""
        return list(self._directory.registry.groups)

    def default_of(self, name: str) -> str:
        """The broker's value, which holds where a group sets none."""
        return str(getattr(self._config, f"group_consumer_{FIELDS[name]}_ms"))

    def timeouts(self) -> dict[str, GroupTimeouts]:
        """The coordinator's configuration, by group."""
        return {g: self._timeouts(own) for g, own in self._directory.registry.groups.items()}

    def _timeouts(self, own: Mapping[str, str]) -> GroupTimeouts:
        return GroupTimeouts(*(int(own.get(name) or self.default_of(name)) for name in FIELDS))

    def configure(
        self, group_id: str, values: Mapping[str, str], *, validate_only: bool = False
    ) -> None:
        """Replace a group's configuration. Raises BrokerError and then changes nothing."""
        if not group_id:
            raise BrokerError(ErrorCode.INVALID_REQUEST, "a group's name must not be empty")
        self._check(values)
        groups = self._directory.registry.groups
        if group_id not in groups and len(groups) >= GROUPS_MAX:
            raise BrokerError(
                ErrorCode.POLICY_VIOLATION, f"{GROUPS_MAX} groups have configurations, the maximum"
            )
        if validate_only:
            return
        before = dict(groups)
        groups.pop(group_id, None)
        if values:
            groups[group_id] = dict(values)
        try:
            self._directory.save()
        except OSError as error:
            self._directory.registry.groups = before
            raise disk_refusal(error) from error
        self.changed()

    def _check(self, values: Mapping[str, str]) -> None:
        for name, value in values.items():
            if name not in FIELDS:
                near = nearest(name, FIELDS)
                hint = f"; did you mean {near!r}?" if near else ""
                raise BrokerError(
                    ErrorCode.INVALID_CONFIG, f"Unknown group config name: {name}{hint}"
                )
            low, high = (
                getattr(self._config, f"group_consumer_{which}_{FIELDS[name]}_ms")
                for which in ("min", "max")
            )
            if not (_is_number(value) and low <= int(value) <= high):
                raise BrokerError(
                    ErrorCode.INVALID_CONFIG,
                    f"Invalid value {value} for configuration {name}: from {low} to {high}",
                )
        session_ms, interval_ms = self._timeouts(values)
        if interval_ms >= session_ms:
            raise BrokerError(
                ErrorCode.INVALID_CONFIG,
                f"consumer.heartbeat.interval.ms={interval_ms} must be less than "
                f"consumer.session.timeout.ms={session_ms}",
            )


def _is_number(value: str) -> bool:
    """Whether it is a number, of so few digits that Python reads it."""
    return value.isascii() and value.isdigit() and len(value) <= _DIGITS_MAX
