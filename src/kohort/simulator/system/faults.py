"""The faults of a simulated system: each comes at a random time and ends by itself or at `heal`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from kohort.broker.base.config import OFFSETS_TOPIC
from kohort.errors import KohortError, StorageError
from kohort.simulator.checks.violation import Violation
from kohort.simulator.schedule import Schedule
from kohort.simulator.system.apps import APPS
from kohort.simulator.system.client_process import ClientProcess
from kohort.simulator.system.network import Network
from kohort.simulator.system.plan import FAULTS, UPGRADE, SystemPlan
from kohort.simulator.system.process import BrokerProcess
from kohort.simulator.system.programs import MOVERS, READERS
from kohort.simulator.system.releases import NO_APIS, NOW, Release
from kohort.simulator.system.sync_process import SyncProcess


class Victim(Protocol):
    """A program as faults see it."""

    kind: str
    name: str
    process: ClientProcess | SyncProcess | None
    newest_apis: Mapping[int, int]
    """The versions of APIs that its next life knows."""

    def begin(self) -> None:
        """Begin the next life, where none runs."""
        ...

    def kill(self) -> None: ...

    def replace(self) -> bool:
        """Begin the next life beside this one; False: none runs."""
        ...

    def end_zombies(self) -> None:
        """End the former lives that still run."""
        ...


class FaultyWorld(Protocol):
    """What faults need of a world."""

    plan: SystemPlan
    schedule: Schedule
    network: Network
    broker: BrokerProcess
    partitions: dict[str, int]
    reached: Counter[str]
    flush_ms: tuple[int, int]
    before: Release
    """The release before this one."""

    @property
    def programs(self) -> Sequence[Victim]: ...

    def tell(self, what: str) -> None: ...


_SLOW_MS = 4_000


class Faults:
    """What goes wrong in one world."""

    def __init__(self, world: FaultyWorld) -> None:
        self._world = world
        self._chance = world.schedule.split("faults")
        self._healed = False
        self._clients_are_old = UPGRADE in world.plan.faults
        self._kinds: dict[str, Callable[[], str]] = {
            name: getattr(self, f"_{name}") for name in FAULTS
        }

    def plan(self) -> None:
        """Choose when what happens."""
        plan = self._world.plan
        if not plan.faults:
            return
        for _ in range(plan.fault_count):
            when_ms = self._world.schedule.now_ms + self._chance.randint(500, plan.work_ms)
            kind = self._chance.choice(plan.faults)
            self._world.schedule.at(when_ms, self._happen, kind)

    def _happen(self, kind: str) -> None:
        if self._healed:
            return
        self._world.reached[f"fault {kind}"] += 1
        self._world.tell(f"*** {kind}: {self._kinds[kind]()}")

    def heal(self) -> None:
        """End every fault; what is dead starts again.

        Raises Violation where a fault has done more harm than it may.
        """
        self._healed = True
        world, broker = self._world, self._world.broker
        world.network.heal()
        world.flush_ms = (1, 8)
        broker.files.failing_appends = broker.files.failing_syncs = 0
        self._finish_upgrade()
        offline = [p for p in broker.state.topics.partitions() if p.offline] if broker.alive else []
        if offline and not world.reached["fault disk_error"]:
            partition = offline[0]
            raise Violation(
                "SY10",
                f"{partition.topic.name}-{partition.index} is offline until the broker is "
                f"restarted, without a disk error: {partition.offline}",
            )
        if offline:
            broker.kill()
        broker.start()
        broker.shift_wall(-broker.wall_shift_ms)
        for node_id in broker.config.node_ids():
            if broker.nodes.get(node_id) is None:
                broker.nodes.restart(node_id)
        for program in world.programs:
            program.end_zombies()
            if program.process is not None:
                program.process.machine.stalled_until_ms = 0
            if isinstance(program.process, SyncProcess):
                program.process.crash_at(0, int)

    def _later(self, fn: Callable[[], object], most_ms: int = _SLOW_MS) -> int:
        """Call after a random time, unless everything is healed before."""
        wait_ms = self._chance.randint(50, most_ms)
        self._world.schedule.after(wait_ms, lambda: None if self._healed else fn())
        return wait_ms

    # -- nodes

    def _node(self) -> int:
        return self._chance.choice(self._world.broker.config.node_ids())

    def _node_kill(self) -> str:
        return self._end_node("is killed", lambda node: self._world.broker.nodes.kill(node))

    def _node_stop(self) -> str:
        return self._end_node("stops", lambda node: self._world.broker.nodes.stop(node))

    def _end_node(self, what: str, end: Callable[[int], object]) -> str:
        broker, node = self._world.broker, self._node()
        if not broker.alive or broker.nodes.get(node) is None:
            return "nothing to end"
        broker.machine.run(end, (node,))
        wait_ms = self._later(lambda: self._restart(node))
        return f"node {node} {what}; back in {wait_ms} ms"

    def _restart(self, node: int) -> None:
        broker = self._world.broker
        if broker.alive and broker.nodes.get(node) is None:
            broker.nodes.restart(node)
            self._world.tell(f"node {node} is back")

    def _leader_move(self) -> str:
        topic = self._chance.choice(list(self._world.partitions))
        partition = self._chance.randrange(self._world.partitions[topic])
        return self._move(
            f"{topic}-{partition}",
            lambda: self._world.broker.nodes.leaders.move(topic, partition, None),
        )

    def _coordinator_move(self) -> str:
        broker = self._world.broker
        if self._chance.random() < 0.5:
            group = self._chance.choice((MOVERS, READERS))
            return self._move(
                f"coordinator of {group}",
                lambda: broker.nodes.leaders.move_coordinator(group, None),
            )
        transactions = "__transaction_state"
        topic = self._chance.choice((OFFSETS_TOPIC, transactions))
        partition = self._chance.randrange(2)
        return self._move(
            f"{topic}-{partition}", lambda: broker.nodes.leaders.move(topic, partition, None)
        )

    def _move(self, what: str, move: Callable[[], int]) -> str:
        if not self._world.broker.alive:
            return "no broker"
        try:
            return f"{what} moves to node {move()}"
        except KohortError as error:
            return f"{what} does not move: {error}"

    # -- the process and its disk

    def _broker_kill(self) -> str:
        return self._end_broker("kill -9", self._world.broker.kill)

    def _broker_stop(self) -> str:
        return self._end_broker("it stops in order", self._world.broker.stop)

    def _power_cut(self) -> str:
        """At once, or during long flushes: an answer sent too early is lost."""
        if self._chance.random() < 0.5:
            return self._cut_power()
        least = self._chance.randint(200, 900)
        self._world.flush_ms = (least, least * 2)

        def cut() -> None:
            self._quick_disk()
            self._world.tell(self._cut_power())

        wait_ms = self._later(cut, 2_000)
        return f"a flush takes {least} ms and more; the power is cut in {wait_ms} ms"

    def _cut_power(self) -> str:
        """Clients on the same machine die, too: who comes next depends on what was committed."""
        dead = [one for one in self._world.programs if self._chance.random() < 0.3]
        for program in dead:
            program.kill()
        return self._end_broker(
            f"power cut, with {', '.join(one.name for one in dead) or 'no client'}",
            self._world.broker.cut_power,
        )

    def _end_broker(self, what: str, end: Callable[[], None]) -> str:
        broker = self._world.broker
        if not broker.alive:
            return "no broker"
        end()
        wait_ms = self._later(self._start_broker)
        return f"{what}; starts in {wait_ms} ms"

    def _start_broker(self) -> None:
        try:
            self._world.broker.start()
        except StorageError as error:  # an operator would start it again
            self._world.tell(f"the broker does not start: {error}")
            self._later(self._start_broker)
        else:
            self._world.tell("the broker starts")

    def _slow_disk(self) -> str:
        least = self._chance.randint(20, 800)
        self._world.flush_ms = (least, least * 3)
        wait_ms = self._later(self._quick_disk)
        return f"a flush takes {least} ms and more for {wait_ms} ms"

    def _quick_disk(self) -> None:
        self._world.flush_ms = (1, 8)

    def _full_disk(self) -> str:
        files = self._world.broker.files
        files.failing_appends = self._chance.randint(1, 20)

        def freed() -> None:
            files.failing_appends = 0

        self._later(freed)
        return f"{files.failing_appends} appends fail"

    def _disk_error(self) -> str:
        self._world.broker.files.failing_syncs = 1
        return "a flush fails"

    def _wall_jump(self) -> str:
        """Where apps retry, by no more than they expect: they would wait an hour."""
        broker = self._world.broker
        if any(kind in APPS for kind, _ in self._world.plan.programs):
            shift_ms = self._chance.choice((-40, 40)) - broker.wall_shift_ms
        else:
            shift_ms = self._chance.choice((-3_600_000, -60_000, 5_000, 3_600_000))
        if broker.alive:
            broker.shift_wall(shift_ms)
        return f"the broker's wall clock is set by {shift_ms} ms"

    # -- the network

    def _cut(self) -> str:
        port = self._chance.choice((None, *self._world.broker.ports))
        count = self._world.network.cut(self._chance, port)
        return f"{count} connections are cut"

    def _block(self) -> str:
        program = self._chance.choice(self._world.programs)
        if program.process is None:
            return "nobody to block"
        port = self._chance.choice(self._world.broker.ports)
        duration_ms = self._chance.randint(100, 12_000)
        self._world.network.block(program.process.machine.name, port, duration_ms)
        return f"{program.name} and port {port} cannot talk for {duration_ms} ms"

    def _slow_network(self) -> str:
        least = self._chance.randint(5, 300)
        self._world.network.latency_ms = (least, least * 4)
        wait_ms = self._later(self._quick_network)
        return f"frames take {least} ms and more for {wait_ms} ms"

    def _quick_network(self) -> None:
        self._world.network.latency_ms = (0, 3)

    # -- clients

    def _client_kill(self) -> str:
        program = self._chance.choice(self._world.programs)
        program.kill()
        return program.name

    def _store_crash(self) -> str:
        """Before a statement or a commit, or behind a commit that it does not know of."""
        writers = [p for p in self._world.programs if p.kind == "book"]
        program = self._chance.choice(writers) if writers else None
        if program is None or not isinstance(program.process, SyncProcess):
            return "no store is written"
        step = self._chance.randint(1, 40)
        begin = program.begin

        def crashed() -> None:
            self._reached("store crashed")
            self._world.schedule.after(self._chance.randint(50, 3_000), begin)

        program.process.crash_at(step, crashed)
        return f"{program.name} dies at step {step} of its store"

    def _client_twin(self) -> str:
        """As after a failover that took a slow process for dead: for a while there are two."""
        program = self._chance.choice(self._world.programs)
        if not program.replace():
            return f"{program.name} can have no twin now"
        return f"another {program.name} begins beside the one that runs"

    # -- releases

    def _upgrade(self) -> str:
        """The broker, or the clients one after another, come back as another release."""
        return self._upgrade_broker() if self._chance.random() < 0.5 else self._upgrade_clients()

    def _upgrade_broker(self) -> str:
        """Forth, and back by a patch release; where a kill comes first, nothing is closed."""
        broker = self._world.broker
        if not broker.alive:
            return "no broker"
        is_old = broker.release is not NOW
        broker.release = NOW if is_old else self._world.before.patch()
        self._reached(f"broker {'upgraded' if is_old else 'downgraded'}")
        end = broker.stop if self._chance.random() < 0.7 else broker.kill
        return self._end_broker(f"the broker becomes {broker.release.name}", end)

    def _upgrade_clients(self) -> str:
        """One after another, so that old and new ones work together; both ways."""
        is_old = self._clients_are_old
        self._clients_are_old = not is_old
        newest = NO_APIS if is_old else self._world.before.apis
        self._reached(f"clients {'upgraded' if is_old else 'downgraded'}")
        gap_ms = self._chance.randint(0, 1_500)
        for number, program in enumerate(self._world.programs):
            self._world.schedule.after(gap_ms * number, self._replaced, program, newest)
        what = NOW.name if is_old else self._world.before.name
        return f"each client becomes {what}, {gap_ms} ms after the one before it"

    def _replaced(self, program: Victim, newest: Mapping[int, int]) -> None:
        if not self._healed:
            program.newest_apis = newest
            program.kill()

    def _reached(self, what: str) -> None:
        self._world.reached[what] += 1

    def _finish_upgrade(self) -> None:
        """The release that ships reads what the one before it has left."""
        broker = self._world.broker
        if broker.release is NOW:
            return
        broker.release = NOW
        broker.stop()
        self._reached("broker upgraded")

    def _client_stall(self) -> str:
        program = self._chance.choice(self._world.programs)
        duration_ms = self._chance.randint(500, 15_000)
        if program.process is not None:
            program.process.machine.stall(duration_ms)
        return f"{program.name} for {duration_ms} ms"
