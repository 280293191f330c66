"""Small requests and bulk over `kohort.net` on loopback: `python benchmarks/bench_net.py`.

A server process echoes one byte a request; a client process keeps `depth` requests under way on
each of its connections, both on our loop. Bulk: the server answers each request with 1 MB.
"""

from __future__ import annotations

import multiprocessing
import struct
import sys
import time

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


def measure(connections: int, depth: int, answer_bytes: int, total: int) -> tuple[float, float]:
    ours, theirs = multiprocessing.Pipe()
    server = multiprocessing.Process(target=serve, args=(answer_bytes, theirs), daemon=True)
    server.start()
    port = ours.recv()
    loop = Loop()
    client = Client(loop, depth, total)
    for _ in range(connections):
        loop.connect("127.0.0.1", port, client, max_frame_bytes=8 << 20)
    begin = time.perf_counter()
    loop.run()
    seconds = time.perf_counter() - begin
    server.terminate()
    server.join()
    return total / seconds, client.bytes / seconds


def main() -> int:
    for connections, depth, total in ((100, 1, 200_000), (4, 64, 400_000)):
        rate, _ = measure(connections, depth, 1, total)
        print(f"{connections:4} connections, {depth:3} deep: {rate / 1e3:8.1f} k requests/s")
    for connections in (1, 4):
        _, volume = measure(connections, 2, 1 << 20, 6_000)
        print(f"{connections:4} connections, 1 MB answers: {volume / 1e9:7.2f} GB/s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
