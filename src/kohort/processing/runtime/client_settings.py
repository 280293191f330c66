"""The client settings of an app: how its consumer, producers and administrator reach the cluster.

Rules:
- The settings are a consumer's. Those that the app decides itself (its group, its commits) are
  refused; so is an unknown key, before anything is connected.
- Producers and the administrator take of it what leads to the cluster: addresses, security, names.
- A group without a committed offset starts at the earliest record, unless it is given otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from kohort.client.common.config import ConsumerConfig
from kohort.client.consumer.consumer import Consumer
from kohort.client.producer.producer import Producer
from kohort.errors import ConfigError
from kohort.processing.engine.partition_state import Route
from kohort.processing.runtime.exactly_once import Exactly
from kohort.processing.runtime.holding_checks import holding_client
from kohort.retry.cluster_port import ClusterPort

MAX_POLL_RECORDS: Final = 2_000
MAX_COPY_BYTES: Final = 16 << 20
MAX_BLOCK_MS: Final = 1_000
"""The longest that a publish waits for an unknown topic before other work continues."""
_OURS: Final = frozenset({"enable_auto_commit", "group_id", "bootstrap_servers"})
_SHARED: Final = ("security_", "sasl_", "ssl_", "client_id", "request_timeout", "reconnect_")


@dataclass(frozen=True)
class ClientSettings:
    """The location of the cluster, and the client settings of one app.

    Args:
        client: the consumer's configuration as checked, in snake case.
    """

    group: str
    servers: str
    exactly: Exactly
    client: Mapping[str, Any]

    @classmethod
    def of(
        cls, servers: str, group: str, exactly: Exactly, client: Mapping[str, Any]
    ) -> ClientSettings:
        """Settings with this configuration. Raises ConfigError for what can never work."""
        return cls(group, servers, exactly, exactly.checked(_checked(client, group)))

    def override(self, servers: str | None, client: Mapping[str, Any] | None) -> ClientSettings:
        """The same with other servers, and with more configuration. Raises ConfigError."""
        if client:
            return ClientSettings.of(
                servers or self.servers, self.group, self.exactly, {**self.client, **client}
            )
        return replace(self, servers=servers or self.servers)

    @property
    def shared(self) -> dict[str, Any]:
        """What every client has of the configuration."""
        shared = {key: value for key, value in self.client.items() if key.startswith(_SHARED)}
        return {**shared, "bootstrap_servers": self.servers}

    @property
    def producing(self) -> dict[str, Any]:
        """What every producer has of it."""
        return {"max_request_size": MAX_COPY_BYTES, "max_block_ms": MAX_BLOCK_MS, **self.shared}

    def port(self) -> ClusterPort:
        """The client that asks the cluster about topics."""
        return ClusterPort(self.shared, committed_only=self.exactly.kafka)

    def consumer(self, routes: Iterable[Route]) -> Consumer:
        """The client that reads for the handlers of these routes."""
        ours = {
            "max_poll_records": MAX_POLL_RECORDS,
            "auto_offset_reset": "earliest",
            **holding_client(routes, self.client),
            "bootstrap_servers": self.servers,
            "group_id": self.group,
            "enable_auto_commit": False,
        }
        return Consumer(ConsumerConfig.from_mapping(ours))

    def producer(self) -> Producer:
        """The client that writes copies and the records that handlers send."""
        return Producer(**self.producing, acks="all")


def _checked(settings: Mapping[str, Any], group: str) -> dict[str, Any]:
    known = ConsumerConfig.field_names()
    client = {key.replace(".", "_").replace("-", "_"): value for key, value in settings.items()}
    if taken := sorted(_OURS & client.keys()):
        raise ConfigError(f"client: {', '.join(taken)} is decided by the app itself; leave it out")
    whole = {key: value for key, value in client.items() if key in known}
    ConsumerConfig.from_mapping({**whole, "group_id": group})
    unknown = client.keys() - known
    if unknown:
        ConsumerConfig.from_mapping({key: client[key] for key in unknown})  # names the nearest
    return client
