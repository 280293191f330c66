"""`kohort verifiable-consumer`: a member of a group that tells what it does, as Java's tool does.

Rules:
- Records are reported before they are committed, and a commit after the coordinator has confirmed
  it.
- A loss of partitions (the group continued without this member) is reported as
  `partitions_revoked`, as Java does, with `"lost":true` behind it, which Java leaves out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kohort.cli.verifiable.common import Events, Stop, one_file, settings, text
from kohort.errors import FencedError, KohortError, WakeupError

if TYPE_CHECKING:
    from kohort.client.common.types import TopicPartition
    from kohort.client.consumer.consumer import Consumer
    from kohort.records import Record

STRATEGIES = {
    "RangeAssignor": "range",
    "RoundRobinAssignor": "roundrobin",
    "StickyAssignor": "sticky",
    "CooperativeStickyAssignor": "cooperative-sticky",
}
POLL_S = 1.0
EXAMPLES = """\b
Examples:
  kohort verifiable-consumer --bootstrap-server localhost:9092 --topic orders --group-id billing
  kohort verifiable-consumer --bootstrap-server localhost:9092 --topic orders --group-id b --verbose
"""
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command("verifiable-consumer", epilog=EXAMPLES)
@click.option("--bootstrap-server", required=True, metavar="HOST:PORT,...", help="The brokers.")
@click.option("--topic", required=True, help="The topic to read.")
@click.option("--group-id", required=True, help="The consumer group to join.")
@click.option(
    "--group-protocol",
    type=click.Choice(["classic", "consumer"], case_sensitive=False),
    default="classic",
    show_default=True,
    help="Who assigns partitions: a member, or the broker (KIP-848).",
)
@click.option("--group-remote-assignor", help="The broker-side assignor to request.")
@click.option("--group-instance-id", help="The group.instance.id of a static member.")
@click.option(
    "--max-messages",
    type=int,
    default=-1,
    show_default=True,
    help="Stop after this many; -1: never.",
)
@click.option("--session-timeout", type=int, metavar="MS", help="Session timeout (classic only).")
@click.option("--verbose", is_flag=True, help="Report every record, too.")
@click.option("--enable-autocommit", is_flag=True, help="Commit by time, not after each poll.")
@click.option(
    "--reset-policy",
    type=click.Choice(["earliest", "latest", "none"]),
    default="earliest",
    show_default=True,
    help="Where to start without a committed offset.",
)
@click.option(
    "--assignment-strategy",
    default="org.apache.kafka.clients.consumer.RangeAssignor",
    show_default=True,
    help="Java's class name, or Kohort's name such as cooperative-sticky (classic only).",
)
@click.option("--command-config", type=_FILE, help="A .properties or .toml file with settings.")
@click.option("--consumer.config", "old_config", type=_FILE, help="The old name of that option.")
def verifiable_consumer(
    bootstrap_server: str,
    topic: str,
    group_id: str,
    group_protocol: str,
    group_remote_assignor: str | None,
    group_instance_id: str | None,
    max_messages: int,
    session_timeout: int | None,
    verbose: bool,
    enable_autocommit: bool,
    reset_policy: str,
    assignment_strategy: str,
    command_config: Path | None,
    old_config: Path | None,
) -> int:
    """Consume in a group and print JSON events, like Kafka's VerifiableConsumer.

    The events are those of Kafka's VerifiableConsumer: assignments, records, commits.
    """
    from kohort.client.consumer.consumer import Consumer

    ours: dict[str, Any] = {
        "bootstrap_servers": bootstrap_server,
        "group_id": group_id,
        "group_protocol": group_protocol.lower(),
        "group_instance_id": group_instance_id,
        "enable_auto_commit": enable_autocommit,
        "auto_offset_reset": reset_policy,
    }
    if group_protocol.lower() == "consumer":
        ours["group_remote_assignor"] = group_remote_assignor
    else:
        ours["partition_assignment_strategy"] = _strategy(assignment_strategy)
        if session_timeout is not None:
            ours["session_timeout_ms"] = session_timeout
            ours["heartbeat_interval_ms"] = max(1, min(3_000, session_timeout // 3))
    chosen = settings(one_file(command_config, old_config), ours)
    events, stop = Events(), Stop()
    consumer = Consumer(**chosen)
    stop.on_signal = consumer.wakeup
    with stop.by_signals():
        events.say("startup_complete")
        try:
            consumer.subscribe([topic], _listener(events))
            _read(consumer, events, stop, max_messages, verbose, commit=not enable_autocommit)
        except WakeupError:
            events.say("shutdown_requested")
        finally:
            consumer.close()
            events.say("shutdown_complete")
    return stop.exit_code


def _strategy(class_name: str) -> str:
    return ",".join(STRATEGIES.get(name.rpartition(".")[2], name) for name in class_name.split(","))


def _read(
    consumer: Consumer, events: Events, stop: Stop, most: int, verbose: bool, *, commit: bool
) -> None:
    count = 0
    while most < 0 or count < most:
        if stop.signal:
            raise WakeupError("asked to end")
        limit = consumer.config.max_poll_records
        records = consumer.poll(POLL_S, max_records=limit if most < 0 else min(limit, most - count))
        if not records:
            continue
        count += len(records)
        offsets = _report_read(records, events, verbose=verbose)
        if commit:
            _commit(consumer, events, offsets)


def _report_read(
    records: Sequence[Record], events: Events, *, verbose: bool
) -> dict[TopicPartition, int]:
    """Tells a poll's records; where to commit."""
    from kohort.client.common.types import TopicPartition

    parts: dict[TopicPartition, dict[str, Any]] = {}
    for record in records:
        tp = TopicPartition(record.topic, record.partition)
        part = parts.get(tp)
        if part is None:
            part = parts[tp] = {**_place(tp), "count": 0, "minOffset": record.offset}
        part["count"] += 1
        part["maxOffset"] = record.offset
        if verbose:
            events.say(
                "record_data",
                key=text(record.key),
                value=text(record.value),
                **_place(tp),
                offset=record.offset,
            )
    events.say("records_consumed", count=len(records), partitions=list(parts.values()))
    return {tp: part["maxOffset"] + 1 for tp, part in parts.items()}


def _commit(consumer: Consumer, events: Events, offsets: dict[TopicPartition, int]) -> None:
    committed = [{**_place(tp), "offset": offset} for tp, offset in offsets.items()]
    try:
        consumer.commit(offsets)
    except WakeupError:  # the records read are committed first, then the program ends
        consumer.commit(offsets)
        events.say("offsets_committed", offsets=committed, success=True)
        raise
    except FencedError:
        raise
    except KohortError as error:
        events.say("offsets_committed", offsets=committed, error=str(error), success=False)
    else:
        events.say("offsets_committed", offsets=committed, success=True)


def _listener(events: Events) -> Any:
    from kohort.client.common.listener import RebalanceListener

    class Reporter(RebalanceListener):
        """Tells rebalances."""

        def on_partitions_assigned(self, partitions: Iterable[TopicPartition]) -> None:
            events.say("partitions_assigned", partitions=[_place(tp) for tp in partitions])

        def on_partitions_revoked(self, partitions: Iterable[TopicPartition]) -> None:
            events.say("partitions_revoked", partitions=[_place(tp) for tp in partitions])

        def on_partitions_lost(self, partitions: Iterable[TopicPartition]) -> None:
            places = [_place(tp) for tp in partitions]
            events.say("partitions_revoked", partitions=places, lost=True)

    return Reporter()


def _place(tp: TopicPartition) -> dict[str, Any]:
    return {"topic": tp.topic, "partition": tp.partition}
