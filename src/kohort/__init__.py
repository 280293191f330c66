"""Kohort: Kafka consumer groups for Python and Spark.

Names are loaded when they are first used, so that `import kohort` costs nothing.
"""

from __future__ import annotations

TYPE_CHECKING = False  # type checkers go by the name; `typing` would be all that this import costs

if TYPE_CHECKING:
    from typing import Any

    from kohort.client.admin import Admin as Admin
    from kohort.client.admin_types import NewTopic as NewTopic
    from kohort.client.async_admin import AsyncAdmin as AsyncAdmin
    from kohort.client.async_consumer import AsyncConsumer as AsyncConsumer
    from kohort.client.config import AdminConfig as AdminConfig
    from kohort.client.config import ConsumerConfig as ConsumerConfig
    from kohort.client.config import ProducerConfig as ProducerConfig
    from kohort.client.consumer import Consumer as Consumer
    from kohort.client.listener import RebalanceListener as RebalanceListener
    from kohort.client.producer import AsyncProducer as AsyncProducer
    from kohort.client.producer import Producer as Producer
    from kohort.client.subscription import SubscriptionPattern as SubscriptionPattern
    from kohort.client.types import OffsetAndMetadata as OffsetAndMetadata
    from kohort.client.types import OffsetAndTimestamp as OffsetAndTimestamp
    from kohort.client.types import RecordMetadata as RecordMetadata
    from kohort.client.types import TopicPartition as TopicPartition
    from kohort.group.assignors import Assignor as Assignor
    from kohort.group.assignors import AssignorError as AssignorError
    from kohort.group.assignors import GroupView as GroupView
    from kohort.group.assignors import MemberView as MemberView
    from kohort.group.assignors import Plan as Plan
    from kohort.group.assignors import TopicView as TopicView
    from kohort.processing.app import App as App
    from kohort.records import Record as Record
    from kohort.retry.classify import Permanent as Permanent
    from kohort.retry.classify import RetryAfter as RetryAfter
    from kohort.retry.classify import Temporary as Temporary

__version__ = "0.1.0"

_HOMES = {
    "Admin": "kohort.client.admin",
    "AdminConfig": "kohort.client.config",
    "App": "kohort.processing.app",
    "Assignor": "kohort.group.assignors",
    "AssignorError": "kohort.group.assignors",
    "AsyncAdmin": "kohort.client.async_admin",
    "AsyncConsumer": "kohort.client.async_consumer",
    "AsyncProducer": "kohort.client.producer",
    "Consumer": "kohort.client.consumer",
    "ConsumerConfig": "kohort.client.config",
    "GroupView": "kohort.group.assignors",
    "MemberView": "kohort.group.assignors",
    "NewTopic": "kohort.client.admin_types",
    "OffsetAndMetadata": "kohort.client.types",
    "OffsetAndTimestamp": "kohort.client.types",
    "Permanent": "kohort.retry.classify",
    "Plan": "kohort.group.assignors",
    "Producer": "kohort.client.producer",
    "ProducerConfig": "kohort.client.config",
    "RebalanceListener": "kohort.client.listener",
    "Record": "kohort.records",
    "RecordMetadata": "kohort.client.types",
    "RetryAfter": "kohort.retry.classify",
    "Temporary": "kohort.retry.classify",
    "SubscriptionPattern": "kohort.client.subscription",
    "TopicPartition": "kohort.client.types",
    "TopicView": "kohort.group.assignors",
}


__all__ = [*_HOMES]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'kohort' has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
