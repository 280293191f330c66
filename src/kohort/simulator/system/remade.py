"""Programs over a topic that is deleted and created again under the same name.

Rules:
- The one partition of the topic begins empty each time: nothing of the topic before it is there,
  neither records nor committed offsets.
- Times are the world's; a round lasts from the call that deletes to the end of the last call that
  may still do so.
"""

from __future__ import annotations

from typing import Final

from kohort.client.admin.admin import Admin
from kohort.client.common.completion import pause
from kohort.client.common.types import TopicPartition
from kohort.errors import AbortableTransactionError, ErrorCode, KohortError
from kohort.simulator.system.history import Fate, Look, Round, Sent, Transaction
from kohort.simulator.system.programs import CLIENT, LEDGER, Life, send

REMADE: Final = "remade"
PLACE: Final = TopicPartition(REMADE, 0)
LOOKERS: Final = "lookers"
LOOK_S: Final = 20.0
"""A look that takes longer ends without a verdict."""


def remake(life: Life) -> None:
    """Delete the topic and create it again, again and again."""
    rounds = life.history.rounds
    if rounds and rounds[-1].ended_ms is None:
        rounds[-1].ended_ms = life.now_ms()  # the life that began it is gone
    with Admin(bootstrap_servers=life.bootstrap, **CLIENT) as admin:
        _create(admin)
        while not life.finishing():
            pause(life.chance.randint(300, 3_000) / 1_000)
            one = Round(life.now_ms())
            rounds.append(one)
            try:
                admin.delete_topics([REMADE])
            except KohortError as error:
                is_gone = getattr(error, "code", None) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                if not is_gone:
                    one.ended_ms = life.now_ms()
                    continue
            one.deleted_ms = one.ended_ms = life.now_ms()
            if life.chance.random() < 0.5:
                pause(life.chance.randint(0, 1_500) / 1_000)
            _create(admin)


def _create(admin: Admin) -> None:
    """Until it is there: it may have been created by itself, or before an answer was lost."""
    while True:
        try:
            admin.create_topics([REMADE])
        except KohortError as error:
            if getattr(error, "code", None) == ErrorCode.TOPIC_ALREADY_EXISTS:
                return
            pause(0.1)
        else:
            return


async def refill(life: Life) -> None:
    """Send numbered records to the topic, idempotently; some are lost with it."""
    async with life.producer(linger_ms=life.chance.choice((0, 20))) as producer:
        number = 0
        while not life.finishing():
            for _ in range(life.chance.randint(1, 4)):
                value = f"{life.label}:{number}".encode()
                sent = Sent(life.label, number, PLACE, value, asked_ms=life.now_ms())
                await send(life, producer, sent)
                number += 1
            await life.pause(300)


async def span(life: Life) -> None:
    """Write transactions to the ledger topic and to this one, which may be deleted under them."""
    settings = {"transactional_id": life.name, "transaction_timeout_ms": 6_000}
    async with life.producer(**settings) as producer:
        await producer.init_transactions()
        number = 0
        while not life.finishing():
            history = life.history
            transaction = Transaction(life.label)
            history.transactions.append(transaction)
            index = len(history.transactions) - 1
            producer.begin_transaction()
            try:
                for place in (life.partition(LEDGER), PLACE, life.partition(LEDGER)):
                    value = f"{life.label}:{number}".encode()
                    sent = Sent(life.label, number, place, value, None, index)
                    number += 1
                    await send(life, producer, sent)
                    if life.chance.random() < 0.3:
                        await life.pause(800)
                await producer.commit_transaction()
                transaction.fate = Fate.DONE
            except AbortableTransactionError:
                await producer.abort_transaction()
                transaction.fate = Fate.REFUSED
            await life.pause(300)


async def look(life: Life) -> None:
    """Read the topic from its beginning with a new consumer, and commit what was there; again and
    again, and once at the end."""
    is_last = False
    while not is_last:
        is_last = life.finishing()
        await life.pause(700)
        one = Look(life.label, life.now_ms())
        consumer = life.consumer(
            group_id=LOOKERS, isolation_level="read_uncommitted", enable_auto_commit=False
        )
        async with consumer:
            await consumer.assign([PLACE])
            kept = (await consumer.committed([PLACE]))[PLACE]
            one.committed = None if kept is None else kept.offset
            consumer.seek_to_beginning(PLACE)
            end = (await consumer.end_offsets([PLACE]))[PLACE]
            while await consumer.position(PLACE) < end:
                for record in await consumer.poll(0.2):
                    one.values[record.offset] = record.value or b""
                if life.now_ms() - one.began_ms > LOOK_S * 1_000:
                    return
            one.ended_ms = life.now_ms()
            life.history.looks.append(one)
            if end:
                one.commits = end
                await consumer.commit({PLACE: end})
                one.commits_done_ms = life.now_ms()
