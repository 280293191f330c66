"""What Spark's analyzed plan of a step says, and hidden columns that follow a row through it.

Rules:
- A step is stateful when its plan aggregates, deduplicates or keeps state over a stream, or joins
  two streams. Everything else in `NARROW` is evaluated within a micro-batch.
- A user's `select` need not name the hidden columns: they are added to every projection between a
  row's source and the step's end. The meaning of the plan does not change, since only operators
  that handle each row by itself are passed.
- An operator through which a row cannot be followed is an error, and names the operator.

Spark's classic API is needed: the plan is the JVM's.
"""

# pyspark and pyarrow: their types are incomplete, so strict checking would report nothing else.
# pyright: basic
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
from py4j.java_gateway import JavaClass
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from kohort.errors import UsageError

CHANCE: Final = "EXPRESSION_WITH_RANDOM_SEED"
"""Spark's tree pattern of `rand()`, `uuid()` and the like, whose seed is part of the plan."""
SUBQUERY: Final = "PLAN_EXPRESSION"
"""Spark's tree pattern of `IN (SELECT ...)`, `EXISTS` and queries in the place of a value."""
PROJECT: Final = "org.apache.spark.sql.catalyst.plans.logical.Project"
NARROW: Final = frozenset(
    {
        "Project",
        "Filter",
        "SubqueryAlias",
        "View",
        "Union",
        "Generate",
        "Repartition",
        "RepartitionByExpression",
        "RebalancePartitions",
        "ResolvedHint",
        "UnresolvedHint",
        "Join",
        "WithCTE",
        "CTERelationDef",
        "CTERelationRef",
    }
)
ONE_TO_ONE: Final = frozenset({"Project", "SubqueryAlias", "View"})
_DROPNA: Final = "AtLeastNNonNulls"
"""The condition of `dropna`."""
_READS_PARTS: Final = frozenset({"GetStructField", "PythonUDF", "ScalaUDF"})
_AT_LEAST: Final = f"org.apache.spark.sql.catalyst.expressions.{_DROPNA}"
_FILTER: Final = "org.apache.spark.sql.catalyst.plans.logical.Filter"
STATEFUL: Final = frozenset(
    {
        "Aggregate",
        "Deduplicate",
        "DeduplicateWithinWatermark",
        "Distinct",
        "FlatMapGroupsWithState",
        "FlatMapGroupsInPandasWithState",
        "TransformWithState",
        "TransformWithStateInPySpark",
        "TransformWithStateInPandas",
        "Expand",
        "SessionWindow",
    }
)


def local_frame(
    spark: SparkSession, rows: pa.Table | list[Any], schema: StructType | None = None
) -> DataFrame:
    """A frame of a table of the driver's, or of rows of a schema.

    `createDataFrame` makes its session the active one of the whole process. Within a micro-batch
    that is the query's own, which must not outlive it in `session()`.
    """
    kept = SparkSession._activeSession
    try:
        return spark.createDataFrame(rows, schema)
    finally:
        SparkSession._activeSession = kept


def computed_once(frame: DataFrame) -> tuple[DataFrame, Callable[[], None]]:
    """The frame, computed by the first job that reads it, and a function that lets go of it.

    Plans that are built on it begin with it, so that Spark analyses and optimises little. Its
    blocks are never computed a second time: when an executor takes them along, jobs fail, and the
    batch runs again as a whole.
    """
    made = frame.localCheckpoint(eager=False)
    inner: Any = made._jdf
    rdd = inner.queryExecution().logical().rdd()
    return made, lambda: rdd.unpersist(False)


def as_rdd(frame: DataFrame) -> DataFrame:
    """The frame as a leaf of plans: they read its RDD, and Spark does not plan it again."""
    if analyzed(frame).nodeName() == "LogicalRDD":
        return frame
    spark: Any = frame.sparkSession
    inner: Any = frame._jdf
    rdd = inner.queryExecution().toRdd()
    return DataFrame(
        spark._jsparkSession.internalCreateDataFrame(rdd, inner.schema(), False), spark
    )


