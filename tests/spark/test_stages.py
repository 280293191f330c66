"""What the stages of a pipeline say before they start (spec 6.5)."""

from __future__ import annotations

from kohort.spark.stages import too_many_partitions


def test_sparks_200_partitions_on_a_few_cores_are_warned_of() -> None:
    """State cannot be spread anew later, so the first start is the time to say it."""
    warning = too_many_partitions("eras", 200, 2, "/c/stage-eras")
    assert "step eras keeps its state in 200 parts, for 2 cores" in warning
    assert "delete /c/stage-eras" in warning
    assert "--conf spark.sql.shuffle.partitions=2" in warning
    assert not too_many_partitions("eras", 200, 16, "/c/stage-eras")
    assert not too_many_partitions("eras", 2, 2, "/c/stage-eras")
