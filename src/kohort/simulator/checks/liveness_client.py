"""Checks of consumers as processes: C11 (closing), C12 (heartbeats), CL2 and GL3 at the end.

Rules:
- C12 is looked at while nothing goes wrong: before the first step that is more than an application
  that is slow, seeks or commits, and after the last fault. What the network or a stalled machine
  holds up is no fault of the client's.
- CL2 and GL3 are promises for after the last fault; a member that must go gets its time. A commit
  of an application's own may be refused in a rebalance: it has the error, and has to repeat the
  commit. Automatic commits must succeed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kohort.client.common.types import TopicPartition
from kohort.client.consumer.plan.commit_queue import Identity
from kohort.simulator.checks.violation import demand
from kohort.simulator.views import GroupLook
from kohort.wire import Message
from kohort.wire.messages.consumer_group_heartbeat_request import ConsumerGroupHeartbeatRequest
from kohort.wire.messages.heartbeat_request import HeartbeatRequest
from kohort.wire.messages.leave_group_request import LeaveGroupRequest

if TYPE_CHECKING:
    from kohort.simulator.application import Application
    from kohort.simulator.checks.consumer import ConsumerChecks
    from kohort.simulator.checks.offsets import OffsetChecks
    from kohort.simulator.world import World

CLOSE_SLACK_MS = 200
BEAT_SLACK_MS = 100
LATE_MS = 10_000
"""The last fault may delay a frame for this long."""
_DRIFT = 1.05
_LEFT_FOR_GOOD = -1
_HARMLESS = frozenset(
    {"nothing", "start", "write", "slow", "seek", "pause", "resume", "commit", "wake"}
)
SLOW_WORLD = "slow the "
"""How the steps begin that slow the network or the disk, not an application."""


class Beat(NamedTuple):
    """A heartbeat as its coordinator got it."""

    at_ms: int
    member_id: str
    epoch: int


def c11_close_is_bounded(who: str, took_ms: int, most_ms: int) -> None:
    """C11: closing takes no longer than it was given."""
    demand(took_ms <= most_ms, "C11", f"{who} closed in {took_ms} ms; it had {most_ms} ms")


def c11_static_members_stay(who: str, request: Message) -> None:
    """C11: a static member does not leave; under KIP-848 it says that it may be back."""
    leaves = isinstance(request, LeaveGroupRequest) or (
        isinstance(request, ConsumerGroupHeartbeatRequest)
        and request.member_epoch == _LEFT_FOR_GOOD
    )
    demand(not leaves, "C11", f"{who}, a static member, leaves permanently")


def c12_heartbeats_go_on(who: str, gap_ms: int, most_ms: float) -> None:
    """C12: heartbeats come in time, whatever the application does."""
    demand(
        gap_ms <= most_ms,
        "C12",
        f"{who} was silent for {gap_ms} ms in a stable group and a sound world; at most "
        f"{most_ms:.0f} ms is right",
    )


def cl2_is_committed(who: str, tp: TopicPartition, committed: int | None, handed: int) -> None:
    """CL2: handled records are committed, even if the coordinator has failed meanwhile."""
    demand(
        committed is not None and committed >= handed,
        "CL2",
        f"{who} has dealt with {tp} up to {handed} long after the last fault; committed is "
        f"{committed}",
    )


def gl3_the_dead_are_gone(group: GroupLook | None, living: set[str], after_ms: int) -> None:
    """GL3: a dead member is gone within its session timeout."""
    strangers = sorted(set(group.members) - living) if group is not None else []
    demand(
        not strangers,
        "GL3",
        f"{strangers} are members {after_ms} ms after the last fault; no process is behind them",
    )


class LifeChecks:
    """What is known of the consumers' processes."""

    def __init__(self, world: World, consumer: ConsumerChecks, offsets: OffsetChecks) -> None:
        self._world = world
        self._consumer = consumer
        self._offsets = offsets
        self._beats: dict[int, Beat] = {}
        self._disturbed = False
        self._calm_from_ms = 0
        self._dealt_with: dict[int, list[tuple[TopicPartition, int]]] = {}
        self._identities: dict[int, Identity | None] = {}

    def happens(self, text: str) -> None:
        """A step of the plan is carried out."""
        if text.split()[0] not in _HARMLESS or text.startswith(SLOW_WORLD):
            self._disturbed = True

    def healed(self) -> None:
        """Nothing goes wrong any more."""
        self._disturbed = False
        self._calm_from_ms = self._world.schedule.now_ms + LATE_MS
        self._beats.clear()

    def closed(self, app: Application, took_ms: int) -> None:
        """C11 on a consumer that was closed; `took_ms` by its own clock."""
        if app.machine.stalled_until_ms < self._world.schedule.now_ms - took_ms:
            call_ms = self._world.settings.call_ms
            listener_ms = call_ms if app.plan.fence else 0  # it commits in its own time
            most_ms = call_ms + listener_ms + CLOSE_SLACK_MS
            c11_close_is_bounded(app.name, took_ms, most_ms)

    def asked(self, app: Application, request: Message, group: GroupLook | None) -> None:
        """C11, C12 on a request that reached its coordinator."""
        if app.plan.instance is not None:
            c11_static_members_stay(app.name, request)
        if not isinstance(request, HeartbeatRequest | ConsumerGroupHeartbeatRequest):
            self._beats.pop(app.incarnation, None)
            return
        epoch = (
            request.generation_id if isinstance(request, HeartbeatRequest) else request.member_epoch
        )
        steady = group is not None and group.state == "stable" and epoch == group.epoch
        last = self._beats.pop(app.incarnation, None)
        if self._disturbed or not steady or self._world.schedule.now_ms < self._calm_from_ms:
            return
        now_ms, times = self._world.schedule.now_ms, self._world.settings
        if last is not None and last[1:] == (request.member_id, epoch):
            most_ms = max(times.session_ms / 3, times.heartbeat_ms) * _DRIFT + BEAT_SLACK_MS
            c12_heartbeats_go_on(app.name, now_ms - last.at_ms, most_ms)
        self._beats[app.incarnation] = Beat(now_ms, request.member_id, epoch)

    # -- at the end ------------------------------------------------------------------------------

    def grace_ms(self) -> int:
        """Dead members may remain, and a commit be in flight, this long after the last read."""
        times = self._world.settings
        return int(max(times.session_ms, times.auto_commit_ms + times.request_ms) * _DRIFT) + 500

    def rest(self) -> None:
        """Remember what is dealt with now: some may still read on, and commit that later."""
        self._dealt_with = {
            app.incarnation: self._consumer.dealt_with(app) for app in self._world.live()
        }
        self._identities = self._identified()

    def moved_on(self) -> bool:
        """Whether somebody has another membership than at rest: it reads again what it had."""
        return self._identities != self._identified()

    def _identified(self) -> dict[int, Identity | None]:
        return {
            app.incarnation: None if (s := app.consumer.core.session) is None else s.identity
            for app in self._world.live()
        }

    def uncommitted(self) -> list[tuple[str, TopicPartition, int | None, int]]:
        """Records that applications have handled and not committed, without having got an error."""
        missing: list[tuple[str, TopicPartition, int | None, int]] = []
        for app in self._world.live():
            must_commit = app.plan.commit == "sync" and not app.commit_failed
            if app.plan.commit != "auto" and not must_commit:
                continue
            for tp, handed in self._dealt_with.get(app.incarnation, ()):
                past = self._offsets.history.get((app.plan.group, tp))
                committed = past[-1].offset if past else None
                if committed is None or committed < handed:
                    missing.append((app.name, tp, committed, handed))
        return missing

    def living(self) -> set[str]:
        """The ids of members that a living process, or a hand, is behind."""
        ids = {hand.member_id for hand in self._world.hands.values()}
        for app in self._world.live():
            session = app.consumer.core.session
            if session is not None and session.member is not None:
                ids.add(session.member.member_id or "")
        return ids

    def strangers(self) -> bool:
        """Whether the group has members that nobody is behind."""
        group = self._world.observed.look()
        return group is not None and not set(group.members) <= self.living()

    def at_the_end(self) -> None:
        """CL2, GL3."""
        for one in self.uncommitted():
            cl2_is_committed(*one)
        after_ms = self._world.schedule.now_ms - (self._world.healed_ms or 0)
        gl3_the_dead_are_gone(self._world.observed.look(), self.living(), after_ms)
