"""A node under a virtual clock, asked through the wire codecs, without sockets or threads."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from typing import Any, TypeVar

from kohort.broker.apis import APIS
from kohort.broker.base.config import BrokerConfig
from kohort.broker.base.request import ANONYMOUS, Call
from kohort.broker.log.files import Files, MemoryFiles, Syncable
from kohort.broker.node.node import Node
from kohort.broker.node.nodes import open_nodes
from kohort.broker.state.broker_state import BrokerState
from kohort.records import BatchBuilder, Chunk, Compression
from kohort.wire import Message, decode_request, decode_response, encode_request, encode_response
from kohort.wire.messages.create_topics_request import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from kohort.wire.messages.create_topics_response import CreateTopicsResponse
from kohort.wire.messages.fetch_request import FetchPartition, FetchRequest, FetchTopic
from kohort.wire.messages.fetch_response import FetchResponse, PartitionData
from kohort.wire.messages.produce_request import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from kohort.wire.messages.produce_response import PartitionProduceResponse, ProduceResponse

M = TypeVar("M", bound=Message)
WALL_MS = 1_700_000_000_000


class Timer:
    """A timer of `FakeEnv`."""

    def __init__(self, fn: Callable[..., object], args: tuple[Any, ...]) -> None:
        self.fn, self.args, self.live = fn, args, True

    def cancel(self) -> None:
        self.live = False


class FakeEnv:
    """`Env` with a clock that stands still until it is moved, and a flusher that may be held."""

    def __init__(self) -> None:
        self.clock_ms = 1_000_000
        self.hold_flushes = False
        self.flush_error: OSError | None = None
        self.flushes: list[tuple[Syncable, Callable[[OSError | None], None]]] = []
        self._timers: list[tuple[int, int, Timer]] = []
        self._soon: list[tuple[Callable[..., object], tuple[Any, ...]]] = []
        self._count = itertools.count()
        self._uuids = itertools.count(1)

    def now_ms(self) -> int:
        return self.clock_ms

    def wall_ms(self) -> int:
        return WALL_MS + self.clock_ms

    def call_at(self, when_ms: int, fn: Callable[..., object], *args: Any) -> Timer:
        timer = Timer(fn, args)
        heapq.heappush(self._timers, (when_ms, next(self._count), timer))
        return timer

    def call_soon(self, fn: Callable[..., object], *args: Any) -> None:
        self._soon.append((fn, args))

    def flush(self, file: Syncable, done: Callable[[OSError | None], None]) -> None:
        self.flushes.append((file, done))
        if not self.hold_flushes:
            self.call_soon(self.run_flushes)

    def run_flushes(self) -> None:
        """What the flusher's thread does."""
        waiting, self.flushes = self.flushes, []
        for file, done in waiting:
            try:
                if self.flush_error is not None:
                    raise self.flush_error
                file.sync()
            except OSError as error:
                done(error)
            else:
                done(None)

    def new_uuid(self) -> bytes:
        return next(self._uuids).to_bytes(16, "big")

    def settle(self) -> None:
        """Run everything that was to be run soon."""
        while self._soon:
            soon, self._soon = self._soon, []
            for fn, args in soon:
                fn(*args)

    def advance(self, ms: int) -> None:
        """Move the clock, firing timers on the way."""
        end = self.clock_ms + ms
        self.settle()
        while self._timers and self._timers[0][0] <= end:
            when, _, timer = heapq.heappop(self._timers)
            if timer.live:
                self.clock_ms = max(self.clock_ms, when)
                timer.fn(*timer.args)
                self.settle()
        self.clock_ms = end


class Answer:
    """What a request came to, perhaps later."""

    def __init__(self) -> None:
        self.frame: bytes | None = None
        self.silent = False
        self.call: Call | None = None

    @property
    def done(self) -> bool:
        return self.frame is not None or self.silent


