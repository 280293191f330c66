"""`AppHarness`: the handlers of an `App` over records in memory, on a clock that a test moves.

    harness = AppHarness(app)
    harness.send("orders", b"42")
    harness.advance("5m 5m 30m")        # retries run when they are due, at once in real time
    assert harness.dead_letters() == []

Rules:
- The app's own engine decides: retry topics, due times, order, dead letters, circuits, snapshots.
  Only topics, commits, workers and the clock are replaced; there is no broker, socket or thread.
- Handlers run on the calling thread, one after another, and take no time on the harness's clock.
- A step is a place at which a program can die. After a crash only topics, commits and the store are
  left, and the app continues from these.

"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, Protocol, Self, TypeVar, cast

from kohort.client.common.types import GroupMetadata
from kohort.config import parse_duration_ms
from kohort.errors import KohortError, UsageError
from kohort.processing.app import App
from kohort.processing.engine.engine import NOT_BEGUN, Engine, Outcome
from kohort.processing.engine.exactly_once_engine import Batch, ExactEngine, Verdict
from kohort.processing.engine.failures import FailedAttempt
from kohort.processing.engine.key_holds import Scanned, waiting_in
from kohort.processing.engine.outbox import Publication
from kohort.processing.engine.output import Output
from kohort.processing.engine.partition_state import Item, Route
from kohort.processing.engine.snapshot import decode
from kohort.processing.runtime.publishing import is_unfit
from kohort.processing.runtime.runner import Start
from kohort.processing.runtime.store_transactor import StoreTransactor
from kohort.processing.workers.handlers import Invoker
from kohort.processing.workers.inline_pool import InlinePool
from kohort.processing.workers.store_lookups import ThreadLookups
from kohort.processing.workers.worker_pools import Finished
from kohort.records import Record
from kohort.retry.classify import Failure
from kohort.retry.handling import set_up
from kohort.retry.headers import Header, RetryHeaders, parse
from kohort.retry.progress import NOWHERE
from kohort.retry.store import Store
from kohort.retry.stores import open_store
from kohort.testing.journey import Attempt, as_svg, as_text
from kohort.testing.memory_topics import MemoryProducer, MemoryTopics, TopicPartition
from kohort.testing.used_stores import used_store

START: Final = datetime(2026, 1, 1, tzinfo=UTC)
MAX_TURNS: Final = 100_000
"""So many turns without an end are taken for an endless loop."""
POLL_RECORDS: Final = 500
CLOSING_S: Final = 10
"""An app's `drain`, by default."""
MEMBER: Final = GroupMetadata("", 1, "harness", None)


@dataclass(frozen=True)
class Copy:
    """A record in a retry topic or a dead-letter topic, and what its headers say.

    Attributes:
        record: the copy as stored: key, value, headers, offset.
        retry: attempt number, due time, origin, reason, error.
    """

    record: Record
    retry: RetryHeaders

    @property
    def reason(self) -> str:
        """Why the record failed."""
        return self.retry.reason

    @property
    def due_ms(self) -> int:
        """When it is tried again, milliseconds since 1970. Of a dead letter: when it failed."""
        return max(self.retry.not_before_ms, self.record.timestamp + self.retry.delay_ms)


class Crashed(BaseException):
    """The program dies here. Not an Exception: no handler of errors may catch it."""


