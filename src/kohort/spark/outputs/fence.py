"""The batch fence: which micro-batch of a query an output has committed last. Pure.

Rules (invariants of ADR 0019):
- The fence is written in the transaction of the batch's data. It is (batch id, checkpoint id); the
  checkpoint id is the id that Spark keeps in the checkpoint, so a new checkpoint has another one.
- Batch ids of one checkpoint are consecutive, and Spark replays the last one only. So a batch runs
  exactly when it follows the fence; the fenced batch itself is a replay and changes nothing.
- In all other cases checkpoint and output do not belong together. They are refused before a row is
  written, because rows could be lost or duplicated.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from kohort.errors import DataLossError

GROUP_PREFIX: Final = "kohort.spark."
"""Of the transactional id of a query, and of the group that keeps its fence in Kafka."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One micro-batch of a query.

    Args:
        query: the name under which the fence is kept.
        batch_id: Spark's batch id.
        checkpoint: the id of the streaming query, which Spark keeps in its checkpoint.
    """

    query: str
    batch_id: int
    checkpoint: str

    def __str__(self) -> str:
        return f"query {self.query!r}, batch {self.batch_id}"


@dataclass(frozen=True, slots=True)
class Fence:
    """The last batch that an output has committed."""

    batch_id: int
    checkpoint: str

    def covers(self, batch: Batch) -> bool:
        """True when this very batch is committed."""
        return (self.batch_id, self.checkpoint) == (batch.batch_id, batch.checkpoint)


class Verdict(StrEnum):
    """What to do with a batch."""

    RUN = "run"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class FencePolicy:
    """How a fence is judged.

    Args:
        query: the name under which the fence is kept.
        first_batch: the batch with which the output begins: 0, or a later one when the output is
            added to a query that has run before.
        place: where the fence is kept, for messages.
        remedy: how to remove the fence, for messages; "" where that is no cure.
        restartable: the query keeps no state and begins where the store's own positions say, so a
            new checkpoint may follow.
        of_pipeline: the query is of a step of a pipeline, which names it and chooses `first_batch`.
    """

    query: str
    first_batch: int
    place: str
    remedy: str
    restartable: bool = False
    of_pipeline: bool = False

    @property
    def rebuild(self) -> str:
        """What to do where neither fence nor checkpoint can be restored, for messages."""
        if self.of_pipeline:
            return "rebuild the tables with a pipeline of another name (kohort pipeline replay)"
        return "rebuild: start under another query name into a new table or topic, and swap"

    def decide(self, batch: Batch, fence: Fence | None) -> Verdict:
        """Run the batch or skip it. Raises DataLossError when fence and checkpoint disagree."""
        if fence is None:
            return self._begin(batch)
        if fence.checkpoint != batch.checkpoint:
            if self.restartable and batch.batch_id == 0:
                return Verdict.RUN
            raise self._other_checkpoint(batch, fence)
        if batch.batch_id == fence.batch_id:
            return Verdict.DONE
        if batch.batch_id == fence.batch_id + 1:
            return Verdict.RUN
        if batch.batch_id < fence.batch_id:
            raise DataLossError(
                f"{batch}: {self.place} has committed batch {fence.batch_id} already, so the "
                "checkpoint was put back to an older state. Restore the newest checkpoint, or "
                f"{self.rebuild}{self._or()}"
            )
        raise DataLossError(
            f"{batch}: {self.place} has committed batch {fence.batch_id} last, so the batches up "
            f"to {batch.batch_id - 1} are missing there: it was restored from a backup, or the "
            f"query ran without this output. To continue, {self.rebuild}"
        )

    def _begin(self, batch: Batch) -> Verdict:
        if batch.batch_id == self.first_batch:
            return Verdict.RUN
        if self.of_pipeline:
            raise DataLossError(
                f"{batch}: {self.place} knows nothing of this step, but its checkpoint has passed "
                f"batch {self.first_batch}: the store was emptied or replaced. Restore it; or "
                "delete the checkpoint of the pipeline, too, and it reads its topics from the "
                "beginning"
            )
        raise DataLossError(
            f"{batch}: {self.place} has no fence of this query, but its checkpoint has passed "
            f"batch {self.first_batch}. If the output is new on this query, say "
            f"first_batch={batch.batch_id}. Otherwise the fence was lost (database emptied or "
            "replaced; Kafka drops the offsets of an idle group after offsets.retention.minutes): "
            f"restore it, or {self.rebuild}"
        )

    def _other_checkpoint(self, batch: Batch, fence: Fence) -> DataLossError:
        return DataLossError(
            f"{batch}: {self.place} has committed batch {fence.batch_id} from another checkpoint "
            f"({fence.checkpoint}, this one is {batch.checkpoint}): the checkpoint was deleted, or "
            "another query has the same name. The state of a query is part of its checkpoint, so "
            f"continuing would lose or repeat rows. Restore the checkpoint, or {self.rebuild}"
            f"{self._or()}"
        )

    def _or(self) -> str:
        if not self.remedy:
            return ""
        return f"; or, when what is there may be kept and the input begins behind it, {self.remedy}"
