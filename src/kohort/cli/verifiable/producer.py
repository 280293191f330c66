"""`kohort verifiable-producer`: writes numbers and tells which were stored, as Java's tool does.

Rules:
- A record is reported when its outcome is known, in the order of the outcomes, and only once.
- Unlike Java's tool, which never retries, it retries as every producer of Kohort does.

Shell: the clock (pauses between records, for --throughput).
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kohort.cli.verifiable.common import Events, Stop, now_ms, one_file, settings
from kohort.errors import DeliveryFailedError, KohortError, WakeupError

if TYPE_CHECKING:
    from kohort.client.common.future import Future

EXAMPLES = """\b
Examples:
  kohort verifiable-producer --bootstrap-server localhost:9092 --topic orders --max-messages 1000
  kohort verifiable-producer --bootstrap-server localhost:9092 --topic orders --throughput 100
"""
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command("verifiable-producer", epilog=EXAMPLES)
@click.option("--bootstrap-server", required=True, metavar="HOST:PORT,...", help="The brokers.")
@click.option("--topic", required=True, help="The topic to write to.")
@click.option(
    "--max-messages",
    type=int,
    default=-1,
    show_default=True,
    help="Stop after this many; -1: never.",
)
@click.option(
    "--throughput",
    type=int,
    default=-1,
    show_default=True,
    help="The approximate rate, in records per second; -1: no limit.",
)
@click.option(
    "--acks",
    type=int,
    default=-1,
    show_default=True,
    help="Required acknowledgements: 0, 1, or -1 for all.",
)
@click.option(
    "--message-create-time",
    type=int,
    default=-1,
    show_default=True,
    metavar="MS",
    help="The first timestamp; -1: the current time.",
)
@click.option("--value-prefix", type=int, help="Values are PREFIX.NUMBER.")
@click.option("--repeating-keys", type=int, help="Keys repeat from 0 up to this number, exclusive.")
@click.option("--command-config", type=_FILE, help="A .properties or .toml file with settings.")
@click.option("--producer.config", "old_config", type=_FILE, help="The old name of that option.")
def verifiable_producer(
    bootstrap_server: str,
    topic: str,
    max_messages: int,
    throughput: int,
    acks: int,
    message_create_time: int,
    value_prefix: int | None,
    repeating_keys: int | None,
    command_config: Path | None,
    old_config: Path | None,
) -> int:
    """Produce numbers and print JSON events, like Kafka's VerifiableProducer.

    The events are those of Kafka's VerifiableProducer.
    """
    from kohort.client.producer.producer import Producer

    file = one_file(command_config, old_config)
    chosen = settings(file, {"bootstrap_servers": bootstrap_server, "acks": acks})
    stop = Stop()
    sender = _Sender(Events(), topic)
    stop.on_signal = sender.wake
    with Producer(**chosen) as producer, stop.by_signals():
        sender.events.say("startup_complete")
        began_ms = now_ms()
        number = 0
        while not stop.signal and (max_messages < 0 or number < max_messages):
            key = None if repeating_keys is None else str(number % repeating_keys)
            value = str(number) if value_prefix is None else f"{value_prefix}.{number}"
            at_ms = None
            if message_create_time >= 0:
                at_ms = message_create_time + now_ms() - began_ms
            sender.send(producer, key, value, at_ms)
            number += 1
            if throughput > 0:
                _pace(began_ms, number, throughput)
        _finish(producer)
    sender.events.say("shutdown_complete")
    elapsed_ms = max(1, now_ms() - began_ms)
    sender.events.say(
        "tool_data",
        sent=number,
        acked=sender.acked,
        target_throughput=throughput,
        avg_throughput=1000 * sender.acked / elapsed_ms,
    )
    return stop.exit_code


def _pace(began_ms: int, number: int, throughput: int) -> None:
    ahead_ms = began_ms + number * 1000 / throughput - now_ms()
    if ahead_ms > 0:
        time.sleep(ahead_ms / 1000)


def _finish(producer: Any) -> None:
    try:
        producer.flush()
    except DeliveryFailedError:
        return  # each has been reported already


class _Sender:
    """Sends records and tells what became of them; on the network thread."""

    def __init__(self, events: Events, topic: str) -> None:
        self.events = events
        self.acked = 0
        self._topic = topic
        self._waits = True
        """No record was taken yet: perhaps no broker answers, for as long as `max_block_ms`."""

    def wake(self) -> None:
        """End the wait for the first broker. Raises WakeupError in the midst of it."""
        if self._waits:
            raise WakeupError("asked to end before any broker took a record")

    def send(self, producer: Any, key: str | None, value: str, at_ms: int | None) -> None:
        """Send one."""
        encoded = None if key is None else key.encode()
        try:
            future = producer.send(self._topic, value.encode(), encoded, timestamp_ms=at_ms)
        except KohortError as error:
            self._failed(key, value, error)
            return
        finally:
            self._waits = False

        def on_delivered(done: Future[Any]) -> None:
            self._report(key, value, done)

        future.add_done_callback(on_delivered)

    def _report(self, key: str | None, value: str, done: Future[Any]) -> None:
        error = done.error(0)
        if error is not None:
            self._failed(key, value, error)
            return
        stored = done.result(0)
        self.acked += 1
        self.events.say(
            "producer_send_success",
            key=key,
            value=value,
            offset=stored.offset,
            topic=self._topic,
            partition=stored.partition,
        )

    def _failed(self, key: str | None, value: str, error: BaseException) -> None:
        kind = f"class {type(error).__module__}.{type(error).__qualname__}"
        self.events.say(
            "producer_send_error",
            topic=self._topic,
            key=key,
            value=value,
            exception=kind,
            message=str(error),
        )
