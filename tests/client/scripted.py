"""A broker whose every answer is written by the test; real sockets, our loop, a thread of its own.

`answers[request class name]` is a function `(request, call) -> message | None | CLOSE`; None leaves
the request unanswered. `call` has the version, the connection and the broker. ApiVersions, Metadata
and InitProducerId have answers by default.
"""

from __future__ import annotations

import queue
import threading
from dataclasses import dataclass, field
from typing import Any

from kohort.errors import KohortError
from kohort.net import Connection, Loop
from kohort.records import Chunk, read_batch_header
from kohort.wire import (
    Message,
    decode_request,
    decode_request_header,
    encode_response,
)
from kohort.wire.messages import APIS
from kohort.wire.messages.api_versions_response import ApiVersion, ApiVersionsResponse
from kohort.wire.messages.init_producer_id_response import InitProducerIdResponse
from kohort.wire.messages.metadata_response import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from tests.known import known
from tests.patience import PATIENCE_S

CLOSE = object()


@dataclass
class Call:
    """What an answer function may want to know of a request."""

    version: int
    connection: Connection
    broker: ScriptedBroker
    correlation_id: int

    def answer(self, message: Message) -> None:
        """Answer later; from any thread."""
        frame = encode_response(message, self.version, self.correlation_id)
        self.broker.loop.call_soon_threadsafe(self.connection.send, frame)


@dataclass
class ScriptedCluster:
    """Shared by its brokers: topics as {name: {partition: (leader, epoch)}}."""

    topics: dict[str, dict[int, tuple[int, int]]] = field(default_factory=dict)
    topic_ids: dict[str, bytes] = field(default_factory=dict)
    brokers: list[ScriptedBroker] = field(default_factory=list)
    errors: dict[str, int] = field(default_factory=dict)
    controller_id: int = 0

    def metadata(self, request: Any, call: Call) -> MetadataResponse:
        names = sorted(self.topics) if request.topics is None else [t.name for t in request.topics]
        topics = [self.topic(name) for name in names]
        nodes = [
            MetadataResponseBroker(node_id=b.node_id, host="127.0.0.1", port=b.port)
            for b in self.brokers
            if not b.stopped
        ]
        return MetadataResponse(
            brokers=nodes,
            cluster_id="scripted",
            controller_id=self.controller_id,
            topics=topics,
        )

    def topic(self, name: str) -> MetadataResponseTopic:
        code = self.errors.get(name, 0) if name in self.errors else 0
        if name not in self.topics or code:
            return MetadataResponseTopic(error_code=code or 3, name=name)
        partitions = [
            MetadataResponsePartition(
                partition_index=p, leader_id=leader, leader_epoch=epoch, replica_nodes=[leader]
            )
            for p, (leader, epoch) in self.topics[name].items()
        ]
        return MetadataResponseTopic(
            name=name, topic_id=self.topic_ids.get(name, bytes(16)), partitions=partitions
        )


class ScriptedBroker:
    """One node. `seen` is every request in order of arrival."""

    def __init__(self, cluster: ScriptedCluster | None = None, node_id: int = 0) -> None:
        self.cluster = cluster or ScriptedCluster()
        self.node_id = node_id
        self.cluster.brokers.append(self)
        self.versions = {key: (api[1], api[3]) for key, api in APIS.items()}
        self.seen: list[Message] = []
        self.arrived: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self.connections: list[Connection] = []
        self.errors: list[BaseException] = []
        self.stopped = False
        self.answers: dict[str, Any] = {
            "ApiVersionsRequest": self.api_versions,
            "MetadataRequest": self.cluster.metadata,
            "InitProducerIdRequest": lambda r, c: InitProducerIdResponse(
                producer_id=1000, producer_epoch=0
            ),
        }
        self.raw: dict[int, Any] = {}
        """API key to a function (frame, head, connection) -> bool that takes a request over."""
        self.loop = Loop(on_error=lambda what, error: self.errors.append(error))
        self.thread = threading.Thread(target=self.loop.run, daemon=True)
        self.listener = self.loop.listen("127.0.0.1", 0, self._accept, max_frame_bytes=64 << 20)
        self.port = self.listener.port
        self.thread.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def of(self, name: str) -> list[Any]:
        """The requests of one class that came so far."""
        return [r for r in list(self.seen) if type(r).__name__ == name]

    def wait_for(self, name: str) -> Any:
        """The next request of this class, in order of arrival."""
        while True:
            request = self.arrived.get(timeout=PATIENCE_S)
            if type(request).__name__ == name:
                return request

    def cut(self) -> None:
        """Close every open connection."""

        def close() -> None:
            for connection in self.connections:
                connection.close()

        self.loop.call_soon_threadsafe(close)

    def stop(self) -> None:
        self.stopped = True
        self.loop.stop()
        self.thread.join(PATIENCE_S)
        assert not self.thread.is_alive()

    def api_versions(self, request: Any, call: Call) -> ApiVersionsResponse:
        return ApiVersionsResponse(
            api_keys=[
                ApiVersion(api_key=key, min_version=low, max_version=high)
                for key, (low, high) in self.versions.items()
            ]
        )

    # -- the listener's and the connections' events

    def _accept(self, c: Connection) -> ScriptedBroker:
        self.connections.append(c)
        return self

    def connected(self, c: Connection) -> None: ...
    def drained(self, c: Connection) -> None: ...
    def closed(self, c: Connection, error: KohortError | None) -> None: ...

    def frame_received(self, c: Connection, frame: memoryview) -> None:
        head = decode_request_header(frame)
        taker = self.raw.get(head.api_key)
        if taker is not None and taker(frame, head, c):
            return
        request = decode_request(bytes(frame))
        message = request.message
        self.seen.append(message)
        call = Call(request.api_version, c, self, request.correlation_id)
        answer = self.answers[type(message).__name__](message, call)
        if answer is CLOSE:
            c.close()
        elif answer is not None:
            c.send(encode_response(answer, request.api_version, request.correlation_id))
        self.arrived.put(message)


def values_of(payload: bytes | bytearray | memoryview) -> list[bytes | None]:
    """The values of a batch's records."""
    chunk = Chunk("t", 0, bytes(payload), fetch_offset=0)
    return [record.value for record in chunk.next_records(100_000)]


class Log:
    """One partition at a broker that keeps to the rules of idempotent producers (KIP-98).

    A producer that it does not know may begin with any sequence, as in Kafka.
    """

    def __init__(self) -> None:
        self.values: list[bytes | None] = []
        self.producer = (-1, -1)
        self.recent: list[tuple[int, int]] = []

    def append(self, payload: bytes | bytearray) -> int:
        header = known(read_batch_header(payload))
        if header.producer_id == -1:
            self.values += values_of(payload)
            return 0
        producer = (header.producer_id, header.producer_epoch)
        span = (header.base_sequence, header.last_sequence)
        if producer == self.producer:
            if span in self.recent:
                return 0
            if span[0] != self.recent[-1][1] + 1:
                return 45
        elif producer < self.producer:
            return 47
        elif span[0] != 0 and self.recent:
            return 45
        else:
            self.producer, self.recent = producer, []
        self.recent = [*self.recent, span][-5:]
        self.values += values_of(payload)
        return 0
