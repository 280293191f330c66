"""A node's part in one partition of `__consumer_offsets`: the shell around a `GroupShard`.

Rules:
- As DESIGN.md has it: append as one batch, replay, hold the replies until the log is flushed up to
  there; replies without records wait for the same mark. A failed append refuses all held replies,
  and the shard is loaded again.
- `lead` and `resign` name the leader epoch and may come in any order: an older epoch than the known
  one changes nothing (G11, B23).
- Loading takes its time; until then the shard answers as one that loads.
- The broker's own shell is `broker/coordinator/shard_host.py`: a change of decisions here needs a
  look there, too (ADR 0011).
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from kohort.errors import BrokerError, ErrorCode
from kohort.group.coordinator.handlers.error_responses import refusal_of
from kohort.group.coordinator.shard import GroupShard
from kohort.group.coordinator.state.effects import Effects, Reply, RequestContext
from kohort.group.coordinator.state.topics_image import TopicsImage
from kohort.simulator.event_log import Journal
from kohort.simulator.logs import GroupLog
from kohort.simulator.machine import WALL_MS, Machine
from kohort.simulator.network import Asked
from kohort.simulator.plan import Settings
from kohort.simulator.schedule import Handle, Random
from kohort.simulator.views import GroupLook, group_ids, look_at
from kohort.wire import Message

_RELOAD_MS = 1_000


class HostHooks(Protocol):
    """What hears of a shard's events: the checks."""

    def loaded(self, host: ShardHost) -> None:
        """A shard has replayed its log."""
        ...

    def arrived(self, host: ShardHost, asked: Asked) -> None:
        """A request reached a shard that answers."""
        ...

    def appended(self, host: ShardHost, first: int) -> None:
        """Records from `first` on are in the log and were replayed."""
        ...

    def answered(self, host: ShardHost, asked: Asked, response: Message) -> None:
        """A shard's answer leaves the node."""
        ...

    def ticked(self, host: ShardHost, before: dict[str, GroupLook]) -> None:
        """A shard's timers have fired."""
        ...


class HostWorld(Protocol):
    """The world, as far as a shard's host uses it."""

    @property
    def settings(self) -> Settings: ...
    @property
    def journal(self) -> Journal: ...
    @property
    def loading_held(self) -> bool: ...
    @property
    def slow_disk_ms(self) -> int: ...
    @property
    def checks(self) -> HostHooks: ...
    def new_id(self) -> str: ...
    def topics_image(self) -> TopicsImage: ...


class HostNode(Protocol):
    """The node of a shard's host."""

    machine: Machine
    number: int
    chance: Random

    @property
    def world(self) -> HostWorld: ...
    def answer(self, asked: Asked, response: Message) -> None: ...


