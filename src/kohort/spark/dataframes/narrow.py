"""One micro-batch of a stage of narrow steps: what is loaded, copied and booked. Driver's side.

Rules:
- The input and every step are computed once and kept until the batch ends, so that table, topics,
  copies and books tell one story also where a step looks something up.
- What the driver learns of a batch are places of inputs and the verdicts; values stay with the
  tasks. Both are bounded by `max_offsets_per_trigger`.
"""

# pyspark and pyarrow carry no complete types, so strict checking would only speak of them.
# pyright: basic
from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from kohort.errors import UsageError
from kohort.retry.classify import Failure, describe
from kohort.retry.copies import BAD_HEADERS_REASON, Attempt
from kohort.retry.headers import Header, HeaderFault
from kohort.retry.store import Store
from kohort.spark.dataframes.analysing import Analysis, call
from kohort.spark.dataframes.columns import (
    HIDDEN,
    ORIGIN,
    VERDICT,
    VERDICT_TYPE,
    failing,
    passing,
    typed,
    with_origin,
)
from kohort.spark.dataframes.failing import RetrySpec, milliseconds
from kohort.spark.dataframes.graph import Graph, Stage
from kohort.spark.dataframes.isolating import RowFailure
from kohort.spark.dataframes.judging import (
    Failed,
    Judgement,
    Place,
    Seen,
    TopicPartition,
    judge,
    runnable,
)
from kohort.spark.dataframes.plans import carried, local_frame

_PLACE = ("topic", "partition", "offset")
_RecordValues = tuple[str, int, int, int, int, bytes | None, None, list[Header]]
_FROM_NOWHERE = (
    "step {} makes rows that come from no input of the batch (an outer join that keeps unmatched "
    "rows of a reference?); join the source with the reference, left"
)
_RECORD = (*_PLACE, "timestamp", "timestampType", "key")


