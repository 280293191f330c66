"""Kohort: Kafka consumer groups for Python and Spark.

Names are loaded when they are first used, so that `import kohort` costs nothing.

The folders; each one imports only those before it (`tests/test_layers.py`):

- `wire`, `records`, `net`, `sasl`, `metrics`: Kafka's protocol, record batches, sockets, logins;
- `group`, `transactions`: members, assignors and coordinators as state machines without I/O;
- `client`: consumer, producer, admin client; `serdes`: formats and schema registries;
- `broker`: the embedded broker; `simulator`: deterministic simulation of groups and systems;
- `retry`: retry topics, dead letters, ledger, fence; `remote`: status and commands over topics;
- `processing`: `App`; `observe`, `sampling`: analysis of a cluster, and the requests for it;
- `spark`: the source, the sink and `Pipeline`; `testing`: harnesses for users' tests;
- `cli` and `console`: both show the results of `observe`.
"""

from __future__ import annotations

TYPE_CHECKING = False  # type checkers go by the name; `typing` would be all that this import costs

if TYPE_CHECKING:
    from typing import Any

    from kohort.client.admin.admin import Admin as Admin
    from kohort.client.admin.async_admin import AsyncAdmin as AsyncAdmin
    from kohort.client.admin.types import NewTopic as NewTopic
    from kohort.client.common.config import AdminConfig as AdminConfig
    from kohort.client.common.config import ConsumerConfig as ConsumerConfig
    from kohort.client.common.config import ProducerConfig as ProducerConfig
    from kohort.client.common.listener import RebalanceListener as RebalanceListener
    from kohort.client.common.types import OffsetAndMetadata as OffsetAndMetadata
    from kohort.client.common.types import OffsetAndTimestamp as OffsetAndTimestamp
    from kohort.client.common.types import RecordMetadata as RecordMetadata
    from kohort.client.common.types import TopicPartition as TopicPartition
    from kohort.client.consumer.async_consumer import AsyncConsumer as AsyncConsumer
    from kohort.client.consumer.consumer import Consumer as Consumer
    from kohort.client.consumer.plan.subscription import SubscriptionPattern as SubscriptionPattern
    from kohort.client.producer.producer import AsyncProducer as AsyncProducer
    from kohort.client.producer.producer import Producer as Producer
    from kohort.group.assignors import Assignor as Assignor
    from kohort.group.assignors import AssignorError as AssignorError
    from kohort.group.assignors import GroupView as GroupView
    from kohort.group.assignors import MemberView as MemberView
    from kohort.group.assignors import Plan as Plan
    from kohort.group.assignors import TopicView as TopicView
    from kohort.processing.app import App as App
    from kohort.processing.engine.circuit_breaker import CircuitConfig as CircuitConfig
    from kohort.records import Record as Record
    from kohort.retry.classify import Permanent as Permanent
    from kohort.retry.classify import RetryAfter as RetryAfter
    from kohort.retry.classify import Temporary as Temporary
    from kohort.retry.sql_statements import Execute as Execute
    from kohort.retry.sql_statements import Insert as Insert
    from kohort.retry.sql_statements import Upsert as Upsert

__version__ = "0.1.0"

_HOMES = {
    "Admin": "kohort.client.admin.admin",
    "AdminConfig": "kohort.client.common.config",
    "App": "kohort.processing.app",
    "Assignor": "kohort.group.assignors",
    "AssignorError": "kohort.group.assignors",
    "AsyncAdmin": "kohort.client.admin.async_admin",
    "AsyncConsumer": "kohort.client.consumer.async_consumer",
    "AsyncProducer": "kohort.client.producer.producer",
    "CircuitConfig": "kohort.processing.engine.circuit_breaker",
    "Consumer": "kohort.client.consumer.consumer",
    "ConsumerConfig": "kohort.client.common.config",
    "Execute": "kohort.retry.sql_statements",
    "GroupView": "kohort.group.assignors",
    "Insert": "kohort.retry.sql_statements",
    "MemberView": "kohort.group.assignors",
    "NewTopic": "kohort.client.admin.types",
    "OffsetAndMetadata": "kohort.client.common.types",
    "OffsetAndTimestamp": "kohort.client.common.types",
    "Permanent": "kohort.retry.classify",
    "Plan": "kohort.group.assignors",
    "Producer": "kohort.client.producer.producer",
    "ProducerConfig": "kohort.client.common.config",
    "RebalanceListener": "kohort.client.common.listener",
    "Record": "kohort.records",
    "RecordMetadata": "kohort.client.common.types",
    "RetryAfter": "kohort.retry.classify",
    "Temporary": "kohort.retry.classify",
    "SubscriptionPattern": "kohort.client.consumer.plan.subscription",
    "TopicPartition": "kohort.client.common.types",
    "TopicView": "kohort.group.assignors",
    "Upsert": "kohort.retry.sql_statements",
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
