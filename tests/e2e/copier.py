"""Copies records from `in` to `out` exactly once: `python -m tests.e2e.copier MAKE SERVERS NAME`.

Consume, transform, produce, and commit the offsets, in one transaction a poll, until standard input
ends. It may be killed at any moment; a new one of its name goes on.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from typing import Any

from tests.e2e.makes import CONFLUENT, KOHORT
from tests.patience import PATIENCE_S

WAIT_S, STUCK_S = PATIENCE_S, 10


def by_kohort(servers: str, name: str, stopping: threading.Event) -> None:
    """Our own clients."""
    from kohort import Consumer, Producer
    from kohort.errors import AbortableTransactionError

    settings = {
        "bootstrap_servers": servers,
        "group_id": "copy",
        "group_instance_id": name,
        "enable_auto_commit": False,
        "auto_offset_reset": "earliest",
        "max_poll_records": 20,
        "isolation_level": "read_committed",
        "heartbeat_interval_ms": 300,
        "session_timeout_ms": 3_000,
    }
    producer = Producer(bootstrap_servers=servers, transactional_id=name)
    producer.init_transactions(WAIT_S)
    consumer = Consumer(**settings)
    consumer.subscribe(["in"])
    while not stopping.is_set():
        records = consumer.poll(0.3)
        if not records:
            continue
        try:
            with producer.transaction():
                for record in records:
                    producer.send("out", record.value, record.key)
                producer.send_offsets_to_transaction(
                    consumer.positions(), consumer.group_metadata()
                )
        except AbortableTransactionError:
            mine = list(consumer.assignment())
            for tp, committed in consumer.committed(mine).items():
                consumer.seek(tp, 0 if committed is None else committed.offset)
    consumer.close()
    producer.close()


def by_confluent(servers: str, name: str, stopping: threading.Event) -> None:
    """librdkafka's."""
    from confluent_kafka import Consumer, KafkaException, Producer

    producer = Producer(
        {"bootstrap.servers": servers, "transactional.id": name, "log_level": 0, "linger.ms": 1}
    )
    producer.init_transactions(WAIT_S)
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "copy",
            "group.instance.id": name,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "log_level": 0,
            "isolation.level": "read_committed",
            "heartbeat.interval.ms": 300,
            "session.timeout.ms": 3_000,
        }
    )
    consumer.subscribe(["in"])
    while not stopping.is_set():
        messages = [m for m in consumer.consume(20, 0.3) if m.error() is None]
        if not messages:
            continue
        # librdkafka 2.16 may ask nobody any more: see docs/compatibility.md.
        stuck = threading.Timer(STUCK_S, os._exit, (3,))
        stuck.start()
        try:
            producer.begin_transaction()
            for message in messages:
                producer.produce("out", message.value(), message.key())
            offsets = consumer.position(consumer.assignment())
            offsets = [o for o in offsets if o.offset >= 0]
            who = consumer.consumer_group_metadata()
            retried(producer.send_offsets_to_transaction, offsets, who, WAIT_S)
            retried(producer.commit_transaction, WAIT_S)
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            retried(producer.abort_transaction, WAIT_S)
            for tp in consumer.committed(consumer.assignment(), WAIT_S):
                tp.offset = max(tp.offset, 0)
                consumer.seek(tp)
        finally:
            stuck.cancel()
    consumer.close()


def retried(call: Callable[..., Any], *args: Any) -> None:
    """What librdkafka says may be called again, is."""
    from confluent_kafka import KafkaException

    while True:
        try:
            call(*args)
        except KafkaException as error:
            if not error.args[0].retriable():
                raise
        else:
            return


def main() -> None:
    make, servers, name = sys.argv[1:]
    stopping = threading.Event()

    def await_end() -> None:
        sys.stdin.read()
        stopping.set()

    threading.Thread(target=await_end, daemon=True).start()
    {KOHORT: by_kohort, CONFLUENT: by_confluent}[make](servers, name, stopping)


if __name__ == "__main__":
    main()
