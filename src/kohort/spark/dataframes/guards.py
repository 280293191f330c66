"""Steps that handle each row by itself, as one plan that keeps the rows which fail or are filtered.

Rules:
- A step sees the rows without a verdict. Where rows that fail must stay in the plan, each of the
  step's expressions is evaluated for a row without a verdict only, and is null for the others. So a
  division behind `reject(column == 0, ...)` in an earlier step does not fail.
- A filter becomes the column `KEPT`. Expressions behind it are evaluated for kept rows only. A row
  whose verdict is of an earlier step is kept; one that the step itself rejects and then filters is
  not, as if the filter were there.
- A plan with a join, or with a function that Spark evaluates outside its expressions (Python's), is
  refused.

Spark's classic API is needed: the plan is the JVM's.
"""

# pyspark's types are incomplete, so strict checking would report nothing else.
# pyright: basic
from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from kohort.spark.dataframes.columns import VERDICT
from kohort.spark.plans.logical import (
    CHANCE,
    ONE_TO_ONE,
    PROJECT,
    SUBQUERY,
    analyzed,
    attribute,
    contains,
    dataset,
    java_class,
)

KEPT: Final = "_kohort_kept"
"""Whether no filter drops the row; absent without a filter."""
_PASSES: Final = "_kohort_passes"
_EXPRESSIONS: Final = "org.apache.spark.sql.catalyst.expressions."
_OUTSIDE: Final = (CHANCE, "PYTHON_UDF", SUBQUERY)
"""Patterns of expressions that a condition around them does not guard, or that a second
evaluation would change."""


class NotRowByRowError(Exception):
    """A step does more than handle each row by itself, or cannot be guarded."""


def guarded(made: DataFrame, rows: DataFrame) -> DataFrame:
    """What a step makes of rows, one row for each of them.

    Args:
        made: the step's frame over all of `rows`, with its hidden columns.
        rows: what the step was called with. Those with a verdict keep it.

    Raises NotRowByRowError.
    """
    plan, end = analyzed(made), analyzed(rows)
    if contains(made, *_OUTSIDE) or not plan.deterministic():
        raise NotRowByRowError
    return dataset(made, _Guard(made, end).plan(plan)).drop(_PASSES)


class _Guard:
    """The rewriting of one step's plan, down to the rows that it was called with."""

    def __init__(self, frame: DataFrame, end: Any) -> None:
        def known(name: str) -> Any:
            return java_class(frame, _EXPRESSIONS + name)

        self._frame, self._end = frame, end
        self._if, self._and, self._is_null = known("If"), known("And"), known("IsNull")
        self._alias, self._literal, self._same = map(known, ("Alias", "Literal", "EqualNullSafe"))
        self._project = java_class(frame, PROJECT)
        self._to_seq = java_class(frame, "org.apache.spark.api.python.PythonUtils").toSeq
        self._passes: Any = None
        """The column of whether the step sees a row: it carries this through the plan, since its
        own columns may hide the verdict that the rows had."""
        self._kept = attribute(end, KEPT)
        self._guard: Any = None
        """The condition of what follows."""

    def plan(self, plan: Any) -> Any:
        """The plan with guarded expressions."""
        if plan.equals(self._end):
            return self._with_passes()
        kind = plan.nodeName()
        if kind not in (*ONE_TO_ONE, "Filter"):
            raise NotRowByRowError
        below = self.plan(plan.child())
        if kind == "Filter":
            return self._filtered(plan.condition(), below)
        if kind != "Project":
            return plan.withNewChildren(self._to_seq([below]))
        verdict = attribute(below, VERDICT)
        items = [self._item(item, verdict) for item in _items(plan.projectList())]
        return self._projected(items, below)

    def _projected(self, items: Sequence[Any], below: Any) -> Any:
        """A projection that passes on what guards need."""
        own = [item for item in items if item.name() not in (_PASSES, KEPT)]
        needed = [column for column in (self._passes, self._kept) if column is not None]
        return self._project(self._to_seq([*own, *needed]), below)

    def _with_passes(self) -> Any:
        passes = self._is_null(attribute(self._end, VERDICT))
        if self._kept is not None:
            passes = self._and(passes, self._kept)
        made = self._column(passes, _PASSES)
        self._passes = self._guard = made.toAttribute()
        return self._project(self._to_seq([*_items(self._end.output()), made]), self._end)

    def _filtered(self, condition: Any, below: Any) -> Any:
        true = self._literal.TrueLiteral()
        otherwise = true if self._kept is None else self._kept
        value = self._if(self._guard, self._same(condition, true), otherwise)
        made = self._column(value, KEPT)
        columns = [column for column in _items(below.output()) if column.name() != KEPT]
        self._kept = made.toAttribute()
        self._guard = self._and(self._passes, self._kept)
        return self._project(self._to_seq([*columns, made]), below)

    def _column(self, value: Any, name: str) -> Any:
        """A new column; Spark draws its id."""
        fresh = self._frame.sparkSession.range(0).select(F.lit(True).alias(name))
        (item,) = _items(analyzed(fresh).projectList())
        return self._alias(value, name, *_rest(item))

    def _item(self, item: Any, verdict: Any) -> Any:
        if item.nodeName() == "AttributeReference":
            return item
        if item.nodeName() != "Alias":
            raise NotRowByRowError
        value = item.child()
        if value.nodeName() == "AttributeReference":
            return item
        nothing = self._literal(None, value.dataType())
        otherwise = verdict if item.name() == VERDICT else nothing
        return self._alias(self._if(self._guard, value, otherwise), item.name(), *_rest(item))


def _items(sequence: Any) -> list[Any]:
    return [sequence.apply(i) for i in range(sequence.size())]


def _rest(alias: Any) -> tuple[Any, ...]:
    """The arguments of an alias's constructor behind its name."""
    metadata = alias.explicitMetadata(), alias.nonInheritableMetadataKeys()
    return (alias.exprId(), alias.qualifier(), *metadata)
