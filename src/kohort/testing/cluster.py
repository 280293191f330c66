"""`Cluster`: an embedded broker for tests, of one node or several, in this process.

    with Cluster(nodes=3) as cluster:
        cluster.create_topic("orders", partitions=3)
        consumer = Consumer(bootstrap_servers=cluster.bootstrap, group_id="g")
        cluster.kill_node(cluster.coordinator_of("g"))

Rules:
- The nodes listen on 127.0.0.1 on free ports, which they keep through `restart`; on Linux nobody
  else gets one of them while its node is down.
- With durability `memory` (the default) records outlive `stop`, `kill` and `restart`, and go with
  the `Cluster` object; with `fsync` or `os` they live in `data_dir`, by default a temporary
  directory.
- Every method may be called from any thread, and has taken effect when it returns.

Shell: sockets, threads.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import tempfile
import threading
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Future
from typing import Any, Self, TypeVar

from kohort.broker import Broker, BrokerConfig, Durability
from kohort.broker.base.request import Call
from kohort.broker.faults.gate import FaultInjector
from kohort.broker.faults.notices import Notices
from kohort.broker.faults.request_log import DEFAULT_CAPACITY
from kohort.broker.log.files import Files, MemoryFiles
from kohort.broker.state.failpoints import Event, Failpoint, Moment, Verdict
from kohort.errors import BrokerError, ClosedError, ConnectionFailedError, UsageError
from kohort.testing.clock import JumpingBroker, VirtualBroker, VirtualClock
from kohort.testing.faults import ClusterFaults, Requests
from kohort.testing.ports import keep_ports
from kohort.wire import Message, decode_response, encode_request
from kohort.wire.messages.create_topics_request import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from kohort.wire.messages.create_topics_response import CreateTopicsResponse
from kohort.wire.messages.delete_topics_request import DeleteTopicsRequest, DeleteTopicState
from kohort.wire.messages.delete_topics_response import DeleteTopicsResponse

M = TypeVar("M", bound=Message)
T = TypeVar("T")
_ANSWER_S = 60.0


class Cluster:
    """An embedded broker. `overrides` are fields of `BrokerConfig`; `users` are those that may log
    in, with their passwords (by SASL_PLAINTEXT, if no other `security_protocol` is asked for).

    `request_log`: how many requests `requests` keeps; 0: none, which is a little faster.
    `clock`: the virtual time that it lives in, with clients made in the same thread.

    Records of any age stay unless a topic sets `retention.ms`. A broker's default of a week would
    delete records with old, fixed timestamps five minutes after the start.

    It does not run before `start()` or `with`. Raises what `Broker.start` raises.
    """

    def __init__(
        self,
        nodes: int = 1,
        durability: str = "memory",
        *,
        users: Mapping[str, str] | None = None,
        request_log: int = DEFAULT_CAPACITY,
        clock: VirtualClock | None = None,
        **overrides: Any,
    ) -> None:
        if users:
            overrides["sasl_users"] = tuple(f"{name}:{word}" for name, word in users.items())
            overrides.setdefault("security_protocol", "SASL_PLAINTEXT")
        overrides.setdefault("log_retention_ms", -1)
        if clock is not None and durability != Durability.MEMORY.value:
            raise UsageError("a cluster on a virtual clock is in memory: disks keep their own time")
        self._clock = clock
        self._gate = FaultInjector(request_log)
        notices = Notices() if clock is None else clock.notices()
        self._gate.requests.changed = notices.notify
        self.faults = ClusterFaults(self._gate, notices, self._at_rest_or_asked)
        """What goes wrong: `cluster.faults.fail("Fetch", "NOT_LEADER_OR_FOLLOWER")`, …"""
        self.requests = Requests(self._gate, notices, self._at_rest_or_asked)
        """What clients asked: `cluster.requests.wait("OffsetCommit")`, …"""
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._files: Files | None = None
        if durability == Durability.MEMORY.value:
            self._files = MemoryFiles()
        elif "data_dir" not in overrides:
            self._temporary = tempfile.TemporaryDirectory(prefix="kohort-")
            overrides["data_dir"] = self._temporary.name
        self.config = BrokerConfig(durability=durability, nodes=nodes, **overrides)
        self.first_config = self.config
        """What it was made with; `restart` may have changed `config`."""
        self._broker: Broker | None = None
        first = self.config.port
        self._ports = [first + n for n in range(nodes)] if first else []

    @property
    def broker(self) -> Broker:
        """The running broker."""
        if self._broker is None:
            raise ClosedError("the cluster is not running; use it in `with`, or call start()")
        return self._broker

    @property
    def is_running(self) -> bool:
        """Whether it was started, and neither stopped nor killed since."""
        return self._broker is not None

    @property
    def nodes(self) -> list[int]:
        """The ids of all nodes, whether they run or not."""
        return self.config.node_ids()

    @property
    def bootstrap(self) -> str:
        """`host:port` of every node, for `bootstrap_servers`; also while they are down."""
        return ",".join(self.address_of(node) for node in self.nodes)

    def address_of(self, node: int) -> str:
        """`host:port` of one node."""
        if not self._ports:
            raise ClosedError("the cluster was never started; use it in `with`, or call start()")
        if node not in self.nodes:
            raise UsageError(f"there is no node {node}; there are {self.nodes}")
        return f"{self.config.host}:{self._ports[self.nodes.index(node)]}"

    def start(self) -> Self:
        """Start the broker; returns when it answers."""
        if not self._ports:
            self._ports = keep_ports(self, self.config.host, len(self.nodes))
        broker = self._new_broker()
        broker.start()
        self._ports = [*broker.ports, *self._ports[len(self.nodes) :]]  # of nodes left out, too
        self.config = self.config.replace(port=broker.port)
        self._broker = broker
        return self

    def _new_broker(self) -> Broker:
        files, ports, gate = self._files, self._ports, self._gate
        if self._clock is None:
            return JumpingBroker(self.config, files=files, ports=ports, gate=gate)
        return VirtualBroker(self._clock, self.config, files=files, ports=ports, gate=gate)

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

    def advance(self, seconds: float) -> None:
        """Let the broker's clock jump: sessions, transactions, retention run out; for any client.

        Clients' clocks do not jump, so live members are behind with their heartbeats, too: take
        steps shorter than their session timeout to keep them. With a `clock` it is that which is
        advanced, for the clients as well. The jump is forgotten with `restart`.
        """
        broker = self.broker
        if self._clock is not None:
            self._clock.advance(seconds)
        elif isinstance(broker, JumpingBroker):
            broker.jump(int(seconds * 1000))

    def restart(self, **overrides: Any) -> None:
        """Stop it if it runs, and start it again on the same ports, with the same records."""
        self.stop()
        self.config = self.config.replace(**overrides)
        self.start()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()
        if self._temporary is not None:
            with contextlib.suppress(OSError):
                self._temporary.cleanup()

    # -- nodes

    def _at_rest_or_asked(self, fn: Callable[[], T]) -> T:
        """Call `fn` on the broker's thread, or here while there is none."""
        return fn() if self._broker is None else self._broker.call(fn)

    def _ask(self, fn: Callable[[Broker], T]) -> T:
        broker = self.broker
        return broker.call(lambda: fn(broker))

    @property
    def running(self) -> list[int]:
        """The ids of the nodes that run."""
        return self._ask(lambda broker: [node.node_id for node in broker.nodes])

    def kill_node(self, node: int) -> None:
        """End a node at once: its connections are cut, what it had not answered stays unanswered.

        Its partitions get other leaders `broker_session_timeout_ms` later. Nothing happens to one
        that does not run.
        """
        self._ask(lambda broker: broker.nodes.kill(node))

    def stop_node(self, node: int) -> None:
        """Shut a node down in order: others lead first."""
        self._ask(lambda broker: broker.nodes.stop(node))

    def restart_node(self, node: int) -> None:
        """Start a node again, on its port; one that runs is stopped first.

        It leads partitions that had no leader meanwhile; for the rest see `elect_preferred`.
        """

        def again(broker: Broker) -> None:
            broker.nodes.stop(node)
            broker.nodes.restart(node)

        self._ask(again)

    # -- leaders and coordinators

    def leader_of(self, topic: str, partition: int) -> int:
        """The node that leads a partition; -1: none. Raises BrokerError: no such partition."""
        return self._led(topic, partition)[0]

    def leader_epoch_of(self, topic: str, partition: int) -> int:
        """The leader epoch of a partition. Raises BrokerError: no such partition."""
        return self._led(topic, partition)[1]

    def _led(self, topic: str, partition: int) -> tuple[int, int]:
        def look(broker: Broker) -> tuple[int, int]:
            known_partition = broker.state.topics.partition(topic, partition)
            if known_partition is None:
                raise BrokerError(3, f"{topic}-{partition}")
            return known_partition.leader, known_partition.leader_epoch

        return self._ask(look)

    def move_leader(self, topic: str, partition: int, to: int | None = None) -> int:
        """Let a node (None: the next replica that lives) lead a partition; returns its id.

        Raises BrokerError where there is no such partition, or the node may not lead it.
        """
        return self._ask(lambda broker: broker.nodes.leaders.move(topic, partition, to))

    def elect_preferred(self) -> int:
        """Let preferred leaders lead again, where they live; returns how many partitions moved."""
        return self._ask(lambda broker: len(broker.nodes.leaders.elect_preferred()))

    def coordinator_of(self, group_id: str) -> int:
        """The node that coordinates a group; -1: none does at present."""
        return self._ask(lambda broker: broker.nodes.coordinators.partition_of(group_id).leader)

    def move_coordinator(self, group_id: str, to: int | None = None) -> int:
        """Let another node (None: the next) coordinate a group; returns its id."""
        return self._ask(lambda broker: broker.nodes.leaders.move_coordinator(group_id, to))

    @contextlib.contextmanager
    def hold_loading(self) -> Generator[None]:
        """Within it a coordinator that moves, or comes up, is not done with loading its groups."""
        self._ask(lambda broker: broker.nodes.loading.hold())
        try:
            yield
        finally:
            with contextlib.suppress(ClosedError):  # stopped within
                self._ask(lambda broker: broker.nodes.loading.release())

    @contextlib.contextmanager
    def tap(
        self,
        moment: Moment,
        matches: Callable[[Event], bool] = lambda event: True,
        *,
        count: int = 1,
        verdict: Verdict = Verdict.PASS,
    ) -> Generator[Failpoint]:
        """Within it, the `count`-th event that `matches` is waited for, and answered by `verdict`.

        `matches` is called on the broker's thread; its errors are raised at the end. See
        `kohort.broker.state.failpoints`.
        """
        tap = Failpoint(moment, matches, count=count, verdict=verdict)
        self._ask(lambda broker: broker.state.failpoints.add(tap))
        try:
            yield tap
        finally:
            with contextlib.suppress(ClosedError):  # stopped within
                self._ask(lambda broker: broker.state.failpoints.remove(tap))
        if tap.error is not None:
            raise tap.error

    # -- requests

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        config: Mapping[str, str] | None = None,
        *,
        replication_factor: int = -1,
    ) -> None:
        """Make a topic; -1: every node may lead it. Raises BrokerError, as TOPIC_ALREADY_EXISTS."""
        configs = [CreatableTopicConfig(name=n, value=v) for n, v in (config or {}).items()]
        topic = CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=replication_factor,
            configs=configs,
        )
        response = self.request(CreateTopicsRequest(topics=[topic]), CreateTopicsResponse)
        result = response.topics[0]
        if result.error_code:
            raise BrokerError(result.error_code, result.error_message or name)

    def delete_topic(self, name: str) -> None:
        """Delete a topic. Raises BrokerError, as UNKNOWN_TOPIC_OR_PARTITION."""
        request = DeleteTopicsRequest(
            topics=[DeleteTopicState(name=name)], timeout_ms=int(_ANSWER_S * 1000)
        )
        result = self.request(request, DeleteTopicsResponse).responses[0]
        if result.error_code:
            raise BrokerError(result.error_code, result.error_message or name)

    def request(
        self,
        message: Message,
        response: type[M],
        version: int | None = None,
        *,
        node: int | None = None,
    ) -> M:
        """Send one request over a connection of its own and wait for the answer (60 s).

        To `node`; None: to the first that can be reached.
        """
        used = message.STABLE_VERSION if version is None else version
        nodes = [node] if node is not None else self.nodes
        if self.config.security_protocol != "PLAINTEXT":
            return self._request_inside(message, response, used, nodes)
        data = b"".join(encode_request(message, used, 1, "kohort-testing"))
        return decode_response(response, used, self._exchange(data, nodes))[1]

    def _exchange(self, data: bytes, nodes: list[int]) -> bytes:
        if self._clock is None:
            return self._exchange_here(data, nodes)
        answer: Future[bytes] = Future()

        def ask() -> None:
            try:
                answer.set_result(self._exchange_here(data, nodes))
            except (OSError, ConnectionFailedError) as error:
                answer.set_exception(error)

        self._clock.run_beside(threading.Thread(target=ask))
        return answer.result(0)

    def _exchange_here(self, data: bytes, nodes: list[int]) -> bytes:
        with self._connect(nodes) as connection:
            connection.sendall(data)
            return _receive(connection)

    def _request_inside(
        self, message: Message, response: type[M], version: int, nodes: list[int]
    ) -> M:
        """Past the listener, which would ask who we are."""
        answer: Future[Message | None] = Future()

        def ask(broker: Broker) -> None:
            node = next(n for n in broker.nodes if n.node_id in nodes)
            call = Call(
                version,
                1,
                "kohort-testing",
                "/127.0.0.1",
                False,
                lambda done: answer.set_result(done.response),
            )
            node.handle(message, call)

        self._ask(ask)
        outcome = answer.result(_ANSWER_S)
        assert isinstance(outcome, response), f"{type(outcome)} answers {message.NAME}"
        return outcome

    def _connect(self, nodes: list[int]) -> socket.socket:
        for node in nodes[:-1]:
            with contextlib.suppress(OSError):
                return self._connect([node])
        host, _, port = self.address_of(nodes[-1]).rpartition(":")
        return socket.create_connection((host, int(port)), timeout=_ANSWER_S)


def _receive(connection: socket.socket) -> bytes:
    """One frame without its size."""
    with connection.makefile("rb") as stream:
        head = stream.read(4)
        if len(head) < 4:
            raise ConnectionFailedError("the broker closed the connection")
        (size,) = struct.unpack(">i", head)
        return stream.read(size)
