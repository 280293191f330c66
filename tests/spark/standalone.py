"""A standalone Spark cluster on loopback, from the classes that pyspark brings."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pyspark

from tests.patience import PATIENCE_S

SRC = Path(__file__).resolve().parent.parent.parent / "src"


@dataclass(frozen=True)
class Standalone:
    """A master's URL, and the processes of its workers."""

    url: str
    workers: tuple[int, ...]


def started(stack: ExitStack, command: list[str | Path], directory: Path) -> tuple[int, IO[str]]:
    """Start a daemon of Spark that ends with the stack: its process, and what it logs."""
    process = subprocess.Popen(
        command,
        env={
            **os.environ,
            "SPARK_HOME": str(Path(pyspark.__file__).parent),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYTHONPATH": str(SRC),
            "PYSPARK_PYTHON": sys.executable,
        },
        cwd=directory,
        text=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    assert process.stderr is not None
    stack.callback(process.stderr.close)
    stack.callback(process.wait, PATIENCE_S)
    stack.callback(process.terminate)
    return process.pid, process.stderr


@contextmanager
def standalone(directory: Path, *, workers: int = 1, cores: int = 2) -> Iterator[Standalone]:
    """A master and its workers; ended when the block ends."""
    home = Path(pyspark.__file__).parent
    with ExitStack() as stack:

        def start(name: str, *arguments: str) -> tuple[int, IO[str]]:
            program = home / "bin" / "spark-class"
            return started(
                stack, [program, f"org.apache.spark.deploy.{name}", *arguments], directory
            )

        _, lines = start("master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        url = wait_for(lines, r"Starting Spark master at (spark://\S+)")
        pids: list[int] = []
        for number in range(workers):
            pid, lines = start(
                "worker.Worker",
                "--host",
                "127.0.0.1",
                "--webui-port",
                "0",
                "-c",
                str(cores),
                "-m",
                "2g",
                "-d",
                str(directory / f"work{number}"),
                url,
            )
            wait_for(lines, r"Successfully (registered) with master")
            pids.append(pid)
        yield Standalone(url, tuple(pids))


def kill_executor(worker: int) -> None:
    """SIGKILL one executor of a worker: a JVM that the worker's process has started.

    It may have other children for a moment.
    """
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            command = stat.with_name("cmdline").read_bytes()
        except OSError:  # it has just ended
            continue
        if parent == worker and b"CoarseGrainedExecutorBackend" in command:
            os.kill(int(stat.parent.name), signal.SIGKILL)
            return
    raise AssertionError(f"worker {worker} has no executor")


def wait_for(lines: IO[str], pattern: str) -> str:
    for line in lines:
        if match := re.search(pattern, line):
            return match[1]
    raise AssertionError(f"ended without saying {pattern}")
