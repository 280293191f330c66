"""Committed offsets of deleted topics: gone, durably, before a name may be used again.

Rules:
- A shard that is loaded writes tombstones. One that is loading, or has no leader, is asked again
  when it is there; so is one whose append failed, which has the offsets again from its log.
- Until every shard has forgotten them, a topic of that name is not created: it would begin with
  offsets of the one before it. A process that dies meanwhile finds the name missing at its start,
  and each shard forgets what it cannot name when it has loaded (`GroupShard.loaded`).
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


class Forgetting:
    """One deletion; `done` is called when it has come to its end."""

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
        """The partitions whose shards have not forgotten the topics yet."""

    def begin(self) -> None:
        """Ask every shard."""
        self._topics.forgetting.update(self._names)
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
            self._topics.forgetting.difference_update(self._names)
            self._names = []
            self._done()

    def _ask_one(self, partition: Partition, host: GroupHost) -> None:
        host.topics_deleted(self._names)
        if host.loaded:  # else its append has failed
            host.when_durable(partial(self._forgotten, partition))

    def _forgotten(self, partition: Partition) -> None:
        self._left.pop(partition, None)
        if not self._left:
            self._env.call_soon(self._ask)
