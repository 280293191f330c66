"""Apache Kafka's own programs: its broker as a cluster for tests, its console tools, its clients.

The jars come from Maven Central (`tools/java_tools.py`, `make interop`); without them every test
that needs them is skipped, and says so.
"""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

import pytest

from kohort.errors import KohortError
from kohort.wire import Message, decode_response, encode_request
from tests.patience import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
JARS = ROOT / "build" / "java"
READY_S = 180.0
CLUSTER_ID = "a29ob3J0LWludGVyb3AhIQ"
M = TypeVar("M", bound=Message)

needs_java = pytest.mark.skipif(
    not (JARS / "pom.xml").exists() or shutil.which("java") is None,
    reason="Apache Kafka's jars are not in build/java; `make interop` fetches them",
)


def java(main: str, *arguments: str, heap: str = "256m") -> list[str]:
    """The command line of one of Kafka's programs."""
    return [
        "java",
        f"-Xmx{heap}",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        "-cp",
        f"{JARS}/*",
        main,
        *arguments,
    ]


def tool(main: str, *arguments: str, stdin: str | None = None, timeout_s: float = 180) -> str:
    """What one of Kafka's console tools prints. Raises KohortError when it fails."""
    done = subprocess.run(
        java(main, *arguments), input=stdin, capture_output=True, text=True, timeout=timeout_s
    )
    if done.returncode:
        raise KohortError(f"{main} {' '.join(arguments)}: {done.stdout}\n{done.stderr}")
    return done.stdout


class ApacheKafka:
    """A broker of Apache Kafka (KRaft, one node) with the face of `kohort.testing.Cluster`."""

    def __init__(self, nodes: int = 1, durability: str = "memory", **overrides: Any) -> None:
        if nodes != 1:
            pytest.skip("one node of Apache Kafka is started here")
        del durability
        self._directory = Path(tempfile.mkdtemp(prefix="kohort-apache-"))
        self._overrides = overrides
        self._ports: tuple[int, int] | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap(self) -> str:
        assert self._ports is not None, "start it first"
        return f"127.0.0.1:{self._ports[0]}"

    def start(self) -> Self:
        """Start it and wait until it answers; what does not come up is ended."""
        try:
            return self._start()
        except BaseException:  # whatever it was, no process may stay behind
            self.kill()
            raise

    def _start(self) -> Self:
        properties = self._directory / "server.properties"
        if self._ports is None:
            self._ports = (free_port(), free_port())
            properties.write_text("".join(f"{k}={v}\n" for k, v in self._settings().items()))
            tool(
                "kafka.tools.StorageTool",
                "format",
                "-t",
                CLUSTER_ID,
                "-c",
                str(properties),
                "--standalone",
            )
        log = (self._directory / "kafka.log").open("ab")
        self._process = subprocess.Popen(self._command(properties), stdout=log, stderr=log)
        log.close()
        self._await_ready()
        return self

    def _command(self, properties: Path) -> list[str]:
        """How the broker is started; benchmarks start it as its own scripts do."""
        return java("kafka.Kafka", str(properties), heap="512m")

    def _settings(self) -> dict[str, Any]:
        assert self._ports is not None, "set by start"
        port, controller = self._ports
        ours: dict[str, Any] = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{controller}",
            "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "log.dirs": self._directory / "data",
            "offsets.topic.replication.factor": 1,
            "offsets.topic.num.partitions": 3,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "transaction.state.log.num.partitions": 3,
            "group.initial.rebalance.delay.ms": 0,
            "group.coordinator.append.linger.ms": 0,
            "log.cleaner.dedupe.buffer.size": 2 << 20,
            "log.message.timestamp.after.max.ms": 9223372036854775807,
        }
        theirs = {k.replace("_", "."): _text(v) for k, v in self._overrides.items()}
        return {**ours, **theirs}

    def _await_ready(self) -> None:
        """Listening is not enough: a first request has to be answered."""
        from kohort import Admin
        from kohort.errors import KohortError as NotYet

        assert self._process is not None, "started"
        end = time.monotonic() + READY_S
        while True:
            if self._process.poll() is not None or time.monotonic() > end:
                raise KohortError(f"Kafka did not start:\n{self.log()[-3000:]}")
            try:
                with Admin(bootstrap_servers=self.bootstrap, default_api_timeout_ms=2_000) as admin:
                    admin.create_topics([])
                    admin.describe_cluster()
                return
            except NotYet:
                continue

    def log(self) -> str:
        """What the broker has printed."""
        return (self._directory / "kafka.log").read_text()

    def stop(self) -> None:
        """SIGTERM, an orderly end."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(number)
            try:
                process.wait(PATIENCE_S)
            finally:
                process.kill()
                process.wait()

    def restart(self, **overrides: Any) -> None:
        """Stop it and start it again with the same records."""
        if overrides:
            pytest.skip("settings of Apache Kafka are not changed in a restart here")
        self.stop()
        self.start()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()
        shutil.rmtree(self._directory, ignore_errors=True)

    def create_topic(
        self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None
    ) -> None:
        """Make a topic, and wait until its leaders are there."""
        from kohort import Admin, Consumer, NewTopic

        with Admin(bootstrap_servers=self.bootstrap) as admin:
            admin.create_topics([NewTopic(name, partitions, 1, dict(config or {}))])
        with Consumer(bootstrap_servers=self.bootstrap) as consumer:
            consumer.end_offsets([(name, n) for n in range(partitions)])

    def request(self, message: Message, response: type[M], version: int | None = None) -> M:
        """One request over a connection of its own."""
        used = message.STABLE_VERSION if version is None else version
        host, _, port = self.bootstrap.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as connection:
            connection.sendall(b"".join(encode_request(message, used, 1, "kohort-testing")))
            with connection.makefile("rb") as stream:
                frame = stream.read(int.from_bytes(stream.read(4), "big"))
        return decode_response(response, used, frame)[1]


class ApacheProcess(ApacheKafka):
    """Apache Kafka with the face of `tests.e2e.broker_process.BrokerProcess`."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        super().__init__(**settings)
        shutil.rmtree(self._directory)
        self._directory = directory

    def complaints(self) -> list[str]:
        """What it logs is not looked at."""
        return []


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def verifiable(main: str, arguments: Sequence[str]) -> subprocess.Popen[str]:
    """VerifiableConsumer or VerifiableProducer: a JSON event a line on its standard output."""
    return subprocess.Popen(
        java(f"org.apache.kafka.tools.{main}", *arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def events(process: subprocess.Popen[str]) -> Any:
    """The events of a verifiable program, as they come."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("{"):
            yield json.loads(line)
