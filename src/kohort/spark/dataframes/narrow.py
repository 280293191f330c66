"""One micro-batch of a stage of narrow steps: what is loaded, copied and booked. Driver's side.

Rules:
- The input and every step are computed once, so that table, topics, copies and books agree,
  also where a step looks something up. They are kept until the batch ends; a step that only
  projects rows for one output is computed where it is written.
- A batch is two jobs: one reports the outcome of every input to the driver, one writes outputs.
  A stage whose steps handle each row by itself and fill one table does both in one job
  (`single_pass`), and keeps no inputs.
- The driver receives the places of inputs and the verdicts; values stay with the tasks.
  The limits of a micro-batch bound both.
"""

# pyspark and pyarrow: their types are incomplete, so strict checking would report nothing else.
# pyright: basic
from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from kohort.errors import UsageError
from kohort.retry.classify import Failure, describe
from kohort.retry.copies import BAD_HEADERS_REASON, Attempt
from kohort.retry.headers import HeaderFault
from kohort.retry.store import Store
from kohort.spark.dataframes.analysing import Analysis, call
from kohort.spark.dataframes.columns import (
    DEBEZIUM,
    HEADERS_TYPE,
    HIDDEN,
    ORIGIN,
    VERDICT,
    VERDICT_TYPE,
    failing,
    passing,
    typed,
)
from kohort.spark.dataframes.failing import RetrySpec
from kohort.spark.dataframes.graph import Graph, Stage, Step, TableTarget
from kohort.spark.dataframes.guards import KEPT, NotRowByRowError, guarded
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
from kohort.spark.dataframes.offset_set import OffsetSet
from kohort.spark.dataframes.rows import records, verdicts
from kohort.spark.dataframes.single_pass import (
    NOTED_BYTES,
    PassReport,
    failures,
    gathered,
    pass_columns,
    staged_pass,
)
from kohort.spark.outputs.protocol import Attempt as StagedAttempt
from kohort.spark.outputs.staging import StageSpec
from kohort.spark.outputs.work import REPORTS, union_all
from kohort.spark.plans.logical import carried, computed_once, is_projection, local_frame
from kohort.spark.plans.physical import PhysicalPlans
from kohort.spark.plans.templates import Templates

pc: Any = pyarrow.compute
_PLACE = ("topic", "partition", "offset")
_FROM_NOWHERE = (
    "step {} makes rows that come from no input of the batch (an outer join that keeps unmatched "
    "rows of a reference?); join the source with the reference, left"
)
_REST = ("timestamp", "timestampType", "key")
_INPUTS = ""
"""The inputs among the names of nodes."""


