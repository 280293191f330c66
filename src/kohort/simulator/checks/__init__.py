"""The invariants (docs/invariants.md) as checks on a simulated world.

Rules:
- A check is a small function that is named by its code; it raises `Violation` and changes nothing.
- Checks see events as they happen (an append, an answer, a poll) and look at state after every
  event in which something has moved. What they know they have from outside: logs, frames, and what
  applications were handed; never from the code that they judge.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kohort.client.common.types import TopicPartition
from kohort.records import Record
from kohort.simulator.checks.consumer import ConsumerChecks
from kohort.simulator.checks.coordinator import CoordinatorChecks
from kohort.simulator.checks.fetches import FetchChecks
from kohort.simulator.checks.liveness import Liveness
from kohort.simulator.checks.liveness_client import LifeChecks
from kohort.simulator.checks.offsets import OffsetChecks
from kohort.simulator.checks.reads import ReadChecks
from kohort.simulator.checks.violation import Violation
from kohort.simulator.views import GroupLook, look_at
from kohort.wire import Message
from kohort.wire.messages.offset_commit_request import OffsetCommitRequest
from kohort.wire.messages.offset_fetch_request import OffsetFetchRequest
from kohort.wire.messages.offset_fetch_response import OffsetFetchResponse

if TYPE_CHECKING:
    from kohort.simulator.application import Application, CommitCallback
    from kohort.simulator.group_host import WatchedHost
    from kohort.simulator.group_log import GroupLog
    from kohort.simulator.network import Asked
    from kohort.simulator.world import World

__all__ = ["Checks", "Violation"]


class Checks:
    """All checks of one world, and where its events go."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.offsets = OffsetChecks(world)
        self.coordinator = CoordinatorChecks(world)
        self.consumer = ConsumerChecks(world, self.offsets)
        self.lives = LifeChecks(world, self.consumer, self.offsets)
        self.reads = ReadChecks(world, self.offsets)
        self.fetches = FetchChecks(world)
        self.liveness = Liveness(world, self.consumer)

    # -- coordinators ----------------------------------------------------------------------------

    def loaded(self, host: WatchedHost) -> None:
        """A shard has replayed its log and begins to answer."""
        self.coordinator.loaded(host)
        self.offsets.loaded(host)

    def arrived(self, host: WatchedHost, asked: Asked) -> None:
        """A request reached a shard that answers."""
        self.coordinator.arrived(host, asked)
        request, machine = asked.request, asked.channel.sender
        if isinstance(request, OffsetFetchRequest):
            self.reads.arrived(asked, request)
        app = next((each for each in self._world.all_apps if each.machine is machine), None)
        if app is None or not app.alive:
            return
        self.lives.asked(app, request, look_at(host.shard, app.plan.group))
        if isinstance(request, OffsetCommitRequest) and self.coordinator.takes(host, request):
            self.consumer.commit_arrived(app, request)

    def appended(self, host: WatchedHost, first: int) -> None:
        """A shard's records from `first` on are in the log and were replayed."""
        self.coordinator.appended(host, first)
        self.offsets.appended(host, first)

    def answered(self, host: WatchedHost, asked: Asked, response: Message) -> None:
        """A shard's answer leaves the node."""
        self.coordinator.answered(host, asked, response)
        self.offsets.answered(host, asked, response)
        if isinstance(response, OffsetFetchResponse):
            self.reads.answered(asked, response)

    def ticked(self, host: WatchedHost, before: dict[str, GroupLook]) -> None:
        """A shard's timers have fired; `before` has each group as it was until then."""
        self.coordinator.ticked(host, before)

    def lost(self, log: GroupLog) -> None:
        """A log has lost its end."""
        self.coordinator.lost(log)
        self.offsets.lost(log)

    # -- consumers -------------------------------------------------------------------------------

    def comes_back(self, app: Application) -> None:
        """An application makes its next call: it has handled the records of the last one."""
        self.consumer.comes_back(app)

    def polls(self, app: Application) -> None:
        """An application begins to poll."""
        self.consumer.polls(app)

    def polled(self, app: Application, records: Sequence[Record], took_ms: int) -> None:
        """A poll has returned."""
        self.consumer.polled(app, records, took_ms)

    def commits(self, app: Application) -> CommitCallback:
        """An application commits all that it was handed. See `ConsumerChecks.commits`."""
        return self.consumer.commits(app)

    def assigned(self, app: Application, partitions: Sequence[TopicPartition]) -> None:
        """A listener hears of new partitions."""
        self.consumer.assigned(app, partitions)

    def revoked(
        self, app: Application, partitions: Sequence[TopicPartition], *, lost: bool
    ) -> None:
        """A listener hears that partitions are given up, or gone."""
        self.consumer.revoked(app, partitions, lost=lost)

    def sought(self, app: Application, tp: TopicPartition, offset: int) -> None:
        """An application has moved its position."""
        self.consumer.sought(app, tp, offset)

    def paused(self, app: Application, tp: TopicPartition, paused: bool) -> None:
        """An application has paused or resumed a partition."""
        self.consumer.paused(app, tp, paused)

    def woken(self, app: Application) -> None:
        """A poll was ended by `wakeup()`."""
        self.consumer.woken(app)

    def closed(self, app: Application, took_ms: int) -> None:
        """An application has closed its consumer."""
        self.lives.closed(app, took_ms)

    def gone(self, app: Application) -> None:
        """A process has ended, or has closed its consumer."""
        self.consumer.gone(app)

    # -- the plan --------------------------------------------------------------------------------

    def happens(self, text: str) -> None:
        """A step of the plan is carried out."""
        self.lives.happens(text)

    def healed(self) -> None:
        """The last fault is over."""
        self.lives.healed()

    def unowned(self) -> list[str]:
        """Partitions that should have exactly one owner, and have not."""
        return self.liveness.unowned()

    # -- always ----------------------------------------------------------------------------------

    def after_event(self) -> None:
        """After every event of the world."""
        self.coordinator.after_event()
        self.consumer.after_event(moved=self.coordinator.take_moved())

    def at_the_end(self) -> None:
        """When the world has come to rest."""
        self.coordinator.at_the_end()
        self.lives.at_the_end()
