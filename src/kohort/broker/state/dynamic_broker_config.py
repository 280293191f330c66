"""Configurations of brokers that can be changed while they run (KIP-226).

Rules:
- A value set for one broker wins over one set for all of them, and that over the configuration the
  broker was started with. The name of all brokers is the empty one.
- Defaults of topics act at once, on every topic that sets no value of its own. Nodes of one process
  share their logs: with several of them, a value for a single node is kept and shown, and only a
  value for all takes effect.
- What Kafka can change while it runs and this broker does not have (threads, Kerberos) is kept and
  shown, because clients and tools send it; anything else is refused.
- A change is durable before it is answered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Final

from kohort.broker.base.config import BrokerConfig
from kohort.broker.log.directory import DataDirectory
from kohort.broker.log.files import disk_refusal
from kohort.broker.log.topic_config import (
    ALL_SETTINGS,
    INT64_MAX,
    Kind,
    Setting,
    TopicConfig,
    default_of,
    fault_of,
)
from kohort.errors import BrokerError, ErrorCode

ALL_BROKERS: Final = ""
DYNAMIC_BROKER, DYNAMIC_DEFAULT, STATIC, DEFAULT = 2, 3, 4, 5
"""Where a value comes from, with Kafka's numbers."""


def broker_name_of(topic_setting: str) -> str:
    """The broker's name for a configuration of topics."""
    return (ALL_SETTINGS[topic_setting].broker_field or topic_setting).replace("_", ".")


_OF_TOPICS_ALONE: Final = frozenset(
    {
        "flush.messages",
        "flush.ms",
        "follower.replication.throttled.replicas",
        "leader.replication.throttled.replicas",
        "remote.log.copy.disable",
        "remote.log.delete.on.disable",
        "remote.storage.enable",
    }
)
"""What a broker has no default for that could be changed: when it flushes is its durability."""
_DEFAULTED: Final = [name for name in ALL_SETTINGS if name not in _OF_TOPICS_ALONE]
_TOPIC_DEFAULTS: Final = {broker_name_of(name): name for name in _DEFAULTED}
_ACTING: Final[dict[str, Setting]] = {
    "log.cleaner.backoff.ms": Setting(
        Kind.LONG,
        "",
        "how often it is looked whether a compacted log is worth cleaning",
        "log_cleaner_backoff_ms",
        low=1,
    ),
    "max.connections.per.ip": Setting(
        Kind.INT,
        "",
        "the most connections from one address; those that are open stay",
        "max_connections_per_ip",
        low=1,
    ),
    "producer.id.expiration.ms": Setting(
        Kind.INT,
        "",
        "how long a partition remembers a producer that writes nothing",
        "producer_id_expiration_ms",
        low=1,
    ),
}
"""What acts while the broker runs, beside the defaults of topics."""
_UNLIMITED: Final = str(INT64_MAX)
_IDLE: Final = "kept and shown, without effect here"
_IDLE_SETTINGS: Final[dict[str, Setting]] = {
    "background.threads": Setting(Kind.INT, "10", _IDLE, low=1),
    "num.io.threads": Setting(Kind.INT, "8", _IDLE, low=1),
    "num.network.threads": Setting(Kind.INT, "3", _IDLE, low=1),
    "num.replica.fetchers": Setting(Kind.INT, "1", _IDLE, low=0),
    "num.recovery.threads.per.data.dir": Setting(Kind.INT, "2", _IDLE, low=1),
    "log.cleaner.threads": Setting(Kind.INT, "1", _IDLE, low=0),
    "log.cleaner.dedupe.buffer.size": Setting(Kind.LONG, "134217728", _IDLE, low=0),
    "log.cleaner.io.buffer.size": Setting(Kind.INT, "524288", _IDLE, low=0),
    "log.cleaner.io.buffer.load.factor": Setting(Kind.DOUBLE, "0.9", _IDLE, low=0, high=1),
    "leader.replication.throttled.rate": Setting(Kind.LONG, _UNLIMITED, _IDLE, low=0),
    "follower.replication.throttled.rate": Setting(Kind.LONG, _UNLIMITED, _IDLE, low=0),
    "replica.alter.log.dirs.io.max.bytes.per.second": Setting(Kind.LONG, _UNLIMITED, _IDLE, low=0),
    "sasl.kerberos.kinit.cmd": Setting(Kind.STRING, "/usr/bin/kinit", _IDLE),
    "sasl.kerberos.min.time.before.relogin": Setting(Kind.LONG, "60000", _IDLE, low=0),
    "sasl.kerberos.ticket.renew.jitter": Setting(Kind.DOUBLE, "0.05", _IDLE, low=0),
    "sasl.kerberos.ticket.renew.window.factor": Setting(Kind.DOUBLE, "0.8", _IDLE, low=0),
}
SETTABLE: Final[dict[str, Setting]] = {
    **{name: ALL_SETTINGS[topic_setting] for name, topic_setting in _TOPIC_DEFAULTS.items()},
    **_ACTING,
    **_IDLE_SETTINGS,
}
"""What can be set, by the broker's name for it."""