def java_class(frame: DataFrame, name: str) -> Any:
    """A class of the JVM by its whole name.

    Attribute access (`jvm.org.apache`) asks the JVM for a class of each part's name, which looks
    through every jar: some milliseconds each time.
    """
    context: Any = frame.sparkSession.sparkContext
    return JavaClass(name, context._gateway._gateway_client)


def dataset(frame: DataFrame, plan: Any) -> DataFrame:
    """A frame of a logical plan, in the session of another frame."""
    session: Any = frame.sparkSession
    made = java_class(frame, "org.apache.spark.sql.classic.Dataset").ofRows(
        session._jsparkSession, plan
    )
    return DataFrame(made, session)


class LostOriginError(UsageError):
    """A row cannot be followed from its source through an operator."""


def is_stateful(frame: DataFrame) -> bool:
    """Whether a streaming frame keeps state between micro-batches."""
    return any(_keeps_state(node) for node in _nodes(analyzed(frame)))


def emits_without_rows(frame: DataFrame, output_mode: str) -> bool:
    """Whether a micro-batch without input may emit rows of a stateful frame.

    In update mode an operator emits what a batch has changed, and only state with timers changes
    by itself.
    """
    if output_mode != "update":
        return True
    return any(
        node.isStreaming() and "WithState" in node.nodeName() for node in _nodes(analyzed(frame))
    )


def check_narrow(frame: DataFrame, step: str) -> None:
    """Refuse an operator over a stream that is neither narrow nor stateful.

    Raises LostOriginError, which names step and operator.
    """
    kind = not_narrow(frame)
    if kind == "EventTimeWatermark":
        raise LostOriginError(
            f"step {step}: withWatermark has no effect here. Rows continue through a topic, which "
            "keeps no watermark; call it in the step that has the window, join or deduplication"
        )
    if kind:
        raise LostOriginError(_lost(step, kind))


def not_narrow(frame: DataFrame) -> str:
    """The first operator over a stream that does not handle each row by itself; "" without one."""
    for node in _nodes(analyzed(frame)):
        inner = node.isStreaming() and node.children().size() > 0
        if inner and node.nodeName() not in NARROW:
            return str(node.nodeName())
    return ""


def dropna_of(frame: DataFrame, hidden: Sequence[str]) -> DataFrame:
    """The frame with `dropna()` over columns that are not hidden.

    It names every column, and a hidden one is null where nothing is wrong.
    """
    plan = analyzed(frame)
    made = _DropNa(frame, hidden).plan(plan)
    return frame if made is plan else dataset(frame, made)


class _DropNa:
    """The rewriting of filters that `dropna` has made."""

    def __init__(self, frame: DataFrame, hidden: Sequence[str]) -> None:
        self._frame, self._hidden = frame, hidden

    def plan(self, plan: Any) -> Any:
        """The plan with its filters rewritten; the same object where it has none."""
        before = _children(plan)
        after = [self.plan(child) for child in before]
        if plan.nodeName() == "Filter" and plan.condition().nodeName() == _DROPNA:
            return java_class(self._frame, _FILTER)(self._condition(plan.condition()), after[0])
        if all(new is old for new, old in zip(after, before, strict=True)):
            return plan
        return plan.withNewChildren(self._seq(after))

    def _condition(self, condition: Any) -> Any:
        kept = [column for column in _children(condition) if not self._is_hidden(column)]
        least = min(condition.n(), len(kept))
        return java_class(self._frame, _AT_LEAST)(least, self._seq(kept))

    def _is_hidden(self, column: Any) -> bool:
        return column.nodeName() == "AttributeReference" and column.name() in self._hidden

    def _seq(self, items: Sequence[Any]) -> Any:
        to_seq = java_class(self._frame, "org.apache.spark.api.python.PythonUtils").toSeq
        return to_seq(items)


def computed_with(frame: DataFrame, name: str) -> str:
    """The expression that makes a value of a hidden column, as `to_json(struct(*))` does; "" where
    none does. A Python UDF may read the column, and so may an expression that takes one field."""
    for node in _nodes(analyzed(frame)):
        for expression in _sequence(node.expressions()):
            if _reads_whole(expression, name, top=True):
                return str(expression.sql())
    return ""


