"""What changes under a stream or pipeline: topics, handlers, retries, transactions (spec 6.10)."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kohort import Admin, Producer
from kohort.errors import ConfigError, DataLossError
from kohort.retry.headers import Origin
from kohort.retry.ledger import FenceMove, LedgerRow, Place, Status
from kohort.retry.preparing import ensure_topics
from kohort.retry.store import Store, Transaction
from kohort.retry.stores import open_store
from kohort.spark import Pipeline, PipelineFailedError, Temporary
from kohort.spark.outputs.table_transaction import open_batches
from kohort.spark.supervise import check_owed, check_waiting, open_fences
from kohort.testing import Cluster
from tests.known import fake
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Make = Callable[..., str]
Send = Callable[..., None]


def loader(
    cluster: Cluster, directory: Path, *topics: str, retries: str = "1h", **options: Any
) -> Pipeline:
    """A pipeline that puts numbers into the table of their topic, and retries negative ones."""
    pipeline = Pipeline(
        "changing",
        store=f"sqlite:///{directory}/s.db",
        bootstrap_servers=cluster.bootstrap,
        checkpoint=directory / "checkpoint",
        retries=retries,
        trigger="100ms",
        **options,
    )

    @pipeline.setup
    def tables(store: Any) -> None:
        for name in topics:
            store.run(f"CREATE TABLE IF NOT EXISTS {name} (n INTEGER, p INTEGER, o INTEGER)")

    for name in topics:

        @pipeline.handler(name, table=name, origin=("p", "o"))
        def load(record: Any, store: Any) -> dict[str, int]:
            if record.data["n"] < 0:
                raise Temporary("not_yet")
            return {"n": record.data["n"]}

    return pipeline


def numbers(pipeline: Pipeline, topic: str) -> list[int]:
    store = pipeline.open_store()
    try:
        return [n for (n,) in store.query(f"SELECT n FROM {topic} ORDER BY n")]
    finally:
        store.close()


def rows(*values: int) -> list[tuple[int, None, bytes]]:
    return [(0, None, json.dumps({"n": n}).encode()) for n in values]


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_records_of_aborted_transactions_are_never_loaded(
    spark: SparkSession, cluster: Cluster, topic: Make, tmp_path: Path
) -> None:
    """Spec 6.3. What is open is waited for; markers do not hold a run up."""
    name = topic(1)
    with Producer(bootstrap_servers=cluster.bootstrap, transactional_id=f"tx-{name}") as producer:
        producer.init_transactions()
        for first, commit in ((0, True), (10, False), (20, True)):
            producer.begin_transaction()
            for n in range(first, first + 5):
                producer.send(name, json.dumps({"n": n}).encode())
            producer.flush()
            producer.commit_transaction() if commit else producer.abort_transaction()
    pipeline = loader(cluster, tmp_path, name)
    last = pipeline.run("until_idle", spark=spark)
    assert numbers(pipeline, name) == [*range(5), *range(20, 25)]
    assert last.drained


def test_committed_records_are_the_default_and_can_be_changed(tmp_path: Path) -> None:
    with Cluster() as cluster:
        plain = loader(cluster, tmp_path, "t")
        assert plain.client_config["isolation.level"] == "read_committed"
        loose = loader(cluster, tmp_path, "t", client={"isolation_level": "read_uncommitted"})
        assert loose.client_config["isolation.level"] == "read_uncommitted"


def test_client_settings_are_keywords_or_a_mapping(tmp_path: Path) -> None:
    """Issue 15: typed settings; a keyword wins, and executors get text."""
    store = f"sqlite:///{tmp_path}/s.db"
    mapping = {"request.timeout.ms": "30s", "check.crcs": True}
    pipeline = Pipeline("p", store=store, client=mapping, request_timeout_ms=9_000)
    assert pipeline.client == {"request.timeout.ms": "9000", "check.crcs": "True"}
    with pytest.raises(ConfigError, match="'retires'; did you mean 'retries'"):
        Pipeline("p", store=store, **fake({"retires": "5m"}))
    with pytest.raises(ConfigError, match=r"token\.provider: executors take text"):
        Pipeline("p", store=store, sasl_oauthbearer_token_provider=lambda: "t")


@pytest.mark.extended
@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.parametrize("lenient", [True, False])
def test_a_deleted_topic_ends_a_stream_in_words_or_not_at_all(
    spark: SparkSession,
    cluster: Cluster,
    topic: Make,
    produce: Send,
    tmp_path: Path,
    lenient: bool,
) -> None:
    kept, gone = topic(1), topic(1)
    seen: list[tuple[str, int]] = []
    stream = (
        spark.readStream.format("kohort")
        .option("kafka.bootstrap.servers", cluster.bootstrap)
        .option("subscribe", f"{kept},{gone}")
        .option("startingOffsets", "earliest")
        .option("failOnDataLoss", str(not lenient).lower())
        .load()
    )
    produce(kept, *rows(1))
    produce(gone, *rows(1))
    query = (
        stream.writeStream.foreachBatch(
            lambda df, _: seen.extend((r.topic, r.offset) for r in df.collect())
        )
        .option("checkpointLocation", str(tmp_path / "c"))
        .trigger(processingTime="100 milliseconds")
        .start()
    )
    try:
        query.processAllAvailable()
        with Admin(bootstrap_servers=cluster.bootstrap) as admin:
            admin.delete_topics([gone])
        produce(kept, *rows(2))
        if lenient:
            query.processAllAvailable()
            assert sorted(seen) == sorted([(kept, 0), (kept, 1), (gone, 0)])
        else:
            with pytest.raises(Exception, match=f"{gone}/0: the topic was deleted"):
                query.awaitTermination(int(2 * PATIENCE_S))
    finally:
        query.stop()


@pytest.mark.extended
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_a_pipeline_goes_on_without_a_handler_and_with_it_again(
    spark: SparkSession, cluster: Cluster, topic: Make, produce: Send, tmp_path: Path
) -> None:
    """A batch that was planned and not noted held records of the topic that nobody handles."""
    first, second = topic(1), topic(1)
    both = loader(cluster, tmp_path, first, second)
    produce(first, *rows(1))
    produce(second, *rows(1))
    both.run("available_now", spark=spark)
    commits = sorted((tmp_path / "checkpoint" / "source" / "commits").glob("[0-9]*"))
    commits[-1].unlink()
    one = loader(cluster, tmp_path, first)
    produce(first, *rows(2))
    produce(second, *rows(2))
    one.run("available_now", spark=spark)
    assert (numbers(both, first), numbers(both, second)) == ([1, 2], [1])
    both.run("available_now", spark=spark)
    assert (numbers(both, first), numbers(both, second)) == ([1, 2], [1, 2])


@pytest.mark.extended
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_a_stage_goes_on_without_one_of_its_sources(
    spark: SparkSession, cluster: Cluster, topic: Make, produce: Send, tmp_path: Path
) -> None:
    """A batch that was planned and not noted held records of a source that was taken out: they
    went through the steps of the other one.
    """
    first, second = topic(1), topic(1)

    def pipeline(*topics: str) -> Pipeline:
        p = Pipeline(
            "union",
            store=f"sqlite:///{tmp_path}/s.db",
            bootstrap_servers=cluster.bootstrap,
            checkpoint=tmp_path / "checkpoint",
            retries="none",
        )

        @p.setup
        def tables(store: Any) -> None:
            store.run("CREATE TABLE IF NOT EXISTS rows_of (n INTEGER)")

        for name in topics:
            p.source(name, name=f"s_{topics.index(name)}", schema="n INT")

        if len(topics) == 2:

            @p.table("rows_of")
            def rows_of(s_0: Any, s_1: Any) -> Any:
                return s_0.unionByName(s_1)

        else:

            @p.table("rows_of")
            def rows_of_one(s_0: Any) -> Any:
                return s_0

        return p

    produce(first, *rows(1))
    produce(second, *rows(11))
    pipeline(first, second).run("available_now", spark=spark, max_restarts=0)
    (stage,) = (tmp_path / "checkpoint").glob("stage-*/offsets")
    produce(first, *rows(2))
    produce(second, *rows(12))
    both = pipeline(first, second)
    both.reached = dies
    with pytest.raises(PipelineFailedError, match="the driver dies"):
        both.run("available_now", spark=spark, max_restarts=0)
    one = pipeline(first)
    assert len(list(stage.glob("[0-9]*"))) == 2
    one.run("available_now", spark=spark, max_restarts=0)
    with one.open_store().transaction() as cursor:
        loaded = cursor.query("SELECT n FROM rows_of ORDER BY n")
    assert loaded == [(1,), (2,), (11,)]


@pytest.mark.extended
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_handlers_and_steps_take_a_topic_over_from_each_other(
    spark: SparkSession, cluster: Cluster, topic: Make, produce: Send, tmp_path: Path
) -> None:
    """The checkpoint of the one is behind what the other has loaded meanwhile."""
    name = topic(1)

    def steps() -> Pipeline:
        p = loader(cluster, tmp_path, retries="none")
        p.source(name, name="numbers", schema="n INT")

        @p.table(name)
        def loaded(numbers: Any) -> Any:
            return numbers.selectExpr("n", "0 AS p", "0 AS o")

        return p

    for n in range(4):
        produce(name, *rows(n))
        pipeline = steps() if n % 2 else loader(cluster, tmp_path, name, retries="none")
        pipeline.run("available_now", spark=spark, max_restarts=0)
        assert numbers(pipeline, name) == list(range(n + 1))


def dies(_: object) -> None:
    """The batch is in Spark's log of offsets, and not committed."""
    raise RuntimeError("the driver dies")


