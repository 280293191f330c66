"""Which batch runs, which is a replay, and which is refused (spec 6.3)."""

from __future__ import annotations

import pytest

from kohort.errors import DataLossError
from kohort.spark.outputs.fence import Batch, Fence, FencePolicy, Verdict

POLICY = FencePolicy("q", 0, "the database of t", "delete the row")


def decide(batch_id: int, fence: Fence | None, policy: FencePolicy = POLICY) -> Verdict:
    return policy.decide(Batch("q", batch_id, "c1"), fence)


def test_batches_run_in_order_and_the_last_one_may_come_again() -> None:
    assert decide(0, None) is Verdict.RUN
    assert decide(1, Fence(0, "c1")) is Verdict.RUN
    assert decide(0, Fence(0, "c1")) is Verdict.DONE
    assert decide(7, Fence(7, "c1")) is Verdict.DONE


@pytest.mark.parametrize(
    ("batch_id", "fence", "text"),
    [
        (0, Fence(5, "c0"), "the checkpoint was deleted.*rebuild.*delete the row"),
        (6, Fence(5, "c0"), "another query has the same name"),
        (0, Fence(0, "c0"), "committed batch 0 from another checkpoint"),
        (4, Fence(5, "c1"), "put back to an older state"),
        (7, Fence(5, "c1"), "batches up to 6 are missing there"),
        (3, None, "say first_batch=3.*or rebuild: start under another query name"),
    ],
)
def test_what_does_not_follow_is_refused_with_what_to_do(
    batch_id: int, fence: Fence | None, text: str
) -> None:
    with pytest.raises(DataLossError, match=text):
        decide(batch_id, fence)


def test_an_output_may_begin_with_a_later_batch() -> None:
    later = FencePolicy("q", 3, "the database of t", "delete the row")
    assert decide(3, None, later) is Verdict.RUN
    with pytest.raises(DataLossError, match="first_batch=0"):
        decide(0, None, later)


@pytest.mark.parametrize(
    ("batch_id", "fence", "text"),
    [
        (0, Fence(5, "c0"), "Restore the checkpoint, or rebuild the tables with a pipeline"),
        (4, Fence(5, "c1"), "Restore the newest checkpoint, or rebuild the tables with a pipeline"),
        (7, Fence(5, "c1"), "To continue, rebuild the tables with a pipeline of another name"),
        (3, None, "delete the checkpoint of the pipeline, too"),
    ],
)
def test_what_to_do_in_a_pipeline_is_not_what_only_a_query_can_do(
    batch_id: int, fence: Fence | None, text: str
) -> None:
    """Its steps are no queries of the user, and a step under another name would begin empty."""
    policy = FencePolicy("p.sums", 0, "the store of pipeline p", "", of_pipeline=True)
    with pytest.raises(DataLossError, match=text) as raised:
        decide(batch_id, fence, policy)
    assert "query name" not in str(raised.value)
    assert "first_batch" not in str(raised.value)
