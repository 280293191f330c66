"""Ctrl-C at any point of a program ends it: nothing waits for ever, nothing stays half taken.

A tracer raises KeyboardInterrupt at a line or call of the program's thread: everywhere that Python
itself may run a signal's handler. Where an error is dropped (a weak reference's callback, say) the
Ctrl-C would be lost, the program go on, and the test see it. `make test` tries each statement of
the functions in which threads meet; `make nightly` steps here and there, others each time.
"""

from __future__ import annotations

import ast
import gc
import inspect
import linecache
import os
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from contextlib import closing
from types import FrameType, SimpleNamespace
from typing import Any, cast

import pytest

from kohort import Consumer, Producer, RebalanceListener, TopicPartition
from kohort.client.cluster.network_thread import NetworkThread
from kohort.client.cluster.waiting import Doorbell, Wait, run_steps
from kohort.client.common.completion import Completion
from kohort.client.consumer.base import Gate
from kohort.client.consumer.calls import ConsumerCalls
from kohort.errors import ConcurrentUseError
from tests.client.consumer_world import World
from tests.clusters import APACHE, Cluster
from tests.known import fake
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.skipif(APACHE, reason="the client's own matter; a group for each try")

POINTS = int(os.environ.get("KOHORT_INTERRUPTS", "60"))
"""How many points of each program are tried; 300 of each were, once."""
ENDS_S = 25.0
"""Far more than any end takes, less than what a lost wait would last: 30 s and more."""


@pytest.fixture(scope="module")
def cluster():
    with Cluster(group_initial_rebalance_delay_ms=0) as running:
        yield running


Where = Callable[[FrameType], bool]


class Interrupter:
    """Raises KeyboardInterrupt once, at a step of this thread; counts those that fit."""

    def __init__(self, *, at: int | None, fits: Where = lambda frame: True) -> None:
        self.steps, self._at, self._fits, self.where = 0, at, fits, ""

    def __call__(self, frame: FrameType, event: str, arg: object) -> Any:
        is_step = event in ("call", "line") and not self._no_handler_here(frame, event)
        if is_step and self._fits(frame):
            self.steps += 1
            if self.steps == self._at:
                self.where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                raise KeyboardInterrupt
        return self if "kohort" in frame.f_code.co_filename else None

    @staticmethod
    def _no_handler_here(frame: FrameType, event: str) -> bool:
        """None runs between a lock's taking and its block, at the block's end, nor at a `try`.

        What is raised while `threading` forgets a thread is dropped by Python itself.
        """
        selfref = frame.f_locals.get("selfref")
        if selfref is not None and selfref() is fake(threading)._dangling:
            return True
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
        return event == "line" and line.lstrip().startswith(("with ", "async with ", "try:"))

    def run(self, program: Callable[[], None]) -> None:
        """What others left to be collected is no step of it; what it leaves, is."""
        gc.collect()
        gc.disable()
        started, ended = time.monotonic(), False
        try:
            sys.settrace(self)
            program()
        except KeyboardInterrupt:
            ended = True
        finally:
            sys.settrace(None)
            gc.enable()
        took = time.monotonic() - started
        due = self._at is not None and self.steps >= self._at
        assert ended == due, f"the interrupt at {self.where} was lost"
        assert took < ENDS_S, f"{took:.1f} s after an interrupt at {self.where}"
        gc.collect()


def reading(world: World, topic: str, group: str) -> None:
    """The first lines of the README, until all has been read."""
    server, seen = world.cluster.bootstrap, 0
    with Consumer(
        bootstrap_servers=server, group_id=group, auto_offset_reset="earliest"
    ) as consumer:
        consumer.subscribe([topic])
        while seen < 6:
            seen += len(consumer.poll(timeout=1.0, max_records=3))
            consumer.commit()


