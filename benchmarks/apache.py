"""Apache Kafka's broker for benchmarks: a process beside ours, under the same load generator.

It runs as Kafka's own scripts start it (G1, a heap of 1 GB, both compilers), with its defaults but
for what one node needs; its data is in a directory of its own on the same file system. Its CPU time
is that of the whole process, as the kernel counts it in hundredths of a second.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.interop.java import JARS, ApacheKafka

from benchmarks.load import Served, ask, frame_of
from kohort.wire import decode_response
from kohort.wire.messages.find_coordinator_request import FindCoordinatorRequest
from kohort.wire.messages.find_coordinator_response import FindCoordinatorResponse

TICKS = os.sysconf("SC_CLK_TCK")
JVM = [
    "-Xms1g",
    "-Xmx1g",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
]


def lack() -> str | None:
    """Why Apache Kafka cannot be started here; None when it can."""
    if shutil.which("java") is None:
        return "java is not installed (Debian: apt-get install openjdk-17-jre-headless)"
    if not (JARS / "pom.xml").exists():
        return "its jars are not in build/java: `python tools/java_tools.py` fetches them (Maven)"
    return None


class BenchedKafka(ApacheKafka):
    """With the virtual machine's options of `kafka-server-start.sh`."""

    def _command(self, properties: Path) -> list[str]:
        return ["java", "-server", *JVM, "-cp", f"{JARS}/*", "kafka.Kafka", str(properties)]

    @property
    def pid(self) -> int:
        """The process of the broker that runs now."""
        assert self._process is not None, "started"
        return self._process.pid


@dataclass(frozen=True)
class ServedByJava(Served):
    """Threads of the virtual machine come and go: their time is asked of the process."""

    def cpu_s(self) -> float:
        """CPU seconds of the process, ended threads included."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(") ")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS


def served_by(kafka: BenchedKafka) -> ServedByJava:
    """Start it, format its directory if need be, and wait until it answers.

    `ready_s` includes the formatting, a process of its own, only at the first start: use the
    second one's.
    """
    began = time.perf_counter()
    kafka.start()
    ready_s = time.perf_counter() - began
    host, _, port = kafka.bootstrap.rpartition(":")
    return ServedByJava((host, int(port)), kafka.pid, ready_s)


@contextmanager
def apache(**overrides: object) -> Iterator[ServedByJava]:
    """Apache Kafka, started a second time on its formatted directory, its groups' topic made."""
    kafka = BenchedKafka(**overrides)
    with kafka:
        kafka.stop()
        served = served_by(kafka)
        await_coordinator(served)
        yield served


def await_coordinator(served: Served) -> None:
    """Kafka makes the topic of its groups when the first coordinator is looked for."""
    frame = frame_of(FindCoordinatorRequest(key_type=0, coordinator_keys=["bench"]), 4)
    end = time.monotonic() + 30
    while time.monotonic() < end:
        answer = decode_response(FindCoordinatorResponse, 4, ask(served.address, frame))[1]
        if not answer.coordinators[0].error_code:
            return
        time.sleep(0.1)
    raise TimeoutError("Kafka's coordinator did not come within 30 s")