@dataclass
class NarrowPlan:
    """What all micro-batches of a stage of narrow steps share.

    Args:
        stage: what is computed.
    """

    graph: Graph
    analysis: Analysis
    stage: Stage
    spec: RetrySpec
    templates: Templates = field(default_factory=Templates, init=False)
    physical: PhysicalPlans = field(default_factory=PhysicalPlans, init=False)
    projections: dict[str, str] = field(default_factory=dict[str, str], init=False)
    """By step that only projects rows for one output, the node whose rows they are."""
    row_by_row: bool = field(init=False)
    """Whether one job may do: the steps are a chain from the source to the only table, and no
    batch has shown yet that one of them does more than handle each row by itself."""

    def __post_init__(self) -> None:
        stage, nodes = self.stage, self.nodes
        chained = not stage.stateful and len(stage.reads) == 1 and self.inputs != [_INPUTS]
        for before, step in zip(nodes, stage.steps, strict=False):
            chained = chained and [*step.inputs] == [before]
        last = stage.steps[-1:] if len(stage.targets) == 1 and not stage.forwards else []
        self.row_by_row = chained and any(isinstance(s.target, TableTarget) for s in last)

    @property
    def topics(self) -> list[str]:
        """The topics that inputs come from: those of sources, and retry topics."""
        bases = [self.graph.sources[name].topic for name in self.stage.reads]
        return [*bases, *self.retry_topics]

    @property
    def steps(self) -> dict[str, Step]:
        """The steps by name, those before others first."""
        return {step.name: step for step in self.stage.steps}

    @property
    def nodes(self) -> list[str]:
        """The names of sources and steps."""
        return [*self.stage.reads, *self.steps]

    @property
    def retry_topics(self) -> list[str]:
        """The retry topics of all sources."""
        return [t for names in self.spec.topics.values() for t in names.delays_ms]

    @property
    def inputs(self) -> list[str]:
        """The nodes that have a row for each input: sources, unless one leaves tombstones out."""
        sources = (self.graph.sources[name] for name in self.stage.reads)
        whole = all(source.values.name != DEBEZIUM for source in sources)
        return [*self.stage.reads] if whole else [_INPUTS]

    @property
    def reported(self) -> list[str]:
        """The nodes whose rows the driver looks at."""
        computed = [name for name in self.nodes if name not in self.projections]
        return computed if _INPUTS not in self.inputs else [_INPUTS, *computed]

    def rows(self, node: str) -> str:
        """The node whose passing rows a node has: itself, or the one that it projects."""
        while node in self.projections:
            node = self.projections[node]
        return node

    def source(self, name: str, rows: DataFrame) -> DataFrame:
        """The typed rows of one source, of all inputs of the batch."""
        source = self.graph.sources[name]
        names = self.spec.topics[source.topic]
        if len(self.stage.reads) > 1:
            rows = rows.where(F.col(f"{ORIGIN}.topic").isin(source.topic, *names.delays_ms))
        return typed(rows, name, source.values.name)

    def step(self, step: Step, frames: Mapping[str, DataFrame]) -> DataFrame:
        """The rows of a step.

        Args:
            frames: its references, and the nodes that it reads, with their hidden columns.
        """
        nodes = {name: passing(f) for name, f in frames.items() if VERDICT in f.columns}
        made = carried(call(step, {**frames, **nodes}), HIDDEN, step.name)
        uses = sum(step.name in other.inputs for other in self.stage.steps)
        uses += (step.name in self.stage.forwards) + (step.target is not None)
        if uses == 1 and len(nodes) == 1:
            (name, node), *_ = nodes.items()
            if is_projection(made, node, VERDICT):
                self.projections[step.name] = name
        return made

    def single_pass(self, rows: DataFrame, columns: Sequence[str]) -> DataFrame:
        """What tasks get of the inputs: every one, with the rows of the only table.

        Raises NotRowByRowError when a step does more than handle each row by itself.
        """
        made = self.source(self.stage.reads[0], rows)
        for step in self.stage.steps:
            called = call(step, {step.inputs[0]: made})
            hidden = HIDDEN if KEPT not in made.columns else (*HIDDEN, KEPT)
            made = guarded(carried(called, hidden, step.name), made)
        return pass_columns(made, self.topics, self.retry_topics, columns)

    def fills(self, node: str) -> bool:
        """Whether rows of a node are loaded or handed on, by itself or by projections of it."""
        names = {step.name for step in self.stage.targets} | {*self.stage.forwards}
        return any(self.rows(name) == node for name in names)


