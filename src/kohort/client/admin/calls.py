"""Blocking calls over the cluster client: one request, many at once, and again until the deadline.

Rules:
- Requests run on the network thread; the caller waits for futures.
- Errors that Kafka calls retriable are tried again with a back-off until the call's time is over;
  then the last error is raised. Mutations are retried only when the broker has refused them, or
  when they never left this client, never when an answer is lost or says that the broker's wait was
  too short: they might be carried out twice.

Shell: threads (waiting), randomness (jitter).
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, Unpack

from kohort.client.cluster.client import ANY, ClusterClient, Versioned
from kohort.client.cluster.credentials import Credentials
from kohort.client.cluster.finalizers import End, watch_over
from kohort.client.cluster.find_coordinator import coordinator_in, find_coordinator
from kohort.client.cluster.measured import Observed
from kohort.client.cluster.metadata import ClusterMetadata, Node
from kohort.client.cluster.metrics import ClientMetrics
from kohort.client.cluster.network_thread import NetworkThread, warner
from kohort.client.cluster.refusal_log import WARNED_MS
from kohort.client.common import arguments as arguments
from kohort.client.common.backoff import Backoff
from kohort.client.common.config import AdminConfig
from kohort.client.common.future import Future
from kohort.client.common.types import TopicPartition
from kohort.errors import (
    BrokerError,
    ClosedError,
    ConnectionFailedError,
    ErrorCode,
    KafkaTimeoutError,
    KohortError,
    UsageError,
)
from kohort.wire import Message
from kohort.wire.messages.find_coordinator_response import FindCoordinatorResponse
from kohort.wire.messages.metadata_request import MetadataRequest, MetadataRequestTopic
from kohort.wire.messages.metadata_response import MetadataResponse, MetadataResponseTopic

if TYPE_CHECKING:
    from kohort.client.common.typed_settings import AdminSettings

_ANSWER_MS: Final = 1_000
_TIMED_OUT: Final = int(ErrorCode.REQUEST_TIMED_OUT)
T = TypeVar("T")
M = TypeVar("M", bound=Message)


class _NotSent(ConnectionFailedError):
    """An error before anything left that could change the cluster; `_until` raises the original."""

    def __init__(self, error: KohortError) -> None:
        super().__init__(*error.args)
        self.error: KohortError = error.error if isinstance(error, _NotSent) else error


class _Request:
    """A request that knows whether it may have left."""

    def __init__(self, message: Message | Versioned) -> None:
        self._message = message
        self.left = False
        if isinstance(message, Versioned):
            self.versioned = Versioned(message.api, self._build, at_most=message.at_most)
        else:
            self.versioned = Versioned(type(message), self._build)

    def _build(self, version: int) -> Message | None:
        self.left = True
        message = self._message
        return message.build(version) if isinstance(message, Versioned) else message


@contextmanager
def looking_up() -> Generator[None, None, None]:
    """What is asked here changes nothing, and comes before what may."""
    try:
        yield
    except (ConnectionFailedError, KafkaTimeoutError) as error:
        raise _NotSent(error) from error


def end_admin(cluster: ClusterClient) -> End:
    """For `watch_over`: close the connections."""

    def end(done: Callable[[], None]) -> None:
        cluster.close()
        done()

    return end


class AdminCalls(Observed):
    """The part of `Admin` that talks."""

    def __init__(
        self,
        config: AdminConfig | Mapping[str, Any] | None = None,
        /,
        **settings: Unpack[AdminSettings],
    ) -> None:
        self.config = AdminConfig.settled(config, settings)
        self._closed = False
        self._needed_topics: Counter[str] = Counter()
        """The topics that calls under way need, on any thread."""
        self._needed_lock = threading.Lock()
        credentials = Credentials(self.config)  # refuses first what would leave the thread behind
        self._thread = NetworkThread.shared()
        self._cluster = ClusterClient(
            self._thread.loop, self.config, uniform=self._thread.uniform, credentials=credentials
        )
        self._cluster.warn = warner("admin")
        self._metrics = ClientMetrics(
            "admin", self.config.client_id, self._cluster.events, self._thread.loop
        )
        self._watched = watch_over(self, self._thread, end_admin(self._cluster))

    def close(self) -> None:
        """Close the connections. A second call does nothing."""
        if not self._closed:
            self._closed = True
            if self._thread.alive:
                self._thread.call(self._cluster.close).wait(5)
            self._watched.detach()
            self._thread.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # -- asking

    def _check(self) -> None:
        if self._closed:
            raise ClosedError("this admin client was closed; make a new one")
        self._thread.check()
        if self._thread.loop.on_loop_thread:
            raise UsageError(
                "an admin call waits, and this one is made on the network thread (from a done "
                "callback); move the work to your own thread"
            )

    def _now_ms(self) -> int:
        return self._thread.loop.now_ms()

    def _deadline(self, timeout_s: float | None) -> int:
        wait_ms = self.config.default_api_timeout_ms
        if timeout_s is not None:
            wait_ms = round(arguments.seconds(timeout_s, "an admin call", "timeout_s") * 1000)
        return self._now_ms() + wait_ms

    def _wait_ms(self, deadline_ms: int) -> int:
        """How long one request may take."""
        return max(1, min(self.config.request_timeout_ms, deadline_ms - self._now_ms()))

    def _broker_wait_ms(self, deadline_ms: int) -> int:
        """How long the broker may take, so that its answer comes before this client gives up."""
        wait_ms = self._wait_ms(deadline_ms)
        return max(1, wait_ms - min(_ANSWER_MS, wait_ms // 10))

    def _start(
        self, target: int, message: Message | Versioned, deadline_ms: int
    ) -> Future[Message]:
        self._check()
        future: Future[Message] = Future()
        wait_ms = self._wait_ms(deadline_ms)

        def done(answer: Message | KohortError) -> None:
            if isinstance(answer, KohortError):
                future.set_error(answer)
            else:
                future.set_result(answer)

        self._thread.loop.call_soon_threadsafe(
            lambda: self._cluster.request(target, message, done, timeout_ms=wait_ms)
        )
        return future

    def _ask(self, kind: type[M], target: int, message: Message | Versioned, deadline_ms: int) -> M:
        """One request; its answer."""
        request = _Request(message)
        try:
            answer = self._start(target, request.versioned, deadline_ms).result()
        except (ConnectionFailedError, KafkaTimeoutError) as error:
            if request.left:
                raise
            raise _NotSent(error) from error
        assert isinstance(answer, kind), f"{type(answer)} answers a request for {kind}"
        return answer

    def _ask_all(
        self, kind: type[M], messages: Mapping[int, Message | Versioned], deadline_ms: int
    ) -> dict[int, M]:
        """Requests to several nodes at once; raises the first error after all have ended."""
        return dict(self._answers(kind, messages, deadline_ms))

    def _answers(
        self, kind: type[M], messages: Mapping[int, Message | Versioned], deadline_ms: int
    ) -> Iterator[tuple[int, M]]:
        """The same for a caller that keeps what it has: the answers there are, then the error."""
        started = {n: self._start(n, m, deadline_ms) for n, m in messages.items()}
        for future in started.values():
            future.wait()
        failed: KohortError | None = None
        for node_id, future in started.items():
            try:
                answer = future.result()
            except KohortError as error:
                failed = failed or error
                continue
            assert isinstance(answer, kind), f"{type(answer)} answers a request for {kind}"
            yield node_id, answer
        if failed is not None:
            raise failed

    def _refresh(self, deadline_ms: int) -> ClusterMetadata:
        """Fresh metadata of what is watched."""
        self._check()
        future: Future[ClusterMetadata] = Future()

        def done(answer: ClusterMetadata | KohortError) -> None:
            if isinstance(answer, KohortError):
                future.set_error(answer)
            else:
                future.set_result(answer)

        wait_ms = max(1, deadline_ms - self._now_ms())
        self._thread.loop.call_soon_threadsafe(
            lambda: self._cluster.refresh(done, timeout_ms=wait_ms)
        )
        return future.result()

    def _metadata_of(self, topics: set[str], deadline_ms: int) -> ClusterMetadata:
        """Fresh metadata of these topics, and of those that calls on other threads wait for."""
        with self._needed_lock:
            self._needed_topics.update(topics)
            self._thread.call(self._cluster.watch_topics, set(self._needed_topics)).result()
        try:
            return self._refresh(deadline_ms)
        finally:
            with self._needed_lock:
                self._needed_topics -= Counter(topics)

    # -- what there is

    def _topics(
        self, names: Iterable[str] | None, deadline_ms: int
    ) -> dict[str, MetadataResponseTopic]:
        requested = None if names is None else [MetadataRequestTopic(name=name) for name in names]

        def build(version: int) -> Message:
            topics = [] if requested is None and version == 0 else requested
            # Before v4 the broker alone decides whether asking creates a topic.
            return MetadataRequest(topics=topics, allow_auto_topic_creation=version < 4)

        answer = self._until(
            deadline_ms,
            lambda: self._ask(
                MetadataResponse, ANY, Versioned(MetadataRequest, build), deadline_ms
            ),
        )
        return {t.name: t for t in answer.topics if t.name is not None}

    def _checked(self, names: Iterable[str], deadline_ms: int) -> dict[str, MetadataResponseTopic]:
        """The topics' metadata; raises BrokerError when one does not exist."""
        topics = self._topics(names, deadline_ms)
        raise_failed("topic", {name: (t.error_code, None) for name, t in topics.items()})
        return topics

    def _check_partitions(self, partitions: Iterable[TopicPartition], deadline_ms: int) -> None:
        """Raises BrokerError when a topic does not exist, UsageError when a partition does not.

        Such an error is retriable in Kafka's table, but waiting does not correct a name.
        """
        tps = list(partitions)
        if not tps:
            return
        topics = self._checked({tp.topic for tp in tps}, deadline_ms)
        known = {(name, p.partition_index) for name, t in topics.items() for p in t.partitions}
        for tp in tps:
            if tp not in known:
                raise UsageError(f"topic {tp.topic!r} has no partition {tp.partition}")

    # -- again

    def _until(self, deadline_ms: int, attempt: Callable[[], T], *, mutates: bool = False) -> T:
        """Call `attempt` until it succeeds, fails permanently, or runs out of time.

        The caller may be waiting: a refusal that lasts is reported once before the time is over.
        """
        warn_ms = self._now_ms() + WARNED_MS
        backoff = Backoff(
            self.config.retry_backoff_ms, self.config.retry_backoff_max_ms, self._thread.uniform
        )
        while True:
            try:
                return attempt()
            except KohortError as raised:
                error, lost = raised, isinstance(raised, ConnectionFailedError | KafkaTimeoutError)
                if isinstance(raised, _NotSent):
                    error, lost = raised.error, False
                if isinstance(error, BrokerError) and error.code == ErrorCode.NOT_CONTROLLER:
                    self._thread.call(self._cluster.refresh_soon)
                if mutates and isinstance(error, BrokerError) and error.code == _TIMED_OUT:
                    raise _unfinished(error) from error.__cause__
                if not error.retriable or (mutates and lost):
                    raise error from error.__cause__
                wait_ms = backoff.failed()
                if (now_ms := self._now_ms()) + wait_ms >= deadline_ms:
                    raise error from error.__cause__
                if now_ms >= warn_ms and isinstance(error, BrokerError):
                    warn_ms = deadline_ms
                    warner("admin")(f"{error}; retrying")
            Future[None]().wait(wait_ms / 1000)

    def _on_controller(self, kind: type[M], message: Message | Versioned, deadline_ms: int) -> M:
        """Ask the controller; any broker forwards to it when it is not known (KRaft)."""
        metadata = self._cluster.metadata
        if not metadata.version:
            with looking_up():
                metadata = self._refresh(deadline_ms)
        known = metadata.controller_id in metadata.nodes
        return self._ask(kind, metadata.controller_id if known else ANY, message, deadline_ms)

    def _coordinator(self, group_id: str, deadline_ms: int) -> Node:
        request = find_coordinator(group_id)
        with looking_up():
            answer = self._ask(FindCoordinatorResponse, ANY, request, deadline_ms)
        coordinator = coordinator_in(answer, group_id)
        if isinstance(coordinator, BrokerError):
            raise coordinator
        self._thread.call(self._cluster.connections.learn, coordinator).result()
        return coordinator

    def _on_coordinator(
        self,
        kind: type[M],
        group_id: str,
        message: Message | Versioned,
        deadline_ms: int,
        check: Callable[[M], None],
        *,
        mutates: bool = False,
    ) -> M:
        """Ask the group's coordinator; `check` raises the answer's error, if it has one."""

        def attempt() -> M:
            node = self._coordinator(group_id, deadline_ms)
            answer = self._ask(kind, node.node_id, message, deadline_ms)
            check(answer)
            return answer

        return self._until(deadline_ms, attempt, mutates=mutates)

    def _leaders(
        self, partitions: Iterable[TopicPartition], deadline_ms: int, *, partial: bool = False
    ) -> dict[int, list[TopicPartition]]:
        """The partitions by the node that leads them; retriable error when one has no leader.

        With `partial`, those without a leader and those that are not there are left out.
        """
        tps = list(partitions)
        metadata = self._metadata_of({tp.topic for tp in tps}, deadline_ms)
        by_node: dict[int, list[TopicPartition]] = {}
        for tp in tps:
            if partial and metadata.leader(*tp) < 0:
                continue
            if tp.topic in metadata.errors:
                raise BrokerError(metadata.errors[tp.topic], f"topic {tp.topic!r}; does it exist?")
            if metadata.partition(*tp) is None:
                raise UsageError(f"topic {tp.topic!r} has no partition {tp.partition}")
            node_id = metadata.leader(*tp)
            if node_id < 0:
                raise BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, f"{tp} has no leader now")
            by_node.setdefault(node_id, []).append(tp)
        return by_node


