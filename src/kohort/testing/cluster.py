"""`Cluster`: an embedded broker for tests, in a background thread of this process.

    with Cluster() as cluster:
        cluster.create_topic("orders", partitions=3)
        consumer = Consumer(bootstrap_servers=cluster.bootstrap, group_id="g")

Rules:
- The broker listens on 127.0.0.1 on a free port, which it keeps through `restart`.
- With durability `memory` (the default) records outlive `stop`, `kill` and `restart`, and go with
  the `Cluster` object; with `fsync` or `os` they live in `data_dir`, by default a temporary
  directory.

Shell: sockets.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import tempfile
from collections.abc import Mapping
from typing import Any, TypeVar

from kohort.broker import Broker, BrokerConfig, Durability
from kohort.broker.log.files import Files, MemoryFiles
from kohort.errors import BrokerError, ClosedError, ConnectionFailedError, UsageError
from kohort.wire import Message, decode_response, encode_request
from kohort.wire.messages.create_topics_request import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from kohort.wire.messages.create_topics_response import CreateTopicsResponse

M = TypeVar("M", bound=Message)


class Cluster:
    """One embedded broker. `overrides` are fields of `BrokerConfig`.

    It does not run before `start()` or `with`. Raises what `Broker.start` raises.
    """

    def __init__(self, nodes: int = 1, durability: str = "memory", **overrides: Any) -> None:
        if nodes != 1:
            raise UsageError(f"nodes={nodes}: a cluster has one node in this version")
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._files: Files | None = None
        if durability == Durability.MEMORY.value:
            self._files = MemoryFiles()
        elif "data_dir" not in overrides:
            self._temporary = tempfile.TemporaryDirectory(prefix="kohort-")
            overrides["data_dir"] = self._temporary.name
        self.config = BrokerConfig(durability=durability, **overrides)
        self._broker: Broker | None = None

    @property
    def broker(self) -> Broker:
        """The running broker."""
        if self._broker is None:
            raise ClosedError("the cluster is not running; use it in `with`, or call start()")
        return self._broker

    @property
    def bootstrap(self) -> str:
        """`host:port` for `bootstrap_servers`; also while the broker is down."""
        if self._broker is None and not self.config.port:
            raise ClosedError("the cluster was never started; use it in `with`, or call start()")
        return f"{self.config.host}:{self.config.port}"

    def start(self) -> Cluster:
        """Start the broker; returns when it answers."""
        broker = Broker(self.config, files=self._files)
        broker.start()
        self.config = self.config.replace(port=broker.port)
        self._broker = broker
        return self

    def stop(self) -> None:
        """Shut the broker down cleanly. Does nothing when it does not run."""
        broker, self._broker = self._broker, None
        if broker is not None:
            broker.stop()

    def kill(self) -> None:
        """End the broker at once, as `kill -9` would: no flush, no goodbye, no clean marker."""
        broker, self._broker = self._broker, None
        if broker is not None:
            broker.kill()

    def restart(self, **overrides: Any) -> None:
        """Stop it if it runs, and start it again on the same port, with the same records."""
        self.stop()
        self.config = self.config.replace(**overrides)
        self.start()

    def __enter__(self) -> Cluster:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()
        if self._temporary is not None:
            with contextlib.suppress(OSError):
                self._temporary.cleanup()

    def create_topic(
        self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None
    ) -> None:
        """Make a topic. Raises BrokerError, for example TOPIC_ALREADY_EXISTS."""
        configs = [CreatableTopicConfig(name=n, value=v) for n, v in (config or {}).items()]
        request = CreateTopicsRequest(
            topics=[
                CreatableTopic(
                    name=name, num_partitions=partitions, replication_factor=1, configs=configs
                )
            ]
        )
        response = self.request(request, CreateTopicsResponse)
        result = response.topics[0]
        if result.error_code:
            raise BrokerError(result.error_code, result.error_message or name)

    def request(self, message: Message, response: type[M], version: int | None = None) -> M:
        """Send one request over a connection of its own and wait for the answer (10 s)."""
        used = message.STABLE_VERSION if version is None else version
        host, _, port = self.bootstrap.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            connection.sendall(b"".join(encode_request(message, used, 1, "kohort-testing")))
            frame = _receive(connection)
        return decode_response(response, used, frame)[1]


def _receive(connection: socket.socket) -> bytes:
    """One frame without its size."""
    with connection.makefile("rb") as stream:
        head = stream.read(4)
        if len(head) < 4:
            raise ConnectionFailedError("the broker closed the connection")
        (size,) = struct.unpack(">i", head)
        return stream.read(size)
