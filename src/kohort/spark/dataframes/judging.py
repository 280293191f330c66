"""The outcome of every input of a batch: loaded, filtered, retried, failed, or not owed. Pure.

Rules:
- An input passes its stage as a whole: where one of its rows has a verdict, in any step, none of
  its rows is loaded. The verdict of the earliest step counts; of several of one step the least by
  `Failed.rank`, by which the copy is chosen, too.
- A copy that the ledger does not owe is *inert*: it is left out before any step sees it.
- Counts balance by construction: what was read is loaded, filtered, scheduled or failed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kohort.errors import UsageError
from kohort.retry import ledger
from kohort.retry.copies import Attempt
from kohort.retry.ledger import Counts, RowState, Verdict
from kohort.retry.policy import RetryPolicy
from kohort.spark.dataframes.offset_set import OffsetSet

Place = tuple[str, int, int]
"""Topic, partition and offset of a record as it was read."""
TopicPartition = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Failed:
    """One input with a verdict."""

    attempt: Attempt
    permanent: bool
    reason: str
    message: str

    @property
    def rank(self) -> tuple[bool, str, str]:
        """Verdicts of one input in one step in their order: a permanent one comes first."""
        return (not self.permanent, self.reason, self.message)

    def is_last(self, policy: RetryPolicy) -> bool:
        """Whether it goes to the dead-letter topic."""
        return self.permanent or policy.next_step(self.attempt.number) is None


@dataclass(frozen=True)
class Seen:
    """The inputs that rows of one node come from.

    Args:
        node: the step or source.
        passing: offsets of inputs with rows that pass, by partition.
        failed: inputs with a verdict, in any order; several of one input are allowed.
        fills: whether its rows are loaded or handed on.
    """

    node: str
    passing: Mapping[TopicPartition, OffsetSet]
    failed: Sequence[Failed]
    fills: bool


@dataclass
class Judgement:
    """The decision over one batch.

    Attributes:
        failed: the inputs that failed, in the order of their verdicts.
        by_node: of them those whose verdict is the node's.
        withheld: by node, inputs whose rows pass there and are not loaded all the same.
        doubled: nodes where an input has several verdicts.
        filled: nodes with rows that are loaded or handed on.
        loaded: offsets of inputs with at least one row that is loaded or handed on, by partition.
        counts: by partition of the topics as they were read.
    """

    failed: dict[Place, Failed] = field(default_factory=dict[Place, Failed])
    by_node: dict[str, set[Place]] = field(default_factory=dict[str, set[Place]])
    withheld: dict[str, set[Place]] = field(default_factory=dict[str, set[Place]])
    doubled: set[str] = field(default_factory=set[str])
    filled: set[str] = field(default_factory=set[str])
    loaded: dict[TopicPartition, OffsetSet] = field(default_factory=dict[TopicPartition, OffsetSet])
    counts: dict[TopicPartition, Counts] = field(default_factory=dict[TopicPartition, Counts])


def runnable(
    attempts: Sequence[Attempt], states: Mapping[str, Sequence[RowState]]
) -> tuple[list[Attempt], set[Place]]:
    """The copies that the ledger owes, each record once, and the places of the others."""
    run: list[Attempt] = []
    inert: set[Place] = set()
    taken: set[str] = set()
    for attempt in sorted(attempts, key=lambda a: a.position):
        retry_id = attempt.origin.retry_id
        verdict = ledger.gate(attempt, states.get(retry_id, ()))
        if verdict is Verdict.RUN and retry_id not in taken:
            taken.add(retry_id)
            run.append(attempt)
        else:
            inert.add(attempt.position)
    return run, inert


def judge(
    read: Mapping[TopicPartition, int],
    nodes: Iterable[Seen],
    policies: Mapping[str, RetryPolicy],
    stage: str,
) -> Judgement:
    """Decide over a batch.

    Args:
        read: how many inputs there are, by partition; copies that are not owed are left out.
        nodes: sources and steps in the order of computation.
        policies: by topic as it was read, retry topics included.
        stage: for messages.

    Raises UsageError when rows come from inputs that are not there, or too many.
    """
    nodes = list(nodes)
    found = Judgement()
    for node in nodes:
        own = found.by_node.setdefault(node.node, set())
        chosen: dict[Place, Failed] = {}
        for failed in node.failed:
            place = failed.attempt.position
            if place in found.failed:
                continue
            if place in chosen:
                found.doubled.add(node.node)
            chosen[place] = min(failed, chosen.get(place, failed), key=lambda each: each.rank)
        found.failed |= chosen
        own.update(chosen)
    for node in nodes:
        _withhold(found, node)
    ended: dict[TopicPartition, list[int]] = {}
    for topic, partition, offset in found.failed:
        ended.setdefault((topic, partition), []).append(offset)
    for at in ended.keys() & found.loaded.keys():
        found.loaded[at] -= OffsetSet.of(ended[at])
    _count(found, read, policies, stage)
    return found


def _withhold(found: Judgement, node: Seen) -> None:
    """Decide which passing rows of a node are loaded: none of an input that failed elsewhere."""
    both = {place for place in found.failed if place[2] in node.passing.get(place[:2], ())}
    if both:
        found.withheld[node.node] = both
    if not node.fills:
        return
    if sum(map(len, node.passing.values())) > len(both):
        found.filled.add(node.node)
    for at, offsets in node.passing.items():
        found.loaded[at] = found.loaded[at] | offsets if at in found.loaded else offsets


def _count(
    found: Judgement,
    read: Mapping[TopicPartition, int],
    policies: Mapping[str, RetryPolicy],
    stage: str,
) -> None:
    loaded = Counter({at: len(offsets) for at, offsets in found.loaded.items()})
    scheduled: Counter[TopicPartition] = Counter()
    failed: Counter[TopicPartition] = Counter()
    for (topic, partition, _), each in found.failed.items():
        kind = failed if each.is_last(policies[topic]) else scheduled
        kind[topic, partition] += 1
    for at in {*read, *loaded, *scheduled, *failed}:
        count = read.get(at, 0)
        filtered = count - loaded[at] - scheduled[at] - failed[at]
        if filtered < 0:
            raise UsageError(
                f"stage {stage}: rows of {at[0]}/{at[1]} come from more inputs than the batch has; "
                "a step must be made of the frames that it is called with"
            )
        found.counts[at] = Counts(
            read=count,
            loaded=loaded[at],
            filtered=filtered,
            scheduled=scheduled[at],
            failed=failed[at],
        )
