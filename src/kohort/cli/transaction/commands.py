"""`kohort transaction`: which are open and for how long, what hangs, and how one is ended by hand.

Rules:
- Columns are those of Kafka's own tool.
- `abort` only says what it would do, until `--execute`.
- By its transactional id a transaction is ended as its next producer would end it: the one that has
  it open is fenced. One that hangs has no id; it is ended in its partition (KIP-664).

Shell: the clock, for how long a transaction has been open.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from kohort.cli.common.completing import topics as complete_topics
from kohort.cli.common.connect import Client, client_options, existing_topics, open_admin
from kohort.cli.common.group_lookup import settings
from kohort.cli.common.output import output_option, printable, show
from kohort.cli.common.root import CommandGroup
from kohort.config import parse_duration_ms
from kohort.errors import BrokerError, ErrorCode, UsageError
from kohort.observe.open_transactions import HANGING, OPEN, Open
from kohort.sampling.open_transactions import open_in
from kohort.setting_keys import nearest

if TYPE_CHECKING:
    from kohort.client.admin.admin import Admin
    from kohort.client.admin.types import TransactionDescription
    from kohort.client.common.types import TopicPartition

COLUMNS = (
    "transactional_id",
    "coordinator",
    "producer_id",
    "producer_epoch",
    "state",
    "timeout_ms",
    "open_s",
    "partitions",
)
COMMITTING = "PrepareCommit"
"""The state of a transaction that its coordinator commits: it cannot be aborted any more."""
OPEN_COLUMNS = (
    "topic",
    "partition",
    "producer_id",
    "producer_epoch",
    "start_offset",
    "last_write_s",
    "state",
    "transactional_id",
)


@click.group(cls=CommandGroup)
def transaction() -> None:
    """List open and hanging transactions, and abort them."""


@transaction.command(
    "list",
    epilog="""\b
Examples:
  kohort transaction list
  kohort transaction list --state Ongoing --longer-than 5m
""",
)
@click.option(
    "--state", "states", multiple=True, help="Only in this state, such as Ongoing; repeatable."
)
@click.option(
    "--longer-than", metavar="TIME", help="Only transactions open for longer, such as 5m."
)
@output_option
@client_options
def list_transactions(
    states: tuple[str, ...], longer_than: str | None, output: str, client: Client
) -> None:
    """All transactional ids, with what is open of them and for how long."""
    longer_ms = -1 if longer_than is None else parse_duration_ms(longer_than)
    with open_admin(settings(client)) as admin:
        listed = admin.list_transactions(states=states, longer_than_ms=longer_ms)
        rows = _rows(admin, [one.transactional_id for one in listed])
    show(rows, COLUMNS, output)


@transaction.command(epilog="\b\nExamples:\n  kohort transaction describe payments-1\n")
@click.argument("ids", nargs=-1, required=True, metavar="TRANSACTIONAL-ID...")
@output_option
@client_options
def describe(ids: tuple[str, ...], output: str, client: Client) -> None:
    """The state of transactional ids: how long open, when its timeout ends it, where it wrote."""
    with open_admin(settings(client)) as admin:
        _known(admin, ids)
        rows = _rows(admin, ids)
    show(rows, COLUMNS, output)


@transaction.command(
    "open",
    epilog="""\b
Examples:
  kohort transaction open orders
  kohort transaction open orders payments -o json
""",
)
@click.argument(
    "topics", nargs=-1, required=True, shell_complete=complete_topics, metavar="TOPIC..."
)
@output_option
@client_options
def open_ones(topics: tuple[str, ...], output: str, client: Client) -> None:
    """What is open in the partitions of topics, and so hides records from committed readers.

    A state of "hanging" is a transaction that no coordinator knows of: only `abort` ends it.
    """
    from kohort.client.common.types import TopicPartition

    with open_admin(settings(client)) as admin:
        led = [
            TopicPartition(t.name, p.partition)
            for t in existing_topics(admin, topics).values()
            for p in t.partitions
            if p.leader >= 0
        ]
        transactions = open_in(admin, led)
    if not transactions:
        click.echo(f"no transaction is open in {', '.join(topics)}", err=True)
    show([_open_row(one) for one in transactions], OPEN_COLUMNS, output)


@transaction.command(
    epilog="""\b
Examples:
  kohort transaction abort payments-1                     # what it would do
  kohort transaction abort payments-1 --execute
  kohort transaction abort --partition orders:0 --producer-id 4001 --execute     # one that hangs
