"""`watch(spark)`: lag and health of every streaming query of a session, as metrics and in groups.

    from kohort.spark import watch

    queries = watch(spark, bootstrap_servers="localhost:9092")
    export(queries)                                 # Prometheus, OpenTelemetry
    queries.health()                                # here

Shell: Spark's listener thread, one thread that commits, the clock.

Rules:
- A query needs no option for it, and may be one of Spark's own Kafka connector. Its progress is
  committed to the group `spark.NAME`, so that `kohort group lag` and `kohort group why` show it;
  one with `group.id` commits by itself, and both show the same.
- The commits report what a batch has handled and how the query ended; nothing reads from them.
- A group that cannot be committed to costs a warning, never the query.
"""

# pyspark's types are incomplete, so strict checking would report nothing else.
# pyright: basic
from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.streaming.listener import StreamingQueryListener

from kohort.errors import KohortError
from kohort.metrics.registry import Family, Sample
from kohort.observe.spark_query import FAILED, RUNS, STOPPED, QueryNote
from kohort.retry.cluster_port import ClusterPort
from kohort.sampling.unread import oldest_unread
from kohort.setting_keys import plain
from kohort.spark.health import QueryHealth, after, unread

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("kohort.spark")
PREFIX: Final = "spark."
ENDED_MOST: Final = 100
"""So many queries that have ended are remembered."""
GROUP: Final = "spark"
FAMILIES: Final = {
    name: Family(GROUP, f"spark_query_{name}", words)
    for name, words in {
        "records_behind": "records between what was handled and the ends of the logs",
        "bytes_behind": "bytes of those records, by the size of the oldest",
        "seconds_behind": "how long ago the oldest unread record was written",
        "last_batch_seconds": "how long the last trigger took",
        "last_batch_rows": "rows that the last batch has read",
        "rows_per_second": "rows handled a second in the last batch",
        "since_progress_seconds": "since the last progress that Spark reported",
        "active": "1 while it runs, 0 when it has ended",
    }.items()
}


def watch(
    spark: SparkSession,
    *,
    bootstrap_servers: str | None = None,
    prefix: str = PREFIX,
    **client: Any,
) -> QueryWatch:
    """Watch every streaming query of a session, those that run already from their next progress.

    Args:
        spark: the session, classic or of Spark Connect.
        bootstrap_servers: `HOST:PORT,...` of the cluster that the queries read; without it nothing
            is committed, and bytes and seconds behind are not known.
        prefix: of the groups' names: `PREFIX` and the query's name, or its id without one.
        client: further client configuration, in Kafka's names with `_`.

    Returns:
        What tells `health()`, and can be exported as a client's metrics are. Close it to end.
    """
    config = {plain(name): str(value) for name, value in client.items()}
    if bootstrap_servers is not None:
        config["bootstrap_servers"] = bootstrap_servers
    watching = QueryWatch(spark, config if bootstrap_servers is not None else None, prefix)
    spark.streams.addListener(watching)
    return watching


