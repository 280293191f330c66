"""The programs that run in a simulated system: real clients, used as users use them.

Rules:
- A program runs until it is asked to finish; an error of a client ends this life of it, and another
  begins. So a program must be correct whenever it is killed.
- What it asked for goes into the history before the call, what became of it after the answer.
- Every value is unique: program, life and number are in it.

Shell: asyncio.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from kohort.client.common.listener import RebalanceListener
from kohort.client.common.types import TopicPartition
from kohort.client.consumer.async_consumer import AsyncConsumer
from kohort.client.producer.producer import AsyncProducer
from kohort.errors import AbortableTransactionError, KohortError
from kohort.simulator.schedule import Random
from kohort.simulator.system.client_process import ClientProcess
from kohort.simulator.system.history import Fate, History, Seen, Sent, Transaction
from kohort.simulator.system.sync_process import SyncProcess

INPUT, OUTPUT, LEDGER, TABLE = "input", "output", "ledger", "table"
MOVERS, READERS = "movers", "readers"
CLIENT: dict[str, Any] = {"request_timeout_ms": 3_000, "default_api_timeout_ms": 20_000}
_PRODUCER: dict[str, Any] = {**CLIENT, "delivery_timeout_ms": 15_000, "max_block_ms": 15_000}


@dataclass
class Life:
    """One life of one program: its process, its chance, and what it may look at."""

    name: str
    number: int
    process: ClientProcess | SyncProcess
    chance: Random
    history: History
    bootstrap: str
    partitions: dict[str, int]
    finishing: Callable[[], bool]
    options: dict[str, Any]
    log_start: Callable[[TopicPartition], int | None]
    """Where a partition's log starts now; None while no broker runs that could tell."""
    deleted: Callable[[TopicPartition], int]
    """Up to where records of a partition were deleted before its broker's last end."""
    outcomes: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]], repr=False)
    """A loop refers to its tasks weakly."""

    @property
    def label(self) -> str:
        """Name and life."""
        return f"{self.name}/{self.number}"

    def now_ms(self) -> int:
        """The world's time."""
        return self.process.machine.schedule.now_ms

    def producer(self, **settings: Any) -> AsyncProducer:
        """A producer of this process."""
        return self.process.make(
            AsyncProducer, bootstrap_servers=self.bootstrap, **{**_PRODUCER, **settings}
        )

    def consumer(self, **settings: Any) -> AsyncConsumer:
        """A consumer of this process."""
        timing = {"session_timeout_ms": 6_000, "heartbeat_interval_ms": 1_000}
        if self.options.get("group_protocol") == "consumer":
            timing = {"group_protocol": "consumer"}
        return self.process.make(
            AsyncConsumer,
            bootstrap_servers=self.bootstrap,
            **{**CLIENT, **timing, "auto_offset_reset": "earliest", "max_poll_records": 7},
            **settings,
        )

    async def pause(self, most_ms: int) -> None:
        """Do nothing for a random time."""
        await asyncio.sleep(self.chance.randint(0, most_ms) / 1_000)

    def partition(self, topic: str) -> TopicPartition:
        """A random partition of a topic."""
        return TopicPartition(topic, self.chance.randrange(self.partitions[topic]))


async def send(life: Life, producer: AsyncProducer, sent: Sent) -> None:
    """Send one record; its fate is noted when the producer knows it."""
    life.history.sent.append(sent)
    future = await producer.send(
        sent.partition.topic, sent.value, sent.key, partition=sent.partition.partition
    )

    async def outcome() -> None:
        try:
            stored = await future
        except KohortError:
            return  # unknown: it may be stored all the same
        sent.fate, sent.offset, sent.done_ms = Fate.DONE, stored.offset, life.now_ms()

    task = asyncio.get_running_loop().create_task(outcome())
    life.outcomes.add(task)
    task.add_done_callback(life.outcomes.discard)


async def load(life: Life) -> None:
    """Send numbered records to the input topic, idempotently."""
    async with life.producer(linger_ms=life.chance.choice((0, 5, 50))) as producer:
        number = 0
        while not life.finishing():
            for _ in range(life.chance.randint(1, 5)):
                value = f"{life.label}:{number}".encode()
                place = life.partition(INPUT)
                await send(life, producer, Sent(life.label, number, place, value))
                number += 1
            await life.pause(400)


async def update(life: Life) -> None:
    """Send rising numbers under a few keys of its own to the compacted topic."""
    async with life.producer() as producer:
        number = 0
        while not life.finishing():
            key = f"{life.name}-{life.chance.randrange(4)}".encode()
            value = f"{life.number:04d}.{number:06d}".encode()
            place = TopicPartition(TABLE, sum(key) % life.partitions[TABLE])
            await send(life, producer, Sent(life.label, number, place, value, key))
            number += 1
            await life.pause(60)


async def transact(life: Life) -> None:
    """Write groups of records to the ledger topic, each all or nothing."""
    settings = {"transactional_id": life.name, "transaction_timeout_ms": 6_000}
    async with life.producer(**settings) as producer:
        await producer.init_transactions()
        number = 0
        while not life.finishing():
            number = await _one_transaction(life, producer, number)
            await life.pause(300)


