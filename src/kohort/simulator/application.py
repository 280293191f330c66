"""A simulated application: the caller's side of one real consumer.

Rules:
- Everything below the call is the real code: `ConsumerBase`, its core, its calls, its connections.
  Only what carries a call out (a thread, a task) is replaced by `Driver`, on virtual time.
- The application is one generator: it polls, deals with what came, commits in its way, and does in
  between the plan's requests (seek, pause, close). It may be slow, stall, or die.
  - It reports to the checks as it happens: the records it got, the calls of its listener.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Generator, Sequence
from types import GeneratorType
from typing import Any, NamedTuple, Protocol, cast

from kohort.client.cluster.waiting import Call, Steps, Wait
from kohort.client.common.config import ConsumerConfig
from kohort.client.common.listener import RebalanceListener
from kohort.client.common.types import OffsetAndMetadata, TopicPartition
from kohort.client.consumer.base import ConsumerBase
from kohort.client.consumer.core import ConsumerCore
from kohort.client.consumer.plan.subscription import SubscriptionPattern, Topics
from kohort.errors import (
    BrokerError,
    CommitFailedError,
    ConnectionFailedError,
    ErrorCode,
    FencedError,
    KafkaTimeoutError,
    KohortError,
    WakeupError,
)
from kohort.records import Record
from kohort.simulator.cluster import SimCluster
from kohort.simulator.event_log import Journal
from kohort.simulator.loop import SimLoop, SimThread
from kohort.simulator.machine import Clock, Machine
from kohort.simulator.network import Network
from kohort.simulator.node import PORT, host_name
from kohort.simulator.plan import ConsumerPlan, Settings
from kohort.simulator.schedule import Handle, Schedule

SERVER_ASSIGNORS = ("uniform", "range")
MAY_FAIL = (KafkaTimeoutError, ConnectionFailedError, CommitFailedError, BrokerError)
"""What a commit or a question may end with while things go wrong."""


class Work(NamedTuple):
    """The application is busy with something of its own."""

    ms: int


Life = Generator["Work | Wait | Call", None, None]
CommitCallback = Callable[[object, KohortError | None], None]


class Driver:
    """Carries out a generator of waits, works and calls on virtual time."""

    def __init__(self, machine: Machine, life: Life) -> None:
        self._machine = machine
        self.stack: list[Generator[Any, Any, Any]] = [life]
        """Its present calls, the innermost last."""
        self._timer: Handle | None = None
        self._rung = False
        self._waiting = False

    def ring(self) -> None:
        """The doorbell: end the present wait, or the next one."""
        self._rung = True
        if self._waiting:
            self._waiting = False
            if self._timer is not None:
                self._timer.cancel()
            self._machine.soon(self.go)

    def go(self, error: BaseException | None = None) -> None:
        """Run until it waits again, or is over."""
        self._timer = None
        self._waiting = False
        while self.stack:
            top = self.stack[-1]
            try:
                step = next(top) if error is None else top.throw(error)
                error = None
            except StopIteration:
                self.stack.pop()
                continue
            except KohortError as raised:
                self.stack.pop()
                if not self.stack:
                    raise
                error = raised
                continue
            if isinstance(step, Call):
                result: Any = step.fn(*step.args)
                if isinstance(result, GeneratorType):
                    self.stack.append(cast("Generator[Any, Any, Any]", result))
                continue
            now_ms = self._machine.now_ms()
            if isinstance(step, Work):
                self._timer = self._machine.at(now_ms + step.ms, self.go)
                return
            if self._rung:
                self._rung = False
                continue
            self._waiting = True
            self._timer = self._machine.at(now_ms + round(step.timeout_s * 1_000), self._time_over)
            return

    def _time_over(self) -> None:
        self._rung = False
        self.go()


class SimConsumer(ConsumerBase):
    """The real consumer with the face that a simulated application needs."""

    def __init__(self, config: ConsumerConfig, thread: SimThread, ring: Callable[[], None]):
        super().__init__(config, lambda: "the application", ring, thread)

    @property
    def core(self) -> ConsumerCore:
        """The engine, for checks to look into."""
        return self._core

    def subscribe(self, topics: Topics, listener: RebalanceListener) -> None:
        """As `Consumer.subscribe`."""
        self._subscribe(topics, listener)

    def poll(self, timeout_s: float, most: int) -> Steps[list[Record]]:
        """As `Consumer.poll`."""
        calls, core = self._calls, self._core
        calls.begin()
        if not core.inbox.attention:
            records = core.reader.take(most)
            calls.after_take()
            if records:
                return records
        return (yield from calls.poll(self._take_records(most), timeout_s)) or []

    def commit(
        self, offsets: dict[TopicPartition, OffsetAndMetadata | int] | None, timeout_ms: int
    ) -> Steps[None]:
        """As `Consumer.commit`."""
        yield from self._calls.commit(self._offsets(offsets), timeout_ms)

    def commit_async(self, callback: CommitCallback | None = None) -> None:
        """As `Consumer.commit_async`."""
        self._commit_async(None, callback or _ignore_commit)

    def unsubscribe(self, timeout_ms: int) -> Steps[None]:
        """As `Consumer.unsubscribe`."""
        self._calls.begin()
        yield from self._calls.unsubscribe(timeout_ms)

    def close(self, timeout_ms: int) -> Steps[Any]:
        """As `Consumer.close`."""
        return (yield from self._calls.close(timeout_ms, dealt_with=True))


def _ignore_commit(offsets: object, error: KohortError | None) -> None:
    """The callback of an asynchronous commit."""
    del offsets, error


class _Listener(RebalanceListener):
    """Tells the checks, and commits where the plan says so."""

    def __init__(self, app: Application) -> None:
        self._app = app

    def on_partitions_revoked(self, partitions: Sequence[TopicPartition]) -> Any:
        self._app.world.checks.revoked(self._app, partitions, lost=False)
        if not self._app.plan.fence:
            return None
        if self._app.plan.commit == "async":
            self._app.commit_without_waiting()
            return None
        return self._app.commit_all()

    def on_partitions_lost(self, partitions: Sequence[TopicPartition]) -> Any:
        self._app.world.checks.revoked(self._app, partitions, lost=True)

    def on_partitions_assigned(self, partitions: Sequence[TopicPartition]) -> Any:
        self._app.world.checks.assigned(self._app, partitions)


class ApplicationHooks(Protocol):
    """What hears of an application's events: the checks. See `Checks` for each."""

    def comes_back(self, app: Application) -> None: ...
    def polls(self, app: Application) -> None: ...
    def polled(self, app: Application, records: Sequence[Record], took_ms: int) -> None: ...
    def commits(self, app: Application) -> CommitCallback: ...
    def assigned(self, app: Application, partitions: Sequence[TopicPartition]) -> None: ...
    def revoked(
        self, app: Application, partitions: Sequence[TopicPartition], *, lost: bool
    ) -> None: ...
    def sought(self, app: Application, tp: TopicPartition, offset: int) -> None: ...
    def paused(self, app: Application, tp: TopicPartition, paused: bool) -> None: ...
    def woken(self, app: Application) -> None: ...
    def closed(self, app: Application, took_ms: int) -> None: ...
    def gone(self, app: Application) -> None: ...