class ShardHost:
    """One shard on one node."""

    def __init__(self, node: HostNode, log: GroupLog) -> None:
        self.node = node
        self.log = log
        self.epoch = -1
        self.shard: GroupShard | None = None
        self.loaded = False
        self.held: deque[tuple[int, list[Reply]]] = deque()
        self._timer: Handle | None = None
        self._timer_ms = -1
        self._flushing = False

    # -- leading ---------------------------------------------------------------------------------

    def lead(self, epoch: int) -> None:
        """This node leads the partition since `epoch`."""
        if epoch <= self.epoch:
            return
        self._drop()
        self.epoch = epoch
        self._begin_load()

    def resign(self, epoch: int) -> None:
        """Another node leads since `epoch`."""
        if epoch <= self.epoch:
            return
        self._drop()
        self.epoch = epoch

    def _begin_load(self) -> None:
        machine, settings = self.node.machine, self.node.world.settings
        self.shard = GroupShard(
            self.log.partition, settings.group_config, self.node.world.new_id, WALL_MS
        )
        self.loaded = False
        self.shard.topics_changed(self.node.world.topics_image(), machine.now_ms())
        if not self.node.world.loading_held:
            delay_ms = self.node.chance.randint(*settings.load_ms)
            machine.at(machine.now_ms() + delay_ms, self.load, self.shard)

    def load(self, shard: GroupShard | None) -> None:
        """Replay the log; from then on requests are answered."""
        if shard is None or shard is not self.shard or self.loaded:
            return
        for entry in self.log.entries:
            if entry.record is None:
                shard.replay_marker(entry.producer_id, entry.committed)
            else:
                shard.replay(entry.record, entry.offset, entry.producer_id)
        self.loaded = True
        self.node.world.checks.loaded(self)
        self._flush_soon()
        self.run(shard.loaded(self.node.machine.now_ms()))

    def _drop(self) -> None:
        """Send everybody who waits away."""
        shard, self.shard, self.loaded = self.shard, None, False
        self._cancel_timer()
        if shard is not None:
            for reply in shard.unload().replies:
                self._answer(reply)

    # -- events ----------------------------------------------------------------------------------

    def handle(self, asked: Asked, context: RequestContext) -> None:
        """Give the shard a request."""
        if self.shard is None:
            code = int(ErrorCode.NOT_COORDINATOR)
            self._answer(Reply(asked, refusal_of(asked.request, context, code)))
            return
        if self.loaded:
            self.node.world.checks.arrived(self, asked)
        self.run(self.shard.handle(asked.request, context, self.node.machine.now_ms()))

    def end_transaction(self, producer_id: int, *, committed: bool) -> None:
        """A transaction's marker: once it is in the log, it counts."""
        if self.shard is not None and self.loaded and self.epoch == self.log.epoch:
            at = self.log.append_marker(producer_id, committed)
            self.shard.replay_marker(producer_id, committed)
            self.node.world.checks.appended(self, at)
            self._flush_soon()

    def topics_changed(self, image: TopicsImage) -> None:
        """The cluster's topics are others now."""
        if self.shard is not None:
            self.run(self.shard.topics_changed(image, self.node.machine.now_ms()))

    def _tick(self) -> None:
        self._timer = None
        if self.shard is None or not self.loaded:
            return
        shard = self.shard
        before = {
            name: group for name in group_ids(shard) if (group := look_at(shard, name)) is not None
        }
        self.run(shard.tick(self.node.machine.now_ms()))
        if self.shard is shard:
            self.node.world.checks.ticked(self, before)

    # -- effects ---------------------------------------------------------------------------------

    def run(self, effects: Effects) -> None:
        """Append, replay, and answer when it is durable."""
        shard = self.shard
        assert shard is not None, "only a shard has effects"
        if effects.records:
            producer_id = effects.producer.producer_id if effects.producer else -1
            try:
                first = self.log.append(self.epoch, effects.records, producer_id)
            except BrokerError as error:
                self._start_again(shard, effects, error.code)
                return
            for at, record in enumerate(effects.records, first):
                shard.replay(record, at, producer_id)
            self.node.world.checks.appended(self, first)
            self._flush_soon()
        if effects.replies:
            self.held.append((self.log.end if self.loaded else 0, effects.replies))
            self._release()
        if self.loaded:
            self._arm(shard)

    def _start_again(self, shard: GroupShard, effects: Effects, code: int) -> None:
        """The append failed: refuse, drop the shard, load again a little later."""
        held = [reply for _, replies in self.held for reply in replies]
        self.held.clear()
        self.node.world.journal.tell(
            f"node {self.node.number} cannot append to partition {self.log.partition} of "
            f"__consumer_offsets ({ErrorCode.name_of(code)})"
        )
        for reply in shard.append_failed(Effects(replies=[*held, *effects.replies]), code):
            self._answer(reply)
        self._drop()
        machine, epoch = self.node.machine, self.epoch
        machine.at(machine.now_ms() + _RELOAD_MS, self._reload, epoch)

    def _reload(self, epoch: int) -> None:
        if self.shard is None and epoch == self.epoch:
            self._begin_load()

    # -- durability ------------------------------------------------------------------------------

    def _flush_soon(self) -> None:
        if self._flushing or self.log.flushed >= self.log.end:
            return
        self._flushing = True
        machine, world = self.node.machine, self.node.world
        delay_ms = self.node.chance.randint(*world.settings.flush_ms) + world.slow_disk_ms
        machine.at(machine.now_ms() + delay_ms, self._flushed, self.log.end, self.log.cuts)

    def _flushed(self, end: int, cuts: int) -> None:
        self._flushing = False
        if cuts == self.log.cuts:
            self.log.flushed = max(self.log.flushed, end)
        self._release()
        self._flush_soon()

    def _release(self) -> None:
        while self.held and self.held[0][0] <= self.log.flushed:
            for reply in self.held.popleft()[1]:
                self._answer(reply)

    def _answer(self, reply: Reply) -> None:
        asked = reply.token
        assert isinstance(asked, Asked), "tokens are ours"
        self.node.world.checks.answered(self, asked, reply.response)
        self.node.answer(asked, reply.response)

    # -- time ------------------------------------------------------------------------------------

    def _arm(self, shard: GroupShard) -> None:
        deadline = shard.next_deadline()
        if self._timer is not None and deadline == self._timer_ms:
            return
        self._cancel_timer()
        if deadline is not None:
            self._timer_ms = deadline
            self._timer = self.node.machine.at(deadline, self._tick)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
