"""The embedded broker: Kafka's protocol over a durable log, in your process or in one of its own.

`log` < `base` < `security` < `state` < `authorization` < `fast_path` < `coordinator` < `apis` <
`node` < `faults` < `server` < `control`; each imports only folders to its left.
"""

from kohort.broker.base.config import BrokerConfig, Durability
from kohort.broker.server.server import Broker, serve

__all__ = ["Broker", "BrokerConfig", "Durability", "serve"]
