"""The embedded broker: produce and fetch MB/s beside plain loopback and plain disk, group commit,
start-up time, memory. Small requests are in `bench_small`.

The broker runs in a process of its own; the load generator is raw sockets with frames made before.
Compare ratios: client and server share the machine's cores.
"""

from __future__ import annotations

import mmap
import multiprocessing
import os
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from benchmarks.load import Rate, Served, ask, broker, drive, frame_of, memory_mb, threads_s
from kohort.errors import BrokerError, ErrorCode
from kohort.records import BatchBuilder
from kohort.wire import decode_response
from kohort.wire.messages.api_versions_request import ApiVersionsRequest
from kohort.wire.messages.create_topics_request import CreatableTopic, CreateTopicsRequest
from kohort.wire.messages.create_topics_response import CreateTopicsResponse
from kohort.wire.messages.delete_topics_request import DeleteTopicsRequest, DeleteTopicState
from kohort.wire.messages.delete_topics_response import DeleteTopicsResponse
from kohort.wire.messages.fetch_request import FetchPartition, FetchRequest, FetchTopic
from kohort.wire.messages.list_offsets_request import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from kohort.wire.messages.list_offsets_response import ListOffsetsResponse
from kohort.wire.messages.produce_request import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)

SENDER = """
import socket, sys
s = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
data = bytes(1 << 20)
for _ in range(int(sys.argv[2])):
    s.sendall(data)
"""
MB = 1e6
LEADERS_WITHIN_S = 30.0
NO_LEADER_YET = {
    int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    int(ErrorCode.LEADER_NOT_AVAILABLE),
    int(ErrorCode.NOT_LEADER_OR_FOLLOWER),
}


class Moved(NamedTuple):
    """What one run of produce or fetch came to."""

    mb_s: float
    cpu_gb: float
    """CPU seconds of the broker for a billion bytes."""
    busiest_gb: float
    """The same of its busiest thread alone: what bounds it when it has cores enough."""

    def __str__(self) -> str:
        return f"{self.mb_s:8.0f} MB/s  {self.cpu_gb:5.2f} CPU-s/GB"


