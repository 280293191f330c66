"""A light load generator over raw sockets, and the broker process that it loads.

Frames are made before the clock starts, and answers are counted by their size, which is the same
for the same request; the first answer on every connection is looked at. CPU time is that of all
threads of the broker's process, as the scheduler counts it (Linux): it says what a core could do
when generator and broker share the machine, and hardly changes when others use it too.
"""

from __future__ import annotations

import select
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kohort.wire import Message, encode_request

Address = tuple[str, int]
SERVER = """
import json, sys
from kohort.broker import BrokerConfig, serve
serve(BrokerConfig(**json.loads(sys.argv[1])), lambda broker: print(broker.bootstrap, flush=True))
"""


@dataclass(frozen=True)
class Rate:
    """What one run came to."""

    per_s: float
    server_us: float
    """CPU time of the server for one request."""
    generator_us: float
    p50_ms: float
    p99_ms: float

    def __str__(self) -> str:
        return (
            f"{self.per_s / 1e3:7.1f} k/s  p50 {self.p50_ms:6.2f} ms  p99 {self.p99_ms:6.2f} ms  "
            f"broker {self.server_us:5.1f} CPU-s/M = {1e3 / self.server_us:6.1f} k/s a core"
        )


@dataclass(frozen=True)
class Served:
    """A broker process."""

    address: Address
    pid: int
    ready_s: float
    """From the start of the process."""

    @property
    def bootstrap(self) -> str:
        """Its address, as clients are given it."""
        return f"{self.address[0]}:{self.address[1]}"

    def cpu_s(self) -> float:
        """CPU seconds of all its threads."""
        return cpu_s(self.pid)


@contextmanager
def broker(**config: object) -> Iterator[Served]:
    """A broker in a process of its own; `config` are fields of `BrokerConfig`."""
    import json

    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER, json.dumps(config)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        host, _, port = process.stdout.readline().strip().rpartition(":")
        yield Served((host, int(port)), process.pid, time.perf_counter() - began)
    finally:
        process.terminate()
        process.wait(180)  # thousands of files are flushed one by one


@contextmanager
def embedded(durability: str = "memory") -> Iterator[str]:
    """The bootstrap address of such a broker with records of its own, which go with it."""
    with tempfile.TemporaryDirectory(prefix="kohort-bench-") as directory:
        where = {} if durability == "memory" else {"data_dir": directory}
        with broker(durability=durability, **where) as served:
            yield served.bootstrap


def cpu_s(pid: int) -> float:
    """CPU seconds of all threads of a process that run now."""
    return sum(threads_s(pid).values())


def threads_s(pid: int) -> dict[str, float]:
    """CPU seconds of each thread of a process that runs now, by its id."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return {task.name: int((task / "schedstat").read_text().split()[0]) / 1e9 for task in tasks}


def memory_mb(pid: int, what: str = "VmRSS") -> float:
    """The resident set of a process in MB; `VmHWM`: the largest it has been."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(what + ":"):
            return int(line.split()[1]) / 1024
    return 0.0


def frame_of(message: Message, version: int) -> bytes:
    """A request frame with its size."""
    return b"".join(encode_request(message, version, 1, "bench"))


def ask(address: Address, frame: bytes) -> bytes:
    """One request on a connection of its own; the answer without its size."""
    with socket.create_connection(address) as one:
        one.sendall(frame)
        return _answer(one)


def _answer(one: socket.socket) -> bytes:
    data = bytearray()
    while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "big"):
        more = one.recv(1 << 16)
        if not more:
            raise ConnectionError("the broker closed the connection")
        data += more
    return bytes(data[4:])


class _Lane:
    """One connection with `depth` requests under way."""

    __slots__ = ("frame", "many", "rest", "sent", "size", "socket")

    def __init__(
        self, address: Address, frame: bytes, depth: int, check: Callable[[bytes], object]
    ) -> None:
        self.socket = socket.create_connection(address)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.frame, self.many = frame, frame * depth
        self.socket.sendall(frame)
        first = _answer(self.socket)
        check(first)
        self.size, self.rest, self.sent = len(first) + 4, 0, 0.0
        self.socket.setblocking(False)


def drive(
    served: Served,
    frames: Sequence[bytes],
    seconds: float,
    depth: int,
    check: Callable[[bytes], object] = lambda answer: None,
) -> Rate:
    """Send each frame on a connection of its own, `depth` at a time, as fast as answers come.

    `check` sees the first answer on every connection and raises when it is not the right one.
    """
    lanes = {}
    poller = select.epoll()
    for frame in frames:
        lane = _Lane(served.address, frame, depth, check)
        lanes[lane.socket.fileno()] = lane
        poller.register(lane.socket.fileno(), select.EPOLLIN)
    room = bytearray(1 << 18)
    server_s, ours_s, done = served.cpu_s(), time.process_time(), 0
    latencies: list[float] = []
    began = time.perf_counter()
    for lane in lanes.values():
        lane.sent = time.perf_counter()
        lane.socket.send(lane.many)
    end = began + seconds
    while (now := time.perf_counter()) < end:
        for fd, _ in poller.poll(1):
            lane = lanes[fd]
            came = lane.socket.recv_into(room)
            if not came:
                raise ConnectionError("the broker closed the connection")
            answers, lane.rest = divmod(lane.rest + came, lane.size)
            if answers:
                done += answers
                latencies.append(now - lane.sent)
                lane.sent = now
                lane.socket.send(lane.many if answers == depth else lane.frame * answers)
    took = time.perf_counter() - began
    server_s, ours_s = served.cpu_s() - server_s, time.process_time() - ours_s
    poller.close()
    for lane in lanes.values():
        lane.socket.close()
    latencies.sort()
    p50, p99 = (latencies[int(len(latencies) * q)] * 1e3 for q in (0.5, 0.99))
    return Rate(done / took, server_s / done * 1e6, ours_s / done * 1e6, p50, p99)
