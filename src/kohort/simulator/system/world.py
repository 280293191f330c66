"""One simulated system from its beginning to the verdict.

Rules:
- First everything works while faults come and go; then all faults end, the programs are asked to
  finish, and everything must come to rest within a bound of virtual time (SY10).
- The logs are read at the end by fresh clients over the network, as any user would read them.
- Everything random comes from the plan's seed: a plan always gives the same run.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from kohort.broker.apis import APIS
from kohort.broker.base.config import BrokerConfig
from kohort.broker.base.request import ANONYMOUS, Call
from kohort.client.common.types import TopicPartition
from kohort.client.consumer.async_consumer import AsyncConsumer
from kohort.client.producer.core import forget_ended
from kohort.errors import KohortError, UsageError
from kohort.group.coordinator.state.classic_records import StoredOffset
from kohort.group.coordinator.state.config import GroupConfig
from kohort.retry.redrive import GROUP_PREFIX
from kohort.simulator.checks.violation import Violation
from kohort.simulator.machine import Clock
from kohort.simulator.schedule import Schedule
from kohort.simulator.system.apps import (
    APPS,
    BOOKERS,
    DELAYS_MS,
    HANDLERS,
    SKEW_MS,
    Books,
    retry_topics,
)
from kohort.simulator.system.checks import Final, Handled, Logs, Stored, check
from kohort.simulator.system.client_process import ClientProcess
from kohort.simulator.system.faults import Faults
from kohort.simulator.system.history import History
from kohort.simulator.system.network import Network
from kohort.simulator.system.plan import UPGRADE, SystemPlan
from kohort.simulator.system.process import BrokerProcess
from kohort.simulator.system.programs import (
    ENDLESS,
    INPUT,
    LEDGER,
    MOVERS,
    ONE_AT_A_TIME,
    OUTPUT,
    PROGRAMS,
    READERS,
    TABLE,
    Life,
)
from kohort.simulator.system.recorder import Recorder
from kohort.simulator.system.redrives import Redriven, is_mended, redrive
from kohort.simulator.system.releases import NOW, release_before
from kohort.simulator.system.remade import REMADE, look, refill, remake, span
from kohort.simulator.system.retained import (
    CHECK_INTERVAL_MS,
    RETENTION_BYTES,
    SEGMENT_BYTES,
    WINDOW,
    Window,
    fill,
    trail,
    trim,
)
from kohort.simulator.system.states import coordinator_states, last_offsets
from kohort.simulator.system.sync_process import SyncProcess
from kohort.wire.messages.create_topics_request import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)

REST_MS = 120_000
"""How long the system may take to come to rest after the last fault."""
MAX_EVENTS = 1_500_000
_LOOK_MS = 250
P = TypeVar("P", ClientProcess, SyncProcess)
_WAITING = {**APPS, "trim": trim, "redrive": redrive, "remake": remake}
"""The programs that wait in their calls; the others await."""
_AWAITING = {
    **PROGRAMS,
    "fill": fill,
    "trail": trail,
    "refill": refill,
    "span": span,
    "look": look,
}
_RETAINED = {"fill", "trail", "trim"}
"""Those that need the topic whose beginning goes."""
_REMADE = {"remake", "refill", "span", "look"}
"""Those that need the topic that is made again."""


@dataclass
class Outcome:
    """What became of one run."""

    plan: SystemPlan
    code: str | None
    """The broken promise; None when all held."""
    what: str
    events: int
    ended_ms: int
    story: list[str]
    sent: int
    reached: Counter[str] = field(default_factory=Counter[str])
    """How often each fault happened and each coordinator state was seen."""

    @property
    def failed(self) -> bool:
        """Whether a promise was broken."""
        return self.code is not None


class _Program:
    """One program of the plan, with its lives."""

    def __init__(self, world: SystemWorld, kind: str, name: str, options: dict[str, Any]) -> None:
        self.kind = kind
        self.name = name
        self.lives = 0
        self.ended = False
        """Whether it ended after it was asked to finish."""
        self.process: ClientProcess | SyncProcess | None = None
        self._zombies: list[ClientProcess | SyncProcess] = []
        self._world = world
        self._options = options
        self.newest_apis = world.started_with.apis
        """What its next life knows of APIs."""

    def begin(self) -> None:
        """Begin a life, unless it has ended or runs."""
        if self.ended or (self.process is not None and not self.process.machine.dead):
            return
        world = self._world
        self.lives += 1
        name = f"{self.name}/{self.lives}"
        world.network.newest_apis[name] = self.newest_apis
        ended = partial(self._life_ended, self.lives)
        process: ClientProcess | SyncProcess
        if self.kind in _WAITING:  # their clock is the broker's, but for a little
            clock = Clock(world.chance.randint(0, SKEW_MS // 2))
            process = world.new_process(name, clock, ended, SyncProcess)
        else:
            clock = Clock(world.chance.randint(0, 50_000), world.chance.choice((1_000, 1_000, 999)))
            process = world.new_process(name, clock, ended, ClientProcess)
        self.process = process
        life = Life(
            self.name,
            self.lives,
            process,
            world.schedule.split(f"program {name}"),
            world.history,
            world.broker.bootstrap,
            world.partitions,
            lambda: world.finishing,
            self._options,
            world.log_start,
            world.deleted,
        )
        if isinstance(process, SyncProcess):
            process.run(partial(_WAITING[self.kind], life))
        else:
            process.run(partial(_AWAITING[self.kind], life))

    def _life_ended(self, life: int, error: BaseException | None) -> None:
        world, process = self._world, self.process
        is_zombie = life != self.lives
        if not is_zombie and (process is None or process.machine.dead):
            return
        if error is not None and not _is_expected(error):
            world.crash(f"{self.name}/{life}", error)
        what = "ends" if error is None else f"ends with {type(error).__name__}: {error}"
        world.tell(f"{self.name}/{life} {what}")
        if is_zombie or process is None:
            return
        process.kill()
        if error is None and world.finishing:
            self.ended = True
        else:
            world.schedule.after(world.chance.randint(50, 1_000), self.begin)

    def replace(self) -> bool:
        """Begin the next life although this one runs, which does not know; False: none runs."""
        runs = self.process is not None and not self.process.machine.dead
        if self.ended or not runs or self.kind in ONE_AT_A_TIME:
            return False
        assert self.process is not None
        self._zombies.append(self.process)
        self.process = None
        self.begin()
        return True

    def end_zombies(self) -> None:
        """Of former lives nothing is left."""
        for process in self._zombies:
            process.kill()
        self._zombies.clear()

    def kill(self) -> None:
        """`kill -9`; another life begins a little later."""
        if self.process is not None and not self.process.machine.dead:
            self.process.kill()
            self._world.schedule.after(self._world.chance.randint(50, 3_000), self.begin)


def _is_expected(error: BaseException) -> bool:
    """Programs use the clients as their contract asks: a fault is no reason for a UsageError."""
    return isinstance(error, KohortError) and not isinstance(error, UsageError)


class SystemWorld:
    """Everything in one run."""

    def __init__(self, plan: SystemPlan) -> None:
        self.plan = plan
        self.schedule = Schedule(plan.seed)
        self.chance = self.schedule.split("system")
        self.network = Network(self.schedule)
        self.history = History()
        self.final: Final | None = None
        """What was left at the end; None: the run has not come to it."""
        self.story: list[str] = []
        self.reached: Counter[str] = Counter()
        self.finishing = False
        self.flush_ms: tuple[int, int] = (1, 8)
        self._processes: list[ClientProcess | SyncProcess] = []
        self._visible: dict[TopicPartition, tuple[int, list[int]]] = {}
        self._crash: BaseException | None = None
        flushes = self.schedule.split("flush")
        is_remade = any(kind in _REMADE for kind, _ in plan.programs)
        self.before = release_before(plan.seed, plan.protocol, by_id=is_remade)
        self.started_with = self.before if UPGRADE in plan.faults else NOW
        self.broker = BrokerProcess(
            self.schedule,
            self.network,
            _config(plan),
            lambda: flushes.randint(*self.flush_ms),
            self.started_with,
        )
        self._directory = TemporaryDirectory(prefix="kohort-simulator-", dir=_quick_directory())
        self._kinds = {kind for kind, _ in plan.programs}
        topics = (INPUT, OUTPUT, LEDGER, TABLE, *((WINDOW,) if self._kinds & _RETAINED else ()))
        self.partitions: dict[str, int] = dict.fromkeys(topics, plan.partitions)
        self.network.recorder = Recorder(
            self.history,
            lambda: self.schedule.now_ms,
            self._topic_name,
            lambda topic: self.partitions.get(topic, 1),
            notes_generations=plan.protocol == "classic",
        )
        if self._kinds & _REMADE:
            self.partitions[REMADE] = 1
        self.programs = [
            _Program(self, kind, f"{kind}-{number}", self._options(kind, number))
            for kind, count in plan.programs
            for number in range(1, count + 1)
        ]
        self.faults = Faults(self)

    def _topic_name(self, topic_id: bytes) -> str | None:
        topic = self.broker.state.topics.by_id(topic_id)
        return None if topic is None else topic.name

    def _options(self, kind: str, number: int) -> dict[str, Any]:
        protocol = self.plan.protocol
        if protocol == "mixed":
            protocol = "consumer" if number % 2 else "classic"
        return {
            "group_protocol": protocol,
            "committed_only": kind == "read" and number % 2 == 1,
            "directory": Path(self._directory.name),
        }

    def new_process(
        self,
        name: str,
        clock: Clock,
        ended: Callable[[BaseException | None], object],
        kind: type[P],
    ) -> P:
        """A client process; its leftovers are released when the run ends."""
        process = kind(self.schedule, self.network, name, clock, ended)
        self._processes.append(process)
        return process

    # -- telling

    def tell(self, what: str) -> None:
        """One line of the story."""
        self.story.append(f"{self.schedule.now_ms:>7} ms  {what}")

    def crash(self, where: str, error: BaseException) -> None:
        """An error that a user would never have to expect: the run has failed."""
        self.tell(f"{where}: {type(error).__name__}: {error}")
        if self._crash is None:
            self._crash = error

    # -- running

    def run(self) -> Outcome:
        """Run to the end; the outcome names the first promise that was broken."""
        try:
            self._work()
            self.final = self._come_to_rest()
            check(self.history, self.final)
        except Violation as violation:
            return self._outcome(violation.code, str(violation))
        except Exception as error:  # any error of the broker in its loop is a finding
            return self._outcome("CRASH", "".join(traceback.format_exception(error)))
        finally:
            for process in self._processes:
                process.dispose()
            forget_ended()
            self._directory.cleanup()
        return self._outcome(None, "")

    def _outcome(self, code: str | None, what: str) -> Outcome:
        return Outcome(
            self.plan,
            code,
            what,
            self.schedule.events,
            self.schedule.now_ms,
            self.story,
            len(self.history.sent),
            self.reached + self.broker.wrote,
        )

    def _work(self) -> None:
        self._run_until(self.schedule.now_ms + 50)
        self._create_topics()
        for program in self.programs:
            self.schedule.after(self.chance.randint(0, 1_000), program.begin)
        self.faults.plan()
        self._run_until(self.schedule.now_ms + self.plan.work_ms)

    def _come_to_rest(self) -> Final:
        self.faults.heal()
        self.tell("no more faults; the programs are asked to finish")
        self.finishing = True
        bound_ms = self.schedule.now_ms + REST_MS
        finite = [p for p in self.programs if p.kind not in ENDLESS]
        self._wait(lambda: all(p.ended for p in finite), bound_ms, "a program does not end")
        self._wait(lambda: not self._open_transactions(), bound_ms, "a transaction stays open")
        if any(p.kind == "move" for p in self.programs):
            self._wait(self._all_moved, bound_ms, "the movers do not come to the end")
        if any(p.kind == "read" for p in self.programs):
            self._wait(self._all_read, bound_ms, "the readers do not come to the end")
        if "handle" in self._kinds:
            self._wait(self._all_handled, bound_ms, "the handlers do not come to the end")
        if "redrive" in self._kinds:
            self._wait(self._all_redriven, bound_ms, "what was redriven does not come to its end")
        if "book" in self._kinds:
            self._wait(self._all_booked, bound_ms, "the bookers do not come to the end")
        if WINDOW in self.partitions:
            self._wait(self._all_trailed, bound_ms, "the readers that trail do not come to the end")
            self._wait(self._is_retained, bound_ms, "retention does not come to its end")
        return self._read_everything(bound_ms)

    def _wait(self, done: Callable[[], bool], bound_ms: int, what: str) -> None:
        while not done():
            if self.schedule.now_ms >= bound_ms:
                raise Violation("SY10", f"{what} within {REST_MS} ms of the last fault")
            self._run_until(self.schedule.now_ms + _LOOK_MS)

    def _run_until(self, when_ms: int) -> None:
        while (due := self.schedule.next_ms) is not None and due <= when_ms:
            self.schedule.step()
            if self._crash is not None:
                raise self._crash
            if self.schedule.events % 64 == 0:
                self.reached.update(coordinator_states(self.broker))
            if self.schedule.events > MAX_EVENTS:
                raise Violation("SY10", f"{MAX_EVENTS} events and no end: it runs in circles")
        self.schedule.run_until(when_ms)

    # -- what the world looks at

    def _open_transactions(self) -> bool:
        return any(
            p.log is not None and p.log.stable.offset < p.log.end.offset
            for p in self.broker.state.opened()
        )

    def _ends(self, topic: str) -> dict[TopicPartition, int]:
        known_topic = self.broker.state.topics.get(topic)
        assert known_topic is not None, "its topics were made first"
        return {
            TopicPartition(topic, p.index): 0 if p.log is None else p.log.end.offset
            for p in known_topic.partitions
        }

    def log_start(self, place: TopicPartition) -> int | None:
        """Where a log starts; None while no broker has it open."""
        partition = self.broker.state.topics.partition(*place) if self.broker.alive else None
        return None if partition is None or partition.log is None else partition.start_offset

    def deleted(self, place: TopicPartition) -> int:
        """Below it records were deleted before the last crash, which may have brought some back.

        Retention deletes segments. DeleteRecords moves the log start; unless it was acknowledged,
        a power cut may move it back.
        """
        asked = [at for at in self.broker.log_starts[place] if (place, at) in self.history.trims]
        return max(self.broker.first_segments.get(place, 0), *asked, 0)

    def _all_trailed(self) -> bool:
        """Each reader has been given the last record, where there is one."""
        handed_out = {(r.program, r.partition, r.offset) for r in self.history.reads}
        trails = [p.name for p in self.programs if p.kind == "trail"]
        lasts = [
            (place, end - 1)
            for place, end in self._ends(WINDOW).items()
            if (self.log_start(place) or 0) < end
        ]
        return all((name, *last) in handed_out for name in trails for last in lasts)

    def _is_retained(self) -> bool:
        """No log has a segment too many."""
        return all(
            len(p.log.segments) == 1 or p.log.size - p.log.segments[0].size < RETENTION_BYTES
            for p in self.broker.state.opened()
            if p.topic.name == WINDOW and p.log is not None
        )

    def _windows(self) -> dict[TopicPartition, Window]:
        return {
            TopicPartition(*p.key): Window(p.start_offset, p.log.size)
            for p in self.broker.state.opened()
            if p.topic.name == WINDOW and p.log is not None
        }

    def _group_offsets(self, group: str) -> dict[TopicPartition, int]:
        return {place: kept.offset for place, kept in self._group_commits(group).items()}

    def _group_commits(self, group: str) -> dict[TopicPartition, StoredOffset]:
        """What the coordinator in charge knows of a group's commits."""
        for node in self.broker.nodes:
            for host in node.groups.hosts():
                offsets = host.shard.durable.offsets.get(group)
                if host.loaded and offsets:
                    return {TopicPartition(*at): kept for at, kept in offsets.items()}
        return {}

    def _all_moved(self) -> bool:
        return self._has_read(MOVERS, (INPUT,))

    def _all_read(self) -> bool:
        return self._has_read(READERS, (INPUT, LEDGER))

    def _all_handled(self) -> bool:
        """Not by the group's offsets: a commit that is late on its way may set them back."""
        attempts = {
            (a.partition, a.offset, a.number): a
            for a in self.history.attempts
            if a.group == HANDLERS and not is_mended(a.value)
        }
        dead: set[bytes] = set()
        for place in self._ends(INPUT):
            self._last_record(place)
        for place, offset in self._inputs():
            number = 0
            while (attempt := attempts.get((place, offset, number))) and not attempt.succeeded:
                number += 1
            if attempt is None and number <= len(DELAYS_MS):
                return False
            if attempt is None:
                dead.add(attempts[place, offset, number - 1].value)
        return dead <= self._dead_letters(HANDLERS)

    def _all_redriven(self) -> bool:
        """What redrives have sent was handled, or has failed again."""
        ended = {a.value for a in self.history.attempts if a.group == HANDLERS and a.succeeded}
        ended |= self._dead_letters(HANDLERS)
        entry = retry_topics(HANDLERS).entry
        return all(r.value in ended for _, log in self._log(entry).items() for r in log)

    def redriven(self) -> Redriven:
        """What redrives have left behind."""
        topics = retry_topics(HANDLERS)
        entry, letters = self._log(topics.entry), self._log(topics.dead_letter)
        return Redriven(
            {place: {r.offset: r.value or b"" for r in log} for place, log in letters.items()},
            tuple(r.value or b"" for log in entry.values() for r in log),
            {
                redrive_id: self._group_ends(f"{GROUP_PREFIX}{redrive_id}")
                for name, last in self.history.redrives.items()
                for redrive_id in (f"{name}-{number}" for number in range(last + 1))
            },
        )

    def _group_ends(self, group: str) -> dict[TopicPartition, int]:
        """What a redrive has noted beside its commits."""
        return {
            place: int(kept.metadata.rpartition("=")[2])
            for place, kept in self._group_commits(group).items()
        }

    def _all_booked(self) -> bool:
        """By the store: what a group has committed is only a hint there."""
        books = Books(Path(self._directory.name))
        ended = {(part, at) for _, part, at in books.rows()} | set(books.dead())
        for place in self._ends(INPUT):
            self._last_record(place)
        return all((p.partition, offset) in ended for p, offset in self._inputs())

    def _has_read(self, group: str, topics: tuple[str, ...]) -> bool:
        offsets = self._group_offsets(group)
        return all(
            offsets.get(place, 0) >= self._last_record(place) + 1
            for topic in topics
            for place in self._ends(topic)
        )

    def _last_record(self, place: TopicPartition) -> int:
        """The last offset that read_committed shows; -1 for none. Markers are no records."""
        log = self._visible.get(place)
        if log is None or log[0] != self._ends(place.topic)[place]:
            records = self._read([place], "read_committed")
            offsets = [record.offset for record in records[place]]
            self._visible[place] = self._ends(place.topic)[place], offsets
        return max(self._visible[place][1], default=-1)

    def _inputs(self) -> Iterator[tuple[TopicPartition, int]]:
        """What the input topic shows, as of the last look at it."""
        for place, (_, offsets) in self._visible.items():
            if place.topic == INPUT:
                yield from ((place, offset) for offset in offsets)

    # -- reading at the end

    def _read_everything(self, bound_ms: int) -> Final:
        places = [place for topic in self.partitions for place in self._ends(topic)]
        everything = self._read(places, "read_uncommitted", bound_ms)
        committed = self._read(places, "read_committed", bound_ms)
        books = Books(Path(self._directory.name))
        apps = Handled(
            frozenset(self._kinds & set(APPS)),
            tuple(books.rows()),
            frozenset(books.dead()),
            {group: self._dead_letters(group) for group in (HANDLERS, BOOKERS)},
        )
        lost_power = self.reached["fault power_cut"] > 0
        offsets = self._group_offsets(READERS)
        redriven = self.redriven() if "redrive" in self._kinds else Redriven()
        return Final(
            everything,
            committed,
            offsets,
            apps,
            self._windows(),
            lost_power,
            redriven,
            self.schedule.now_ms,
            last_offsets(self.broker, self.history.operations),
            frozenset(self._kinds),
        )

    def _dead_letters(self, group: str) -> frozenset[bytes]:
        logs = self._log(retry_topics(group).dead_letter)
        return frozenset(record.value or b"" for records in logs.values() for record in records)

    def _log(self, topic: str) -> Logs:
        """What a topic shows; nothing where there is none."""
        if self.broker.state.topics.get(topic) is None:
            return {}
        return self._read(list(self._ends(topic)), "read_committed")

    def _read(
        self, places: list[TopicPartition], isolation: str, bound_ms: int | None = None
    ) -> Logs:
        """Read partitions from start to end with a consumer of a fresh process."""
        by_place: dict[TopicPartition, list[Stored]] = {place: [] for place in places}
        ended: list[BaseException | None] = []
        process = self.new_process(
            f"final-{len(self._processes)}", Clock(), ended.append, ClientProcess
        )

        async def program() -> None:
            consumer: AsyncConsumer = process.make(
                AsyncConsumer,
                bootstrap_servers=self.broker.bootstrap,
                isolation_level=isolation,
                auto_offset_reset="earliest",
            )
            async with consumer:
                await consumer.assign(places)
                ends = await consumer.end_offsets(places)
                while True:
                    positions = [await consumer.position(p) >= ends[p] for p in places]
                    if all(positions):
                        return
                    for r in await consumer.poll(0.2):
                        stored = Stored(r.offset, r.key, r.value)
                        by_place[TopicPartition(r.topic, r.partition)].append(stored)

        process.run(program)
        limit_ms = self.schedule.now_ms + REST_MS if bound_ms is None else bound_ms + REST_MS
        what = f"a {isolation} reader does not come to the end"
        self._wait(lambda: bool(ended), limit_ms, what)
        process.kill()
        if ended[0] is not None:
            raise ended[0]
        return by_place

    # -- beginning

    def _create_topics(self) -> None:
        topics = [
            CreatableTopic(
                name=name,
                num_partitions=count,
                replication_factor=-1,
                configs=_CONFIGS.get(name, _SMALL_SEGMENTS),
            )
            for name, count in self.partitions.items()
        ]
        request = CreateTopicsRequest(topics=topics)
        api = APIS[request.API_KEY]
        call = Call(
            api.max_version, 1, "world", "/sim", api.may_park, lambda _: None, principal=ANONYMOUS
        )
        node = next(iter(self.broker.nodes))
        node.handle(request, call)
        self._run_until(self.schedule.now_ms + 100)