def _unfinished(error: BrokerError) -> BrokerError:
    """The broker waited no longer for a change that is under way."""
    advice = "the broker may still carry it out: look before you repeat it"
    return type(error)(error.code, f"{error.detail}; {advice}")


def as_they_end(started: Mapping[int, Future[T]]) -> Iterator[tuple[int, Future[T]]]:
    """Each request when its answer or error is there, whichever is first."""
    waiting = dict(started)
    while waiting:
        one = Future[None]()
        for future in waiting.values():
            future.add_done_callback(lambda _, one=one: one.set_result(None))
        one.wait()
        for node_id in [n for n, future in waiting.items() if future.done]:
            yield node_id, waiting.pop(node_id)


def each_of(
    what: str, names: Iterable[str], call: Callable[[str], T], kind: type[BrokerError] = BrokerError
) -> dict[str, T]:
    """Make a call for each of these, then raise one error for all that failed.

    Where an answer is lost, it is that error: what became of it is not known.
    """
    results: dict[str, T] = {}
    refused: dict[str, tuple[int, str | None]] = {}
    lost: dict[str, ConnectionFailedError | KafkaTimeoutError] = {}
    for name in names:
        refused[name] = (0, None)
        try:
            results[name] = call(name)
        except BrokerError as error:
            refused[name] = (error.code, None)
        except (ConnectionFailedError, KafkaTimeoutError) as error:
            lost[name] = error
    if not lost:
        raise_failed(what, refused, kind)
        return results
    name, first = next(iter(lost.items()))
    failed = {n: f"has no answer ({type(error).__name__})" for n, error in lost.items()}
    failed |= {n: ErrorCode.name_of(code) for n, (code, _) in refused.items() if code}
    del failed[name]
    others = _others(failed, len(refused))
    raise type(first)(f"{what} {name!r}: {first}{others}") from first


def _others(failed: Mapping[str, str], requested: int) -> str:
    """The end of a sentence about one that failed: these did, too."""
    if not failed:
        return ""
    some = ", ".join(f"{name!r} {why}" for name, why in list(failed.items())[:19])
    return f"; {requested - len(failed) - 1} of {requested} succeeded, failed also: {some}"


def raise_failed(
    what: str,
    failed: Mapping[str, tuple[int, str | None]],
    kind: type[BrokerError] = BrokerError,
) -> None:
    """Raise one error for the objects whose code is not 0; it names them all.

    One that the broker has not ended comes first: `_until` must not ask for it again.
    """
    bad = {name: error for name, error in failed.items() if error[0]}
    if not bad:
        return
    name, (code, text) = min(bad.items(), key=lambda item: item[1][0] != _TIMED_OUT)
    message = f"{what} {name!r}{': ' + text if text else ''}"
    del bad[name]
    message += _others({n: ErrorCode.name_of(c) for n, (c, _) in bad.items()}, len(failed))
    raise kind(code, message)
