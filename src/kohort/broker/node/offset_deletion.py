"""Deletes the committed offsets of deleted topics, durably, before their names may be used again.

Rules:
- A loaded shard writes tombstones. A shard that is loading, has no leader, or failed to append is
  asked again later.
- Until every shard has written them, no topic of that name is created: it would begin with the
  offsets of the deleted one. After a crash, each shard deletes the offsets of topics that do not
  exist when it has loaded (`GroupShard.loaded`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from kohort.broker.base.config import OFFSETS_TOPIC

if TYPE_CHECKING:
    from kohort.broker.base.env import Env
    from kohort.broker.coordinator.group_shard_host import GroupHost
    from kohort.broker.state.partition import Partition
    from kohort.broker.state.topics import Topics

AGAIN_MS = 200


class OffsetDeletion:
    """Deletes the offsets of `names` in every shard, then calls `done`."""

    def __init__(
        self,
        topics: Topics,
        env: Env,
        host_at: Callable[[Partition], GroupHost | None],
        names: list[str],
        done: Callable[[], None],
    ) -> None:
        self._topics = topics
        self._env = env
        self._host_at = host_at
        self._names = names
        self._done = done
        offsets = topics.get(OFFSETS_TOPIC)
        self._left = dict.fromkeys(offsets.partitions if offsets is not None else ())
        """The partitions whose shards still have to write tombstones."""

    def begin(self) -> None:
        """Ask every shard."""
        self._topics.marked_for_deletion.update(self._names)
        self._ask()

    def _ask(self) -> None:
        if self._left:
            for partition in list(self._left):
                if partition.log is None:  # nothing was ever committed there
                    self._left.pop(partition, None)
                    continue
                host = self._host_at(partition)
                if host is not None and host.loaded:
                    self._ask_one(partition, host)
        if self._left:
            self._env.call_at(self._env.now_ms() + AGAIN_MS, self._ask)
        elif self._names:
            self._topics.marked_for_deletion.difference_update(self._names)
            self._names = []
            self._done()

    def _ask_one(self, partition: Partition, host: GroupHost) -> None:
        host.topics_deleted(self._names)
        if host.loaded:  # else its append has failed
            host.when_durable(partial(self._deleted, partition))

    def _deleted(self, partition: Partition) -> None:
        self._left.pop(partition, None)
        if not self._left:
            self._env.call_soon(self._ask)
