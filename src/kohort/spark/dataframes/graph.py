"""Sources, references and steps of a pipeline, and which of them form one stage. Pure.

Rules:
- A name that is used twice, or is unknown, is refused when it is registered or resolved,
  before anything runs.
- Narrow steps form one stage with the sources they read: one query, one transaction a micro-batch.
- A stateful step is a stage of its own, with the narrow steps behind it. It reads the rows of other
  stages from *intermediate topics*, which those stages write in their transactions. So what passed
  after a retry reaches it, and what failed never does.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from kohort.errors import ConfigError
from kohort.retry.policy import topic_name
from kohort.setting_keys import nearest
from kohort.spark.formats.options import FORMATS, Format, Names, parse_format

COLUMN_FORMATS: Final = (*FORMATS, "text", "bytes")
_NAMES: Final = Names(
    "format", "schema", "subject", "message", "schema_registry", "schema_evolution"
)
COMPLETE: Final = "complete"
OUTPUT_MODES: Final = ("append", "update", COMPLETE)
_NOT_IN_NAMES: Final = re.compile(r"\W", re.ASCII)  # names of topics are ASCII


@dataclass(frozen=True)
class ValueFormat:
    """What the values of a topic are.

    Args:
        name: one of `COLUMN_FORMATS`.
        decoded: how they are decoded into columns; None for text and bytes.
    """

    name: str
    decoded: Format | None = None

    @classmethod
    def of(cls, name: str, topic: str, settings: Mapping[str, Any]) -> ValueFormat:
        """The format of a source or reference.

        Args:
            settings: format, schema, subject, message, schema_registry and schema_evolution; None
                is not given. A schema is text, or a StructType.

        Raises ConfigError.
        """
        found = {key: _text(name, key, value) for key, value in settings.items() if value}
        form = found.get("format", "json")
        if form in FORMATS:
            try:
                return cls(form, parse_format(found, "value", _NAMES, [topic]))
            except ConfigError as error:
                raise ConfigError(f"{name}: {error}") from None
        if form not in COLUMN_FORMATS:
            near = nearest(form, COLUMN_FORMATS)
            hint = f"; did you mean {near!r}?" if near else ""
            raise ConfigError(f"{name}: format {form!r}; one of {', '.join(COLUMN_FORMATS)}{hint}")
        unused = sorted(found.keys() - {"format"})
        if unused:
            raise ConfigError(f"{name}: format {form} has no {unused[0]}; leave it out")
        return cls(form)


@dataclass(frozen=True)
class Source:
    """A topic whose records become rows; see `Pipeline.source`."""

    name: str
    topic: str
    values: ValueFormat
    event_time: str | None = None


@dataclass(frozen=True)
class Reference:
    """A topic as a table; see `Pipeline.reference`."""

    name: str
    topic: str
    values: ValueFormat
    key: tuple[str, ...]
    max_bytes: int


@dataclass(frozen=True)
class TableTarget:
    """The table that a step fills."""

    table: str
    key: tuple[str, ...]
    mode: str
    deletes: str | None
    order: tuple[str, ...]


@dataclass(frozen=True)
class TopicTarget:
    """The topic that a step fills."""

    topic: str
    key: tuple[str, ...]
    options: Mapping[str, Any]


@dataclass(frozen=True)
class Step:
    """A function of frames.

    Args:
        name: the function's name, by which other steps read it.
        inputs: the names of its parameters.
        target: where its rows go; None for a step that others read only.
        output_mode: of a stateful step; None: update with a key, else append.
    """

    name: str
    function: Callable[..., Any]
    inputs: tuple[str, ...]
    target: TableTarget | TopicTarget | None
    output_mode: str | None = None


@dataclass
class Stage:
    """Steps that are computed and committed together.

    Args:
        name: of its first node; the query is called after it.
        reads: names of the sources, or for a stateful stage of the nodes whose intermediate topics
            it reads.
        steps: in the order of computation.
        stateful: the step that keeps state; None for a stage of narrow steps.
        readers: by node that other stages read, those stages. Each has an intermediate topic of its
            own, because positions are kept by topic and partition.
    """

    name: str
    reads: list[str]
    steps: list[Step] = field(default_factory=list[Step])
    stateful: Step | None = None
    readers: dict[str, list[str]] = field(default_factory=dict[str, list[str]])

    @property
    def forwards(self) -> list[str]:
        """The nodes that other stages read."""
        return list(self.readers)

    def topic_for(self, pipeline: str, node: str, reader: str) -> str:
        """The intermediate topic from which a stage reads the rows of a node of this one."""
        first = self.readers[node][0] == reader
        return intermediate_topic(pipeline, node, "" if first else reader)

    def forwarded_to(self, pipeline: str) -> dict[str, str]:
        """The intermediate topics that this stage fills, with the node whose rows each has."""
        return {
            self.topic_for(pipeline, node, reader): node
            for node, readers in self.readers.items()
            for reader in readers
        }

    @property
    def targets(self) -> list[Step]:
        """The steps that fill a table or a topic."""
        return [step for step in self.steps if step.target is not None]


def identifier(topic: str) -> str:
    """A topic's name as a parameter can be called."""
    return _NOT_IN_NAMES.sub("_", topic)


