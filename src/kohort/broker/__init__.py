"""The embedded broker: Kafka's protocol over a durable log, in this process or its own."""

from kohort.broker.config import BrokerConfig, Durability
from kohort.broker.server import Broker, serve

__all__ = ["Broker", "BrokerConfig", "Durability", "serve"]