async def _one_transaction(life: Life, producer: AsyncProducer, number: int) -> int:
    history = life.history
    transaction = Transaction(life.label)
    history.transactions.append(transaction)
    index = len(history.transactions) - 1
    producer.begin_transaction()
    try:
        for _ in range(life.chance.randint(1, 6)):
            sent = Sent(
                life.label,
                number,
                life.partition(LEDGER),
                f"{life.label}:{number}".encode(),
                None,
                index,
            )
            number += 1  # also where the send raises: each value is unique
            await send(life, producer, sent)
            if life.chance.random() < 0.2:
                await send(life, producer, _row(life, number, index))
            if life.chance.random() < 0.2:
                await life.pause(500)
        if life.chance.random() < 0.2:
            await producer.abort_transaction()
            transaction.fate = Fate.REFUSED
        else:
            await producer.commit_transaction()
            transaction.fate = Fate.DONE
    except AbortableTransactionError:
        await producer.abort_transaction()
        transaction.fate = Fate.REFUSED
    return number


def _row(life: Life, number: int, transaction: int) -> Sent:
    """A value of the compacted topic that counts only with its transaction."""
    key = life.name.encode()
    place = TopicPartition(TABLE, sum(key) % life.partitions[TABLE])
    value = f"{life.number:04d}.{number:06d} {life.name}".encode()
    return Sent(life.label, number, place, value, key, transaction)


async def move(life: Life) -> None:
    """Copy the input topic to the output topic, exactly once (KIP-447)."""
    consumer = life.consumer(
        group_id=MOVERS, isolation_level="read_committed", enable_auto_commit=False
    )
    settings = {"transactional_id": life.name, "transaction_timeout_ms": 6_000}
    async with consumer, life.producer(**settings) as producer:
        await producer.init_transactions()
        await consumer.subscribe([INPUT])
        while True:
            records = await consumer.poll(0.5)
            if records:
                await _copy(life, consumer, producer, records)


async def _copy(
    life: Life, consumer: AsyncConsumer, producer: AsyncProducer, records: list[Any]
) -> None:
    """One transaction: copies and positions. An error ends this life, which reads again from the
    committed positions."""
    next_offsets: dict[TopicPartition, int] = {}
    async with producer.transaction():
        for record in records:
            source = f"{record.partition}:{record.offset}:".encode()
            place = record.partition % life.partitions[OUTPUT]
            await producer.send(OUTPUT, source + record.value, partition=place)
            next_offsets[TopicPartition(INPUT, record.partition)] = record.offset + 1
        if life.chance.random() < 0.1:
            await life.pause(1_500)
        await producer.send_offsets_to_transaction(next_offsets, consumer.group_metadata())


class _Floors(RebalanceListener):
    """What the readers' group had committed when a member got its partitions."""

    def __init__(self, history: History) -> None:
        self._history = history
        self.offsets: dict[TopicPartition, int] = {}

    def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
        """All earlier commits were acknowledged by a coordinator that this one follows."""
        commits = self._history.commits
        self.offsets.update({place: commits.get((READERS, place), 0) for place in partitions})

    def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
        """They count from zero when they come back."""
        for place in partitions:
            self.offsets.pop(place, None)


async def read(life: Life) -> None:
    """Read topics in a group; commit what was dealt with."""
    committed_only = bool(life.options.get("committed_only"))
    isolation = "read_committed" if committed_only else "read_uncommitted"
    consumer = life.consumer(group_id=READERS, isolation_level=isolation, enable_auto_commit=False)
    async with consumer:
        floors = _Floors(life.history)
        await consumer.subscribe([INPUT, LEDGER], floors)
        while True:
            records = await consumer.poll(0.5)
            next_offsets: dict[TopicPartition, int] = {}
            for record in records:
                place = TopicPartition(record.topic, record.partition)
                floor = floors.offsets.get(place, 0)
                if record.offset < floor:
                    life.history.again.append((life.label, place, record.offset, floor))
                seen = Seen(life.label, place, record.offset, record.value, committed_only)
                life.history.seen.append(seen)
                next_offsets[place] = record.offset + 1
            await life.pause(100)
            if next_offsets:
                await consumer.commit(next_offsets)
                for place, offset in next_offsets.items():
                    life.history.committed(READERS, place, offset)


async def watch(life: Life) -> None:
    """Ask for the committed offsets of all groups; `Recorder` notes the answers."""
    places = {
        READERS: [INPUT, LEDGER],
        **{group: [INPUT] for group in (MOVERS, "handlers", "bookers")},
    }
    while not life.finishing():
        group = life.chance.choice(sorted(places))
        asked = [
            TopicPartition(topic, index)
            for topic in places[group]
            for index in range(life.partitions[topic])
        ]
        async with life.consumer(group_id=group, enable_auto_commit=False) as consumer:
            for _ in range(life.chance.randint(1, 12)):
                await consumer.committed(asked)
                await life.pause(120)


PROGRAMS = {
    "load": load,
    "update": update,
    "transact": transact,
    "move": move,
    "read": read,
    "watch": watch,
}
"""By the word that a plan uses."""
ENDLESS = {"move", "read", "handle", "book", "trail"}
"""They run until the world has seen enough; the others end when they are asked to finish."""
ONE_AT_A_TIME = {"update"}
"""Nothing fences their lives, whose values would not rise any more."""