"""
)
@click.argument("name", required=False, metavar="[TRANSACTIONAL-ID]")
@click.option("--partition", metavar="TOPIC:P", help="The partition of a hanging transaction.")
@click.option("--producer-id", type=int, help="The producer id of a hanging transaction.")
@click.option("--execute", is_flag=True, help="Abort the transaction; default: a dry run.")
@client_options
def abort(
    name: str | None,
    partition: str | None,
    producer_id: int | None,
    execute: bool,
    client: Client,
) -> None:
    """Abort an open transaction: `read_committed` consumers skip its records and read on.

    With a transactional id, the abort fences the producer. A hanging transaction has no
    coordinator: name its partition and producer id, as `open` shows them. A transaction whose
    commit has begun is not aborted.
    """
    hanging = partition is not None and producer_id is not None
    if hanging == bool(name) or (partition is None) != (producer_id is None):
        raise UsageError("name a transactional id, or --partition and --producer-id")
    with open_admin(settings(client)) as admin:
        if name:
            aborted = _abort_known(admin, name, client, execute=execute)
        else:
            aborted = _abort_hanging(admin, partition or "", producer_id or 0, execute=execute)
    click.echo(f"{'aborted' if execute else 'would abort'} {printable(aborted)}")
    if not execute:
        click.echo("nothing was changed; add --execute to do it", err=True)


def _abort_known(admin: Admin, name: str, client: Client, *, execute: bool) -> str:
    from kohort.client.common.config import ProducerConfig
    from kohort.client.producer.producer import Producer

    description = _known(admin, [name])[name]
    if description.state not in OPEN:
        raise UsageError(f"transaction {name!r} is not open: its state is {description.state}")
    if description.state == COMMITTING:
        raise UsageError(
            f"transaction {name!r} is being committed ({COMMITTING}): its outcome is decided, and "
            "it ends when its markers are written; `kohort transaction open TOPIC` shows where "
            "they are missing"
        )
    if execute:
        way = client.for_role(ProducerConfig) | {"transactional_id": name}
        with Producer(way) as producer:
            producer.init_transactions()
    written = ", ".join(map(str, description.partitions)) or "no partition yet"
    return f"{name}, open in {written}; producer {description.producer_id} is fenced by that"


def _abort_hanging(admin: Admin, where: str, producer_id: int, *, execute: bool) -> str:
    one = _hanging(admin, _partition(admin, where), producer_id)
    if execute:
        admin.abort_transaction(one.partition, one.producer)
    start = one.producer.transaction_start_offset
    return f"the transaction of producer {producer_id} in {one.partition} from offset {start}"


def _partition(admin: Admin, text: str) -> TopicPartition:
    from kohort.client.common.types import TopicPartition

    topic, _, number = text.rpartition(":")
    if not topic or not number.isdecimal():
        raise UsageError(f"--partition {text!r} is not TOPIC:P, such as orders:0")
    count = len(existing_topics(admin, [topic])[topic].partitions)
    if int(number) >= count:
        raise UsageError(f"topic {topic} has no partition {number}; it has {count}")
    return TopicPartition(topic, int(number))


def _hanging(admin: Admin, tp: TopicPartition, producer_id: int) -> Open:
    """What hangs. Raises UsageError where nothing does, or where it ends by itself."""
    hanging = [one for one in open_in(admin, [tp]) if one.producer.producer_id == producer_id]
    if not hanging:
        raise UsageError(
            f"producer {producer_id} has no transaction open in {tp}; `kohort transaction open "
            f"{tp.topic}` shows what is open"
        )
    if hanging[0].listed:
        name = hanging[0].listed.transactional_id
        raise UsageError(
            f"the transaction of producer {producer_id} in {tp} does not hang, {name!r} has it "
            f"open: `kohort transaction abort {name}` ends it in all of its partitions"
        )
    return hanging[0]


# -- rows


def _known(admin: Admin, ids: tuple[str, ...] | list[str]) -> dict[str, TransactionDescription]:
    """The transactional ids. Raises BrokerError for one that no coordinator knows."""
    listed = {one.transactional_id for one in admin.list_transactions()}
    for name in ids:
        if name not in listed:
            near = nearest(name, listed)
            raise BrokerError(
                ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
                f"there is no transactional id {name!r}."
                + (f" Did you mean {near!r}?" if near else "")
                + " `kohort transaction list` shows those there are",
            )
    return admin.describe_transactions(ids)


def _rows(admin: Admin, ids: tuple[str, ...] | list[str]) -> list[dict[str, Any]]:
    now_ms = time.time_ns() // 1_000_000
    described = admin.describe_transactions(ids) if ids else {}
    return [
        {
            "transactional_id": name,
            "coordinator": f"{d.coordinator.host}:{d.coordinator.port} ({d.coordinator.node_id})",
            "producer_id": d.producer_id,
            "producer_epoch": d.producer_epoch,
            "state": d.state,
            "timeout_ms": d.timeout_ms,
            "open_s": _age_s(d.started_ms, now_ms),
            "partitions": [str(tp) for tp in d.partitions] or None,
        }
        for name, d in described.items()
    ]


def _open_row(one: Open) -> dict[str, Any]:
    now_ms = time.time_ns() // 1_000_000
    return {
        "topic": one.partition.topic,
        "partition": one.partition.partition,
        "producer_id": one.producer.producer_id,
        "producer_epoch": one.producer.producer_epoch,
        "start_offset": one.producer.transaction_start_offset,
        "last_write_s": _age_s(one.producer.last_timestamp_ms, now_ms),
        "state": HANGING if one.listed is None else one.listed.state,
        "transactional_id": None if one.listed is None else one.listed.transactional_id,
    }


def _age_s(then_ms: int, now_ms: int) -> float | None:
    return None if then_ms < 0 else max(0, now_ms - then_ms) / 1000