def _quick_directory() -> str | None:
    """In memory where there is such a place: a store would wait for the real disk."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def _configs(**values: str) -> list[CreatableTopicConfig]:
    return [CreatableTopicConfig(name=n.replace("_", "."), value=v) for n, v in values.items()]


_SMALL_SEGMENTS = _configs(segment_bytes="1500")
_CONFIGS = {
    TABLE: _configs(
        cleanup_policy="compact", segment_bytes="600", min_cleanable_dirty_ratio="0.01"
    ),
    WINDOW: _configs(retention_bytes=str(RETENTION_BYTES), segment_bytes=str(SEGMENT_BYTES)),
}


class _SweepingConfig(BrokerConfig):
    """Offsets are looked at often: an older commit says when it expires, or does not."""

    def group_config(self) -> GroupConfig:
        """As usual but for that."""
        return replace(super().group_config(), offsets_retention_check_interval_ms=2_000)


def _config(plan: SystemPlan) -> BrokerConfig:
    kind = _SweepingConfig if UPGRADE in plan.faults else BrokerConfig
    return kind(
        data_dir="simulated",
        durability=plan.durability,
        nodes=plan.nodes,
        offsets_topic_num_partitions=2,
        offsets_topic_segment_bytes=3_000,
        transaction_state_log_num_partitions=2,
        transaction_state_log_segment_bytes=3_000,
        group_min_session_timeout_ms=1_000,
        group_consumer_session_timeout_ms=6_000,
        group_consumer_min_session_timeout_ms=6_000,
        group_consumer_max_session_timeout_ms=6_000,
        group_consumer_heartbeat_interval_ms=1_000,
        group_consumer_min_heartbeat_interval_ms=1_000,
        group_consumer_max_heartbeat_interval_ms=1_000,
        log_cleaner_backoff_ms=700,
        log_flush_checkpoint_interval_ms=2_000,
        broker_session_timeout_ms=300,
        **_often(plan),
    )


def _often(plan: SystemPlan) -> dict[str, Any]:
    """Where retention matters it looks often."""
    looks = any(kind in _RETAINED for kind, _ in plan.programs)
    return {"log_retention_check_interval_ms": CHECK_INTERVAL_MS} if looks else {}


def run(plan: SystemPlan) -> Outcome:
    """Run one plan."""
    return SystemWorld(plan).run()


Program = Callable[[Life], Coroutine[Any, Any, None]]
