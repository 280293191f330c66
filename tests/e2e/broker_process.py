"""A broker in a process of its own, to be killed as `kill -9` does and started again."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from kohort.errors import KohortError
from tests.patience import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
WRONG = ("Traceback", " ERROR ", " CRITICAL ", "closed the connection of")


class BrokerProcess:
    """`python -m kohort broker run` on one directory and one port."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        self.data_dir = directory / "data"
        self.log = directory / "broker.log"
        self.settings = settings
        self.port = 0
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it; returns when it has said that it is ready."""
        options = [part for k, v in self.settings.items() for part in ("-X", f"{k}={v}")]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "kohort",
                    "broker",
                    "run",
                    "--data-dir",
                    str(self.data_dir),
                    "--port",
                    str(self.port),
                    *options,
                ],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        assert self.process.stdout is not None
        patience = threading.Timer(PATIENCE_S, self.process.kill)
        patience.start()
        line = self.process.stdout.readline().decode()
        patience.cancel()
        if not line.startswith("ready on "):
            raise KohortError(f"the broker did not start: {line!r}\n{self.log.read_text()}")
        self.port = int(line.split()[2].rpartition(":")[2])

    def kill(self) -> None:
        """SIGKILL."""
        assert self.process is not None
        self.process.kill()
        self._gone()

    def stop(self) -> None:
        """SIGTERM, and an orderly end."""
        if self.process is not None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(PATIENCE_S)
            self.process.kill()
            self._gone()

    def _gone(self) -> None:
        assert self.process is not None
        assert self.process.stdout is not None
        self.process.wait()
        self.process.stdout.close()
        self.process = None

    def complaints(self) -> list[str]:
        """Lines of its log that a healthy broker does not write."""
        lines = self.log.read_text(errors="replace").splitlines()
        return [line for line in lines if any(word in line for word in WRONG)]