def intermediate_topic(pipeline: str, node: str, reader: str = "") -> str:
    """Where a stage hands on the rows of one of its nodes; `reader` is "" for the first reader."""
    rows = f"{node}.{reader}" if reader else node
    return topic_name(f"kohort.{_NOT_IN_NAMES.sub('_', pipeline)}", rows, "intermediate")


class Graph:
    """What a user's file registers."""

    def __init__(self) -> None:
        self.sources: dict[str, Source] = {}
        self.references: dict[str, Reference] = {}
        self.steps: dict[str, Step] = {}

    def __bool__(self) -> bool:
        return bool(self.sources or self.references or self.steps)

    def possible_intermediate_topics(self, pipeline: str) -> dict[str, str]:
        """All intermediate topics that there can be, with the node whose rows each has: which
        there are is known when the steps have been analysed."""
        return {
            intermediate_topic(pipeline, node, reader): node
            for node in (*self.sources, *self.steps)
            for reader in ("", *self.steps)
        }

    def add_source(self, source: Source) -> str:
        """Register a source. Raises ConfigError for a name or topic that cannot be."""
        self._check_name(source.name)
        if any(s.topic == source.topic for s in self.sources.values()):
            raise ConfigError(f"topic {source.topic} is a source already; read it by its name")
        self.sources[source.name] = source
        return source.name

    def add_reference(self, reference: Reference) -> str:
        """Register a reference. Raises as `add_source`."""
        self._check_name(reference.name)
        if not reference.key:
            raise ConfigError(f"reference {reference.name} needs key=, the columns of one row")
        self.references[reference.name] = reference
        return reference.name

    def add_step(
        self,
        function: Callable[..., Any],
        target: TableTarget | TopicTarget | None,
        output_mode: str | None,
    ) -> Step:
        """Register a function of frames. Raises as `add_source`."""
        name = getattr(function, "__name__", "")
        self._check_name(name)
        if output_mode is not None and output_mode not in OUTPUT_MODES:
            raise ConfigError(
                f"step {name}: output_mode {output_mode!r}; one of {', '.join(OUTPUT_MODES)}"
            )
        inputs = tuple(inspect.signature(function).parameters)
        if not inputs:
            raise ConfigError(
                f"step {name} has no parameters; name the sources, references and steps it reads"
            )
        step = Step(name, function, inputs, target, output_mode)
        self.steps[name] = step
        return step

    def _check_name(self, name: str) -> None:
        if not name.isidentifier():
            raise ConfigError(f"{name!r} cannot be the name of a parameter; give another by name=")
        if name in self.sources or name in self.references or name in self.steps:
            raise ConfigError(
                f"the name {name} is used twice; sources, references and steps share names"
            )

    # Resolving

    def check(self) -> None:
        """Refuse steps that read what is not there, or each other in a circle, and sources that
        nobody reads: their records would be owed for ever."""
        self.ordered()
        read = {name for step in self.steps.values() for name in step.inputs}
        if self.steps and (unread := [name for name in self.sources if name not in read]):
            raise ConfigError(
                f"source {unread[0]} is read by no step; take it out, or name it as a parameter of "
                "a step"
            )
        if self.steps and not self.sources:
            raise ConfigError("steps need a source: pipeline.source(TOPIC, ...)")
        tables: dict[str, str] = {}
        for step in self.steps.values():
            if isinstance(step.target, TableTarget):
                other = tables.setdefault(step.target.table, step.name)
                if other != step.name:
                    raise ConfigError(
                        f"steps {other} and {step.name} fill one table {step.target.table}; make "
                        "one step of them (union)"
                    )

    def ordered(self) -> list[Step]:
        """The steps, each after those that it reads. Raises ConfigError."""
        done: dict[str, Step] = {}
        waiting: list[str] = []

        def visit(name: str, reader: str) -> None:
            if name in self.sources or name in self.references or name in done:
                return
            step = self.steps.get(name)
            if step is None:
                known = ", ".join(sorted({*self.sources, *self.references, *self.steps} - {reader}))
                raise ConfigError(f"step {reader} reads {name!r}, which is not there; {known} are")
            if name in waiting:
                raise ConfigError(f"steps read each other in a circle: {' -> '.join(waiting)}")
            waiting.append(name)
            for each in step.inputs:
                visit(each, name)
            waiting.pop()
            done[name] = step

        for name in self.steps:
            visit(name, name)
        return list(done.values())

    def rows_of(self, step: Step) -> list[str]:
        """The inputs of a step that are rows in passing: sources and other steps."""
        return [name for name in step.inputs if name not in self.references]

    def references_of(self, steps: Iterable[Step]) -> list[Reference]:
        """The references that these steps read."""
        names = dict.fromkeys(n for s in steps for n in s.inputs if n in self.references)
        return [self.references[name] for name in names]

    def stages(self, stateful: Mapping[str, bool]) -> list[Stage]:
        """The stages in the order in which rows pass them.

        Args:
            stateful: by step, whether it keeps state.

        Raises ConfigError for a narrow step over rows of a stateful step and others.
        """
        at: dict[str, Stage] = {}
        stages: list[Stage] = []
        for name in self.sources:
            at[name] = Stage(name, [name])
            stages.append(at[name])
        for step in self.ordered():
            rows = self.rows_of(step)
            if not rows:
                raise ConfigError(f"step {step.name} reads references only; it needs a source")
            if stateful[step.name]:
                self._check_no_references(step)
                self._check_append(step, rows, at)
                at[step.name] = Stage(step.name, rows, [step], step)
                stages.append(at[step.name])
                for name in rows:
                    at[name].readers.setdefault(name, []).append(step.name)
                continue
            joined = _merged(step, [at[name] for name in rows])
            for other in [s for s in stages if s is not joined and s in [at[n] for n in rows]]:
                joined.reads += other.reads
                joined.steps += other.steps
                joined.readers |= other.readers
                stages.remove(other)
                at = {n: joined if s is other else s for n, s in at.items()}
            joined.steps.append(step)
            at[step.name] = joined
        return [s for s in stages if s.steps or s.forwards]

    def _check_no_references(self, step: Step) -> None:
        named = [name for name in step.inputs if name in self.references]
        if named:
            raise ConfigError(
                f"step {step.name} keeps state and reads reference {named[0]}, which would stay as "
                "it is at the start of the query. Join it in a step before, which this one reads"
            )

    def _check_append(self, step: Step, rows: list[str], at: Mapping[str, Stage]) -> None:
        for name in rows:
            before = at[name].stateful
            if before is not None and mode_of(before) != "append":
                raise ConfigError(
                    f"step {step.name} keeps state over {name}, whose step {before.name} changes "
                    "its results (output mode update or complete), so they would be counted more "
                    f"than once. Give {before.name} a watermark and output_mode='append'"
                )


def mode_of(step: Step) -> str:
    """The output mode of a stateful step."""
    if step.output_mode is not None:
        return step.output_mode
    keyed = isinstance(step.target, TableTarget) and bool(step.target.key)
    return "update" if keyed else "append"


def _merged(step: Step, stages: list[Stage]) -> Stage:
    """The stage that a narrow step joins."""
    first = stages[0]
    if any(s is not first and (s.stateful or first.stateful) for s in stages):
        raise ConfigError(
            f"step {step.name} reads rows of a stateful step together with others; join them in a "
            "step with a watermark on both, or read one of them"
        )
    return first


def _text(name: str, key: str, value: Any) -> str:
    """A setting as text; a StructType is its JSON."""
    if key == "schema" and not isinstance(value, str):
        if not hasattr(value, "json"):
            raise ConfigError(
                f"{name}: schema= is text ('id STRING, at TIMESTAMP') or a StructType"
            )
        return str(value.json())
    if not isinstance(value, str):
        raise ConfigError(f"{name}: {key}= is text, not {value!r}")
    return value