def iterating(world: World, topic: str, group: str) -> None:
    """One by one, without a group."""
    with Consumer(
        bootstrap_servers=world.cluster.bootstrap, auto_offset_reset="earliest"
    ) as consumer:
        consumer.assign([(topic, 0)])
        with closing(iter(consumer)) as records:  # a `break` leaves it to be collected
            while next(records).offset < 5:
                pass


def writing(world: World, topic: str, group: str) -> None:
    """Some records, one of them waited for."""
    with Producer(bootstrap_servers=world.cluster.bootstrap) as producer:
        producer.send(f"{topic}-out", b"0")
        producer.send(f"{topic}-out", b"1").result(PATIENCE_S)
        producer.flush()


PLACES: list[tuple[Callable[..., None], Callable[..., Any]]] = [
    *(
        (reading, fn)
        for fn in (
            run_steps,
            Doorbell.wait,
            Gate.__enter__,
            Gate.__exit__,
            Consumer.poll,
            Consumer._close,
            ConsumerCalls.attend,
            ConsumerCalls._assign,
            ConsumerCalls._run_steps,
            ConsumerCalls._wait,
            ConsumerCalls.close,
            NetworkThread.call,
        )
    ),
    *(
        (writing, fn)
        for fn in (
            Producer.flush,
            Producer.close,
            Completion.wait,
            NetworkThread.call,
        )
    ),
]
"""Where programs wait and where one thread takes over from another."""


def statements(fn: Callable[..., Any]) -> list[int]:
    """The first lines of a function's statements."""
    lines, first = inspect.getsourcelines(fn)
    body = ast.parse(textwrap.dedent("".join(lines))).body[0]
    numbers = {n.lineno for n in ast.walk(body) if isinstance(n, ast.stmt) and n is not body}
    return sorted(first + number - 1 for number in numbers)


