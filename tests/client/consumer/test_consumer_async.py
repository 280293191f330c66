"""The asyncio face: the same promises, and that cancelling loses no record (spec 4.9, C9)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest

from kohort import AsyncConsumer, RebalanceListener, TopicPartition
from kohort.errors import ClosedError, ConcurrentUseError, UsageError, WakeupError
from kohort.group.member.classic import ClassicMember
from tests.client.consumer_world import World, values
from tests.clusters import Cluster
from tests.known import known
from tests.patience import PATIENCE_S


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as cluster:
        yield cluster


def consumer(world: World, **config: Any) -> AsyncConsumer:
    settings = {
        "auto_offset_reset": "earliest",
        "heartbeat_interval_ms": 50,
        "fetch_max_wait_ms": 50,
        **config,
    }
    return AsyncConsumer(bootstrap_servers=world.cluster.bootstrap, **settings)


def run(coroutine) -> None:
    asyncio.run(asyncio.wait_for(coroutine, PATIENCE_S))


def test_smallest(world: World) -> None:
    topic = world.topic(3, records=600)

    async def main() -> None:
        seen: dict[int, list[int]] = {}
        async with consumer(world, group_id=world.group()) as reader:
            await reader.subscribe([topic])
            async for record in reader:
                seen.setdefault(record.partition, []).append(int(known(record.value)))
                if sum(map(len, seen.values())) == 600:
                    break
            assert reader.assignment() == {TopicPartition(topic, n) for n in range(3)}
        assert seen == {p: list(range(p, 600, 3)) for p in range(3)}
        with pytest.raises(ClosedError):
            await reader.poll()

    run(main())


NOT_AWAITED = r"`await consumer\.subscribe"


def test_a_subscription_that_was_not_awaited_is_no_secret(world: World) -> None:
    """Spec 1.11: `consumer.subscribe(...)` alone does nothing, and poll() says so."""

    async def program() -> None:
        async with AsyncConsumer(bootstrap_servers=world.cluster.bootstrap, group_id="g") as c:
            c.subscribe(["t"]).close()  # as a forgotten await leaves it
            for _ in range(2):
                with pytest.raises(UsageError, match=NOT_AWAITED):
                    await c.poll(0.1)
            with pytest.raises(UsageError, match=NOT_AWAITED):
                await anext(aiter(c))

    run(program())


def test_cancelling_a_poll_loses_nothing(world: World) -> None:
    """C9: cancelled at any moment, each record comes exactly once, in order."""
    topic = world.topic(1)

    async def main() -> None:
        async with consumer(world) as reader:
            await reader.assign([(topic, 0)])
            seen: list[bytes | None] = []
            writing = asyncio.get_running_loop().run_in_executor(
                None, world.produce, topic, 1, range(3_000)
            )
            turn = 0
            while len(seen) < 3_000:
                turn += 1
                task = asyncio.create_task(reader.poll(5, max_records=20))
                for _ in range(turn % 4):
                    await asyncio.sleep(0)
                task.cancel()
                try:
                    seen += [record.value for record in await task]
                except asyncio.CancelledError:
                    seen += [record.value for record in await reader.poll(0, max_records=7)]
            await writing
            assert seen == values(range(3_000))

    run(main())


def test_leaving_an_iteration_loses_nothing(world: World) -> None:
    """C9: a cancelled `async for` goes on where it stood."""
    topic = world.topic(1, records=50)

    async def main() -> None:
        async with consumer(world, group_id=world.group()) as reader:
            await reader.assign([(topic, 0)])
            seen: list[bytes | None] = []

            async def read() -> None:
                async for record in reader:
                    seen.append(known(record.value))
                    await asyncio.sleep(0)

            while len(seen) < 50:
                task = asyncio.create_task(read())
                before = len(seen)
                while len(seen) < min(50, before + 7):
                    await asyncio.sleep(0)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            assert seen == values(range(50))
            assert await reader.position((topic, 0)) == 50

    run(main())


def test_a_pause_within_an_iteration_holds_from_the_next_record_on(world: World) -> None:
    """Spec 4.4: what lies ready of the paused partition is kept, and comes after `resume`."""
    topic = world.topic(1, records=30)

    async def main() -> None:
        async with consumer(world) as reader:
            await reader.assign([(topic, 0)])
            records = aiter(reader)
            seen = [(await anext(records)).value for _ in range(10)]
            reader.pause((topic, 0))
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(records), 0.1)
            assert await reader.position((topic, 0)) == 10
            reader.resume((topic, 0))
            while len(seen) < 30:
                seen += [record.value for record in await reader.poll(1)]
            assert seen == values(range(30))

    run(main())


def test_listeners_may_be_coroutines(world: World) -> None:
    """Spec 4.8: they run in the calling task, and may commit."""
    topic, group = world.topic(2, records=20), world.group()
    calls: list[tuple[str, int]] = []

    async def main() -> None:
        async with consumer(world, group_id=group, enable_auto_commit=False) as reader:

            class Listener(RebalanceListener):
                async def on_partitions_assigned(self, partitions):
                    await asyncio.sleep(0)
                    calls.append(("assigned", len(partitions)))

                async def on_partitions_revoked(self, partitions):
                    await reader.commit()
                    calls.append(("revoked", len(partitions)))

            await reader.subscribe([topic], Listener())
            count = 0
            while count < 20:
                count += len(await reader.poll(1))
            await reader.unsubscribe()
            assert calls == [("assigned", 2), ("revoked", 2)]
            tps = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
            committed = await reader.committed(tps)
            assert [known(committed[tp]).offset for tp in tps] == [10, 10]

    run(main())


def test_other_calls(world: World) -> None:
    topic = world.topic(1, records=10)

    async def main() -> None:
        tp = TopicPartition(topic, 0)
        async with consumer(world, group_id=world.group()) as reader:
            await reader.assign([tp])
            assert await reader.end_offsets([tp]) == {tp: 10}
            assert await reader.beginning_offsets([tp]) == {tp: 0}
            assert known((await reader.offsets_for_times({tp: 4}))[tp]).offset == 4
            reader.seek(tp, 6)
            batch = await reader.poll_arrow(PATIENCE_S, columns=["value"])
            assert batch.column("value").to_pylist() == values(range(6, 10))
            assert (await reader.poll_arrow(0.01)).num_rows == 0
            called = asyncio.Event()

            async def callback(offsets, error) -> None:
                assert error is None
                called.set()

            reader.commit_async({tp: 8}, callback)
            while not called.is_set():
                await reader.poll(0.05)
            assert known((await reader.committed([tp]))[tp]).offset == 8

    run(main())


def test_wakeup_and_a_second_task(world: World) -> None:
    """Spec 4.9."""
    topic = world.topic(1)

    async def main() -> None:
        async with consumer(world) as reader:
            await reader.assign([(topic, 0)])
            task = asyncio.create_task(reader.poll(PATIENCE_S))
            await asyncio.sleep(0)
            with pytest.raises(ConcurrentUseError):
                await reader.poll(0)
            reader.wakeup()
            with pytest.raises(WakeupError):
                await task
            assert await reader.poll(0) == []

    run(main())


def test_a_blocked_event_loop_stays_a_member(world: World) -> None:
    """C12: heartbeats do not run on the event loop (aiokafka 847)."""
    topic = world.topic(1, records=2)
    config = {"group_id": world.group()}

    async def main() -> None:
        async with consumer(world, **config) as reader:
            await reader.subscribe([topic])
            while not reader.assignment():
                await reader.poll(0.1)
            before = reader.group_metadata()
            member = known(known(reader._core.session).member)
            assert isinstance(member, ClassicMember)
            last_answer_ms = member._last_answer_ms
            deadline = time.monotonic() + PATIENCE_S
            while member._last_answer_ms < last_answer_ms + 200:
                assert time.monotonic() < deadline
            await reader.poll(0)
            assert reader.group_metadata() == before

    run(main())