def _reads_whole(expression: Any, name: str, *, top: bool = False) -> bool:
    kind = expression.nodeName()
    if kind == "AttributeReference":
        return not top and expression.name() == name
    if kind in _READS_PARTS or (kind == "Alias" and expression.name() == name):
        return False
    return any(_reads_whole(child, name) for child in _children(expression))


def carried(frame: DataFrame, names: Sequence[str], step: str = "a step") -> DataFrame:
    """The frame with the hidden columns of its source among its columns.

    Args:
        names: the hidden columns.
        step: for the message.

    Raises LostOriginError when they cannot be followed to the end of the plan.
    """
    missing = [name for name in names if name not in frame.columns]
    if not missing:
        return frame
    project = java_class(frame, PROJECT)
    plan = analyzed(frame)
    for name in missing:
        plan = _with(plan, name, project, step)
    return dataset(frame, plan)


def is_projection(frame: DataFrame, inner: DataFrame, kept: str) -> bool:
    """Whether a frame has one row for each row of another, with its column `kept` unchanged."""
    plan, end = analyzed(frame), analyzed(inner)
    before, after = (attribute(p, kept) for p in (end, plan))
    if before is None or after is None or not after.exprId().equals(before.exprId()):
        return False
    while plan.nodeName() in ONE_TO_ONE:
        plan = plan.child()
    return plan.equals(end)


def attribute(plan: Any, name: str) -> Any:
    """The column of a plan of this name; None when there is none."""
    output = _sequence(plan.output())
    return next((attribute for attribute in output if attribute.name() == name), None)


def analyzed(frame: DataFrame) -> Any:
    """The JVM's analyzed plan of a frame."""
    inner: Any = frame._jdf
    return inner.queryExecution().analyzed()


def contains(frame: DataFrame, *patterns: str) -> bool:
    """Whether a frame's plan has a node or an expression of one of Spark's tree patterns."""
    known = java_class(frame, "org.apache.spark.sql.catalyst.trees.TreePattern")
    plan = analyzed(frame)
    return any(plan.containsPattern(getattr(known, name)()) for name in patterns)


def _nodes(plan: Any) -> Iterator[Any]:
    yield plan
    for child in _children(plan):
        yield from _nodes(child)


def _children(plan: Any) -> list[Any]:
    return _sequence(plan.children())


def _sequence(items: Any) -> list[Any]:
    """The items of a Scala `Seq`."""
    return [items.apply(i) for i in range(items.size())]


def _keeps_state(node: Any) -> bool:
    if not node.isStreaming():
        return False
    name = node.nodeName()
    if name == "Join":
        return all(child.isStreaming() for child in _children(node))
    return name in STATEFUL or "WithState" in name


def _names(plan: Any) -> list[str]:
    return [attribute.name() for attribute in _sequence(plan.output())]


def _with(plan: Any, name: str, project: Any, step: str) -> Any:
    """The plan with the column among its output."""
    if name in _names(plan):
        return plan
    kind = plan.nodeName()
    if kind not in NARROW:
        raise LostOriginError(_lost(step, kind))
    children = plan.children()
    found = False
    for i, child in enumerate(_children(plan)):
        if any(name in _names(node) for node in _nodes(child)):
            children = children.updated(i, _with(child, name, project, step))
            found = True
    if not found:
        raise LostOriginError(
            f"step {step}: the rows of its frame come from no source of the pipeline. A step is "
            "made of the frames that it is called with"
        )
    if kind == "Project":
        child = children.apply(0)
        output = child.output()
        at = _names(child).index(name)
        items = plan.projectList().appended(output.apply(at))
        return project(items, child)
    made = plan.withNewChildren(children)
    if name not in _names(made):
        raise LostOriginError(_lost(step, kind))
    return made


def _lost(step: str, kind: str) -> str:
    return (
        f"step {step}: {kind} does not keep which input a row comes from, so a row behind it "
        "cannot be rejected, retried or counted. Reject and retry rows before it; put windows, "
        "aggregations and deduplication into a step of their own, which reads this one"
    )
