"""A simulated client process: a machine, its network loop, and one program of asyncio tasks."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from kohort.client.cluster.network_thread import NetworkThread
from kohort.simulator.loop import SimThread
from kohort.simulator.machine import Clock, Machine
from kohort.simulator.schedule import Schedule
from kohort.simulator.system.network import Network, SystemLoop
from kohort.simulator.system.tasks import TaskLoop


class ClientThread(SimThread):
    """What the clients of one process take for their network thread."""

    def __init__(self, loop: SystemLoop, uniform: Callable[[], float]) -> None:
        super().__init__(loop, uniform)
        self._machine = loop.machine
        self._users = 0
        self._abandoned = []

    @property
    def alive(self) -> bool:
        """Whether its process runs."""
        return not self._machine.dead


class ClientProcess:
    """Runs one program until it ends or is killed.

    Args:
        schedule: the world's.
        network: the world's.
        name: unique in the world.
        clock: what its clock shows.
        ended: called with the program's error, or None, when it ends by itself.
    """

    def __init__(
        self,
        schedule: Schedule,
        network: Network,
        name: str,
        clock: Clock,
        ended: Callable[[BaseException | None], object],
    ) -> None:
        self.name = name
        self.machine = Machine(schedule, name, clock)
        self._network = network
        self._ended = ended
        self._tasks = TaskLoop(self.machine, self._failed)
        self._program: Coroutine[Any, Any, None] | None = None
        loop = SystemLoop(self.machine, network)
        self._thread = ClientThread(loop, schedule.split(name).random)

    def run(self, program: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Begin with the program."""
        self.machine.soon(self._begin, program)

    def _begin(self, program: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._program = self._guarded(program)
        self._tasks.create_task(self._program)

    async def _guarded(self, program: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await program()
        except Exception as error:  # any error ends the program
            self._ended(error)
        else:
            self._ended(None)

    def make(self, client: Callable[..., Any], *args: Any, **settings: Any) -> Any:
        """Make a client whose network thread is this process's."""
        before = NetworkThread.replace(self._thread)
        try:
            return client(*args, **settings)
        finally:
            NetworkThread.replace(before)

    def kill(self) -> None:
        """`kill -9`."""
        self.machine.die()
        self._network.process_died(self.machine)

    def dispose(self) -> None:
        """Let go of a program that was killed, once the world has ended: Python would run its
        `finally` blocks when it collects it, outside of any loop."""
        self.machine.die()
        self._ended = _ignored
        if self._program is not None:
            self._tasks.close_coroutine(self._program)

    def _failed(self, error: BaseException) -> None:
        self._ended(error)


def _ignored(error: BaseException | None) -> None:
    """The world has ended: errors of a program that ends with it are not part of its story."""