class AppHarness:
    """Runs an `App` without a broker. A context manager, which closes lifespans and store.

    Args:
        app: with its handlers. It is not changed, and `app.run` is not called. Its store, if it has
            one, must be without progress of its group.
        partitions: of every topic.
        start: the time of day at which the harness begins.
        crash_at: crash at this step (see `steps`), once; None: nowhere.

    Raises UsageError for an app without a handler, and for a store that an earlier run has used;
    what a lifespan of the app raises.
    """

    def __init__(
        self,
        app: App,
        *,
        partitions: int = 1,
        start: datetime = START,
        crash_at: int | None = None,
    ) -> None:
        parts = app.parts()
        self._parts = replace(parts, routes=parts.routes.unmatched())
        self._app = app
        self.now_ms = int(start.timestamp() * 1_000)
        self.started_ms = self.now_ms
        self.topics = MemoryTopics(partitions)
        self.attempts: list[Attempt] = []
        """Every call of a handler, in order."""
        self.steps: list[str] = []
        """The places passed so far at which a program could have died."""
        self.crashes = 0
        self._crash_at = crash_at
        self._epoch = 0
        self._lookups: ThreadLookups | None = None
        self._transactor: StoreTransactor | None = None
        url = self._parts.exactly.store_url
        if url is not None:
            self._lookups = ThreadLookups(url)
            with contextlib.closing(open_store(url)) as store:
                set_up(store, self._parts.setups)
                _refuse_progress(store, app.group)
        invoker = Invoker(self._parts.specs, self._lookups)
        names = sorted({route.pool for route in self._parts.routes.every})
        self._pools = [InlinePool(name, invoker, self._parts.lifespans) for name in names]
        try:
            self._begin()
        except BaseException:  # what was opened must not stay behind
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the lifespans, and the connections to the store.

        Raises what the lifespans raise; UsageError for one that takes longer than 10 s.
        """
        with contextlib.ExitStack() as closing:
            if self._lookups is not None:
                closing.push(self._lookups)
            for pool in self._pools:
                closing.callback(_stop, pool)
            closing.callback(self._close_transactor)

    # -- records in, time --------------------------------------------------------------------------

    def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        *,
        partition: int | None = None,
        headers: Sequence[Header] = (),
    ) -> Record:
        """Append a record to a topic; nothing is handled before `run` or `advance`.

        A topic that matches the pattern of a handler joins with its first record; of outputs, too.
        """
        record = self.topics.append(topic, value, key, partition, headers, self.now_ms)
        self._discover()
        return record

    def _discover(self) -> None:
        """Let topics join that match the pattern of a handler: a test's, and those of outputs."""
        routes = self._parts.routes.new(self.topics.names | set(self._engine.topics))
        if not routes:
            return
        self._parts.routes.join(routes)
        self._engine.add_routes(routes)
        for name in (name for r in routes for name in (r.topic, *r.topics.delays_ms)):
            for number in range(self.topics.partitions):
                self._assign((name, number))

    def run(self) -> None:
        """Handle everything that can be handled now. No time passes.

        Raises what ends a worker (SystemExit, a UsageError of the handler).
        """
        for _ in range(MAX_TURNS):
            try:
                if not self._turn():
                    return
            except Crashed:
                self.crash()
        raise UsageError(f"after {MAX_TURNS} turns there is still something to do at this moment")

    def advance(self, duration: str | int) -> None:
        """Let time pass; every record is retried when it is due.

        Args:
            duration: "5m", "1h30m", several as in "5m 30m", or milliseconds.
        """
        until_ms = self.now_ms + parse_duration_ms(duration)  # "5m 30m" is their sum
        self.run()
        while (due_ms := self._next_due_ms()) is not None and due_ms <= until_ms:
            self.now_ms = max(self.now_ms + 1, due_ms)
            self.run()
        self.now_ms = max(self.now_ms, until_ms)

    def run_to_end(self) -> None:
        """Let time pass until no record waits any more."""
        self.run()
        for _ in range(MAX_TURNS):
            due_ms = self._next_due_ms()
            if due_ms is None:
                return
            self.now_ms = max(self.now_ms + 1, due_ms)
            self.run()
        raise UsageError(f"after {MAX_TURNS} due times there is still a record that waits")

    def crash(self) -> None:
        """The program dies now and is started again: all that it had in memory is gone."""
        self.crashes += 1
        self._close_transactor()
        for pool in self._pools:
            pool.kill()
        self._begin()

    # -- what came of it ---------------------------------------------------------------------------

    def records(self, topic: str) -> list[Record]:
        """The records of a topic, such as one that handlers send to."""
        return self.topics.records(topic)

    def retries(self) -> list[Copy]:
        """The records that wait in retry topics, by due time."""
        names = [t for route in self._routes for t in route.topics.delays_ms]
        retries = [
            Copy(r, parse(r.headers)) for t in names for r in self.records(t) if not self._done(r)
        ]
        return sorted(retries, key=lambda copy: copy.due_ms)

    def dead_letters(self) -> list[Copy]:
        """The records of the dead-letter topics of all handlers."""
        names = [route.topics.dead_letter for route in self._routes]
        return [Copy(r, parse(r.headers)) for t in names for r in self.records(t)]

    def committed(self, topic: str) -> dict[int, int]:
        """The offset that the group has committed, by partition."""
        commits = self.topics.commits
        return {p: at for (name, p), (at, _) in sorted(commits.items()) if name == topic}

    def attempts_of(self, record: Record) -> list[Attempt]:
        """The calls of the handler for one record, and for its copies in retry topics."""
        place = (record.topic, record.partition, record.offset)
        return [a for a in self.attempts if (a.topic, a.partition, a.offset) == place]

    def journey(self, record: Record) -> str:
        """The way of a record through its retry topics, a line for each attempt."""
        return as_text(self.attempts_of(record), self.started_ms)

    def journey_svg(self, record: Record) -> str:
        """The same as a picture (SVG): topics from top to bottom, time from left to right."""
        return as_svg(self.attempts_of(record), self.started_ms)

    @property
    def _routes(self) -> list[Route]:
        return list(self._parts.routes.by_topic.values())

    def _done(self, record: Record) -> bool:
        key = (record.topic, record.partition)
        offset, text = self._progress(key)
        done = decode(offset, text).done
        return record.offset < offset or any(a <= record.offset < b for a, b in done)

    def _progress(self, key: TopicPartition) -> tuple[int, str]:
        if self._transactor is None:
            return self.topics.commits.get(key, (0, ""))
        with contextlib.closing(open_store(self._parts.exactly.store_url or "")) as store:
            row = store.progress(self._app.group, *key)
        return (0, "") if row is None or row.next_offset < 0 else (row.next_offset, row.snapshot)

    # -- one life of the program -------------------------------------------------------------------

    def _begin(self) -> None:
        for pool in self._pools:
            pool.start(_raise_error)
        parts = self._parts
        routes = self._routes
        guard = parts.crash_guard
        self._engine: Engine
        if parts.exactly.kafka or parts.exactly.store_url is not None:
            judged = parts.exactly.store_url is not None
            self._engine = ExactEngine(
                routes, parts.limits, skew_ms=0, crash_guard=guard, judged=judged
            )
            if judged:
                self._transactor = self._make_transactor()
        else:
            self._engine = Engine(routes, parts.limits, skew_ms=0, crash_guard=guard)
        self._position: dict[TopicPartition, int] = {}
        for topic in self._engine.topics:
            for number in range(self.topics.partitions):
                self._assign((topic, number))

    def _make_transactor(self) -> StoreTransactor:
        producer = MemoryProducer(self.topics, lambda: self.now_ms, self._reach)
        return StoreTransactor(
            self._app.group,
            open_store(self._parts.exactly.store_url or ""),
            cast("Any", producer),
            lambda _: self.topics.partitions,
            {},
            lambda: self.now_ms,
            now_s=lambda: self.now_ms / 1_000,
        )

    def _close_transactor(self) -> None:
        if self._transactor is not None:
            self._transactor._close()  # pyright: ignore[reportPrivateUsage]
            self._transactor = None

    def _assign(self, key: TopicPartition) -> None:
        self._epoch += 1
        offset, snapshot = self.topics.commits.get(key, (0, ""))
        start = Start(offset, snapshot)
        if self._transactor is not None:
            taken = self._transactor._take_over({key: start})  # pyright: ignore[reportPrivateUsage]
            start = taken[key]
        self._engine.assigned(key, self._epoch, start.offset, start.snapshot, now_ms=self.now_ms)
        self._position[key] = start.offset or 0

    def _reach(self, step: str) -> None:
        """A step: the program may die here."""
        self.steps.append(step)
        if self._crash_at == len(self.steps) - 1:
            self._crash_at = None
            raise Crashed(step)

    def _turn(self) -> bool:
        """Once around; whether anything was done."""
        self._discover()
        self._engine.tick(self.now_ms)
        self._scan()
        busy = self._poll()
        busy = self._judge() or busy
        busy = self._work() or busy
        self._report_failures_to_hooks()
        busy = self._publish() or busy
        return self._commit() or busy

    def _poll(self) -> bool:
        paused = self._engine.paused(self.now_ms)
        polled = False
        for key in list(self._engine.partitions):
            if key in paused:
                continue
            records = self._due(key)[:POLL_RECORDS]
            if records:
                self._position[key] += len(records)
                self._engine.polled(key, records, self._position[key], self.now_ms)
                polled = True
        return polled

    def _due(self, key: TopicPartition) -> list[Record]:
        delay_ms = self._engine.delays_ms.get(key[0], 0)
        unread = self.topics.logs[key][self._position[key] :]
        return [r for r in unread if r.timestamp + delay_ms <= self.now_ms]

    def _scan(self) -> None:
        """Read retry topics to their end for keys that are held."""
        for key, start, epoch in self._engine.scans():
            waiting = waiting_in(self.topics.logs[key][start:], self._app.group)
            most = self._engine.holds.most
            whole = len(waiting) <= most
            self._engine.scanned(Scanned(key, epoch, waiting[:most], whole), self.now_ms)

    def _judge(self) -> bool:
        engine, transactor = self._engine, self._transactor
        if transactor is None or not isinstance(engine, ExactEngine):
            return False
        items = engine.unjudged(POLL_RECORDS)
        if items:
            event = transactor._judge(items)  # pyright: ignore[reportPrivateUsage]
            engine.judged(event.items, event.owed, event.elsewhere, self.now_ms)
        return bool(items)

    # -- handlers ----------------------------------------------------------------------------------

    def _work(self) -> bool:
        """Hand out everything that is ready, and take the outcomes in."""
        engine, worked = self._engine, False
        for pool in self._pools:
            most = max(1, engine.dispatchers[pool.name].batch_size)
            while engine.ready(pool.name) and (items := engine.take(pool.name, most, self.now_ms)):
                worked = True
                self._reach(f"before {_names(items)} is handled")
                outcomes = pool.run(items)
                self._note(items, outcomes)
                engine.finished(items, outcomes, self.now_ms)
                self._reach(f"after {_names(items)} was handled")
        return worked

    def _note(self, items: Sequence[Item], outcomes: Sequence[Outcome] | None) -> None:
        for index, item in enumerate(items):
            outcome = None if outcomes is None else outcomes[index]
            if outcome is NOT_BEGUN:
                continue
            attempt, record = item.attempt, item.record
            place = record if attempt is None else attempt.origin
            failure = None
            if isinstance(outcome, Failure):
                failure = f"{outcome.error_class.rpartition('.')[2]}: {outcome.message}"
            number = 0 if attempt is None else attempt.number
            self.attempts.append(
                Attempt(
                    self.now_ms,
                    place.topic,
                    place.partition,
                    place.offset,
                    record.topic,
                    number,
                    failure,
                )
            )

    def _report_failures_to_hooks(self) -> None:
        failures = self._engine.take_failures()
        for failed in failures:
            self._complete(failed)
        errors: list[Exception] = []
        for failed in failures:
            for hook in self._parts.on_failure:
                try:
                    hook(failed)
                except Exception as error:  # the hook is the user's, and may raise anything
                    errors.append(error)
        if errors:  # an app logs them; a test is to see them
            for error in errors[1:]:
                errors[0].add_note(f"on_failure raised again, for another failure: {error!r}")
            raise errors[0]

    def _complete(self, failed: FailedAttempt) -> None:
        """Where the record of a failed attempt goes."""
        place = (failed.topic, failed.partition, failed.offset, failed.attempt)
        for index in range(len(self.attempts) - 1, -1, -1):
            a = self.attempts[index]
            if (a.topic, a.partition, a.offset, a.number) == place:
                self.attempts[index] = replace(
                    a, next_topic=failed.waits_in, next_try_ms=failed.next_try_ms
                )
                return

    # -- publishing and committing -----------------------------------------------------------------

    def _publish(self) -> bool:
        publications = list(self._engine.publications())
        for publication in publications:
            error = self._send(publication)
            self._engine.published(publication, self.now_ms, error, unfit=is_unfit(error))
        return bool(publications)

    def _send(self, publication: Publication) -> KohortError | None:
        """Store the records of a publication one after another; why one was refused."""
        for output in publication.outputs:
            self._reach(f"before {output.topic} gets a record")
            try:
                if publication.copy is None:
                    self.topics.check(output)
                self._store(publication, output)
            except KohortError as error:  # those before it are there: at least once
                return error
        return None

    def _store(self, publication: Publication, output: Output) -> None:
        partition = output.partition
        if publication.copy is not None and partition is not None:
            partition %= self.topics.partitions
        self.topics.append(
            output.topic, output.value, output.key, partition, output.headers, self.now_ms
        )

    def _commit(self) -> bool:
        if isinstance(self._engine, ExactEngine):
            return self._commit_batch(self._engine)
        commits = self._engine.commits()
        if commits:
            self._reach("before the offsets are committed")
            for key, commit in commits.items():
                self.topics.commits[key] = (commit.offset, commit.metadata)
            self._reach("after the offsets were committed")
            self._engine.committed(commits, self.now_ms)
        return bool(commits)

    def _commit_batch(self, engine: ExactEngine) -> bool:
        batch = engine.batch(self.now_ms)
        if batch is None:
            return False
        self._reach("before the transaction")
        if self._transactor is not None:
            put = self._transactor._commit_batch  # pyright: ignore[reportPrivateUsage]
            verdict = put(batch, MEMBER)
        else:
            verdict = self._store_all(batch)
        if verdict.fenced:
            raise UsageError(_taken_over(self._app.group, verdict.fenced))
        if verdict.error is not None:
            engine.transaction_aborted(verdict, self.now_ms)
            # Something else is settled now, as in the runner; any other error is one for later.
            return bool(verdict.failures or verdict.unfit or verdict.inert or verdict.revived)
        for key, commit in batch.commits.items():
            self.topics.commits[key] = (commit.offset, commit.metadata)
        self._reach("after the transaction")
        engine.transaction_committed(batch, self.now_ms)
        return True

    def _store_all(self, batch: Batch) -> Verdict:
        """All of it or nothing: that is what the transaction is for."""
        unfit = {
            index: error
            for index, publication in enumerate(batch.publications)
            if (error := self._refusal(publication)) is not None
        }
        if unfit:
            return Verdict(batch, next(iter(unfit.values())), unfit=unfit)
        for publication in batch.publications:
            for output in publication.outputs:
                self._store(publication, output)
        return Verdict(batch)

    def _refusal(self, publication: Publication) -> KohortError | None:
        """Why no broker would take the records of a publication; a copy has a partition always."""
        try:
            for output in publication.outputs if publication.copy is None else ():
                self.topics.check(output)
        except KohortError as error:
            return error
        return None

    def _next_due_ms(self) -> int | None:
        """When something more can happen: a deadline, or a retry topic's next record."""
        engine = self._engine
        deadlines = [engine.next_deadline()]
        if isinstance(engine, ExactEngine):
            deadlines.append(engine.next_try_ms)
        paused = engine.paused(self.now_ms)
        for key, position in self._position.items():
            log = self.topics.logs[key]
            if position < len(log) and key not in paused:
                deadlines.append(log[position].timestamp + engine.delays_ms.get(key[0], 0))
        return min((due for due in deadlines if due is not None), default=None)


