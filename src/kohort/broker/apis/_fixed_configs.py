"""What a broker's configuration shows beside its own settings: Kafka's names for what is so here.

Clients and tools look at them; none can be changed while the broker runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from kohort.broker.base.config import Durability
from kohort.broker.log.topic_config import INT64_MAX, Kind

if TYPE_CHECKING:
    from kohort.broker.coordinator.node_services import NodeServices

_HOUR_MS: Final = 3_600_000


class Fixed(NamedTuple):
    """One entry. `is_set`: it follows from what the broker was started with."""

    name: str
    kind: Kind
    value: str | None
    is_set: bool


def fixed_configs(node: NodeServices) -> list[Fixed]:
    """Those of one node."""
    config, configs = node.config, node.broker_configs
    protocol, nodes = config.security_protocol, str(config.nodes)
    directory = config.data_dir or "memory"
    every_message = Durability(config.durability) is Durability.FSYNC
    retention_ms = int(configs.topic_default("retention.ms"))
    roll_ms = int(configs.topic_default("segment.ms"))
    values = (
        ("advertised.listeners", Kind.LIST, f"{protocol}://{node.host}:{node.port}"),
        ("authorizer.class.name", Kind.STRING, "kohort.Authorizer" if config.acls else ""),
        ("broker.id", Kind.INT, str(node.node_id)),
        ("default.replication.factor", Kind.INT, nodes),
        ("inter.broker.listener.name", Kind.STRING, protocol),
        ("listener.security.protocol.map", Kind.STRING, f"{protocol}:{protocol}"),
        ("listeners", Kind.LIST, f"{protocol}://{config.host}:{node.port}"),
        ("log.dir", Kind.STRING, directory),
        ("log.dirs", Kind.LIST, directory),
        ("log.flush.interval.messages", Kind.LONG, "1" if every_message else str(INT64_MAX)),
        ("log.retention.hours", Kind.INT, str(max(-1, retention_ms // _HOUR_MS))),
        ("log.roll.hours", Kind.INT, str(roll_ms // _HOUR_MS)),
        ("offsets.topic.replication.factor", Kind.INT, nodes),
        ("process.roles", Kind.LIST, "broker,controller"),
        ("security.inter.broker.protocol", Kind.STRING, protocol),
        ("transaction.state.log.replication.factor", Kind.INT, nodes),
    )
    always = (
        ("auto.leader.rebalance.enable", Kind.BOOLEAN, "false"),
        ("delete.topic.enable", Kind.BOOLEAN, "true"),
        ("group.coordinator.rebalance.protocols", Kind.LIST, "classic,consumer"),
        ("log.cleaner.enable", Kind.BOOLEAN, "true"),
        ("log.flush.interval.ms", Kind.LONG, None),
        ("log.flush.scheduler.interval.ms", Kind.LONG, str(INT64_MAX)),
        ("log.retention.minutes", Kind.INT, None),
        ("remote.log.storage.system.enable", Kind.BOOLEAN, "false"),
        ("transaction.state.log.min.isr", Kind.INT, "1"),
        ("transaction.two.phase.commit.enable", Kind.BOOLEAN, "false"),
    )
    return [
        *(Fixed(*each, True) for each in values),
        *(Fixed(*each, False) for each in always),
    ]
