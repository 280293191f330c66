"""Verifiable members and producers as processes of their own, taken down in a `History`."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import kohort
from kohort.testing import Cluster, History
from tests.patience import PATIENCE_S

KOHORT = [sys.executable, "-m", "kohort"]
ENV = {"PYTHONPATH": str(Path(kohort.__file__).parent.parent), "PYTHONUNBUFFERED": "1"}


class Run:
    """A topic, a group, and its processes; used in `with`, which ends what is left of them."""

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        group: str,
        history: History,
        options: Sequence[str] = (),
    ) -> None:
        self.cluster, self.topic, self.group, self.history = cluster, topic, group, history
        self.options = options
        self.processes: dict[str, tuple[subprocess.Popen[str], threading.Thread]] = {}

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        for process, thread in self.processes.values():
            process.kill()
            process.wait()
            thread.join(PATIENCE_S)
            assert process.stdout is not None
            process.stdout.close()

    def consumer(self, name: str, *options: str, command: list[str] | None = None) -> None:
        """Start a member."""
        tool = command or [*KOHORT, "verifiable-consumer"]
        self._start(name, [*tool, *self._where(), "--group-id", self.group, *options])

    def producer(self, name: str, *options: str, command: list[str] | None = None) -> None:
        """Start a producer."""
        self._start(
            name, [*(command or [*KOHORT, "verifiable-producer"]), *self._where(), *options]
        )

    def _where(self) -> list[str]:
        return ["--bootstrap-server", self.cluster.bootstrap, "--topic", self.topic]

    def _start(self, name: str, command: list[str]) -> None:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=ENV)
        assert process.stdout is not None
        self.processes[name] = process, self.history.follow(name, process.stdout)

    def kill(self, name: str) -> None:
        """kill -9."""
        process, thread = self.processes[name]
        process.kill()
        process.wait()
        thread.join(PATIENCE_S)
        self.history.died(name)

    def stop(self, *names: str) -> None:
        """SIGTERM, and the end."""
        for name in names:
            self.processes[name][0].terminate()
        for name in names:
            self.processes[name][0].wait(PATIENCE_S)
            self.processes[name][1].join(PATIENCE_S)

    def finished(self, name: str) -> int:
        """The exit code of a program that ends by itself."""
        process, thread = self.processes[name]
        code = process.wait(PATIENCE_S)
        thread.join(PATIENCE_S)
        return code
