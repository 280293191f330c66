"""What a consumer tells about rebalances (spec 4.8)."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence

from kohort.client.common.types import TopicPartition


class RebalanceListener:
    """Override what you need. Called inside `poll`, `unsubscribe` or `close`, on their thread.

    With `AsyncConsumer` the methods may be coroutine functions. They are never called while records
    are being handed out, and never two at a time. An exception is raised from the call in which the
    listener ran, after the rebalance step has been finished.
    """

    def on_partitions_revoked(self, partitions: Sequence[TopicPartition]) -> Awaitable[None] | None:
        """These are about to be given up; positions are still in place: the last chance to commit.

        Called before ownership ends, and only when there is something to give up.
        """

    def on_partitions_assigned(
        self, partitions: Sequence[TopicPartition]
    ) -> Awaitable[None] | None:
        """These are new; no record of them has been handed out yet: the place to seek.

        Called at the end of every rebalance; `partitions` may be empty.
        """

    def on_partitions_lost(self, partitions: Sequence[TopicPartition]) -> Awaitable[None] | None:
        """These are gone already and may have another owner: do not commit. Calls revoked."""
        return self.on_partitions_revoked(partitions)
