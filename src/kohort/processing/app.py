"""`App`: functions that handle the records of topics, with workers, retries and safe commits.

    from kohort import App

    app = App("billing", bootstrap_servers="localhost:9092", retries="5m 30m 1h")

    @app.handler("orders", order="key", decode="json")
    def bill(record):
        if record.data["amount"] < 0:
            raise Permanent("negative_amount")      # to the dead-letter topic at once
        charge(record.data)                         # any other exception is retried

    app.run()                                       # until SIGTERM or Ctrl-C

Rules:
- At least once: a record is committed when its handler succeeded, or when its copy is safe in a
  retry topic or in the dead-letter topic. Records finished beyond the committed offset are
  remembered beside the commit, so that a crash repeats little.
- Functions run in threads, coroutine functions in tasks, and with `workers="processes"` in
  processes. Polling and heartbeats never wait for any of them.
- `exactly_once="kafka"`: what handlers send, copies and offsets go into one Kafka transaction.
  `exactly_once="sqlite:///FILE.db"` (or `postgresql://`): what handlers return are rows, and go
  into one database transaction with ledger and offsets. All else that they do is at least once.
- A group without a committed offset starts at the earliest record: nothing is passed over in
  silence. `App(..., auto_offset_reset="latest")` chooses otherwise.
- Nothing is connected before `run`, and what can never work is refused before that.

Shell: threads, signals.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import os
import re
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeVar, Unpack

from kohort.client.common import completion
from kohort.client.common.config import ConsumerConfig
from kohort.client.consumer.arrow import require_pyarrow
from kohort.config import parse_duration_ms
from kohort.errors import ConfigError, KohortError, UsageError
from kohort.metrics.registry import MetricName
from kohort.processing.app_options import (
    batches_of,
    check_format,
    choice_of,
    circuit_of,
    name_of,
    policy_of,
    pool_of,
)
from kohort.processing.app_parts import AppParts, Ended, refuse_while_loading
from kohort.processing.app_remote import reachable
from kohort.processing.engine.app_routes import AppRoutes
from kohort.processing.engine.circuit_breaker import CircuitConfig
from kohort.processing.engine.dispatcher import Order
from kohort.processing.engine.failures import FailedAttempt
from kohort.processing.engine.health import AppHealth
from kohort.processing.engine.in_place_retries import Blocking
from kohort.processing.engine.partition_state import OnFailure, Route
from kohort.processing.engine.state import Limits
from kohort.processing.runtime.client_settings import ClientSettings
from kohort.processing.runtime.exactly_once import Exactly
from kohort.processing.runtime.exactly_once_runner import ExactRunner
from kohort.processing.runtime.handle_now import by_hand, take_early
from kohort.processing.runtime.holding_checks import check_holding
from kohort.processing.runtime.metrics import AppMetrics
from kohort.processing.runtime.publishing import Publisher
from kohort.processing.runtime.retry_topic_poller import RetryTopicPoller
from kohort.processing.runtime.runner import Joined, Runner, Timing
from kohort.processing.runtime.start_wait import (
    FOREVER_MS,
    NO_TOPIC,
    STORE,
    TOPICS,
    NoTopicYetError,
    StartWait,
)
from kohort.processing.runtime.topic_discovery import TopicCounts, TopicDiscovery
from kohort.processing.workers.handlers import HandlerSpec, Invoker, Kind
from kohort.processing.workers.inline_pool import InlinePool
from kohort.processing.workers.store_lookups import ThreadLookups
from kohort.processing.workers.worker_pools import Pool, ProcessPool, ThreadPool
from kohort.remote.topics import checked_prefix, own_topics
from kohort.retry.cluster_port import ClusterPort
from kohort.retry.foreign_headers import makes_of
from kohort.retry.handling import Decode, SetupStore, set_up
from kohort.retry.offset_queries import TopicView
from kohort.retry.policy import DEFAULT_RETRIES, RetryPolicy, RetryTopics
from kohort.retry.preparing import ensure_topics, look_at_all, look_for_left
from kohort.retry.registering import (
    check_handler,
    check_returns,
    checked_decode,
    checked_topic,
    classifier_of,
    waits,
)
from kohort.retry.stores import open_store
from kohort.retry.topics import TopicState
from kohort.setting_keys import check_keywords, merged
from kohort.signals import handled

if TYPE_CHECKING:
    from kohort.client.common.typed_settings import AppClientSettings
    from kohort.client.consumer.consumer import Consumer
    from kohort.retry.classify import Failure
    from kohort.serdes.basic import Serde

log = logging.getLogger("kohort.processing")
Function = TypeVar("Function", bound=Callable[..., Any])
Lifespan = Callable[[], contextlib.AbstractAsyncContextManager[Any]]

DEFAULT_THREADS: Final = 8
DEFAULT_TASKS: Final = 100
NO_HANDLER: Final = "the app has no handler; register one with @app.handler(TOPIC)"


class App:
    """Handlers of topics, one consumer group, one process. Start more processes for more.

    Args:
        group: the consumer group, and part of the retry topics' names.
        bootstrap_servers: default `$KOHORT_BOOTSTRAP_SERVERS`, then localhost:9092.
        retries: delays of the retries in order, or "none"; each handler may say otherwise.
        threads, tasks, processes: how many workers of each kind run when a handler needs them;
            processes: as many as there are processors by default.
        max_records, max_bytes: the most that is read and not done.
        commit_interval, drain: how often finished work is committed (1 s; exactly once 100 ms); how
            long a partition that is taken away waits for its records in flight.
        head_timeout: send a record that alone holds up its partition's commit for longer to its
            first retry topic; 0 never does.
        progress_timeout: end with StuckError when workers finish nothing for longer; 0 never does.
        clock_skew: how far broker and this machine may differ; due records wait that longer.
        crash_guard: count the starts from one offset beside the commit, and where the whole program
            ended there twice, begin one record at a time; the one that ends it again is failed.
        exactly_once: None (at least once), "kafka", or the URL of a store (sqlite, postgresql).
        store_wait: how long a store that is away at the start is waited for; 0 ends at once.
        topic_wait: the same of a source topic that does not exist at the start.
        dead_letter_headers: `spring`, `connect`, `streams` or several: dead letters carry their
            reasons under the names of Spring Kafka's, Connect's or Kafka Streams' headers, too.
        remote: publish the app's health to the topic REMOTE.status, and obey commands from
            REMOTE.commands: `kohort app status`, `pause`, `resume`, `drain`, `retry-now`.
        client: more consumer settings as a mapping; dotted names are accepted. The app's producer
            uses those that every client has (security, time-outs).
        settings: the same settings as keywords, such as `session_timeout_ms=10_000`; they win over
            `client`.

    Raises ConfigError for what can never work.
    """

    def __init__(
        self,
        group: str,
        *,
        bootstrap_servers: str | None = None,
        retries: str | RetryPolicy = DEFAULT_RETRIES,
        threads: int = DEFAULT_THREADS,
        tasks: int = DEFAULT_TASKS,
        processes: int | None = None,
        max_records: int = 10_000,
        max_bytes: int = 64 << 20,
        commit_interval: str | int | None = None,
        drain: str | int = "10s",
        head_timeout: str | int = 0,
        progress_timeout: str | int = 0,
        clock_skew: str | int = "1s",
        crash_guard: bool = True,
        exactly_once: str | None = None,
        store_wait: str | int = "5m",
        topic_wait: str | int = "5m",
        dead_letter_headers: str | Collection[str] = (),
        remote: str | None = None,
        client: Mapping[str, Any] | None = None,
        **settings: Unpack[AppClientSettings],
    ) -> None:
        own = App.__init__.__kwdefaults__ or {}
        check_keywords("App", settings, ConsumerConfig.field_names(), own)
        self.group = group
        self.policy = policy_of(retries)
        workers = {
            "threads": threads,
            "tasks": tasks,
            "processes": processes or os.cpu_count() or 1,
        }
        for kind, number in workers.items():
            if type(number) is not int or number < 1:
                raise ConfigError(f"{kind}={number!r}: a number of workers, at least one")
        self._workers = workers
        self._limits = Limits(max_records, max_bytes, parse_duration_ms(head_timeout))
        self.exactly = Exactly.parse(exactly_once)
        interval = self.exactly.interval if commit_interval is None else commit_interval
        self._timing = Timing(
            parse_duration_ms(interval),
            parse_duration_ms(drain),
            parse_duration_ms(progress_timeout),
        )
        self._skew_ms = parse_duration_ms(clock_skew)
        self._crash_guard = crash_guard
        self._dead_letter_headers = makes_of(dead_letter_headers)
        self._remote = None if remote is None else checked_prefix(remote)
        servers = bootstrap_servers or os.environ.get("KOHORT_BOOTSTRAP_SERVERS")
        configured = merged(client, settings)
        self.client_settings = ClientSettings.of(
            servers or "localhost:9092", group, self.exactly, configured
        )
        waits = {
            STORE: parse_duration_ms(store_wait),
            TOPICS: parse_duration_ms(topic_wait),
            NO_TOPIC: FOREVER_MS,
        }
        self._waiting = StartWait(waits, lambda: self._stopped)
        self._setups: list[Callable[[SetupStore], None]] = []
        self._on_failure: list[Callable[[FailedAttempt], object]] = []
        self._lifespans: list[Lifespan] = []
        self._specs: dict[str, HandlerSpec] = {}
        self._routes = AppRoutes(own_topics(self._remote))
        self._runner: Runner | None = None
        self._counted: dict[str, int] = {}
        self._stopped = self._has_ended = False  # ended: a run has, because it was stopped
        self._metrics = AppMetrics(group, lambda: self._runner, exactly=exactly_once is not None)

    # -- handlers --------------------------------------------------------------------------------

    def handler(
        self,
        topic: str | re.Pattern[str],
        *more: str | re.Pattern[str],
        order: str = "key",
        workers: str | None = None,
        batch: bool = False,
        arrow: bool = False,
        max_batch: int = 500,
        linger: str | int = 0,
        decode: Decode | Serde[Any] = None,
        retries: str | RetryPolicy | None = None,
        blocking: str | Blocking = "none",
        on_failure: str = "pass",
        circuit: CircuitConfig | None = None,
        timeout: str | int = 0,
        permanent: Iterable[type[BaseException]] = (),
        temporary: Iterable[type[BaseException]] = (),
        table: str | None = None,
        key: Iterable[str] = (),
        origin: tuple[str, str] | None = None,
    ) -> Callable[[Function], Function]:
        """Register a function for the records of topics, and of those topics' retry topics.

        Args:
            topic, more: the topics; each keeps retry topics and a dead-letter topic of its own. A
                compiled pattern takes every topic whose whole name matches, also one that is made
                while the app runs (within `metadata_max_age_ms`).
            order: "key", "partition" or "none": what keeps its order among parallel workers.
            workers: "threads", "tasks" or "processes"; tasks for coroutine functions, else threads.
            batch, arrow: call it with a `ReceivedBatch`, or with a `pyarrow.RecordBatch`.
            max_batch: the most records of one call of a batch handler.
            linger: how long its records wait for a full batch; by default not at all.
            decode: "json", "text", a function of the bytes, a format of `kohort.serdes` (not with
                processes), or None for the bytes.
            retries: this topic's delays; the app's by default.
            blocking: tries in place before that, such as "200ms 1s" or "5s ..." (for ever).
            on_failure: "pass", "hold_key" or "stop_partition": what becomes of the order.
            circuit: when too many failures stop a partition for a while.
            timeout: of one call; coroutine functions and processes only.
            permanent, temporary: exception classes beside `Permanent` and `Temporary`.
            table, key, origin: with a store only. The function returns None, a row (a dict for
                `table`), an effect (`Insert`, `Upsert`, `Execute`), or a list of them; a row
                replaces the one with the same values in the columns of `key`; `origin` names two
                columns that get the record's first partition and offset.

        Without a store nothing takes what the function returns, so that it returns None: what is
        to be sent goes through `record.send`. Raises ConfigError for one that is annotated
        otherwise; `run` ends with UsageError at the first record for which it returns something,
        which does not count as done.
        """
        topics = [
            each if isinstance(each, re.Pattern) else checked_topic(each, "app.handler")
            for each in (topic, *more)
        ]

        def add(source: str | re.Pattern[str], function: Function) -> None:
            pattern = source if isinstance(source, re.Pattern) else None
            topic = source if isinstance(source, str) else name_of(source)
            kind = self._kind(topic, function, batch=batch, arrow=arrow)
            batches = batches_of(topic, kind, max_batch, parse_duration_ms(linger))
            pool = pool_of(topic, kind, workers, parse_duration_ms(timeout))
            check_format(topic, pool, decode)
            policy = self.policy if retries is None else policy_of(retries)
            route = Route(
                RetryTopics(topic, self.group, policy, self._dead_letter_headers),
                choice_of(Order, "order", order),
                blocking if isinstance(blocking, Blocking) else Blocking.parse(blocking),
                choice_of(OnFailure, "on_failure", on_failure),
                circuit_of(topic, circuit),
                pool,
                *batches,
            )
            if self.exactly.store_url is None and kind is not Kind.ARROW:
                check_returns(topic, function)
            rows = self.exactly.rows(topic, kind, function, table, tuple(key), origin)
            spec = HandlerSpec(
                topic,
                function,
                kind,
                checked_decode(topic, decode),
                classifier_of(topic, permanent, temporary),
                parse_duration_ms(timeout),
                max_batch,
                rows,
            )
            self._routes.add(route, pattern)
            self._specs[topic] = spec

        def register(function: Function) -> Function:
            for each in topics:
                add(each, function)
            return function

        return register

    def _kind(self, topic: str, function: object, *, batch: bool, arrow: bool) -> Kind:
        """How a handler is called. Raises ConfigError for what can be none."""
        whole = batch or arrow
        yields = self.exactly.store_url is not None and not whole  # rows, one after another
        arguments = ["batch" if whole else "record"]
        check_handler(topic, function, arguments, may_yield=yields, may_wait=True)
        if waits(function):
            if whole:
                raise ConfigError(
                    "a coroutine function takes one record; batch=, arrow= need a plain one"
                )
            return Kind.ASYNC
        if batch and arrow:
            raise ConfigError("batch=True or arrow=True, not both")
        if arrow:
            require_pyarrow(f"the handler of {topic!r} (arrow=True)")
        return Kind.ARROW if arrow else Kind.BATCH if batch else Kind.SYNC

    def setup(self, function: Function) -> Function:
        """Register `f(store)`, run at each start before anything is read; with a store only."""
        if self.exactly.store_url is None:
            raise ConfigError('setup needs a store: App(..., exactly_once="sqlite:///FILE.db")')
        self._setups.append(function)
        return function

    def lifespan(self, function: Function) -> Function:
        """Register an async generator that is open while coroutine handlers run, on their loop.

            @app.lifespan
            async def session():
                async with aiohttp.ClientSession() as app.http:
                    yield

        Code before `yield` runs before the first record, code after it at the end; an error in it
        ends the app.

        Raises ConfigError for a function that is no async generator.
        """
        if not inspect.isasyncgenfunction(function):
            raise ConfigError(
                f"@app.lifespan takes an async generator function, not {function!r}; write "
                "`async def name(): ...; yield; ...`"
            )
        self._lifespans.append(contextlib.asynccontextmanager(function))
        return function

    def on_failure(self, function: Function) -> Function:
        """Register `f(failed)`, called for every failed attempt with a `FailedAttempt`.

        It is called on the thread that polls: it counts, or puts into a queue, and does not wait.
        Its errors are logged and change nothing.
        """
        self._on_failure.append(function)
        return function

    @property
    def topics(self) -> Mapping[str, RetryTopics]:
        """The retry topics of every source topic that has a handler.

        Topics that match a pattern are among them once `run` or `check` has looked.
        """
        return {topic: route.topics for topic, route in self._routes.by_topic.items()}

    @property
    def sources(self) -> list[str]:
        """The topics and patterns that handlers were registered for."""
        return [*self._routes.named, *self._routes.patterns]

    # -- running ---------------------------------------------------------------------------------

    def configure(
        self,
        *,
        bootstrap_servers: str | None = None,
        workers: int | None = None,
        drain: str | int | None = None,
        client: Mapping[str, Any] | None = None,
    ) -> None:
        """Change arguments of `App` before `run`, for example from a command line. None: unchanged.

        Args:
            workers: how many of each kind: threads, tasks, processes.
            client: added to the client configuration.
        """
        if workers is not None:
            if workers < 1:
                raise ConfigError(f"workers={workers}: at least one worker is needed")
            self._workers = dict.fromkeys(self._workers, workers)
        if drain is not None:
            self._timing = replace(self._timing, drain_ms=parse_duration_ms(drain))
        self.client_settings = self.client_settings.override(bootstrap_servers, client)

    def check(self) -> list[TopicState]:
        """Look at every retry topic; nothing is created, and no record is read.

        The result also has retry topics of delays that are no longer configured, if records still
        wait in them.

        Raises BrokerError for a source topic that does not exist.
        """
        with contextlib.closing(self.client_settings.port()) as port:
            views = port.topics()
            self._routes.rematch(views)
            states = look_at_all(
                self._name, self.topics, port, bootstrap=self.client_settings.servers
            )
            return states + look_for_left(self.topics, views, port)

    def run(
        self, *, signals: bool = True, on_trouble: Callable[[str], None] | None = None
    ) -> Ended:
        """Handle records until `stop`, SIGTERM or Ctrl-C; then end cleanly, and report how.

        What was begun has the time of `drain` to end; a second signal gives it up at once.

        Args:
            signals: False leaves signal handlers alone.
            on_trouble: called with a message when something outside is wrong that may pass (no
                broker answers, the store is away, transactions are refused), and with "" when it is
                over.

        Raises ConfigError for unfit retry topics (with the commands that mend them), BrokerError
        for a source topic that does not come within `topic_wait`, StuckError, what a worker itself
        was ended by, and UsageError when an earlier run has ended by `stop` or a signal.
        """
        refuse_while_loading()
        self._require_handler()
        if self._runner is not None:
            raise UsageError("the app is running already; start another process for more")
        if self._has_ended:
            raise UsageError("this app was stopped; make a new App for another run")
        try:
            with contextlib.closing(self.client_settings.port()) as port:
                if self._await_topics(port, on_trouble):
                    self._begin(port, signals, on_trouble)
        except KeyboardInterrupt:  # a Ctrl-C before the signal handlers
            if not signals or self._runner is not None:
                raise
            self._stopped = True  # nothing was begun, so there is nothing to end
        finally:
            runner, self._runner = self._runner, None
            self._counted = {} if runner is None else dict(runner.engine.counts)
        self._has_ended = self._stopped
        if runner is None:
            return Ended({}, given_up=0)
        return Ended(self._counted, runner.given_up, runner.uncommitted)

    def _begin(
        self, port: ClusterPort, signals: bool, on_trouble: Callable[[str], None] | None
    ) -> None:
        """Look at the topics that are there now, and run."""
        views, counts = port.topics(), TopicCounts()
        counts.learn(self.group, self._routes.by_topic, views)
        check_holding(self._routes.by_topic.values(), counts.partitions)
        self._warn_of_left_topics(views, port)
        self._run(port, counts, signals, on_trouble)

    @property
    def _name(self) -> str:
        return f"app {self.group}"

    def _warn_of_left_topics(self, views: Mapping[str, TopicView], port: ClusterPort) -> None:
        """Of retry topics that this app does not read; perhaps an older program still does."""
        try:
            for left in look_for_left(self.topics, views, port):
                log.warning("%s: %s: %s", self._name, left.spec.name, left.wrong)
        except KohortError as error:  # no reason not to begin
            log.info(
                "what waits in retry topics of former delays could not be asked for (%s)", error
            )

    def _run(
        self,
        port: ClusterPort,
        counts: TopicCounts,
        signals: bool,
        on_trouble: Callable[[str], None] | None,
    ) -> None:
        if not self._prepare_store(on_trouble):
            return
        routes = list(self._routes.by_topic.values())
        with (
            self._lookups() as lookups,
            self.client_settings.consumer(self._routes.every) as consumer,
            self.client_settings.producer() as producer,
        ):
            runner = self.exactly.runner(
                routes,
                self._limits,
                consumer,
                self._pools(lookups),
                self._timing,
                counts.ids,
                skew_ms=self._skew_ms,
                crash_guard=self._crash_guard,
            )
            if isinstance(runner, ExactRunner):
                runner.commits_progress = self.exactly.store_url is not None
                runner.transactor = self.exactly.transactor(
                    self.group,
                    self.client_settings.producing,
                    port,
                    producer,
                    counts.partitions,
                    counts.ids,
                    self.client_settings.client.get("group_instance_id"),
                )
            publisher = Publisher(producer, counts.partitions.__getitem__, runner.post)
            retry_poller = RetryTopicPoller(
                runner.engine.delays_ms,
                self._skew_ms,
                port,
                completion.wall_ms,
                runner.opened,
                group=self.group,
                scanned=runner.post,
                failed=counts.dead_letters(routes),
                discovery=self._discovery(port, counts, consumer, runner.post),
            )
            self._runner = runner
            runner.on_trouble = on_trouble
            runner.on_failure = self._on_failure
            if self._stopped:
                return
            with self._signals() if signals else contextlib.nullcontext(), self._agent():
                runner.run(publisher, retry_poller)

    def _discovery(
        self,
        port: ClusterPort,
        counts: TopicCounts,
        consumer: Consumer,
        joined: Callable[[Joined], None],
    ) -> TopicDiscovery | None:
        """Looks for new topics, if a handler has a pattern."""
        if not self._routes.models:
            return None
        every_ms = consumer.config.metadata_max_age_ms
        return TopicDiscovery(
            self._name,
            self._routes,
            port,
            counts,
            every_ms,
            joined,
            bootstrap=self.client_settings.servers,
        )

    def _agent(self) -> contextlib.AbstractContextManager[object]:
        """Serves remote commands while inside; with virtual time there are none."""
        if self._remote is None or completion.driven() is not None:
            return contextlib.nullcontext()
        return reachable(self, self._remote)

    def _await_topics(self, port: ClusterPort, on_trouble: Callable[[str], None] | None) -> bool:
        """Make the retry topics once the source topics are there. False: stopped first."""

        def match() -> None:
            self._routes.rematch(port.topics())
            if not self.topics:
                raise NoTopicYetError(f"no topic matches {', '.join(self._routes.patterns)} yet")

        def ensure() -> None:
            ensure_topics(self._name, self.topics, port, bootstrap=self.client_settings.servers)

        if self._routes.models and not self._waiting.wait(NO_TOPIC, match, on_trouble):
            return False
        return self._waiting.wait(TOPICS, ensure, on_trouble)

    def _prepare_store(self, on_trouble: Callable[[str], None] | None) -> bool:
        """Make what the store has to have, if there is one. False: the app was stopped first."""
        if (url := self.exactly.store_url) is None:
            return True

        def work() -> None:
            with contextlib.closing(open_store(url)) as store:
                set_up(store, self._setups)

        return self._waiting.wait(STORE, work, on_trouble)

    @property
    def is_paused(self) -> bool:
        """Whether `pause()` holds it."""
        runner = self._runner
        return runner is not None and runner.is_paused

    @property
    def is_stopping(self) -> bool:
        """Whether `stop()` was called, or a signal came."""
        return self._stopped

    def stop(self, *, at_once: bool = False) -> None:
        """End `run` soon and cleanly. Any thread; before `run` it keeps it from beginning.

        Args:
            at_once: do not wait for the handlers that are at work: their records are given up.
        """
        self._stopped = True
        runner = self._runner  # looked at once: `run` may end meanwhile
        if runner is not None:
            runner.stop(at_once=at_once)

    def pause(self) -> None:
        """Begin no further record until `resume()`; partitions and membership stay. Any thread."""
        runner = self._runner
        if runner is not None:
            runner.pause(on=True)

    def resume(self, topic: str = "", partition: int = -1) -> None:
        """End a `pause()`; or try the record again that stopped one partition. Any thread.

        Args:
            topic: of the partition that `on_failure="stop_partition"` stopped; "" ends a pause.
            partition: its number.
        """
        runner = self._runner
        if runner is None:
            return
        if topic:
            runner.resume((topic, partition))
        else:
            runner.pause(on=False)

    def retry_now(self) -> None:
        """Try at once what waits for its next try, whenever it would be due. Any thread.

        Of the partitions of this process; what fails again waits as usual.
        """
        runner = self._runner
        if runner is not None:
            runner.retry_now()

    def retry_record(self, topic: str, partition: int, offset: int) -> None:
        """Try one record of a retry topic now, whenever it would be due. Any thread.

        Args:
            topic: the retry topic, such as `orders.billing.retry.5m`; a partition of this process.
            partition, offset: where the record waits in it. Those before it stay where they are.

        Raises UsageError for a record that is not there, is under way, or is of another process.
        """
        self._take_early((topic, partition, offset), None)

    def dead_letter_record(self, topic: str, partition: int, offset: int, by: str = "") -> None:
        """Send one record of a retry topic to the dead-letter topic now; else as `retry_record`.

        Args:
            topic, partition, offset: where it waits.
            by: who wants it, for the dead letter's headers.
        """
        self._take_early((topic, partition, offset), by_hand(by))

    def _take_early(self, place: tuple[str, int, int], failure: Failure | None) -> None:
        runner = self._runner
        if runner is None:
            raise UsageError(
                "the app is not running, so it cannot process a record of a retry topic"
            )
        with contextlib.closing(self.client_settings.port()) as port:
            take_early(port, runner.post, place, failure)

    def health(self) -> AppHealth:
        """What every partition is doing, since when, how far behind, and why not. Any thread."""
        runner = self._runner
        if runner is None:
            return AppHealth(self.group, False, {}, (), self.troubles(), None)
        return runner.report.health(self.group)

    def status(self) -> dict[tuple[str, int], str]:
        """Why each partition is stopped, as text; "" for the others. Any thread."""
        runner = self._runner
        return {} if runner is None else runner.report.status()

    def troubles(self) -> list[str]:
        """The outside problem that keeps the app from its work at present. Any thread."""
        runner = self._runner
        if runner is None:
            return self._waiting.troubles()
        return runner.report.troubles()

    def metrics(self) -> dict[MetricName, float]:
        """What this app measures of itself, while it runs; see docs/metrics.md. Any thread."""
        return self._metrics.metrics()

    @property
    def measured(self) -> AppMetrics:
        """For exporters: the metrics with what they mean."""
        return self._metrics

    def counts(self) -> dict[str, int]:
        """What has happened since `run` was called last, by name; also after it. Any thread."""
        runner = self._runner
        return dict(self._counted if runner is None else runner.engine.counts)

    def parts(self) -> AppParts:
        """What this app is made of, for `kohort.testing.AppHarness`.

        Raises UsageError for an app without a handler.
        """
        self._require_handler()
        return AppParts(
            self._specs,
            self._routes,
            self._limits,
            self.exactly,
            self._crash_guard,
            self._setups,
            self._on_failure,
            self._lifespans,
        )

    def _require_handler(self) -> None:
        if not self._specs:
            raise UsageError(NO_HANDLER)
        if self._lifespans and all(route.pool != "tasks" for route in self._routes.every):
            raise ConfigError(
                "@app.lifespan runs on the loop of coroutine handlers, and this app has none"
            )

    # -- inside ----------------------------------------------------------------------------------

    def _lookups(self) -> contextlib.AbstractContextManager[ThreadLookups | None]:
        url = self.exactly.store_url
        return contextlib.nullcontext() if url is None else ThreadLookups(url)

    def _pools(self, lookups: ThreadLookups | None) -> list[Pool]:
        url = self.exactly.store_url
        invoker, pools = Invoker(self._specs, lookups), list[Pool]()
        for kind in sorted({route.pool for route in self._routes.every}):
            workers = self._workers[kind]
            if completion.driven() is not None:
                pools.append(InlinePool(kind, invoker, self._lifespans))
            elif kind == "threads":
                pools.append(ThreadPool(invoker, workers))
            elif kind == "processes":
                names = {route.handler for route in self._routes.every if route.pool == kind}
                chosen = {name: s for name, s in self._specs.items() if name in names}
                pools.append(ProcessPool(chosen, workers, url))
            else:
                from kohort.processing.workers.task_pool import (
                    TaskPool,  # asyncio, for those who use it
                )

                pools.append(TaskPool(invoker, workers, self._lifespans))
        return pools

    def _signals(self) -> contextlib.AbstractContextManager[None]:
        """SIGTERM and SIGINT stop the app, on the main thread; elsewhere nothing is changed.

        The second one may come while the first is handled: it is counted before all else.
        """
        if threading.current_thread() is not threading.main_thread():
            return contextlib.nullcontext()
        received: list[int] = []

        def on_signal(number: int) -> None:
            received.append(number)
            self.stop(at_once=self._stopped or len(received) > 1)

        return handled(on_signal)