class Harness:
    """A node, and how to ask it."""

    def __init__(
        self, files: Files | None = None, env: FakeEnv | None = None, **config: Any
    ) -> None:
        config.setdefault("durability", "memory")
        if config["durability"] != "memory":
            config.setdefault("data_dir", "unused")
        self.files: Files = MemoryFiles() if files is None else files
        self.env = FakeEnv() if env is None else env
        self.config = BrokerConfig(**config)
        self.state = BrokerState(self.config, self.files, self.env)
        self.nodes = open_nodes(self.state)
        self.env.settle()

    @property
    def node(self) -> Node:
        """The first node."""
        return self.at(self.config.node_id)

    def at(self, node_id: int) -> Node:
        """One of the nodes, which must run."""
        node = self.nodes.get(node_id)
        assert node is not None
        return node

    def send(
        self,
        request: Message,
        version: int,
        node: int | None = None,
        principal: str = ANONYMOUS,
    ) -> Answer:
        """Ask a node (None: the first); the answer may come later."""
        frame = b"".join(encode_request(request, version, 7, "tester"))[4:]
        decoded = decode_request(frame)
        answer = Answer()

        def answered(call: Call) -> None:
            if call.silent or call.response is None:
                answer.silent = True
            else:
                parts = encode_response(call.response, version, 7)
                answer.frame = b"".join(parts)[4:]

        api = APIS[request.API_KEY]
        assert api.min_version <= version <= api.max_version
        answer.call = Call(
            version, 7, "tester", "/127.0.0.1", api.may_park, answered, principal=principal
        )
        answer.call.silent = getattr(request, "acks", -1) == 0
        self.at(self.config.node_id if node is None else node).handle(decoded.message, answer.call)
        self.env.settle()
        return answer

    def ask(
        self,
        request: Message,
        response: type[M],
        version: int | None = None,
        node: int | None = None,
    ) -> M:
        """Ask, and read the answer, which must be there at once."""
        used = APIS[request.API_KEY].max_version if version is None else version
        answer = self.send(request, used, node)
        return self.read(answer, response, used)

    def read(self, answer: Answer, response: type[M], version: int | None = None) -> M:
        assert answer.frame is not None, "no answer yet"
        used = response.STABLE_VERSION if version is None else version
        return decode_response(response, used, answer.frame)[1]

    # -- what most tests do

    def create(self, name: str, partitions: int = 1, **config: str) -> None:
        configs = [
            CreatableTopicConfig(name=n.replace("_", "."), value=v) for n, v in config.items()
        ]
        topic = CreatableTopic(
            name=name, num_partitions=partitions, replication_factor=-1, configs=configs
        )
        answer = self.ask(CreateTopicsRequest(topics=[topic]), CreateTopicsResponse)
        assert answer.topics[0].error_code == 0, answer

    def produce(
        self, topic: str, batch: bytes, partition: int = 0, *, acks: int = -1
    ) -> PartitionProduceResponse:
        answer = self.ask(produce_request(topic, batch, partition, acks=acks), ProduceResponse, 11)
        return answer.responses[0].partition_responses[0]

    def produce_async(self, topic: str, batch: bytes, partition: int = 0) -> Answer:
        """Send a produce request without waiting for the disk."""
        return self.send(produce_request(topic, batch, partition), 11)

    def fetch(
        self, topic: str, offset: int, partition: int = 0, *, max_bytes: int = 1 << 20
    ) -> PartitionData:
        request = fetch_request(topic, offset, partition, max_bytes=max_bytes)
        answer = self.ask(request, FetchResponse, 12)
        return answer.responses[0].partitions[0]

    def read_all(self, topic: str, partition: int = 0, start: int = 0) -> list[tuple[int, bytes]]:
        """Every visible record as `(offset, value)`."""
        found: list[tuple[int, bytes]] = []
        offset = start
        while True:
            data = self.fetch(topic, offset, partition)
            assert data.error_code == 0, data
            records, after = parsed(data, offset)
            found += records
            if after == offset:
                return found
            offset = after

    def restarted(self, *, clean: bool) -> Harness:
        """A new node over the same files."""
        if clean:
            self.state.close()
        config = {n: getattr(self.config, n) for n in self.config.field_names()}
        return Harness(self.files, self.env, **config)


def batch_of(
    values: list[bytes],
    timestamp: int = WALL_MS,
    *,
    compression: Compression = Compression.NONE,
    timestamps: list[int] | None = None,
    keys: list[bytes | None] | None = None,
    **stamp: Any,
) -> bytes:
    """One batch as a producer sends it."""
    builder = BatchBuilder(compression)
    for at, value in enumerate(values):
        when = timestamps[at] if timestamps else timestamp
        builder.append(when, keys[at] if keys else None, value)
    return builder.build(**stamp)


def produce_request(
    topic: str, batch: bytes, partition: int = 0, *, acks: int = -1
) -> ProduceRequest:
    data = PartitionProduceData(index=partition, records=batch)
    return ProduceRequest(
        acks=acks,
        timeout_ms=1_000,
        topic_data=[TopicProduceData(name=topic, partition_data=[data])],
    )


def fetch_request(
    topic: str,
    offset: int,
    partition: int = 0,
    *,
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 1 << 20,
    epoch: int = -1,
) -> FetchRequest:
    part = FetchPartition(
        partition=partition,
        fetch_offset=offset,
        partition_max_bytes=max_bytes,
        current_leader_epoch=epoch,
    )
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        topics=[FetchTopic(topic=topic, partitions=[part])],
    )


def records_of(data: PartitionData, start: int = 0) -> list[tuple[int, bytes]]:
    """`(offset, value)` of what was fetched."""
    return parsed(data, start)[0]


def parsed(data: PartitionData, start: int) -> tuple[list[tuple[int, bytes]], int]:
    """What was fetched, and the offset to go on from (batches may be empty)."""
    assert data.records is not None
    chunk = Chunk("t", 0, bytes(data.records), start)  # type: ignore[arg-type]
    found: list[tuple[int, bytes]] = []
    while not chunk.exhausted:
        found += [(r.offset, r.value or b"") for r in chunk.next_records(1000)]
    return found, chunk.position