@dataclass
class NarrowBatch:
    """One micro-batch on its way.

    Args:
        plan: of its stage.
        inputs: the frame of `foreachBatch`, as `with_origin` makes it.
        references: the present reference tables by name.
        pipeline: the name under which the ledger is kept.
        extra: verdicts that were found when this batch failed before.
    """

    plan: NarrowPlan
    inputs: DataFrame
    references: Mapping[str, DataFrame]
    store: Store
    pipeline: str
    extra: Mapping[Place, RowFailure] = field(default_factory=dict[Place, RowFailure])
    retried: list[Attempt] = field(default_factory=list[Attempt], init=False)
    judgement: Judgement = field(default_factory=Judgement, init=False)
    _rows: DataFrame = field(init=False)
    _nodes: dict[str, DataFrame] = field(default_factory=dict[str, DataFrame], init=False)
    _strangers: list[Failed] = field(default_factory=list[Failed], init=False)
    _left_out: set[Place] = field(default_factory=set[Place], init=False)
    _kept: list[Callable[[], None]] = field(default_factory=list[Callable[[], None]], init=False)
    _noted: pa.Table | None = field(default=None, init=False)
    """The records that fail, where one job has done everything."""

    def compute(self) -> None:
        """Run the steps and decide over every input. Raises what a step raises."""
        self._rows = rows = self._once(self.inputs)
        looked = self._looked()
        read = Counter(self._inputs_read(looked))
        self._admit(self._copies_read(looked))
        if self._left_out:  # rare: a copy twice, or of a record that has ended
            self._nodes.clear()
            self._rows = _without(rows, self._left_out)
            looked = self._looked()
        read.subtract(place[:2] for place in self._left_out)
        self._judge(read, self._seen(looked))

    def _judge(self, read: Mapping[TopicPartition, int], seen: Sequence[Seen]) -> None:
        policies = {
            topic: names.policy
            for base, names in self.plan.spec.topics.items()
            for topic in (base, *names.delays_ms)
        }
        self.judgement = judge(read, seen, policies, self.plan.stage.name)

    def compute_and_stage(self, spec: StageSpec) -> list[StagedAttempt] | None:
        """Run the steps, stage the rows of the only table and decide over every input, in one job.

        Returns the attempts that count, or None for a batch that needs two jobs: a step does more
        than handle each row by itself, much of the batch fails, or copies are not owed. Such a
        batch starts again with another object. Raises what a step raises.
        """
        plan, self._rows = self.plan, self.inputs

        def build() -> DataFrame:
            rows = {"rows": self._rows}
            made = plan.templates.apply(
                "single pass", lambda f: plan.single_pass(f["rows"], spec.columns), rows
            )
            return made.mapInArrow(staged_pass(spec, NOTED_BYTES), REPORTS)

        frames = self._read_by(plan.stage.reads)
        try:
            reports = plan.physical.reports("single pass", frames, build)
        except NotRowByRowError:
            plan.row_by_row = False
            return None
        done = gathered([*map(PassReport.parsed, reports)], spec.output, plan.topics)
        if done is None:
            return None
        noted = done.noted
        if noted.num_rows:
            copied = pc.is_in(noted["topic"], pa.array(plan.retry_topics, pa.string()))
            self._admit(noted.filter(copied))
            if self._left_out:
                return None
            noted = noted.filter(pc.is_valid(noted[VERDICT]))
        failed = self._failed(noted.drop_columns(["value"])) if noted.num_rows else []
        self._noted = noted
        self._judge(done.read, [Seen(plan.stage.steps[-1].name, done.passing, failed, True)])
        return done.staged

    def try_out(self) -> None:
        """Compute every step into nothing. Raises what Spark raises."""
        self._rows = self.inputs
        for step in self.plan.stage.steps:
            self._node(step.name).write.format("noop").mode("overwrite").save()

    def output(self, node: str, key: str, make: Callable[[DataFrame], DataFrame]) -> DataFrame:
        """What is made of the rows of a node that are loaded or handed on.

        Args:
            key: tells the functions of one node apart.
            make: gets the rows with their hidden columns.
        """
        withheld = self.judgement.withheld.get(self.plan.rows(node), ())

        def build() -> DataFrame:
            rows = {"rows": _without(self._node(node), withheld)}
            return self.plan.templates.apply(
                ("output", node, key), lambda f: make(passing(f["rows"])), rows
            )

        return build() if withheld else self._planned(("output", node, key), [node], build)

    def is_filled(self, node: str) -> bool:
        """Whether a node has rows that are loaded or handed on."""
        return self.plan.rows(node) in self.judgement.filled

    @property
    def has_strangers(self) -> bool:
        """Whether copies with bad headers go to the dead-letter topic."""
        return bool(self._strangers)

    def failed_rows(self) -> DataFrame | None:
        """Hidden columns of every input that failed, once each; None when there is none."""
        if self._noted is not None:
            failed = self._noted.num_rows
            return local_frame(self.inputs.sparkSession, failures(self._noted)) if failed else None
        parts: list[DataFrame] = []
        for node, places in self.judgement.by_node.items():
            if not places:
                continue
            others = self.judgement.failed.keys() - places
            frame = _without(self._failing(node), others)
            if node in self.judgement.doubled:
                frame = first_verdicts(frame)
            parts.append(frame)
        if self._strangers:
            parts.append(self._stranger_rows())
        return union_all(parts) if parts else None

    def close(self) -> None:
        """Let go of what was kept."""
        while self._kept:
            self._kept.pop()()

    # Frames

    def _node(self, name: str) -> DataFrame:
        """The rows of a source or a step, computed once; projections are not computed."""
        frame = self._nodes.get(name)
        if frame is None:
            source = name in self.plan.stage.reads
            frame = self._nodes[name] = self._source(name) if source else self._step(name)
        return frame

    def _source(self, name: str) -> DataFrame:
        plan = self.plan
        rows = plan.templates.apply(
            ("source", name), lambda f: plan.source(name, f["rows"]), {"rows": self._rows}
        )
        return self._judged_before(rows)

    def _step(self, name: str) -> DataFrame:
        plan = self.plan
        step = plan.steps[name]

        def build() -> DataFrame:
            frames = {n: self.references.get(n) or self._node(n) for n in step.inputs}
            return plan.templates.apply(("step", name), lambda f: plan.step(step, f), frames)

        if name in plan.projections:
            return build()
        made = self._planned(("step", name), step.inputs, build)
        return made if name in plan.projections else self._once(made)

    def _failing(self, node: str) -> DataFrame:
        def build() -> DataFrame:
            rows = {"rows": self._node(node)}
            return self.plan.templates.apply(("failing", node), lambda f: failing(f["rows"]), rows)

        return self._planned(("failing", node), [node], build)

    def _once(self, frame: DataFrame) -> DataFrame:
        """The frame, computed by the first job that reads it and kept until `close`."""
        made, release = computed_once(frame)
        self._kept.append(release)
        return made

    def _planned(
        self, key: Hashable, nodes: Iterable[str], build: Callable[[], DataFrame]
    ) -> DataFrame:
        """What `build` makes of nodes, from the plan of the batch before where that holds."""
        if self.extra or self._left_out:
            return build()
        return self.plan.physical.frame(key, self._read_by(nodes), build)

    def _read_by(self, nodes: Iterable[str]) -> dict[str, DataFrame]:
        """The frames under nodes that are there already: inputs, kept steps, references."""
        frames: dict[str, DataFrame] = {}
        for name in nodes:
            if name in self.references:
                frames[name] = self.references[name]
            elif name in self.plan.stage.reads:
                frames[_INPUTS] = self._rows
            elif name in self.plan.projections:
                frames |= self._read_by(self.plan.steps[name].inputs)
            else:
                frames[name] = self._node(name)
        return frames

    def _looked(self) -> pa.Table:
        """What one job reports: a row for each row of a node that is of interest."""
        plan = self.plan
        for name in plan.steps:
            if name not in plan.projections:
                self._node(name)
        nodes = plan.reported

        def build() -> DataFrame:
            frames = {n: self._rows if n == _INPUTS else self._node(n) for n in nodes}
            return plan.templates.apply("looked", self._look, frames)

        return self._planned("looked", [n for n in nodes if n != _INPUTS], build).toArrow()

    def _look(self, frames: Mapping[str, DataFrame]) -> DataFrame:
        return union_all(
            [
                self._node_rows(number, node, frames[node])
                for number, node in enumerate(self.plan.reported)
            ]
        )

    def _node_rows(self, number: int, node: str, frame: DataFrame) -> DataFrame:
        """The place of each row of a node; of what fails, and of copies in retry topics, the record
        without its value."""
        plan, origin = self.plan, F.col(ORIGIN)
        verdict = F.lit(None).cast(VERDICT_TYPE) if node == _INPUTS else F.col(VERDICT)
        is_input = node in plan.inputs
        if not (is_input or plan.fills(node)):  # rows that pass it are of no interest
            frame = frame.where(verdict.isNotNull() | origin["offset"].isNull())
        copied = origin["topic"].isin(*plan.retry_topics) if is_input else F.lit(False)
        record = (F.when(verdict.isNotNull() | copied, origin[n]).alias(n) for n in _REST)
        headers = F.when(copied, origin["headers"]).cast(HEADERS_TYPE).alias("headers")
        place = (origin[name].alias(name) for name in _PLACE)
        at = F.lit(number).cast("tinyint").alias("node")
        return frame.select(at, *place, *record, headers, verdict.alias(VERDICT))

    def _inputs_read(self, looked: pa.Table) -> dict[TopicPartition, int]:
        """How many inputs the batch has, by partition."""
        places = looked.select(["topic", "partition"]).filter(self._of(looked, self.plan.inputs))
        counted = places.group_by(["topic", "partition"]).aggregate([([], "count_all")])
        return {(r["topic"], r["partition"]): r["count_all"] for r in counted.to_pylist()}

    def _copies_read(self, looked: pa.Table) -> pa.Table:
        """The inputs that were read from retry topics."""
        copied = pc.is_in(looked["topic"], pa.array(self.plan.retry_topics, pa.string()))
        return looked.filter(pc.and_(copied, self._of(looked, self.plan.inputs)))

    def _of(self, looked: pa.Table, nodes: Collection[str]) -> Any:
        numbers = [n for n, node in enumerate(self.plan.reported) if node in nodes]
        return pc.is_in(looked["node"], pa.array(numbers, pa.int8()))

    def _admit(self, copied: pa.Table) -> None:
        """Find the copies that the ledger owes, and those that no step may see."""
        attempts: list[Attempt] = []
        for record in records(_columns(copied)):
            try:
                attempts.append(self.plan.spec.attempt(*record))
            except HeaderFault as fault:
                failure: Failure = describe(fault, permanent=True, reason=BAD_HEADERS_REASON)
                own = self.plan.spec.own(*record)
                self._strangers.append(Failed(own, True, failure.reason, failure.message))
        if attempts:
            states = self.store.states(self.pipeline, [a.origin.retry_id for a in attempts])
            self.retried, inert = runnable(attempts, states)
            self._left_out |= inert
        self._left_out |= {s.attempt.position for s in self._strangers}

    def _judged_before(self, frame: DataFrame) -> DataFrame:
        """The frame with the verdicts that an earlier attempt at this batch has found.

        It is a leaf of the plans: Spark would evaluate a step's filter below the join, and so for
        the rows that have a verdict.
        """
        if not self.extra:
            return frame
        found = pa.table(
            {
                "x_topic": [p[0] for p in self.extra],
                "x_partition": [p[1] for p in self.extra],
                "x_offset": [p[2] for p in self.extra],
                "x_permanent": [f.permanent for f in self.extra.values()],
                "x_reason": [f.reason for f in self.extra.values()],
                "x_message": [f.message for f in self.extra.values()],
            }
        )
        known = F.broadcast(local_frame(frame.sparkSession, found))
        origin = F.col(ORIGIN)
        at = [origin[name].eqNullSafe(known[f"x_{name}"]) for name in _PLACE]
        verdict = F.struct("x_permanent", "x_reason", "x_message").cast(VERDICT_TYPE)
        verdict = F.when(F.col("x_reason").isNotNull(), verdict)
        joined = frame.join(known, at[0] & at[1] & at[2], "left")
        judged = joined.withColumn(VERDICT, F.coalesce(F.col(VERDICT), verdict))
        return self._once(judged.drop(*known.columns))

    def _seen(self, looked: pa.Table) -> list[Seen]:
        """The inputs behind the rows of every node."""
        seen: list[Seen] = []
        if looked["offset"].null_count:
            lost = looked.filter(pc.is_null(looked["offset"]))["node"][0].as_py()
            raise UsageError(_FROM_NOWHERE.format(self.plan.reported[lost]))
        bad, places = pc.is_valid(looked[VERDICT]), looked.select([*_PLACE])
        for node in self.plan.reported:
            if node == _INPUTS:
                continue
            own = self._of(looked, [node])
            failed = self._failed(looked.filter(pc.and_(own, bad)))
            passed: dict[TopicPartition, OffsetSet] = {}
            if self.plan.fills(node):
                passed = _offsets(places.filter(pc.and_(own, pc.invert(bad))))
            seen.append(Seen(node, passed, failed, self.plan.fills(node)))
        return seen

    def _failed(self, rows: pa.Table) -> list[Failed]:
        attempts = {a.position: a for a in self.retried}
        failed: list[Failed] = []
        places = records(_columns(rows.drop_columns(["headers"])))
        for record, verdict in zip(places, verdicts(rows[VERDICT]), strict=True):
            attempt = attempts.get(record[:3]) or self.plan.spec.own(*record)
            failed.append(Failed(attempt, *verdict))
        return failed

    def _stranger_rows(self) -> DataFrame:
        """Hidden columns of copies whose headers are not ours."""
        texts = {s.attempt.position: s.message for s in self._strangers}
        wanted = _only(self.inputs, texts)
        verdict = F.struct(
            F.lit(True), F.lit(BAD_HEADERS_REASON), F.lit("the headers of a retry copy are wrong")
        ).cast(VERDICT_TYPE)
        return wanted.select(ORIGIN, verdict.alias(VERDICT))