def _raise_error(event: Finished) -> None:
    """What ends an app ends the test."""
    if event.error is not None:
        raise event.error


def _stop(pool: InlinePool) -> None:
    if not pool.stop(CLOSING_S):
        raise UsageError(f"@app.lifespan: the code behind `yield` took longer than {CLOSING_S} s")


def _names(items: Sequence[Item]) -> str:
    first = items[0].record
    more = f" and {len(items) - 1} more" if len(items) > 1 else ""
    return f"{first.topic}/{first.partition}/{first.offset}{more}"


def _refuse_progress(store: Store, group: str) -> None:
    done = store.query(
        "SELECT topic, partition, next_offset FROM kohort_progress "
        "WHERE pipeline = ? AND next_offset <> ? ORDER BY topic, partition",
        (group, NOWHERE),
    )
    if done:
        raise used_store(f"group {group}", *done[0])


def _taken_over(group: str, partitions: Iterable[TopicPartition]) -> str:
    names = ", ".join(f"{topic}-{partition}" for topic, partition in sorted(partitions))
    return (
        f"group {group}: another harness or program has taken over {names} in the store, so "
        "nothing of this harness is committed any more. Give each harness a fresh store"
    )


class Crashing(Protocol):
    """A harness that can crash: an `AppHarness` or a `PipelineHarness`."""

    steps: list[str]
    _crash_at: int | None

    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...


H = TypeVar("H", bound=Crashing)


def crash_everywhere(make: Callable[[], H], scenario: Callable[[H], object]) -> Iterator[H]:
    """Run a scenario without a crash, then again with a crash at each of its steps.

    Args:
        make: a fresh harness of a fresh app or pipeline, and of a fresh store where there is one.
        scenario: what is to happen; it must not depend on the crash.

    Yields each harness after its scenario, to be looked at.
    """
    with make() as whole:
        scenario(whole)
        steps = len(whole.steps)
        yield whole
    for step in range(steps):
        with make() as harness:
            harness._crash_at = step  # pyright: ignore[reportPrivateUsage]
            scenario(harness)
            yield harness