@pytest.mark.extended
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_a_topic_that_is_deleted_under_a_pipeline_is_named(
    spark: SparkSession, cluster: Cluster, topic: Make, produce: Send, tmp_path: Path
) -> None:
    """The restart raised a KeyError without a word."""
    name = topic(1)
    produce(name, *rows(1))
    pipeline = loader(cluster, tmp_path, name)
    deleted: list[bool] = []

    def until() -> bool:
        if not deleted and numbers(pipeline, name):
            deleted.append(True)
            with Admin(bootstrap_servers=cluster.bootstrap) as admin:
                admin.delete_topics([name])
        return False

    with pytest.raises((PipelineFailedError, DataLossError), match="was deleted while"):
        pipeline.run("until_idle", spark=spark, until=until)


def test_a_restart_without_its_topic_says_so(tmp_path: Path) -> None:
    with Cluster() as cluster:
        cluster.create_topic("orders")
        pipeline = loader(cluster, tmp_path, "orders")
        from kohort.retry.cluster_port import ClusterPort

        store, port = pipeline.open_store(), ClusterPort(pipeline.client_config)
        pipeline.prepare_store(store)
        try:
            with pytest.raises(DataLossError, match=r"topic orders\.changing.* was deleted"):
                open_fences(pipeline, store, port)
        finally:
            port.close()
            store.close()