@dataclass
class NarrowBatch:
    """One micro-batch on its way.

    Args:
        stage: what is computed.
        raw: the frame of `foreachBatch`, in the columns of `format("kohort")`.
        references: the present reference tables by name.
        pipeline: the name under which the ledger is kept.
        extra: verdicts that were found when this batch failed before.
    """

    graph: Graph
    analysis: Analysis
    stage: Stage
    raw: DataFrame
    references: Mapping[str, DataFrame]
    spec: RetrySpec
    store: Store
    pipeline: str
    extra: Mapping[Place, RowFailure] = field(default_factory=dict[Place, RowFailure])
    retried: list[Attempt] = field(default_factory=list[Attempt], init=False)
    judgement: Judgement = field(default_factory=Judgement, init=False)
    _nodes: dict[str, DataFrame] = field(default_factory=dict[str, DataFrame], init=False)
    _strangers: list[Failed] = field(default_factory=list[Failed], init=False)
    _kept: list[DataFrame] = field(default_factory=list[DataFrame], init=False)

    def compute(self) -> None:
        """Run the steps and decide over every input. Raises what a step raises."""
        rows = self._keep(with_origin(self.raw, self._retry_topics))
        read, left_out = self._admitted(rows, set(self._retry_topics))
        rows = _without(rows, left_out)
        self._build(rows)
        seen = self._seen()
        policies = {
            topic: names.policy
            for base, names in self.spec.topics.items()
            for topic in (base, *names.delays_ms)
        }
        self.judgement = judge(read, seen, policies, self.stage.name)

    def try_out(self) -> None:
        """Compute every step into nothing. Raises what Spark raises."""
        self._build(with_origin(self.raw, self._retry_topics))
        for step in self.stage.steps:
            self._nodes[step.name].write.format("noop").mode("overwrite").save()

    def rows_of(self, node: str) -> DataFrame:
        """The rows of a node that are loaded or handed on, with their hidden columns."""
        frame = passing(self._nodes[node])
        return _without(frame, self.judgement.withheld.get(node, ()))

    def failed_rows(self) -> DataFrame | None:
        """Hidden columns of every input that failed, once each; None when there is none."""
        parts: list[DataFrame] = []
        for node, places in self.judgement.by_node.items():
            if not places:
                continue
            frame = failing(self._nodes[node])
            others = self.judgement.failed.keys() - places
            frame = _without(frame, others)
            if node in self.judgement.doubled:
                place = [f"{ORIGIN}.{name}" for name in _PLACE]
                numbered = frame.select(
                    *HIDDEN, *(F.col(p).alias(f"p{i}") for i, p in enumerate(place))
                )
                frame = numbered.dropDuplicates(["p0", "p1", "p2"]).select(*HIDDEN)
            parts.append(frame)
        if self._strangers:
            parts.append(self._stranger_rows())
        return _union(parts) if parts else None

    def close(self) -> None:
        """Let go of what was kept."""
        for frame in self._kept:
            frame.unpersist()

    # Steps of `compute`

    @property
    def _retry_topics(self) -> list[str]:
        return [t for names in self.spec.topics.values() for t in names.delays_ms]

    def _build(self, rows: DataFrame) -> None:
        """The frames of all nodes, not computed yet."""
        for name in self.stage.reads:
            self._nodes[name] = self._source(name, rows)
        frames = {name: passing(frame) for name, frame in self._nodes.items()}
        for step in self.stage.steps:
            made = self._keep(carried(call(step, {**self.references, **frames}), HIDDEN, step.name))
            self._nodes[step.name] = made
            frames[step.name] = passing(made)

    def _keep(self, frame: DataFrame) -> DataFrame:
        kept = frame.persist()
        self._kept.append(kept)
        return kept

    def _admitted(
        self, rows: DataFrame, retry_topics: set[str]
    ) -> tuple[dict[TopicPartition, int], set[Place]]:
        """How many inputs each partition has, and the places that no step may see."""
        counts: Counter[TopicPartition] = Counter()
        table = rows.select(f"{ORIGIN}.topic", f"{ORIGIN}.partition").toArrow()
        grouped = table.append_column("one", pa.array([1] * len(table), pa.int64()))
        grouped = grouped.group_by(["topic", "partition"]).aggregate([("one", "sum")])
        for row in grouped.to_pylist():
            counts[row["topic"], row["partition"]] = row["one_sum"]
        if not any(topic in retry_topics for topic, _ in counts):
            return dict(counts), set()
        attempts: list[Attempt] = []
        copies = rows.where(F.col(f"{ORIGIN}.topic").isin(*retry_topics))
        for row in _table(copies, (*_RECORD, "headers")):
            headers = [(h["key"], h["value"]) for h in row["headers"] or ()]
            record = _record(row, headers)
            try:
                attempts.append(self.spec.attempt(*record))
            except HeaderFault as fault:
                failure: Failure = describe(fault, permanent=True, reason=BAD_HEADERS_REASON)
                own = self.spec.own(*record)
                self._strangers.append(Failed(own, True, failure.reason, failure.message))
        states = self.store.states(self.pipeline, [a.origin.retry_id for a in attempts])
        self.retried, inert = runnable(attempts, states)
        left_out = inert | {s.attempt.position for s in self._strangers}
        for topic, partition, _ in left_out:
            counts[topic, partition] -= 1
        return dict(counts), left_out

    def _source(self, name: str, rows: DataFrame) -> DataFrame:
        """The typed rows of one source."""
        source = self.graph.sources[name]
        names = self.spec.topics[source.topic]
        if len(self.stage.reads) > 1:
            rows = rows.where(F.col(f"{ORIGIN}.topic").isin(source.topic, *names.delays_ms))
        return self._judged_before(typed(rows, name, source.values.name))

    def _judged_before(self, frame: DataFrame) -> DataFrame:
        """The frame with the verdicts that an earlier attempt at this batch has found."""
        if not self.extra:
            return frame
        found = pa.table(
            {
                "x_topic": [p[0] for p in self.extra], "x_partition": [p[1] for p in self.extra],
                "x_offset": [p[2] for p in self.extra],
                "x_permanent": [f.permanent for f in self.extra.values()],
                "x_reason": [f.reason for f in self.extra.values()],
                "x_message": [f.message for f in self.extra.values()],
            }
        )  # fmt: skip
        known = F.broadcast(local_frame(frame.sparkSession, found))
        origin = F.col(ORIGIN)
        at = [origin[name].eqNullSafe(known[f"x_{name}"]) for name in _PLACE]
        verdict = F.struct("x_permanent", "x_reason", "x_message").cast(VERDICT_TYPE)
        verdict = F.when(F.col("x_reason").isNotNull(), verdict)
        joined = frame.join(known, at[0] & at[1] & at[2], "left")
        judged = joined.withColumn(VERDICT, F.coalesce(F.col(VERDICT), verdict))
        return judged.drop(*known.columns)

    def _fills(self, node: str) -> bool:
        """Whether the rows of a node are loaded or handed on."""
        step = self.graph.steps.get(node)
        return node in self.stage.hands_on or (step is not None and step.target is not None)

    def _seen(self) -> list[Seen]:
        """The inputs behind the rows of every node, in one job."""
        parts: list[DataFrame] = []
        for number, (node, frame) in enumerate(self._nodes.items()):
            whole = node in self.graph.steps or self._fills(node)
            wanted = frame if whole else frame.where(F.col(VERDICT).isNotNull())
            places = (F.col(f"{ORIGIN}.{name}") for name in _PLACE)
            passes = F.col(VERDICT).isNull().alias("passes")
            parts.append(wanted.select(F.lit(number).alias("node"), *places, passes))
        columns = [column.to_pylist() for column in _union(parts).toArrow().columns]
        passing_rows: list[Counter[Place]] = [Counter() for _ in parts]
        failing_nodes: set[int] = set()
        for number, topic, partition, offset, passes in zip(*columns, strict=True):
            if offset is None:
                raise UsageError(_FROM_NOWHERE.format(list(self._nodes)[number]))
            if passes:
                passing_rows[number][topic, partition, offset] += 1
            else:
                failing_nodes.add(number)
        return [
            Seen(
                node, passing_rows[number], self._failed(frame) if number in failing_nodes else [],
                self._fills(node),
            )
            for number, (node, frame) in enumerate(self._nodes.items())
        ]  # fmt: skip

    def _failed(self, frame: DataFrame) -> list[Failed]:
        attempts = {a.position: a for a in self.retried}
        found: list[Failed] = []
        for row in _table(failing(frame), _RECORD, verdict=True):
            record = _record(row, [])
            attempt = attempts.get(record[:3]) or self.spec.own(*record)
            verdict = row[VERDICT]
            found.append(
                Failed(attempt, verdict["permanent"], verdict["reason"], verdict["message"] or "")
            )
        return found

    def _stranger_rows(self) -> DataFrame:
        """Hidden columns of copies whose headers are not ours."""
        texts = {s.attempt.position: s.message for s in self._strangers}
        rows = with_origin(self.raw, self._retry_topics)
        wanted = _only(rows, texts)
        verdict = F.struct(
            F.lit(True), F.lit(BAD_HEADERS_REASON), F.lit("the headers of a retry copy are wrong")
        ).cast(VERDICT_TYPE)
        return wanted.select(ORIGIN, verdict.alias(VERDICT))