@pytest.mark.rows(3)
@pytest.mark.filterwarnings("ignore:.*dropped without close:ResourceWarning")
@pytest.mark.parametrize(("program", "fn"), PLACES, ids=lambda it: it.__qualname__)
def test_an_interrupt_where_threads_meet_ends_the_program(
    world: World, program: Any, fn: Callable[..., Any]
) -> None:
    """C11, C14. Each statement, when it is come upon first; the same at each run."""
    topic, met = world.topic(1, records=6), 0
    world.cluster.create_topic(f"{topic}-out", partitions=1)
    for line in statements(fn):

        def here(frame: FrameType, line: int = line) -> bool:
            return frame.f_lineno == line and frame.f_code.co_name == fn.__name__

        interrupter = Interrupter(at=1, fits=here)
        interrupter.run(lambda: program(world, topic, world.group()))
        met += interrupter.steps > 0
    assert met, f"{program.__name__} never came through {fn.__qualname__}"


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore:.*dropped without close:ResourceWarning")
@pytest.mark.parametrize("program", [reading, iterating, writing])
def test_an_interrupt_at_any_step_ends_the_program(world: World, program: Any) -> None:
    """C11, C14. A consumer's group goes on afterwards from what was committed, or from before."""
    topic = world.topic(1, records=6)
    world.cluster.create_topic(f"{topic}-out", partitions=1)
    whole = Interrupter(at=None)
    group = world.group()
    whole.run(lambda: program(world, topic, group))
    for number in range(POINTS):
        group = world.group()
        interrupter = Interrupter(at=1 + whole.steps * number // POINTS)
        interrupter.run(lambda group=group: program(world, topic, group))
    if program is reading:
        last = world.consumer(group_id=group)
        committed = last.committed([(topic, 0)])[TopicPartition(topic, 0)]
        assert committed is None or committed.offset <= 6


@pytest.mark.rows(3)
@pytest.mark.parametrize("line", statements(run_steps)[1:-1])  # but for the `close` at its end
def test_a_call_that_an_interrupt_leaves_is_over_at_once(world: World, line: int) -> None:
    """C9, C11. Half done, it would be ended by the collector: after `close`, or inside a later
    poll, whose rebalance step it would then take for its own."""
    topic, half_done = world.topic(1, records=6), list[Any]()

    def here(frame: FrameType) -> bool:
        if frame.f_code is not run_steps.__code__ or frame.f_lineno != line:
            return False
        half_done.append(frame.f_locals["steps"])
        return True

    def program() -> None:
        consumer = world.consumer(group_id=world.group())
        consumer.subscribe([topic], RebalanceListener())
        try:
            for _ in range(2):
                records = consumer.poll(timeout=PATIENCE_S, max_records=3)
                assert len(records) == 3, consumer.health()
        finally:
            left = [inspect.getgeneratorstate(steps) for steps in half_done]
            assert left in ([], [inspect.GEN_CLOSED]), f"{left} after line {line}"

    Interrupter(at=1, fits=here).run(program)


def test_a_close_that_is_interrupted_ends_the_consumer_and_no_other_client(world: World) -> None:
    """C11. At each statement of it: the member heartbeats no longer, a second close reports what
    the first left undone, and the network thread still serves others."""
    topic, other, met = world.topic(1, records=6), world.consumer(group_id=world.group()), 0
    for line in statements(ConsumerCalls.close):

        def here(frame: FrameType, line: int = line) -> bool:
            return frame.f_code is ConsumerCalls.close.__code__ and frame.f_lineno == line

        consumer = world.consumer(group_id=world.group())
        consumer.subscribe([topic])
        assert consumer.poll(timeout=PATIENCE_S)
        interrupter = Interrupter(at=1, fits=here)
        interrupter.run(cast(Callable[[], None], consumer.close))
        met += interrupter.steps
        core = consumer._core
        assert other._network.call(lambda core=core: core.closed).result(PATIENCE_S), line
        report = consumer.close()
        assert report.committed == report.left_group == (not report.problems)
    assert met > 5
    other.subscribe([topic])
    assert other.poll(timeout=PATIENCE_S)


def test_a_gate_that_an_interrupt_kept_half_open_lets_its_owner_in_again() -> None:
    """The Ctrl-C came after the taking and before the block: `close` may come in all the same."""
    gate = Gate(threading.get_ident)

    def interrupt(frame: FrameType, event: str, arg: object) -> Any:
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
        if event == "line" and "_depth += 1" in line:
            raise KeyboardInterrupt
        return interrupt

    sys.settrace(interrupt)
    try:
        with gate:
            pytest.fail("it was interrupted before")
    except KeyboardInterrupt:
        sys.settrace(None)
    with gate, gate:
        refused = in_another_thread(gate)
    assert isinstance(refused, ConcurrentUseError)
    assert in_another_thread(gate) is None


def in_another_thread(gate: Gate) -> BaseException | None:
    """What a second thread hears at the gate."""
    errors: list[BaseException] = []

    def knock() -> None:
        try:
            with gate:
                pass
        except ConcurrentUseError as error:
            errors.append(error)

    thread = threading.Thread(target=knock)
    thread.start()
    thread.join()
    return errors[0] if errors else None


def test_no_wait_sleeps_so_long_that_a_signal_just_before_it_is_overlooked(monkeypatch) -> None:
    """A handler runs when the thread wakes: at most a second later, whatever it waits for."""
    asked: list[float] = []
    real, here = threading.Lock, threading.get_ident()

    class Lock:
        def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
            if timeout < 0:
                return True
            asked.append(timeout)
            return False

    def lock() -> Any:
        return Lock() if threading.get_ident() == here else real()

    with monkeypatch.context() as patched:
        patched.setattr("kohort.client.common.completion.threading", SimpleNamespace(Lock=lock))
        assert not Completion().wait(2.5)
    assert asked == [1.0, 1.0, 0.5]
    with Consumer(bootstrap_servers="127.0.0.1:1") as consumer:
        consumer.assign([("t", 0)])
        wait = next(consumer._calls.poll(lambda: None, 3_600.0))
        assert isinstance(wait, Wait)
        assert wait.timeout_s <= 1.0
