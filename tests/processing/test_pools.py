"""How much a worker is given at once (retry reference C3), and what handing over costs."""

from __future__ import annotations

import threading

import pytest

from kohort.processing.dispatch import Order
from kohort.processing.handlers import HandlerSpec, Invoker, Kind
from kohort.processing.pools import AIM_S, MOST_AT_ONCE, MOST_LISTS_PER_S, Finished, Portions
from kohort.processing.tasks import TaskPool
from kohort.retry.classify import Classifier

from .world import World, route


def portions(workers: int, each_s: float) -> Portions:
    found = Portions(workers)
    for _ in range(100):
        found.learn(1, each_s)
    return found


@pytest.mark.parametrize(
    ("workers", "each_s", "ready", "size"),
    [
        (8, 1.0, 10_000, 1),
        (8, 1e-6, 100_000, MOST_AT_ONCE),
        (8, 1e-6, 80, 10),
        (20, 0.001, 10_000, int(AIM_S / 0.001)),
        (1_000, 0.03, 100_000, int(1_000 / MOST_LISTS_PER_S / 0.03)),
        (1_000, 0.03, 1_000, 1),
    ],
    ids=["slow", "fast", "shared out", "some ms each", "many workers", "many, few records"],
)
def test_a_list_keeps_a_worker_busy_and_its_owner_not(workers, each_s, ready, size) -> None:
    """Lists of one record of a thousand workers cost their owner more than the work itself."""
    assert portions(workers, each_s).size(ready) == pytest.approx(size, abs=size // 10)


def test_tasks_are_woken_once_for_many_lists(monkeypatch) -> None:
    """A wake-up is a system call, at which the others' work gets in between."""
    done: list[Finished] = []
    all_of_them = threading.Event()

    def report(said: Finished) -> None:
        done.append(said)
        if len(done) == 50:
            all_of_them.set()

    async def handle(record) -> None:
        del record

    spec = HandlerSpec("orders", handle, Kind.ASYNC, None, Classifier())
    pool = TaskPool(Invoker({"orders": spec}, None), 4)
    wakes: list[object] = []
    wake = pool._loop.call_soon_threadsafe
    monkeypatch.setattr(
        pool._loop, "call_soon_threadsafe", lambda f, *a: (wakes.append(f), wake(f, *a))
    )
    world = World([route(pool="tasks", order=Order.NONE)], lambda record, attempt: None)
    for n in range(50):
        world.produce("orders", 0, None, b"%d" % n)
    world.poll()
    world.commit()
    lists = [world.engine.take("tasks", 1, world.now_ms) for _ in range(50)]
    for items in lists:
        pool.submit(items)
    pool.start(report)
    assert all_of_them.wait(30)
    assert pool.stop(30)
    assert sorted(map(id, lists)) == sorted(id(said.items) for said in done)
    assert wakes.count(pool._hand_out) == 1