class BrokerConfigs:
    """What was set for brokers while they ran. `changed` is called when a default of topics may
    have changed.
    """

    def __init__(self, config: BrokerConfig, directory: DataDirectory) -> None:
        self._config, self._directory = config, directory
        self.changed: Callable[[], None] = lambda: None

    def own(self, broker: str) -> Mapping[str, str]:
        """What was set for one broker, or for all of them."""
        return self._directory.registry.brokers.get(broker, {})

    def chain(self, broker: str, name: str) -> list[tuple[str, int]]:
        """The values of a settable configuration, with their sources; what holds comes first."""
        values: list[tuple[str, int]] = []
        if broker and name in self.own(broker):
            values.append((self.own(broker)[name], DYNAMIC_BROKER))
        if name in self.own(ALL_BROKERS):
            values.append((self.own(ALL_BROKERS)[name], DYNAMIC_DEFAULT))
        topic_setting = _TOPIC_DEFAULTS.get(name)
        if name in _ACTING:
            field = _ACTING[name].broker_field or name
            value = getattr(self._config, field)
            is_default = value == getattr(_defaults(), field)
            return [*values, (str(value), DEFAULT if is_default else STATIC)]
        if topic_setting is None:
            return [*values, (_IDLE_SETTINGS[name].default, DEFAULT)]
        started_with = default_of(self._config, topic_setting)
        is_default = started_with == default_of(_defaults(), topic_setting)
        return [*values, (started_with, DEFAULT if is_default else STATIC)]

    def acting(self, name: str, node_id: int | None = None) -> int:
        """The number that holds for a node, or (None) for what all nodes share."""
        broker = self._acting_broker() if node_id is None else str(node_id)
        return int(self.chain(broker, name)[0][0])

    def topic_chain(self, topic_setting: str) -> list[tuple[str, int]]:
        """What was set while the broker ran for topics that set no value of their own, and where
        it is from.
        """
        if topic_setting not in _DEFAULTED:
            return []
        chain = self.chain(self._acting_broker(), broker_name_of(topic_setting))
        return chain[:-1]

    def topic_default(self, topic_setting: str) -> str:
        """The value that holds for topics that set none of their own."""
        if topic_setting not in _DEFAULTED:
            return default_of(self._config, topic_setting)
        chain = self.chain(self._acting_broker(), broker_name_of(topic_setting))
        return chain[0][0]

    def topic_config(self, own: Mapping[str, str]) -> TopicConfig:
        """What holds for a topic with these values of its own. Raises ConfigError."""
        set_here = {**self.own(ALL_BROKERS), **self.own(self._acting_broker())}
        defaults = {
            _TOPIC_DEFAULTS[name]: value
            for name, value in set_here.items()
            if name in _TOPIC_DEFAULTS
        }
        return TopicConfig.of(self._config, {**defaults, **own})

    def _acting_broker(self) -> str:
        """The broker whose own values act on topics: the only one."""
        return str(self._config.node_id) if self._config.nodes == 1 else ALL_BROKERS

    def configure(
        self, broker: str, values: Mapping[str, str], *, validate_only: bool = False
    ) -> None:
        """Replace what was set for a broker. Raises BrokerError and then changes nothing."""
        if broker and broker not in map(str, self._config.node_ids()):
            raise BrokerError(ErrorCode.INVALID_REQUEST, f"there is no broker {broker!r}")
        for name, value in values.items():
            if name not in SETTABLE:
                raise BrokerError(
                    ErrorCode.INVALID_REQUEST, f"{name} cannot be changed while the broker runs"
                )
            fault = fault_of(SETTABLE[name], value)
            if fault:
                raise BrokerError(
                    ErrorCode.INVALID_REQUEST,
                    f"Invalid value {value} for configuration {name}: {fault}",
                )
        if validate_only:
            return
        registry = self._directory.registry
        before = registry.brokers
        registry.brokers = {k: v for k, v in before.items() if k != broker}
        if values:
            registry.brokers[broker] = dict(values)
        try:
            self._directory.save()
        except OSError as error:
            registry.brokers = before
            raise disk_refusal(error) from error
        self.changed()


@cache
def _defaults() -> BrokerConfig:
    return BrokerConfig(durability="memory")