def _union(parts: list[DataFrame]) -> DataFrame:
    whole = parts[0]
    for part in parts[1:]:
        whole = whole.unionAll(part)
    return whole


def _record(row: Mapping[str, Any], headers: list[Header]) -> _RecordValues:
    """The record of a row, without its value, as `RetrySpec.attempt` takes it."""
    stamp = row["timestamp"]
    return (
        row["topic"], row["partition"], row["offset"],
        -1 if stamp is None else milliseconds(stamp), row["timestampType"], row["key"], None,
        headers,
    )  # fmt: skip


def _table(
    frame: DataFrame, names: Collection[str], *, verdict: bool = False
) -> list[dict[str, Any]]:
    columns = [F.col(f"{ORIGIN}.{name}") for name in names]
    return frame.select(*columns, *([VERDICT] if verdict else [])).toArrow().to_pylist()


def _places(frame: DataFrame, places: Collection[Place]) -> tuple[DataFrame, Any]:
    columns = zip(*sorted(places), strict=True)
    table = pa.table(
        dict(zip(("x_topic", "x_partition", "x_offset"), map(list, columns), strict=True))
    )
    other = F.broadcast(local_frame(frame.sparkSession, table))
    origin = F.col(ORIGIN)
    at = [origin[name] == other[f"x_{name}"] for name in _PLACE]
    return other, at[0] & at[1] & at[2]


def _without(frame: DataFrame, places: Collection[Place]) -> DataFrame:
    """The rows of other inputs."""
    if not places:
        return frame
    other, same = _places(frame, places)
    return frame.join(other, same, "left_anti")


def _only(frame: DataFrame, places: Collection[Place]) -> DataFrame:
    other, same = _places(frame, places)
    return frame.join(other, same, "left_semi")
