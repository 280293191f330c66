"""Small requests and bulk over `kohort.net` on loopback: `python -m benchmarks.bench_net`.

A server process echoes one byte a request; a client process keeps `depth` requests under way on
each of its connections, both on our loop. Bulk: the server answers each request with 1 MB. Of
three runs the one in which the server needed the least CPU time; CPU-s/M are the CPU seconds for
a million requests, CPU-s/GB for a billion bytes, of the server and of the client.
"""

from __future__ import annotations

import multiprocessing
import struct
import sys
import time
from typing import NamedTuple

from benchmarks.load import cpu_s
from kohort.net import Connection, Loop

REQUEST = struct.pack(">i", 40) + bytes(40)


class Server:
    def __init__(self, answer: bytes) -> None:
        self.answer = [struct.pack(">i", len(answer)), answer]

    def connected(self, c: Connection) -> None: ...
    def closed(self, c: Connection, error: object) -> None: ...
    def drained(self, c: Connection) -> None: ...

    def frame_received(self, c: Connection, frame: memoryview) -> None:
        c.send(self.answer)


class Client:
    def __init__(self, loop: Loop, depth: int, total: int) -> None:
        self.loop, self.depth, self.left, self.bytes = loop, depth, total, 0

    def connected(self, c: Connection) -> None:
        for _ in range(self.depth):
            c.send([REQUEST])

    def closed(self, c: Connection, error: object) -> None: ...
    def drained(self, c: Connection) -> None: ...

    def frame_received(self, c: Connection, frame: memoryview) -> None:
        self.left -= 1
        self.bytes += len(frame)
        if self.left > 0:
            c.send([REQUEST])
        else:
            self.loop.stop()


def serve(answer_bytes: int, ready: object) -> None:
    loop = Loop()
    handler = Server(bytes(answer_bytes))
    listener = loop.listen("127.0.0.1", 0, lambda c: handler, max_frame_bytes=1 << 20)
    ready.send(listener.port)  # type: ignore[attr-defined]
    loop.run()


class Run(NamedTuple):
    """What one run came to."""

    server_s: float
    client_s: float
    seconds: float
    requests: int
    bytes: int


def measure(connections: int, depth: int, answer_bytes: int, total: int) -> Run:
    ours, theirs = multiprocessing.Pipe()
    server = multiprocessing.Process(target=serve, args=(answer_bytes, theirs), daemon=True)
    server.start()
    port = ours.recv()
    loop = Loop()
    client = Client(loop, depth, total)
    for _ in range(connections):
        loop.connect("127.0.0.1", port, client, max_frame_bytes=8 << 20)
    assert server.pid is not None
    server_s, client_s, begin = cpu_s(server.pid), time.process_time(), time.perf_counter()
    loop.run()
    seconds = time.perf_counter() - begin
    server_s, client_s = cpu_s(server.pid) - server_s, time.process_time() - client_s
    server.terminate()
    server.join()
    return Run(server_s, client_s, seconds, total, client.bytes)


def best(connections: int, depth: int, answer_bytes: int, total: int) -> Run:
    """The run with the least CPU time of the server."""
    return min(measure(connections, depth, answer_bytes, total) for _ in range(3))


def main() -> int:
    for connections, depth, total in ((100, 1, 200_000), (4, 64, 400_000)):
        run = best(connections, depth, 1, total)
        print(
            f"{connections:4} connections, {depth:3} deep: {total / run.seconds / 1e3:8.1f} k/s  "
            f"server {run.server_s / total * 1e6:5.2f} CPU-s/M  "
            f"client {run.client_s / total * 1e6:5.2f} CPU-s/M"
        )
    for connections in (1, 4):
        run = best(connections, 2, 1 << 20, 3_000)
        print(
            f"{connections:4} connections, 1 MB answers {run.bytes / run.seconds / 1e9:7.2f} GB/s  "
            f"server {run.server_s / run.bytes * 1e9:5.2f} CPU-s/GB "
            f"client {run.client_s / run.bytes * 1e9:5.2f} CPU-s/GB"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