class ApplicationWorld(Protocol):
    """The world, as far as an application uses it."""

    @property
    def settings(self) -> Settings: ...
    @property
    def schedule(self) -> Schedule: ...
    @property
    def journal(self) -> Journal: ...
    @property
    def network(self) -> Network: ...
    @property
    def cluster(self) -> SimCluster: ...
    @property
    def checks(self) -> ApplicationHooks: ...
    def refused(self, app: Application) -> None: ...


class Application:
    """One consumer's process: machine, consumer, and what its code does."""

    def __init__(self, world: ApplicationWorld, plan: ConsumerPlan, incarnation: int) -> None:
        self.world = world
        self.plan = plan
        self.name = plan.name
        self.incarnation = incarnation
        self.chance = world.schedule.split(f"{plan.name} {incarnation}")
        clock = Clock(self.chance.randint(0, 100_000), plan.permille)
        self.machine = Machine(world.schedule, plan.name, clock)
        self.begun = self.subscribed = False
        self.closed = False
        self.fenced = False
        self.slow_until_ms = 0
        self.busy_until_ms = 0
        """Until then it deals with records and does not poll."""
        self.wishes: deque[tuple[Any, ...]] = deque()
        self.read = 0
        """Records handed out so far."""
        self.commit_failed = False
        """Whether its last own commit was refused, or not answered; it has the error."""
        loop = SimLoop(self.machine, world.network)
        self.driver = Driver(self.machine, self._life())
        thread = SimThread(loop, self.chance.random)
        self.consumer = SimConsumer(self._config(), thread, self.driver.ring)
        self.machine.soon(self.driver.go)

    @property
    def alive(self) -> bool:
        """A process that runs and has not closed its consumer."""
        return not self.machine.dead and not self.closed

    def _config(self) -> ConsumerConfig:
        plan, times = self.plan, self.world.settings
        servers = [f"{host_name(number)}:{PORT}" for number in sorted(self.world.cluster.nodes)]
        return ConsumerConfig(
            bootstrap_servers=tuple(servers),
            client_id=plan.name,
            group_id=plan.group,
            group_instance_id=plan.instance,
            **self._protocol(),
            max_poll_interval_ms=times.max_poll_ms,
            request_timeout_ms=times.request_ms,
            default_api_timeout_ms=times.call_ms,
            enable_auto_commit=plan.commit == "auto",
            auto_commit_interval_ms=times.auto_commit_ms,
            auto_offset_reset=plan.reset,
            fetch_max_wait_ms=times.fetch_wait_ms,
            metadata_max_age_ms=times.metadata_age_ms,
            socket_connection_setup_timeout_ms=times.request_ms // 2,
            max_poll_records=plan.records,
            allow_auto_create_topics=False,
        )

    def _protocol(self) -> dict[str, Any]:
        """What is set for the protocol that it speaks; the broker decides the rest of KIP-848."""
        plan, times = self.plan, self.world.settings
        if plan.protocol == "consumer":
            named = plan.assignor if plan.assignor in SERVER_ASSIGNORS else None
            return {"group_protocol": "consumer", "group_remote_assignor": named}
        return {
            "partition_assignment_strategy": tuple(plan.assignor.split(",")),
            "session_timeout_ms": times.session_ms,
            "heartbeat_interval_ms": times.heartbeat_ms,
        }

    # -- what the plan may ask -------------------------------------------------------------------

    def wish(self, *what: Any) -> None:
        """Something to be done between two polls."""
        self.wishes.append(what)

    def be_slow(self, duration_ms: int) -> None:
        """The next records take this long to handle."""
        self.slow_until_ms = max(self.slow_until_ms, self.world.schedule.now_ms + duration_ms)

    def die(self) -> None:
        """The process is gone."""
        self.machine.die()
        self.world.network.process_dies(self.machine)
        self.world.checks.gone(self)

    # -- the application -------------------------------------------------------------------------

    def _life(self) -> Life:
        consumer, plan, checks = self.consumer, self.plan, self.world.checks
        consumer.subscribe(self._reads(), _Listener(self))
        self.begun = self.subscribed = True
        while True:
            checks.comes_back(self)
            while self.wishes:
                what = self.wishes.popleft()
                if what[0] == "close":
                    yield from self._close()
                    return
                try:
                    yield from self._fulfil(what)
                except WakeupError:  # "nothing is lost, call again"
                    self.wishes.appendleft(what)
            if not self.subscribed:  # `poll` refuses then (spec 1.11)
                yield Work(plan.poll_ms)
                continue
            began_ms = self.machine.now_ms()
            checks.polls(self)
            try:
                records = yield from consumer.poll(plan.poll_ms / 1_000, plan.records)
            except WakeupError:
                checks.woken(self)
                continue
            except ConnectionFailedError:  # no node was ever reached
                continue
            except FencedError as error:
                self.world.journal.tell(f"{self.name} is fenced: {error}")
                self.fenced = True
                yield from self._close()
                return
            except BrokerError as error:
                if error.code != ErrorCode.UNRELEASED_INSTANCE_ID:
                    raise
                yield from self._close()
                self.world.refused(self)
                return
            self.read += len(records)
            checks.polled(self, records, self.machine.now_ms() - began_ms)
            busy_ms = self._busy_ms(records)
            self.busy_until_ms = self.world.schedule.now_ms + busy_ms
            yield Work(busy_ms)
            if records:
                yield from self._commit()

    def _reads(self) -> Topics:
        pattern = self.plan.pattern
        if not pattern:
            return self.plan.topics
        by_broker = self.plan.protocol == "consumer"
        return SubscriptionPattern(pattern) if by_broker else re.compile(pattern)

    def _busy_ms(self, records: list[Record]) -> int:
        slow_ms = self.slow_until_ms - self.world.schedule.now_ms
        if slow_ms > 0:
            return slow_ms
        return self.chance.randint(0, self.plan.work_ms) if records else 0

    def _commit(self) -> Life:
        if self.plan.commit == "sync":
            yield from self.commit_all()
        elif self.plan.commit == "async":
            self.world.checks.commits(self)
            self.consumer.commit_async()

    def commit_all(self) -> Life:
        """Commit everything that was handed out; failing is allowed while things go wrong."""
        self.world.checks.commits(self)
        self.commit_failed = True
        try:
            yield from self.consumer.commit(None, self.world.settings.call_ms)
            self.commit_failed = False
        except WakeupError:
            return
        except MAY_FAIL as error:
            self.world.journal.note("commit failed", self.name, type(error).__name__)

    def commit_without_waiting(self) -> None:
        """Commit in a listener, which does not wait for the answer."""
        self.consumer.commit_async(self.world.checks.commits(self))

    def _fulfil(self, what: tuple[Any, ...]) -> Life:
        kind, args = what[0], what[1:]
        consumer = self.consumer
        if kind == "unsubscribe":
            yield from consumer.unsubscribe(self.world.settings.call_ms)
            self.subscribed = False
        elif kind == "subscribe":
            consumer.subscribe(args[0], _Listener(self))
            self.subscribed = True
        elif kind == "commit":
            yield from self.commit_all()
        elif args[0] in consumer.assignment():
            if kind == "seek":
                log = self.world.cluster.topic_log(*args[0])
                offset = min(args[1], 0 if log is None else log.end)
                consumer.seek(args[0], offset)
                self.world.checks.sought(self, args[0], offset)
            elif kind == "pause":
                consumer.pause(args[0])
                self.world.checks.paused(self, args[0], True)
            elif kind == "resume":
                consumer.resume(args[0])
                self.world.checks.paused(self, args[0], False)

    def _close(self) -> Life:
        self.world.checks.comes_back(self)
        began_ms = self.machine.now_ms()
        try:
            yield from self.consumer.close(self.world.settings.call_ms)
        except MAY_FAIL as error:
            self.world.journal.note("close failed", self.name, type(error).__name__)
        self.world.checks.closed(self, self.machine.now_ms() - began_ms)
        self.closed = True
        self.world.checks.gone(self)
