"""What librdkafka puts on the wire, byte for byte, read by us (and its own reader by ours).

Its mock cluster keeps batches as they were produced; they are fetched raw, without our client.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from kohort.records import BatchBuilder, BatchHeader, Compression
from kohort.wire import Message, decode_response, encode_request
from kohort.wire.messages.fetch_request import FetchPartition, FetchRequest, FetchTopic
from kohort.wire.messages.fetch_response import FetchResponse
from kohort.wire.messages.produce_request import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from kohort.wire.messages.produce_response import ProduceResponse
from tests.patience import PATIENCE_S
from tests.records.conftest import checked_set

FETCH_VERSION, PRODUCE_VERSION = 11, 8
# The mock cluster of librdkafka speaks these; the default logger would write to stderr.
QUIET = {"bootstrap.servers": "mock", "test.mock.num.brokers": 1, "log_level": 0}
ROWS = [
    (
        1_700_000_000_000 + i,
        None if i % 4 == 0 else b"key-%d" % i,
        None if i % 5 == 0 else b"value of some length " * (i % 30),
        [("name", b"%d" % i), ("none", None)][: i % 3],
    )
    for i in range(500)
]


class Mock:
    """A mock cluster, alive as long as the producer that owns it."""

    def __init__(self, codec: Compression) -> None:
        self.topic = f"t-{codec.name.lower()}"
        self.producer = Producer(
            {**QUIET, "compression.type": codec.name.lower(), "linger.ms": 100}
        )
        broker = next(
            iter(self.producer.list_topics(self.topic, timeout=PATIENCE_S).brokers.values())
        )
        self.address = (broker.host, broker.port)

    def ask(self, message: Message, version: int, answer: type[Any]) -> Any:
        with socket.create_connection(self.address, timeout=PATIENCE_S) as connection:
            connection.sendall(b"".join(encode_request(message, version, 1, "test")))
            stream = connection.makefile("rb")
            frame = stream.read(int.from_bytes(stream.read(4), "big"))
        return decode_response(answer, version, frame)[1]

    def batches(self) -> list[bytes]:
        """Every batch of partition 0; the mock gives one a fetch."""
        out: list[bytes] = []
        offset = 0
        while True:
            wanted = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
            request = FetchRequest(
                max_wait_ms=10, topics=[FetchTopic(topic=self.topic, partitions=[wanted])]
            )
            response = self.ask(request, FETCH_VERSION, FetchResponse)
            records = response.responses[0].partitions[0].records
            if not records:
                return out
            batch = bytes(records)
            out.append(batch)
            offset = BatchHeader(batch).next_offset


@pytest.fixture(params=Compression, ids=lambda codec: codec.name.lower())
def mock(request: pytest.FixtureRequest) -> Iterator[Mock]:
    cluster = Mock(request.param)
    yield cluster
    cluster.producer.flush(PATIENCE_S)


def test_we_read_librdkafka(impl: Any, mock: Mock) -> None:
    for timestamp, key, value, headers in ROWS:
        mock.producer.produce(
            mock.topic, partition=0, timestamp=timestamp, key=key, value=value, headers=headers
        )
    assert mock.producer.flush(PATIENCE_S) == 0
    got: list[Any] = []
    codecs: set[int] = set()
    for batch in mock.batches():
        codecs.add(checked_set(batch)[0].codec)
        records = impl.Chunk(mock.topic, 0, batch, 0).next_records(1000)
        got += [(r.timestamp, r.key, r.value, list(r.headers)) for r in records]
    assert got == ROWS
    assert codecs == {Compression.parse(mock.topic.removeprefix("t-"))}


def test_librdkafka_reads_ours(mock: Mock) -> None:
    codec = Compression.parse(mock.topic.removeprefix("t-"))
    builder = BatchBuilder(codec)
    for row in ROWS:
        builder.append(*row)
    data = PartitionProduceData(index=0, records=builder.build())
    request = ProduceRequest(
        acks=-1,
        timeout_ms=5000,
        topic_data=[TopicProduceData(name=mock.topic, partition_data=[data])],
    )
    answer = mock.ask(request, PRODUCE_VERSION, ProduceResponse)
    assert answer.responses[0].partition_responses[0].error_code == 0
    host, port = mock.address
    consumer = Consumer(
        {"bootstrap.servers": f"{host}:{port}", "group.id": "g", "check.crcs": True}
    )
    try:
        consumer.assign([TopicPartition(mock.topic, 0, 0)])
        messages = consumer.consume(len(ROWS), timeout=PATIENCE_S)
    finally:
        consumer.close()
    got = [(m.timestamp()[1], m.key(), m.value(), m.headers() or []) for m in messages]
    assert got == ROWS
