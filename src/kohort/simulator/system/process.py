"""One broker process over a simulated disk: its nodes, their ports, its life and death.

Rules:
- `BrokerState`, `Nodes`, `NodeEndpoint` and everything below them is the code that ships.
- `kill` loses the process, `cut_power` also what the disk did not have.
- A process of the release before is the same code, with older values written (`releases`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from kohort.broker.base.config import BrokerConfig
from kohort.broker.node.node import Node
from kohort.broker.node.nodes import Nodes, open_nodes
from kohort.broker.server.connection import NodeEndpoint
from kohort.broker.state.broker_state import BrokerState
from kohort.client.common.types import TopicPartition
from kohort.errors import StorageError
from kohort.simulator.env import SimEnv
from kohort.simulator.files import SimFiles
from kohort.simulator.machine import WALL_MS, Clock, Machine
from kohort.simulator.schedule import Schedule
from kohort.simulator.system.network import Listener, Network
from kohort.simulator.system.older_node import older_node
from kohort.simulator.system.releases import NOW, Release, file_name, older_file

FIRST_PORT = 9_000


class SimEndpoint(NodeEndpoint):
    """A node's port on the simulated network."""

    def __init__(
        self, network: Network, machine: Machine, config: BrokerConfig, port: int, env: SimEnv
    ) -> None:
        self._network = network
        self._machine = machine
        loop: Any = None  # it listens on the simulated network instead
        super().__init__(loop, config, port, env.after_flushes)

    def _listen(self, port: int) -> Any:
        return Listener(self._network, port, self._machine, self._accept)


class BrokerProcess:
    """The broker, started again after each death over the same disk."""

    def __init__(
        self,
        schedule: Schedule,
        network: Network,
        config: BrokerConfig,
        flush_ms: Callable[[], int],
        release: Release = NOW,
    ) -> None:
        self.config = config
        self.files = SimFiles()
        self.release = release
        """Of the next start."""
        self.first_segments: dict[TopicPartition, int] = {}
        """The highest offset at which each log's first segment began, in lives before this one."""
        self.log_starts: dict[TopicPartition, set[int]] = defaultdict(set)
        """Where each log started at the end of each life before this one."""
        self.wrote: Counter[str] = Counter()
        """What was written in an older version, how often."""
        self._schedule = schedule
        self._network = network
        self._flush_ms = flush_ms
        self.chance = schedule.split("broker")
        self.lives = 0
        self.wall_shift_ms = 0
        self.machine = Machine(schedule, "broker", Clock())
        self.machine.dead = True
        self.start()

    @property
    def ports(self) -> list[int]:
        """The port of each node."""
        return [FIRST_PORT + node for node in self.config.node_ids()]

    @property
    def bootstrap(self) -> str:
        """Where clients begin."""
        return ",".join(f"node:{port}" for port in self.ports)

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return not self.machine.dead

    def start(self) -> None:
        """Start over what the disk has. Does nothing when it runs. Raises StorageError."""
        if self.alive:
            return
        try:
            self._start()
        except StorageError:
            self.machine.die()
            raise

    def _start(self) -> None:
        self.lives += 1
        self.machine = Machine(self._schedule, "broker", Clock())
        self.env = SimEnv(self.machine, self.chance, self._flush_ms)
        self.shift_wall(0)
        self._network.newest_apis[self.machine.name] = self.release.apis
        self.files.written_as = self._older_file if self.release.older_files else None
        self.state = BrokerState(self.config, self.files, self.env)
        self.nodes: Nodes = open_nodes(self.state, self._node_kind())
        for node_id, port in zip(self.config.node_ids(), self.ports, strict=True):
            endpoint = SimEndpoint(self._network, self.machine, self.config, port, self.env)
            self.nodes.attach(node_id, endpoint)

    def _node_kind(self) -> type[Node]:
        if self.release is NOW:
            return Node
        return older_node(self.release, lambda name: self.wrote.update((f"wrote {name}",)))

    def _older_file(self, path: str, content: bytes) -> bytes:
        older = older_file(path, content)
        if older != content:
            self.wrote[f"wrote {file_name(path)}"] += 1
        return older

    def kill(self) -> None:
        """`kill -9`: its writes are in the operating system's cache."""
        if self.alive:
            for partition in self.state.opened():
                place, log = TopicPartition(*partition.key), partition.log
                if log is not None:
                    first = log.segments[0].base_offset
                    self.first_segments[place] = max(self.first_segments.get(place, 0), first)
                    self.log_starts[place].add(partition.start_offset)
            self.machine.die()
            self._network.process_died(self.machine)

    def stop(self) -> None:
        """An orderly end: the logs are flushed and closed, and the next start believes them."""
        if self.alive:
            with suppress(OSError, StorageError):  # a failing disk: it ends, and not cleanly
                self.state.close()
            self.kill()

    def cut_power(self) -> None:
        """The machine loses power: what was not flushed may be gone."""
        self.kill()
        self.files.power_cut(self.chance)

    def shift_wall(self, shift_ms: int) -> None:
        """Set the wall clock forth or back."""
        self.wall_shift_ms += shift_ms
        self.env.wall_offset_ms = WALL_MS + self.wall_shift_ms
