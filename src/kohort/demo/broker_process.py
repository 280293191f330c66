"""The demonstration's broker: a process of its own that outlives the driver and is found again.

Rules:
- What runs is written down (`broker.json`: pid, address) once it is ready; after a kill of the
  driver the next run finds the broker there, or starts one on the same data.
- A pid is believed only while its command line still names our data directory.

Shell: subprocess, signals, clock.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from kohort.errors import KafkaTimeoutError, KohortError
from kohort.spark.checkpoint import command_of

READY_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 20.0


class BrokerProcess:
    """A broker on `directory/data`, running or not."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.data = directory / "data"
        self._note = directory / "broker.json"
        self._child: subprocess.Popen[str] | None = None
        self._stopping = threading.Event()

    def running(self) -> tuple[int, str] | None:
        """(pid, bootstrap address) of the broker that runs on our data, or None."""
        try:
            note = json.loads(self._note.read_text())
            found = int(note["pid"]), str(note["bootstrap"])
        except (OSError, ValueError, KeyError):
            return None
        return found if self._is_ours(found[0]) else None

    def ensure(self) -> str:
        """Start the broker unless it runs; returns its bootstrap address."""
        if found := self.running():
            return found[1]
        self._end_unnoted()
        self.directory.mkdir(parents=True, exist_ok=True)
        command = [
            sys.executable,
            "-m",
            "kohort",
            "broker",
            "run",
            "--data-dir",
            str(self.data),
            "--port",
            "0",
            "--durability",
            "fsync",
        ]
        with (self.directory / "broker.log").open("a") as log:
            # A session of its own: an interrupt at the terminal is the driver's to handle.
            child = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
            )
        bootstrap = self._await_ready(child)
        temporary = self._note.with_suffix(".tmp")
        temporary.write_text(json.dumps({"pid": child.pid, "bootstrap": bootstrap}))
        temporary.replace(self._note)
        self._child = child
        return bootstrap

    def _end_unnoted(self) -> None:
        """End a broker of a driver that was killed before it could write down where it listens."""
        try:
            pid = int((self.data / ".lock").read_text())
        except (OSError, ValueError):
            return
        if self._is_ours(pid):
            self._end(pid, "an unknown port")

    def _is_ours(self, pid: int) -> bool:
        return str(self.data).encode() in command_of(pid)

    def _await_ready(self, child: subprocess.Popen[str]) -> str:
        killer = threading.Timer(READY_TIMEOUT_S, child.kill)
        killer.start()
        try:
            assert child.stdout is not None
            with child.stdout:
                for line in child.stdout:
                    if line.startswith("ready on "):
                        return line.split()[2]
        finally:
            killer.cancel()
        tail = "\n".join((self.directory / "broker.log").read_text().splitlines()[-5:])
        raise KohortError(
            f"the broker on {self.data} ended with status {child.wait()} before it was ready; "
            f"the end of {self.directory / 'broker.log'} says:\n{tail}"
        )

    def watch(self, gone: Callable[[], None]) -> None:
        """Call `gone` from a thread of its own when the broker is no more, unless we stop it."""
        self._stopping.clear()

        def wait() -> None:
            while self.running() and (self._child is None or self._child.poll() is None):
                time.sleep(0.25)
            if not self._stopping.is_set():
                gone()

        threading.Thread(target=wait, name="kohort-demo-broker-watch", daemon=True).start()

    def stop(self) -> None:
        """Ask the broker to end cleanly, if it runs. Raises KafkaTimeoutError if it does not."""
        found = self.running()
        self._stopping.set()
        if found is not None:
            self._end(*found)
            self._note.unlink(missing_ok=True)
        if self._child is not None:
            self._child.wait(STOP_TIMEOUT_S)

    def _end(self, pid: int, address: str) -> None:
        os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while self._is_ours(pid) and (self._child is None or self._child.poll() is None):
            if time.monotonic() > deadline:
                raise KafkaTimeoutError(
                    f"the broker at {address} (pid {pid}) did not end within {STOP_TIMEOUT_S:.0f} "
                    "s of SIGTERM; kill it and try again"
                )
            time.sleep(0.02)
