"""The promises of an `App`: at least once, exactly once into Kafka, exactly once into a store.

Rules:
- One word of configuration chooses, and everything that follows from it is decided here: what is
  read, how often it is committed, what handlers return, and who puts a batch through.

Shell: randomness (a transactional id).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kohort.client.common.completion import wall_ms
from kohort.client.consumer.consumer import Consumer
from kohort.client.producer.producer import Producer
from kohort.errors import ConfigError
from kohort.processing.engine.engine import Engine
from kohort.processing.engine.exactly_once_engine import ExactEngine
from kohort.processing.engine.partition_state import Route
from kohort.processing.engine.state import Limits
from kohort.processing.runtime.exactly_once_runner import ExactRunner
from kohort.processing.runtime.kafka_transactor import KafkaTransactor
from kohort.processing.runtime.runner import Runner, Timing
from kohort.processing.runtime.store_transactor import StoreTransactor
from kohort.processing.runtime.transactor import Transactor
from kohort.processing.workers.handlers import Kind
from kohort.processing.workers.worker_pools import Pool
from kohort.retry.cluster_port import ClusterPort
from kohort.retry.handling import HandlerSpec as RowSpec
from kohort.retry.stores import open_store

KAFKA: Final = "kafka"
TRANSACTION_TIMEOUT_MS: Final = 15_000
"""The longest that the records of a killed process delay readers of committed records."""


@dataclass(frozen=True)
class Exactly:
    """What `exactly_once` says. Both None and False: at least once."""

    kafka: bool = False
    store_url: str | None = None

    @classmethod
    def parse(cls, text: str | None) -> Exactly:
        """None, "kafka", or the URL of a store. Raises ConfigError for anything else."""
        if text is None:
            return cls()
        if text == KAFKA:
            return cls(kafka=True)
        if not isinstance(text, str) or "://" not in text:  # pyright: ignore
            raise ConfigError(
                f'exactly_once={text!r}: write "kafka", "sqlite:///FILE.db" or '
                '"postgresql://USER@HOST/DATABASE"'
            )
        return cls(store_url=open_store(text).url)

    @property
    def interval(self) -> str:
        """How often finished work is committed by default."""
        return "100ms" if self.kafka or self.store_url else "1s"

    def checked(self, client: dict[str, Any]) -> dict[str, Any]:
        """The consumer's configuration. Raises ConfigError for one that breaks the promise.

        What was aborted never happened, and a redrive that died has aborted what it had sent: it
        is not handled, unless `isolation_level` says so.
        """
        if not self.kafka:
            return {"isolation_level": "read_committed", **client}
        if client.get("isolation_level", "read_committed") != "read_committed":
            raise ConfigError(
                'exactly_once="kafka" reads committed records only; leave isolation_level out'
            )
        return {**client, "isolation_level": "read_committed"}

    def rows(
        self,
        topic: str,
        kind: Kind,
        function: Callable[..., Any],
        table: str | None,
        key: tuple[str, ...],
        origin: tuple[str, str] | None,
    ) -> RowSpec | None:
        """How what a handler returns becomes rows; None without a store."""
        if self.store_url is None:
            if table or key or origin:
                raise ConfigError(
                    f"the handler of {topic!r} names a table, but the app has no store; "
                    'App(..., exactly_once="sqlite:///FILE.db")'
                )
            return None
        if kind is Kind.ARROW:
            raise ConfigError(
                f"the handler of {topic!r}: with a store use batch=True, and batch.load(i, row)"
            )
        return RowSpec(topic, function, kind is Kind.BATCH, table, key, origin)

    def runner(
        self,
        routes: Iterable[Route],
        limits: Limits,
        consumer: Consumer,
        pools: Sequence[Pool],
        timing: Timing,
        topic_ids: Mapping[str, str],
        **engine: Any,
    ) -> Runner:
        """The shell for this promise; `engine` goes to its engine."""
        if not (self.kafka or self.store_url):
            return Runner(Engine(routes, limits, **engine), consumer, pools, timing, topic_ids)
        judged = self.store_url is not None
        exact = ExactEngine(routes, limits, judged=judged, **engine)
        return ExactRunner(exact, consumer, pools, timing, topic_ids)

    def transactor(
        self,
        group: str,
        client: Mapping[str, Any],
        port: ClusterPort,
        producer: Producer,
        counts: Mapping[str, int],
        topic_ids: Mapping[str, str],
        instance_id: str | None,
    ) -> Transactor:
        """Who puts batches through. `client` is what producers take of the configuration."""

        def partitions(topic: str) -> int:
            return counts[topic]

        if self.store_url is not None:
            store = open_store(self.store_url)
            return StoreTransactor(group, store, producer, partitions, topic_ids, wall_ms)
        name = f"{group}-{instance_id or uuid.uuid4().hex}"

        def connect() -> Producer:
            return Producer(
                {
                    "transaction_timeout_ms": TRANSACTION_TIMEOUT_MS,
                    **client,
                    "transactional_id": name,
                    "acks": "all",
                }
            )

        return KafkaTransactor(connect, partitions, lambda keys: port.commits(group, keys))
