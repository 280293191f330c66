"""Outputs whose own commit is idempotent: files with a manifest, Delta Lake, Iceberg.

Rules (ADR 0019):
- The commit of such an output holds the fence: batch id and checkpoint id are written with the
  data, or not at all. A replayed batch is refused by its fence and changes nothing.
- Outputs of one query are committed in a fixed order: tables and topics together, then these in
  the order of `to_outputs`. A crash between two of them leaves the first ahead until the batch
  runs again, which skips it and commits the rest.
"""

# pyspark's types are incomplete, so strict checking would report nothing else.
# pyright: basic
from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from kohort.spark.outputs.fence import Batch, Fence, FencePolicy, Verdict
from kohort.spark.outputs.parts import Select
from kohort.spark.outputs.protocol import Outcome

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class CommitOutput(Protocol):
    """Where batches go, one commit each."""

    @property
    def name(self) -> str:
        """The output's name in messages; no two outputs of a query have the same."""
        ...

    @property
    def remedy(self) -> str:
        """How its fence is removed, for messages."""
        ...

    def fence(self, spark: SparkSession, batch: Batch) -> Fence | None:
        """The last batch of the query that was committed. Finishes a commit that was cut short."""
        ...

    def write(self, frame: DataFrame, batch: Batch) -> None:
        """Write the batch, and commit it with its fence."""
        ...


@dataclass(frozen=True)
class CommitPart:
    """An output, and what is made of the batch for it."""

    output: CommitOutput
    select: Select | None

    def run(self, frame: DataFrame, batch: Batch, first_batch: int) -> Outcome:
        """Commit one batch, or skip it. Raises DataLossError where the checkpoint is another."""
        output = self.output
        policy = FencePolicy(batch.query, first_batch, output.name, output.remedy)
        if policy.decide(batch, output.fence(frame.sparkSession, batch)) is Verdict.DONE:
            return Outcome.SKIPPED
        output.write(self.select(frame) if self.select else frame, batch)
        return Outcome.COMMITTED
