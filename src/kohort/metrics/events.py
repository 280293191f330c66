"""What happens in a client, as typed values that anybody may subscribe to.

Rules:
- An event is delivered at once, on the thread on which it happened (most on the network thread): a
  subscriber is quick, waits for nothing, and hands long work to another thread.
- What a subscriber raises is logged and goes no further: watching must not stop the work.
- Times and durations are milliseconds. `node` is a node id, negative for a bootstrap address.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any, NamedTuple, TypeVar

from kohort.errors import KohortError

Partition = tuple[str, int]
E = TypeVar("E")


class RequestDone(NamedTuple):
    """A request that was sent is answered, or has failed (then `error` says why)."""

    node: int
    api: str
    """Kafka's name of it, for example `OffsetCommit`."""
    latency_ms: int
    bytes_out: int
    bytes_in: int
    throttle_ms: int
    """For how long the broker wants to be left alone (KIP-219)."""
    error: KohortError | None


class ConnectionOpened(NamedTuple):
    """A connection can be used."""

    node: int


class ConnectionLost(NamedTuple):
    """A connection, or the try to make one, has failed."""

    node: int
    error: KohortError


class FetchDone(NamedTuple):
    """A Fetch has brought something, or nothing."""

    node: int
    latency_ms: int
    bytes: int
    partitions: int
    """How many partitions it brought records of."""


class Polled(NamedTuple):
    """Another poll begins. Those that begin within one millisecond are one event."""

    polls: int
    inside_ms: int
    """Spent in polls since the last such event."""
    outside_ms: int
    """Spent between them: at work on what they brought."""


class CallDone(NamedTuple):
    """A call that waits has ended, well or not."""

    call: str
    """`commit`, `committed`, `flush`, `init_transactions`, `commit_transaction`, ..."""
    latency_ms: int


class RebalanceBegun(NamedTuple):
    """This member has left its stable state."""

    reason: str


class RebalanceEnded(NamedTuple):
    """This member is stable again, or (`completed=False`) out of its group."""

    reason: str
    latency_ms: int
    completed: bool


class PartitionsAssigned(NamedTuple):
    """The listener was called with new partitions; it took `latency_ms`."""

    partitions: tuple[Partition, ...]
    latency_ms: int


class PartitionsRevoked(NamedTuple):
    """The listener was called with revoked partitions; it took `latency_ms`."""

    partitions: tuple[Partition, ...]
    latency_ms: int


class PartitionsLost(NamedTuple):
    """The listener was called with lost partitions; it took `latency_ms`."""

    partitions: tuple[Partition, ...]
    latency_ms: int


class OffsetsCommitted(NamedTuple):
    """A commit has ended; `error` is None when the coordinator took it."""

    offsets: Mapping[Any, Any]
    """By `TopicPartition`, `OffsetAndMetadata`."""
    automatic: bool
    error: KohortError | None


class BatchStored(NamedTuple):
    """A batch of a producer is acknowledged."""

    topic: str
    partition: int
    records: int
    bytes: int


class ProduceSent(NamedTuple):
    """A produce request goes out."""

    node: int
    records: int
    queued_ms: tuple[int, ...]
    """Of each batch that was sent for the first time: from its first record on."""


class BatchRetried(NamedTuple):
    """A batch of a producer will be sent again."""

    topic: str
    partition: int
    records: int
    error: KohortError | None
    """The error of the last try; None where the broker gave none."""


class BatchFailed(NamedTuple):
    """A batch of a producer is given up."""

    topic: str
    partition: int
    records: int
    error: KohortError


class Refused(NamedTuple):
    """The cluster refuses something repeatedly, and it is retried (reported once, after 3 s)."""

    what: Hashable
    """A partition as `TopicPartition` or (topic, partition), or a name, as `group NAME`."""
    code: int
    """Kafka's error code; `ErrorCode.name_of` names it."""
    for_ms: int


class RefusalEnded(NamedTuple):
    """The problem of a `Refused` is over."""

    what: Hashable
    code: int
    for_ms: int


class Events:
    """Delivers events to all subscribers."""

    __slots__ = ("_listeners",)

    def __init__(self) -> None:
        self._listeners: dict[type, tuple[Callable[[Any], object], ...]] = {}

    def subscribe(self, kind: type[E], listener: Callable[[E], object]) -> Callable[[], None]:
        """Have `listener` called with each event of this kind; what is returned ends that."""
        self._listeners[kind] = (*self._listeners.get(kind, ()), listener)

        def end() -> None:
            # `==`: a bound method is created again each time it is named.
            self._listeners[kind] = tuple(t for t in self._listeners.get(kind, ()) if t != listener)

        return end

    def wants(self, kind: type) -> bool:
        """Whether anybody listens: to be asked where making the event costs something."""
        return bool(self._listeners.get(kind))

    def emit(self, event: object) -> None:
        """Tell the subscribers of this kind of event."""
        for listener in self._listeners.get(type(event), ()):
            try:
                listener(event)
            except Exception:  # any error of a subscriber stays with the subscriber
                import logging  # costs start-up time, and is hardly ever needed here

                log = logging.getLogger("kohort.metrics")
                log.exception("a subscriber of %s failed", type(event).__name__)