def test_a_topic_that_was_created_again_is_refused_before_anything_starts(tmp_path: Path) -> None:
    """X8: without a checkpoint, its fence would pass over the first records of the new topic."""
    with Cluster() as cluster:
        pipeline = loader(cluster, tmp_path, "orders", retries="none")
        from kohort.retry.cluster_port import ClusterPort

        store, port = pipeline.open_store(), ClusterPort(pipeline.client_config)
        pipeline.prepare_store(store)
        try:
            cluster.create_topic("orders", partitions=1)
            ensure_topics("pipeline", pipeline.topics, port, bootstrap=cluster.bootstrap)
            open_fences(pipeline, store, port)
            open_fences(pipeline, store, port)
            with Admin(bootstrap_servers=cluster.bootstrap) as admin:
                admin.delete_topics(["orders"])
            cluster.create_topic("orders", partitions=1)
            with pytest.raises(DataLossError, match="topic orders was deleted and created again"):
                open_fences(pipeline, store, port)
        finally:
            port.close()
            store.close()


def test_an_intermediate_topic_begins_at_its_end_and_a_new_partition_of_it_at_its_start(
    tmp_path: Path,
) -> None:
    """A store without its fences has written none of its rows; one that has them, all of them."""
    with Cluster() as cluster:
        pipeline = loader(cluster, tmp_path, "orders", retries="none")
        from kohort.retry.cluster_port import ClusterPort

        handed = "kohort.p.step.intermediate"
        for name in ("orders", handed):
            cluster.create_topic(name, partitions=1)
        with Producer(bootstrap_servers=cluster.bootstrap) as producer:
            for name in ("orders", handed):
                producer.send(name, b"of an earlier store", partition=0)
        store, port = pipeline.open_store(), ClusterPort(pipeline.client_config)
        pipeline.prepare_store(store)
        try:
            ensure_topics("pipeline", pipeline.topics, port, bootstrap=cluster.bootstrap)
            open_fences(pipeline, store, port, [handed])
            with Admin(bootstrap_servers=cluster.bootstrap) as admin:
                admin.create_partitions({handed: 2})
            with Producer(bootstrap_servers=cluster.bootstrap) as producer:
                producer.send(handed, b"of this one", partition=1)
            open_fences(pipeline, store, port, [handed])
            fences = {(f.topic, f.partition): f.next_offset for f in store.fences(pipeline.name)}
        finally:
            port.close()
            store.close()
    opened = {at: start for at, start in fences.items() if at[0] in ("orders", handed)}
    assert opened == {("orders", 0): 0, (handed, 0): 1, (handed, 1): 0}


