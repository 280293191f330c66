"""Physical plans that are made once: a micro-batch replaces their RDDs, and Spark plans nothing.

Rules:
- A plan is kept only when it reads nothing but frames of the batch and constants. A plan with a
  table on disk, a subquery, the present time, a random seed, a reused exchange or a cached frame is
  made for each batch.
- A frame of the batch is an RDD: the frame of `foreachBatch`, or one of `computed_once`. A batch
  replaces the RDDs that differ from the last batch's. Nodes above unchanged RDDs stay, the
  broadcast of a reference included.
- Spark's adaptive execution (off in the local profile) replans while a job runs: nothing is kept.
- A kept plan relies on the partitioning of its frames, and on their columns, which it reads by
  position. Frames with others get a new plan.

Spark's classic API is needed: the plan is the JVM's.
"""

# pyspark's types are incomplete, so strict checking would report nothing else.
# pyright: basic
from __future__ import annotations

import json
import re
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from weakref import WeakKeyDictionary

from py4j.java_gateway import JavaClass
from pyspark.sql import DataFrame

from kohort.spark.plans.logical import CHANCE, SUBQUERY, analyzed, as_rdd, contains

_CONSTANTS: Final = frozenset({"LocalTableScan"})
_KNOWN: Final[WeakKeyDictionary[DataFrame, _Leaf]] = WeakKeyDictionary()
"""Several plans of a batch read the same frames, and asking the JVM takes time."""
_OF_ONE_BATCH: Final = ("CURRENT_LIKE", SUBQUERY, CHANCE)
_EXPRESSION_ID: Final = re.compile(r"#\d+L?")


class PhysicalPlans:
    """The physical plans of one query. Not for several threads."""

    def __init__(self) -> None:
        self._made: dict[Hashable, _Prepared] = {}

    def frame(
        self, key: Hashable, frames: Mapping[str, DataFrame], build: Callable[[], DataFrame]
    ) -> DataFrame:
        """The frame of `build`, planned once for the key.

        Args:
            key: names the plan. `build` makes the same plan for one key every time.
            frames: all frames of this batch that the plan reads. Where one is no RDD, `build` is
                called.
            build: called for the first batch, and whenever the kept plan does not fit.
        """
        leaves = _leaves(frames)
        if leaves is None:
            return build()
        if (prepared := self._fitting(key, leaves)) is not None:
            return prepared.bound(leaves)
        made = build()
        prepared = _Prepared.of(made, leaves)
        if prepared is None:
            self._made.pop(key, None)
        else:
            self._made[key] = prepared
        return made

    def reports(
        self, key: Hashable, frames: Mapping[str, DataFrame], build: Callable[[], DataFrame]
    ) -> list[Any]:
        """The rows of the frame of `build`, whose only column has JSON, parsed.

        A kept plan runs as a job of the present query. A query of its own would cost 20 ms.
        """
        leaves = _leaves(frames)
        if leaves is not None and (prepared := self._fitting(key, leaves)) is not None:
            return prepared.reports(leaves)
        return [json.loads(row[0]) for row in self.frame(key, frames, build).collect()]

    def job_reports(
        self,
        key: Hashable,
        frames: Mapping[str, DataFrame],
        function: Callable[[Mapping[str, DataFrame]], DataFrame],
    ) -> list[Any]:
        """The reports of the function's frame over any frames, each of which is planned by
        itself."""
        leaves = {name: as_rdd(frame) for name, frame in frames.items()}
        return self.reports(key, leaves, lambda: function(leaves))

    def _fitting(self, key: Hashable, leaves: Mapping[str, _Leaf]) -> _Prepared | None:
        prepared = self._made.get(key)
        return prepared if prepared is not None and prepared.fits(leaves) else None


@dataclass(frozen=True)
class _Leaf:
    """A frame of the batch: its RDD, its columns as JSON, and how it is partitioned."""

    rdd: Any
    id: int
    schema: str
    partitioning: str

    def is_like(self, other: _Leaf) -> bool:
        """Whether a plan over the one can be put over the other."""
        return (self.schema, self.partitioning) == (other.schema, other.partitioning)


def _leaves(frames: Mapping[str, DataFrame]) -> dict[str, _Leaf] | None:
    """The RDDs of frames; None when one of them is not an RDD."""
    leaves: dict[str, _Leaf] = {}
    for name, frame in frames.items():
        leaf = _leaf_of(frame)
        if leaf is None:
            return None
        leaves[name] = leaf
    return leaves


def _leaf_of(frame: DataFrame) -> _Leaf | None:
    leaf = _KNOWN.get(frame)
    if leaf is None:
        plan = analyzed(frame)
        kind = plan.nodeName()
        while kind == "ResolvedHint":
            plan = plan.child()
            kind = plan.nodeName()
        if kind != "LogicalRDD":
            return None
        rdd = plan.rdd()
        partitioning = _EXPRESSION_ID.sub("", plan.outputPartitioning().toString())
        if partitioning.startswith("UnknownPartitioning"):
            partitioning = ""
        leaf = _KNOWN[frame] = _Leaf(rdd, rdd.id(), plan.schema().json(), partitioning)
    return leaf


