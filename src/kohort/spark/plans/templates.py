"""Logical plans that are made once: each micro-batch replaces their frames.

Rules:
- A function of frames is called once for each key, with empty frames of the same columns. Its
  analyzed plan is the template. A batch replaces the leaves, which takes a few calls of the JVM
  where the function takes hundreds.
- A leaf is known by its RDD, which no other frame has: also where Spark renames its columns because
  a function joins a frame with itself.
- So a step is called when its query starts, as everything else that defines a query of Spark's.
- A plan with a random seed (`rand()`, `uuid()`) is no template: the function is called for each
  batch, or every batch would draw the same values. Neither is one with a subquery, whose frames are
  no leaves of the plan: it would read the empty ones.

Spark's classic API is needed: the plan is the JVM's.
"""

# pyspark's types are incomplete, so strict checking would report nothing else.
# pyright: basic
from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame

from kohort.spark.plans.logical import (
    CHANCE,
    PROJECT,
    SUBQUERY,
    analyzed,
    contains,
    dataset,
    java_class,
    local_frame,
)

Function = Callable[[Mapping[str, DataFrame]], DataFrame]


class Templates:
    """The templates of one query. Not for several threads."""

    def __init__(self) -> None:
        self._made: dict[Hashable, _Template] = {}

    def apply(
        self, key: Hashable, function: Function, frames: Mapping[str, DataFrame]
    ) -> DataFrame:
        """The function's frame over these frames.

        Args:
            key: tells functions apart. Frames of one key have the same columns every time.
            function: called once for the key, with frames of the same names and columns; for each
                batch where its plan holds a random seed or a subquery.
            frames: what this batch has. At least one.
        """
        template = self._made.get(key)
        if template is None:
            template = self._made[key] = _Template.of(function, frames)
        return function(frames) if template.of_one_batch else template.bound(frames)


@dataclass
class _Leaf:
    """A place where a frame is put in.

    Args:
        frame: the frame's name.
        output: the columns that the plan above knows.
    """

    frame: str
    output: list[Any]
    _known: tuple[str, Any] = ("", None)

    def bound(self, frames: Mapping[str, DataFrame]) -> Any:
        """The frame's plan, with the columns renamed to those of the template."""
        frame = frames[self.frame]
        plan = analyzed(frame)
        output = plan.output()
        text = output.toString()
        if text != self._known[0]:
            self._known = (text, self._renamed(output, frame))
        return java_class(frame, PROJECT)(self._known[1], plan)

    def _renamed(self, output: Any, frame: DataFrame) -> Any:
        """By position: two columns of a frame may have one name."""
        columns = [output.apply(i) for i in range(output.size())]
        to_seq = java_class(frame, "org.apache.spark.api.python.PythonUtils").toSeq
        alias = java_class(frame, "org.apache.spark.sql.catalyst.expressions.Alias")
        nothing, none = to_seq([]), java_class(frame, "scala.Option").empty()
        aliases = [
            alias(now, column.name(), column.exprId(), nothing, none, nothing)
            for now, column in zip(columns, self.output, strict=True)
        ]
        return to_seq(aliases)


@dataclass
class _Branch:
    """A node of a template above leaves that are replaced."""

    plan: Any
    children: Any
    parts: list[tuple[int, _Branch | _Leaf]]

    def bound(self, frames: Mapping[str, DataFrame]) -> Any:
        """The node over the plans of the frames."""
        children = self.children
        for index, part in self.parts:
            children = children.updated(index, part.bound(frames))
        return self.plan.withNewChildren(children)


@dataclass
class _Template:
    """One function's plan.

    Args:
        plan: as it is, where it depends on no frame.
        root: where its leaves are; None where it has none.
        of_one_batch: it holds a random seed or a subquery, so another batch calls the function.
    """

    plan: Any
    root: _Branch | _Leaf | None
    of_one_batch: bool

    @classmethod
    def of(cls, function: Function, frames: Mapping[str, DataFrame]) -> _Template:
        """Call the function with empty frames. Raises what it raises."""
        empty = {name: _placeholder(frame) for name, frame in frames.items()}
        leaves = {analyzed(frame).rdd().id(): name for name, frame in empty.items()}
        made = function(empty)
        plan = analyzed(made)
        return cls(plan, _traced(plan, leaves), contains(made, CHANCE, SUBQUERY))

    def bound(self, frames: Mapping[str, DataFrame]) -> DataFrame:
        """The plan over frames of a batch."""
        plan = self.plan if self.root is None else self.root.bound(frames)
        return dataset(next(iter(frames.values())), plan)


def _traced(plan: Any, leaves: Mapping[int, str]) -> _Branch | _Leaf | None:
    """The parts of a plan that lead to leaves."""
    if plan.nodeName() == "LogicalRDD" and plan.rdd().id() in leaves:
        output = plan.output()
        return _Leaf(leaves[plan.rdd().id()], [output.apply(i) for i in range(output.size())])
    children = plan.children()
    parts: list[tuple[int, _Branch | _Leaf]] = []
    for index in range(children.size()):
        part = _traced(children.apply(index), leaves)
        if part is not None:
            parts.append((index, part))
    return _Branch(plan, children, parts) if parts else None


def _placeholder(frame: DataFrame) -> DataFrame:
    """An empty frame of the same columns, whose plan is a leaf of its own."""
    return local_frame(frame.sparkSession, [], frame.schema).localCheckpoint(eager=False)