def schedule(pipeline: Pipeline, dest: str) -> None:
    """One failed record waits in `dest`."""
    store = pipeline.open_store()
    pipeline.prepare_store(store)
    store.open_fence(pipeline.name, "orders", "", 0, 0, 0)
    row = LedgerRow(
        Origin("orders", 0, 0, 0),
        0,
        1,
        Status.SCHEDULED,
        Place(dest, 0, 0),
        5,
        None,
        "transient",
        "not_yet",
        "LookupError",
        "",
        "",
        0,
        delay_ms=300_000,
    )
    store.apply(Transaction(pipeline.name, FenceMove("orders", 0, 0, 1), 0, rows=[row]))
    store.close()


@pytest.mark.parametrize("change", ["retries", "handler"])
def test_a_change_while_records_wait_is_refused_before_anything_starts(
    tmp_path: Path, change: str
) -> None:
    """Spec 6.10: with what waits where, and what to do."""
    with Cluster() as cluster:
        for name in ("orders", "sales"):
            cluster.create_topic(name)
        before = loader(cluster, tmp_path, "orders", "sales", retries="5m")
        schedule(before, before.topics["orders"].retry_topic(300_000))
        store = before.open_store()
        check_waiting(before, store)
        store.close()
        topics = ("orders", "sales") if change == "retries" else ("sales",)
        after = loader(cluster, tmp_path, *topics, retries="30m" if change == "retries" else "5m")
        spark: Any = object()  # never used: nothing is started
        with pytest.raises(ConfigError, match=r"1 in orders\.changing\.retry\.5m.*Put back"):
            after.run("until_idle", spark=spark)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def owing(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """A store with the fences of queries, one of which owes Kafka the end of its transaction."""
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path}/s.db"
    else:
        url = str(request.getfixturevalue("database"))
    batches = open_batches(url, "po.owed", [])
    batches.prepare()
    with batches.store.transaction() as cursor:
        for query, ended in (("po.owed", 0), ("po.paid", 1), ("po.x.other", 0), ("p.other", 0)):
            cursor.execute(
                "INSERT INTO kohort_batch_fence VALUES (?, 7, 'c', 'x', 't', 1, 0, '[]', ?, 0)",
                (query, ended),
            )
    yield batches.store
    batches.store.close()


def test_a_step_that_owes_kafka_the_end_of_its_transaction_may_not_go(owing: Store) -> None:
    """Its outbox has records that nothing else would write, whatever it is called now."""
    check_owed("po", ["owed", "new"], owing)
    for stages in (["renamed"], []):
        with pytest.raises(ConfigError, match=r"pipeline po: .* step owed .*Nothing was started"):
            check_owed("po", stages, owing)
    with pytest.raises(ConfigError, match=r"pipeline p: .* step other "):
        check_owed("p", ["x.other"], owing)


def test_a_pipeline_without_batches_owes_nothing(tmp_path: Path) -> None:
    with contextlib.closing(open_store(f"sqlite:///{tmp_path}/s.db")) as store:
        store.prepare()
        check_owed("po", [], store)


@pytest.mark.extended
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_retries_do_not_queue_behind_source_batches(
    spark: SparkSession, cluster: Cluster, topic: Make, produce: Send, tmp_path: Path
) -> None:
    """Both queries have a pool of their own, and pools share the cores."""
    name = topic(1)
    pipeline = Pipeline(
        "pooled",
        store=f"sqlite:///{tmp_path}/s.db",
        bootstrap_servers=cluster.bootstrap,
        checkpoint=tmp_path / "checkpoint",
        retries="100ms",
        clock_skew="0ms",
        trigger="100ms",
    )

    @pipeline.setup
    def tables(store: Any) -> None:
        store.run("CREATE TABLE IF NOT EXISTS pools (attempt INTEGER, pool TEXT)")

    @pipeline.handler(name, table="pools")
    def load(record: Any, store: Any) -> dict[str, Any]:
        from pyspark import TaskContext

        if record.attempt == 0 and record.data["n"] < 0:
            raise Temporary("not_yet")
        context = TaskContext.get()
        assert context is not None
        pool = context.getLocalProperty("spark.scheduler.pool")
        return {"attempt": record.attempt, "pool": pool}

    produce(name, *rows(1, -1))
    pipeline.run("until_idle", spark=spark)
    store = pipeline.open_store()
    assert store.query("SELECT attempt, pool FROM pools ORDER BY attempt") == [
        (0, "kohort pooled source"),
        (1, "kohort pooled retry_topics"),
    ]
    store.close()
    assert spark.conf.get("spark.scheduler.mode") == "FAIR"
    assert spark.sparkContext.getLocalProperty("spark.scheduler.pool") is None