@dataclass
class _Scan:
    """The place of a frame in a physical plan."""

    frame: str
    plan: Any
    rest: tuple[Any, ...]
    """The arguments of its constructor behind the RDD."""

    @classmethod
    def of(cls, frame: str, plan: Any) -> _Scan:
        """The scan that a plan has."""
        rest = (plan.name(), plan.outputPartitioning(), plan.outputOrdering(), plan.stream())
        return cls(frame, plan, rest)

    def bound(self, leaves: Mapping[str, _Leaf]) -> Any:
        """The scan of another RDD."""
        return self.plan.copy(self.plan.output(), leaves[self.frame].rdd, *self.rest)


@dataclass
class _Node:
    """A node of a physical plan above frames."""

    plan: Any
    children: Any
    parts: list[tuple[int, _Node | _Scan]]
    frames: frozenset[str]

    def bound(self, leaves: Mapping[str, _Leaf], changed: frozenset[str]) -> Any:
        """The node over the frames that changed; itself where none did."""
        if not self.frames & changed:
            return self.plan
        for index, part in self.parts:
            if isinstance(part, _Node):
                made = part.bound(leaves, changed)
            elif part.frame in changed:
                made = part.bound(leaves)
            else:
                continue
            self.children = self.children.updated(index, made)
        self.plan = self.plan.withNewChildren(self.children)
        return self.plan


class _UnfitError(Exception):
    """A plan that must be made for each batch."""


@dataclass
class _Prepared:
    """A plan over the frames of the last batch.

    Args:
        root: where its frames are.
        schema: of its rows.
        leaves: the frames that it reads now.
    """

    root: _Node
    schema: Any
    session: Any
    leaves: dict[str, _Leaf]

    @classmethod
    def of(cls, frame: DataFrame, leaves: dict[str, _Leaf]) -> _Prepared | None:
        """The frame's plan; None when each batch needs a plan of its own."""
        names = {leaf.id: name for name, leaf in leaves.items()}
        if len(names) < len(leaves) or contains(frame, *_OF_ONE_BATCH):
            return None
        inner: Any = frame._jdf
        try:
            root = _traced(inner.queryExecution().executedPlan(), names)
        except _UnfitError:
            return None
        if not isinstance(root, _Node):
            return None
        return cls(root, inner.schema(), frame.sparkSession, dict(leaves))

    def fits(self, leaves: Mapping[str, _Leaf]) -> bool:
        """Whether frames have the columns and partitioning that the plan was made for."""
        return leaves.keys() == self.leaves.keys() and all(
            leaf.is_like(self.leaves[name]) for name, leaf in leaves.items()
        )

    def bound(self, leaves: dict[str, _Leaf]) -> DataFrame:
        """The plan over the frames of a batch."""
        made = self.session._jsparkSession.internalCreateDataFrame(
            self._plan(leaves).execute(), self.schema, False
        )
        return DataFrame(made, self.session)

    def reports(self, leaves: dict[str, _Leaf]) -> list[Any]:
        """The rows of the plan, whose only column has JSON, parsed."""
        rows = self._plan(leaves).executeCollectPublic()
        client: Any = self.session.sparkContext._gateway._gateway_client
        sequences: Any = JavaClass("scala.collection.immutable.ArraySeq", client)
        listed = sequences.unsafeWrapArray(rows).mkString("[", ",", "]")
        return [report for (report,) in json.loads(listed)]  # a row's text has brackets, too

    def _plan(self, leaves: dict[str, _Leaf]) -> Any:
        changed = frozenset(n for n, leaf in leaves.items() if leaf.id != self.leaves[n].id)
        self.leaves = dict(leaves)
        return self.root.bound(leaves, changed)


def _traced(plan: Any, names: Mapping[int, str]) -> _Node | _Scan | None:
    """The parts of a plan that lead to frames. Raises _UnfitError for a plan not to be kept."""
    children = plan.children()
    count = children.size()
    if not count:
        return _leaf(plan, names)
    parts: list[tuple[int, _Node | _Scan]] = []
    for index in range(count):
        part = _traced(children.apply(index), names)
        if part is not None:
            parts.append((index, part))
    frames = [p.frames if isinstance(p, _Node) else {p.frame} for _, p in parts]
    return _Node(plan, children, parts, frozenset().union(*frames)) if parts else None


def _leaf(plan: Any, names: Mapping[int, str]) -> _Scan | None:
    """A frame, or nothing for a constant. A reused exchange and a cached frame are leaves, too."""
    kind = plan.nodeName()
    if kind in _CONSTANTS:
        return None
    if kind.startswith("Scan ExistingRDD") and (name := names.get(plan.rdd().id())) is not None:
        return _Scan.of(name, plan)
    raise _UnfitError