class Client:
    """A blocking connection that counts frames."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.socket = socket.create_connection(address)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = memoryview(bytearray(16 << 20))

    def send(self, frame: bytes) -> None:
        self.socket.sendall(frame)

    def receive(self) -> memoryview:
        self._exactly(4)
        (size,) = struct.unpack_from(">i", self._buffer)
        self._exactly(size)
        return self._buffer[:size]

    def _exactly(self, size: int) -> None:
        at = 0
        while at < size:
            n = self.socket.recv_into(self._buffer[at:size])
            if n == 0:
                raise ConnectionError("the broker closed the connection")
            at += n

    def pipeline(self, frame: bytes, count: int, depth: int) -> int:
        """Send a frame many times, `depth` ahead; returns the bytes received."""
        received = 0
        for _ in range(min(depth, count)):
            self.send(frame)
        for i in range(count):
            received += len(self.receive())
            if i + depth < count:
                self.send(frame)
        return received


def batch_of(size: int) -> bytes:
    builder = BatchBuilder()
    value = bytes(100)
    while builder.size < size - 120:
        builder.append(int(time.time() * 1000), None, value)
    return builder.build()


def produce_frame(topic: str, partition: int, batch: bytes, acks: int = 1) -> bytes:
    part = PartitionProduceData(index=partition, records=batch)
    topics = [TopicProduceData(name=topic, partition_data=[part])]
    return frame_of(ProduceRequest(acks=acks, timeout_ms=10_000, topic_data=topics), 9)


def fetch_frame(topic: str, partition: int, offset: int, size: int) -> bytes:
    part = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=size)
    topics = [FetchTopic(topic=topic, partitions=[part])]
    request = FetchRequest(max_wait_ms=100, min_bytes=1, max_bytes=size, topics=topics)
    return frame_of(request, 12)


def create(address: tuple[str, int], topic: str, partitions: int) -> None:
    """Make a topic and wait until all of its partitions can be written."""
    client = Client(address)
    wanted = CreatableTopic(name=topic, num_partitions=partitions, replication_factor=1)
    client.send(frame_of(CreateTopicsRequest(topics=[wanted]), 7))
    answer = decode_response(CreateTopicsResponse, 7, bytes(client.receive()))[1]
    assert answer.topics[0].error_code == 0, answer
    client.socket.close()
    await_leaders(address, topic, partitions)


def await_leaders(address: tuple[str, int], topic: str, partitions: int) -> None:
    """Wait until the broker leads them: Apache Kafka answers CreateTopics, and starts, before.

    Raises TimeoutError after `LEADERS_WITHIN_S`, BrokerError for any other answer.
    """
    parts = [ListOffsetsPartition(partition_index=n, timestamp=-1) for n in range(partitions)]
    request = ListOffsetsRequest(topics=[ListOffsetsTopic(name=topic, partitions=parts)])
    frame, end = frame_of(request, 5), time.monotonic() + LEADERS_WITHIN_S
    while True:
        answer = decode_response(ListOffsetsResponse, 5, ask(address, frame))[1]
        codes = {part.error_code for part in answer.topics[0].partitions} - {0}
        if not codes:
            return
        if wrong := codes - NO_LEADER_YET:
            raise BrokerError(min(wrong), f"waiting for the leaders of {topic}")
        if time.monotonic() > end:
            raise TimeoutError(f"{topic} has no leaders within {LEADERS_WITHIN_S:.0f} s: {codes}")
        time.sleep(0.01)


def delete(address: tuple[str, int], topic: str) -> None:
    request = DeleteTopicsRequest(topics=[DeleteTopicState(name=topic)], timeout_ms=10_000)
    answer = decode_response(DeleteTopicsResponse, 6, ask(address, frame_of(request, 6)))[1]
    assert answer.responses[0].error_code == 0, answer


def timed(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def in_threads(works: list[Callable[[], Any]]) -> None:
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


# -- what the machine can do


def loopback() -> float:
    """MB/s of a plain socket from another process."""
    count = 3_000
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        process = subprocess.Popen([sys.executable, "-c", SENDER, port, str(count)])
        connection, _ = server.accept()
        buffer = bytearray(1 << 20)
        began, got = time.perf_counter(), 0
        while n := connection.recv_into(buffer):
            got += n
        seconds = time.perf_counter() - began
        process.wait()
        connection.close()
    return got / MB / seconds


def plain_disk(directory: str) -> tuple[float, float]:
    """MB/s of appending 100 KB pieces to a file; without and with one flush at the end."""
    data, count = bytes(100_000), 4_000
    fd = os.open(f"{directory}/plain", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    written = timed(lambda: [os.write(fd, data) for _ in range(count)])
    flushed = written + timed(lambda: os.fdatasync(fd))
    os.close(fd)
    os.unlink(f"{directory}/plain")
    return count * len(data) / MB / written, count * len(data) / MB / flushed


def touch_memory(mb: int) -> None:
    """Write to so much memory and free it: a virtual machine gets its pages from its host when they
    are first written to, at 1 s/GB and more, and whoever writes files first would pay for all.
    """
    with mmap.mmap(-1, mb * 1_000_000) as memory:
        for at in range(0, len(memory), mmap.PAGESIZE):
            memory[at] = 1


# -- the broker


def moving(
    served: Served, clients: list[Client], works: list[Callable[[], Any]], moved: Callable[[], int]
) -> Moved:
    """Run `works`, one thread each; `moved()` bytes have gone through the broker then."""
    before, threads = served.cpu_s(), threads_s(served.pid)
    seconds = timed(lambda: in_threads(works))
    used, after = served.cpu_s() - before, threads_s(served.pid)
    busiest = max(after[task] - threads.get(task, 0.0) for task in after)
    for client in clients:
        client.socket.close()
    size = moved()
    return Moved(size / MB / seconds, used / (size / 1e9), busiest / (size / 1e9))


def produce(served: Served, topic: str, size: int, total_mb: int) -> Moved:
    """Batches of `size` bytes into partitions 0 and 1, each from a connection of its own."""
    batch = batch_of(size)
    connections, depth = 2, 4
    count = max(connections, total_mb * 1_000_000 // len(batch) // connections)
    clients = [Client(served.address) for _ in range(connections)]

    def work(i: int) -> Callable[[], int]:
        frame = produce_frame(topic, i, batch)
        return lambda: clients[i].pipeline(frame, count, depth)

    return moving(
        served,
        clients,
        [work(i) for i in range(connections)],
        lambda: connections * count * len(batch),
    )


def fetch(served: Served, topic: str, size: int, total_mb: int) -> Moved:
    """Answers of `size` bytes from partitions 0 and 1, each over a connection of its own."""
    connections, depth = 2, 2
    clients = [Client(served.address) for _ in range(connections)]
    count = total_mb * 1_000_000 // size // connections
    got = [0] * connections

    def work(i: int) -> Callable[[], None]:
        frames = [fetch_frame(topic, i, offset, size) for offset in range(0, 100_000, 997)]

        def run() -> None:
            client = clients[i]
            for k in range(depth):
                client.send(frames[k % len(frames)])
            for k in range(count):
                got[i] += len(client.receive())
                client.send(frames[(k + depth) % len(frames)])

        return run

    return moving(served, clients, [work(i) for i in range(connections)], lambda: sum(got))


def beside(served: Served, topic: str, seconds: float) -> Rate:
    """Small requests on four connections while another process reads as `fetch` does."""
    endless = served, topic, 1_000_000, 1_000_000
    reader = multiprocessing.Process(target=fetch, args=endless, daemon=True)
    reader.start()
    try:
        time.sleep(0.3)  # it starts
        return drive(served, [frame_of(ApiVersionsRequest(), 0)] * 4, seconds, 1)
    finally:
        reader.terminate()
        reader.join()


def unread(served: Served, topic: str) -> float:
    """MB by which the broker grows when a hundred clients ask for 20 answers of 1 MB each and read
    none; mapped files are not counted.
    """
    create_connection, frame = socket.create_connection, fetch_frame(topic, 0, 0, 1_000_000)
    before = memory_mb(served.pid, "RssAnon")
    clients = [create_connection(served.address) for _ in range(100)]
    for client in clients:
        client.sendall(frame * 20)
    time.sleep(1.0)
    grown = memory_mb(served.pid, "RssAnon") - before
    for client in clients:
        client.close()
    return grown


def bulk(directory: str, loop_mb: float, disk_mb: float) -> None:
    with broker(durability="os", data_dir=directory) as served:
        address, pid, ready_s = served.address, served.pid, served.ready_s
        print(f"ready, empty directory            {ready_s * 1e3:8.0f} ms (process start included)")
        print(f"memory, idle                      {memory_mb(pid):8.1f} MB")
        for size in (16_000, 100_000, 1_000_000):
            create(address, f"p{size}", 2)
            total = 600 if size >= 100_000 else 300
            result = produce(served, f"p{size}", size, total)
            ratio = result.mb_s / disk_mb
            print(f"produce os, {size // 1000:4d} KB batches      {result}  {ratio:4.0%} of disk")
        for size in (1_000_000, 64_000):
            result = fetch(served, "p16000", size, 4_000 if size > 100_000 else 1_500)
            ratio = result.mb_s / loop_mb
            print(
                f"fetch, {size // 1000:4d} KB answers          {result}  {ratio:4.0%} of loopback"
            )
        print(f"memory, after                     {memory_mb(pid):8.1f} MB")
        print(f"memory, peak                      {memory_mb(pid, 'VmHWM'):8.1f} MB")


def durable(directory: str) -> None:
    with broker(durability="fsync", data_dir=directory) as served:
        create(served.address, "durable", 1)
        one = produce_frame("durable", 0, batch_of(200))
        for clients, depth in ((1, 1), (64, 1), (64, 16)):
            result = drive(served, [one] * clients, 2.0, depth)
            print(f"fsync, {clients:2d} clients, depth {depth:2d}       {result}")


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="kohort-bench-") as directory:
        loop_mb = loopback()
        disk_mb, flushed_mb = plain_disk(directory)
        print(f"plain loopback                    {loop_mb:8.0f} MB/s")
        print(f"plain disk, page cache / flushed  {disk_mb:8.0f} / {flushed_mb:.0f} MB/s")
        bulk(f"{directory}/bulk", loop_mb, disk_mb)
        with broker(durability="os", data_dir=f"{directory}/bulk") as served:
            print(f"ready, 1.5 GB, clean              {served.ready_s * 1e3:8.0f} ms")
        durable(f"{directory}/durable")


if __name__ == "__main__":
    main()