class QueryWatch(StreamingQueryListener):
    """The queries of a session; made by `watch`."""

    def __init__(
        self, session: SparkSession, config: Mapping[str, str] | None, prefix: str
    ) -> None:
        self._session = session
        self._config = config
        self._prefix = prefix
        self._lock = threading.Lock()
        self._queries: dict[str, QueryHealth] = {}
        self._port: ClusterPort | None = None
        self._committer: ThreadPoolExecutor | None = None
        if config is not None:
            self._port = ClusterPort(dict(config))
            self._committer = ThreadPoolExecutor(1, thread_name_prefix="kohort-query-watch")

    # What Spark calls

    def onQueryStarted(self, event: Any) -> None:
        self._update(QueryHealth(event.name or str(event.id), str(event.id), at_ms=_now_ms()))

    def onQueryProgress(self, event: Any) -> None:
        progress: dict[str, Any] = json.loads(event.progress.json)
        query_id = str(progress["id"])
        known = self._queries.get(query_id)
        known = known or QueryHealth(progress.get("name") or query_id, query_id)
        self._update(replace(after(known, progress), active=True, error=""))
        self._publish(query_id, RUNS)

    def onQueryIdle(self, event: Any) -> None:
        known = self._queries.get(str(event.id))
        if known is not None:
            self._update(replace(known, at_ms=_now_ms()))

    def onQueryTerminated(self, event: Any) -> None:
        known = self._queries.get(str(event.id))
        if known is None:
            return
        error = event.exception or ""
        self._update(replace(known, active=False, error=error, at_ms=_now_ms()))
        self._publish(known.id, FAILED if error else STOPPED)

    # What is asked

    def health(self, *, look: bool = True) -> list[QueryHealth]:
        """Every query that was seen, the newest progress first.

        Args:
            look: ask the cluster for the oldest unread records, for bytes and seconds behind.
        """
        with self._lock:
            queries = sorted(self._queries.values(), key=lambda q: -q.at_ms)
        return self._looked_at(queries) if look and self._config is not None else queries

    @property
    def measured(self) -> QueryWatch:
        """Its metrics, for exporters."""
        return self

    def families(self) -> list[Family]:
        """Every metric's name."""
        return list(FAMILIES.values())

    def samples(self) -> list[Sample]:
        """All numbers now."""
        now_ms = _now_ms()
        found: list[Sample] = []
        for query in self.health():
            numbers: dict[str, float | None] = {
                "records_behind": query.records_behind,
                "bytes_behind": query.bytes_behind,
                "seconds_behind": query.seconds_behind(now_ms),
                "last_batch_seconds": query.batch_ms / 1000,
                "last_batch_rows": query.rows,
                "rows_per_second": query.rows_per_s,
                "since_progress_seconds": max(0, now_ms - query.at_ms) / 1000,
                "active": int(query.active),
            }
            found += [
                Sample(FAMILIES[name], (("query", query.name),), float(number))
                for name, number in numbers.items()
                if number is not None
            ]
        return found

    def close(self) -> None:
        """Stop watching; what is to be committed is committed first."""
        try:
            self._session.streams.removeListener(self)
        except Exception as error:  # py4j raises its own kinds when the JVM has gone
            log.debug("the listener could not be removed: %s", error)
        if self._committer is not None:
            self._committer.shutdown()
        if self._port is not None:
            self._port.close()

    # Within

    def _update(self, query: QueryHealth) -> None:
        with self._lock:
            self._queries[query.id] = query
            ended = sorted(
                (q for q in self._queries.values() if not q.active), key=lambda q: q.at_ms
            )
            for old in ended[:-ENDED_MOST]:
                del self._queries[old.id]

    def _publish(self, query_id: str, state: str) -> None:
        query = self._queries[query_id]
        if self._committer is not None and query.next:
            words = query.error.strip().partition("\n")[0]
            note = QueryNote(state, _now_ms(), query.name, words)
            self._committer.submit(self._commit, query, str(note))

    def _commit(self, query: QueryHealth, metadata: str) -> None:
        assert self._port is not None, "there is a committer only with a port"
        group = f"{self._prefix}{query.name}"
        try:
            self._port.commit(group, query.next, metadata)
        except KohortError as error:
            log.warning("progress of group %s was not published: %s", group, error)

    def _looked_at(self, queries: Sequence[QueryHealth]) -> list[QueryHealth]:
        assert self._config is not None, "asked with a cluster only"
        oldest = oldest_unread(self._config, unread(queries))
        return [_with_oldest(query, oldest) for query in queries]


def _with_oldest(
    query: QueryHealth, oldest: Mapping[tuple[str, int], tuple[int, int]]
) -> QueryHealth:
    """The same with bytes and age, when every partition that is behind was answered for."""
    late = {at: count for at, count in query.behind.items() if count}
    if not late:
        return replace(query, bytes_behind=0) if query.behind else query
    if not late.keys() <= oldest.keys():
        return query
    size = sum(count * oldest[at][1] for at, count in late.items())
    first_ms = min(oldest[at][0] for at in late)
    return replace(query, bytes_behind=size, oldest_ms=first_ms if first_ms >= 0 else None)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