def _columns(table: pa.Table) -> dict[str, pa.ChunkedArray]:
    return dict(zip(table.column_names, table.columns, strict=True))


def _offsets(places: pa.Table) -> dict[TopicPartition, OffsetSet]:
    """The offsets of rows, by partition."""
    grouped = places.group_by(["topic", "partition"], use_threads=False)
    lists = grouped.aggregate([("offset", "list")]).combine_chunks()
    offsets: dict[TopicPartition, OffsetSet] = {}
    for row in range(lists.num_rows):
        at = (lists["topic"][row].as_py(), lists["partition"][row].as_py())
        offsets[at] = OffsetSet(lists["offset_list"][row].values.to_numpy())
    return offsets


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


def first_verdicts(rows: DataFrame) -> DataFrame:
    """Hidden columns, a row for each input: with the verdict of it that `judge` chooses."""
    verdict, message = F.col(VERDICT), F.coalesce(F.col(f"{VERDICT}.message"), F.lit(""))
    rank = F.struct(~verdict["permanent"], verdict["reason"], message)
    place = [F.col(f"{ORIGIN}.{name}").alias(name) for name in _PLACE]
    first = F.min_by(F.struct(*HIDDEN), rank)
    return rows.groupBy(*place).agg(first.alias("first")).select("first.*")


def _only(frame: DataFrame, places: Collection[Place]) -> DataFrame:
    other, same = _places(frame, places)
    return frame.join(other, same, "left_semi")
