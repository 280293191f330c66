"""Checks of consumers: C1-C6, C10, CL1 on what applications are handed, G1 on what they hold.

Rules: the truth is what the topic's log has and what the application saw. Where reading begins is
known too: at a committed offset that held around the assignment, at a seek, or at the offset of the
reset policy, which an event reports (C8): the log's start or its end, when nothing was committed or
the log has deleted the record at the position.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kohort.client.common.types import TopicPartition
from kohort.client.consumer.plan.commit_queue import GIVEN_UP
from kohort.errors import CommitFailedError
from kohort.records import Record
from kohort.simulator.checks.violation import demand
from kohort.simulator.views import look_at
from kohort.wire.messages.offset_commit_request import OffsetCommitRequest

if TYPE_CHECKING:
    from kohort.client.consumer.plan.positions import OffsetReset
    from kohort.errors import KohortError
    from kohort.simulator.application import Application, CommitCallback
    from kohort.simulator.checks.offsets import OffsetChecks
    from kohort.simulator.logs import TopicLog
    from kohort.simulator.world import World

POLL_SLACK_MS = 50
EARLIEST, LATEST = "earliest", "latest"


@dataclass
class Owned:
    """One partition as one application has it."""

    since_ms: int
    expect: int | None = None
    """The offset that must be handed out next; None before the first."""
    handed: int = -1
    """Last offset handed out + 1."""
    settled: int = -1
    """`handed` as of the last poll (automatic commits) or commit (the application's own)."""
    committed: int = -1
    """The last offset that the coordinator took from this owner."""
    paused: bool = False
    end: int = 0
    """Where the log ended when the ownership began."""
    passed: int = 0
    """What the reset policy has passed over."""


@dataclass
class Seen:
    """What one application has seen."""

    owned: dict[TopicPartition, Owned] = field(default_factory=dict[TopicPartition, Owned])
    past: dict[TopicPartition, Owned] = field(default_factory=dict[TopicPartition, Owned])
    """The last ownership of partitions that were given up: commits of theirs may be under way."""
    began_ms: int = 0
    woken: bool = False
    """Its last poll that returned nothing was ended by `wakeup()` (C9)."""
    losses: int = 0
    """How often it lost its partitions with its generation."""
    resets: int = 0
    """How many moves of its positions, made by nobody, were looked at."""


def c1_is_owned(who: str, tp: TopicPartition, owned: Owned | None) -> Owned:
    """C1: records are handed out between assigned and revoked only."""
    demand(owned is not None, "C1", f"{who} is handed records of {tp}, which it does not own")
    assert owned is not None
    return owned


def c2_no_gap(who: str, tp: TopicPartition, expect: int, offset: int, *, woken: bool) -> None:
    """C2, C3: offsets follow one another, nothing is left out, nothing comes again.

    C9: not even after a poll that was ended by `wakeup()`, at any statement.
    """
    fault = "skips to" if offset > expect else "goes back to"
    code, when = ("C9", " after a wakeup") if woken else ("C2", "")
    demand(offset == expect, code, f"{who} {fault} {offset} in {tp}{when}; {expect} comes next")


def c4_commits_what_was_dealt_with(who: str, tp: TopicPartition, offset: int, most: int) -> None:
    """C4: a commit covers what was handed out and, when automatic, come back from; no more."""
    demand(
        offset <= most,
        "C4",
        f"{who} commits {offset} in {tp}; it has dealt with what is below {most}",
    )


def c6_exact_difference(
    who: str, what: str, reported: set[TopicPartition], have: set[TopicPartition]
) -> None:
    """C6: added partitions were not held, revoked ones were."""
    if what == "assigned":
        demand(
            not reported & have, "C6", f"{who} is assigned {sorted(reported & have)}, which it has"
        )
    else:
        demand(
            reported <= have, "C6", f"{who} gives up {sorted(reported - have)}, which it has not"
        )


def c8_confirmed(who: str, event: OffsetReset, log: TopicLog) -> None:
    """C8: a position is moved where nothing is committed, or its record was deleted; never else."""
    demand(
        event.from_offset < log.start or event.from_offset < 0,
        "C8",
        f"{who} moves in {event.partition} from {event.from_offset} to {event.to_offset}, and the "
        f"log begins at {log.start}: {event.cause}",
    )


def c8_as_configured(who: str, event: OffsetReset, policy: str, log: TopicLog, end: int) -> None:
    """C8: to the log's start, or to its end, as it was when a node was asked."""
    least, most = (0, log.start) if policy == EARLIEST else (end, log.end)
    demand(
        max(least, event.from_offset) <= event.to_offset <= most,
        "C8",
        f"{who} moves in {event.partition} from {event.from_offset} to {event.to_offset}; with "
        f"{policy!r} it is from {least} to {most}",
    )


def c10_paused_is_silent(who: str, tp: TopicPartition, owned: Owned) -> None:
    """C10: a paused partition hands nothing out, over rebalances that leave it where it is, too."""
    demand(not owned.paused, "C10", f"{who} is handed records of {tp}, which it has paused")


def c15_sent_first(who: str, error: KohortError | None) -> None:
    """C15: what a listener commits is sent before its partitions are given up."""
    too_late = isinstance(error, CommitFailedError) and GIVEN_UP in str(error)
    demand(not too_late, "C15", f"{who} has committed in on_revoked: {error}")


def cl1_poll_returns(who: str, took_ms: int, most_ms: int) -> None:
    """CL1: a poll takes the time it was given, and what its listener takes."""
    demand(took_ms <= most_ms, "CL1", f"a poll of {who} took {took_ms} ms; it had {most_ms} ms")


class ConsumerChecks:
    """What applications have seen."""

    def __init__(self, world: World, offsets: OffsetChecks) -> None:
        self._world = world
        self._offsets = offsets
        self._seen: dict[int, Seen] = {}
        self._moved = False
        self.read: dict[tuple[str, TopicPartition], int] = {}
        """By group and partition: one more than the highest offset that was handed out."""

    def _of(self, app: Application) -> Seen:
        return self._seen.setdefault(app.incarnation, Seen())

    def _log(self, tp: TopicPartition) -> TopicLog:
        log = self._world.cluster.topic_log(*tp)
        assert log is not None, "only existing partitions are read"
        return log

    # -- polling ---------------------------------------------------------------------------------

    def polls(self, app: Application) -> None:
        """A poll begins."""
        self._of(app).began_ms = self._world.schedule.now_ms

    def woken(self, app: Application) -> None:
        """A poll was ended by `wakeup()`."""
        self._of(app).woken = True

    def dealt_with(self, app: Application) -> list[tuple[TopicPartition, int]]:
        """How far an application has dealt with each partition that it owns and has read."""
        owned = self._of(app).owned
        return [(tp, owned[tp].settled) for tp in sorted(owned) if owned[tp].settled > 0]

    def comes_back(self, app: Application) -> None:
        """The records returned before this call are handled (C4)."""
        if app.plan.commit == "auto":
            self.commits(app)

    def commits(self, app: Application) -> CommitCallback:
        """The application commits the records it got, in its listener for the last time.

        Returns the callback of a commit in `on_revoked`, for C15.
        """
        seen, asked_ms = self._of(app), app.machine.now_ms()
        losses, longest_ms = seen.losses, self._world.settings.call_ms
        for owned in (*seen.owned.values(), *seen.past.values()):
            owned.settled = max(owned.settled, owned.handed)

        def answered(offsets: object, error: KohortError | None) -> None:
            del offsets
            if seen.losses == losses and app.machine.now_ms() - asked_ms < longest_ms:
                c15_sent_first(app.name, error)

        return answered

    def polled(self, app: Application, records: Sequence[Record], took_ms: int) -> None:
        """C1, C2, C3, CL1 on what a poll returned."""
        seen, times = self._of(app), self._world.settings
        if app.machine.stalled_until_ms < seen.began_ms:
            most_ms = app.plan.poll_ms + (2 * times.call_ms if app.plan.fence else 0)
            cl1_poll_returns(app.name, took_ms, most_ms + POLL_SLACK_MS)
        self._resets(app, seen)
        spans: dict[TopicPartition, list[int]] = {}
        for record in records:
            tp = TopicPartition(record.topic, record.partition)
            owned = c1_is_owned(app.name, tp, seen.owned.get(tp))
            c10_paused_is_silent(app.name, tp, owned)
            log = self._log(tp)
            if owned.expect is None:
                self._begins(app, tp, owned, record.offset)
            else:
                expect = log.next_visible(owned.expect)
                c2_no_gap(app.name, tp, expect, record.offset, woken=seen.woken)
            owned.expect = owned.handed = record.offset + 1
            key = app.plan.group, tp
            self.read[key] = max(self.read.get(key, 0), record.offset + 1)
            spans.setdefault(tp, [record.offset, 0])[1] = record.offset
        seen.woken = seen.woken and not records
        for tp, (first, last) in spans.items():
            self._world.journal.tell(f"{app.name} is handed {tp} {first}..{last}")

    def _resets(self, app: Application, seen: Seen) -> None:
        """C8 on what the reset policy has done since it was looked at last."""
        events = app.consumer.resets()
        for event in events[seen.resets :]:
            tp, log = event.partition, self._log(event.partition)
            owned = seen.owned.get(tp) or seen.past.get(tp)
            c8_confirmed(app.name, event, log)
            c8_as_configured(
                app.name, event, app.plan.reset, log, 0 if owned is None else owned.end
            )
            if owned is None:
                continue
            if event.from_offset < 0:
                self._nothing_committed(app, tp, owned, event)
            owned.expect, owned.passed = event.to_offset, max(owned.passed, event.to_offset)
            if app.plan.reset == LATEST:  # it chose to skip those records
                key = app.plan.group, tp
                self.read[key] = max(self.read.get(key, 0), event.to_offset)
        seen.resets = len(events)

    def _held(self, app: Application, tp: TopicPartition, owned: Owned) -> set[int | None]:
        """The committed offsets that it may have got."""
        news_ms = self._world.settings.news_ms + 4 * self._world.settings.flush_ms[1]
        return self._offsets.in_effect((app.plan.group, tp), owned.since_ms - news_ms)

    def _nothing_committed(
        self, app: Application, tp: TopicPartition, owned: Owned, event: OffsetReset
    ) -> None:
        held = self._held(app, tp, owned)
        demand(
            None in held,
            "C8",
            f"{app.name} begins to read {tp} by its reset policy; the group is at {held}",
        )
        self._excuse(app, tp, event.to_offset)

    def _excuse(self, app: Application, tp: TopicPartition, offset: int) -> None:
        """Somebody has committed more meanwhile: commits may go back (O3)."""
        latest = self._offsets.history.get((app.plan.group, tp))
        if latest and latest[-1].offset is not None and offset < latest[-1].offset:
            self._offsets.excused.add(tp)

    def _begins(self, app: Application, tp: TopicPartition, owned: Owned, offset: int) -> None:
        """C2: the first record is at the group's offset."""
        log = self._log(tp)
        held = self._held(app, tp, owned)
        starts = {log.next_visible(at) for at in held if at is not None}
        demand(
            offset in starts,
            "C2",
            f"{app.name} begins to read {tp} at {offset}; the group is at {sorted(starts)}",
        )
        self._excuse(app, tp, offset)

    def sought(self, app: Application, tp: TopicPartition, offset: int) -> None:
        """The application has moved its position."""
        key = app.plan.group, tp
        self.read[key] = max(self.read.get(key, 0), offset)  # it chose to skip those records
        owned = self._of(app).owned.get(tp)
        if owned is not None:
            owned.expect, owned.handed = offset, offset
            owned.settled = max(owned.settled, offset)
            owned.committed = -1
            self._offsets.excused.add(tp)

    def paused(self, app: Application, tp: TopicPartition, paused: bool) -> None:
        """The application has paused or resumed what it owns."""
        owned = self._of(app).owned.get(tp)
        if owned is not None:
            owned.paused = paused

    # -- rebalances ------------------------------------------------------------------------------

    def assigned(self, app: Application, partitions: Sequence[TopicPartition]) -> None:
        """C6, and the beginning of an ownership."""
        seen = self._of(app)
        self._resets(app, seen)
        c6_exact_difference(app.name, "assigned", set(partitions), set(seen.owned))
        for tp in partitions:
            seen.owned[tp] = Owned(self._world.schedule.now_ms, end=self._log(tp).end)
            seen.past.pop(tp, None)
        held = set(app.consumer.assignment())
        demand(
            held == set(seen.owned),
            "C6",
            f"{app.name} was notified of {sorted(seen.owned)} and holds {sorted(held)}",
        )
        if partitions:
            names = ", ".join(str(tp) for tp in sorted(partitions))
            self._world.journal.tell(f"{app.name} is assigned {names}")

    def revoked(
        self, app: Application, partitions: Sequence[TopicPartition], *, lost: bool
    ) -> None:
        """C6, and the end of an ownership."""
        seen = self._of(app)
        self._resets(app, seen)
        c6_exact_difference(app.name, "revoked", set(partitions), set(seen.owned))
        for tp in partitions:
            seen.past[tp] = seen.owned.pop(tp)
        names = ", ".join(str(tp) for tp in sorted(partitions))
        self._world.journal.tell(f"{app.name} {'has lost' if lost else 'gives up'} {names}")
        seen.losses += lost
        self._moved = True

    def gone(self, app: Application) -> None:
        """A process has ended."""
        self._seen.pop(app.incarnation, None)
        self._moved = True

    # -- commits ---------------------------------------------------------------------------------

    def commit_arrived(self, app: Application, request: OffsetCommitRequest) -> None:
        """C4 on a commit as it reaches the coordinator; C5: in the order of issue."""
        seen = self._of(app)
        self._resets(app, seen)
        for topic in request.topics:
            for part in topic.partitions:
                tp = TopicPartition(topic.name, part.partition_index)
                owned = seen.owned.get(tp) or seen.past.get(tp)
                if owned is None:
                    continue
                offset = part.committed_offset
                held = self._offsets.in_effect((app.plan.group, tp), owned.since_ms)
                dealt_with = [0 if at is None else at for at in held] + [
                    owned.settled,
                    owned.passed,
                ]
                log = self._log(tp)
                most = max(log.next_visible(max(0, at)) for at in dealt_with)
                c4_commits_what_was_dealt_with(app.name, tp, offset, most)
                demand(  # what was made before a seek may still come after it
                    offset >= owned.committed or tp in self._offsets.excused,
                    "C5",
                    f"{app.name} commits {offset} in {tp} after {owned.committed}",
                )
                owned.committed = offset

    # -- after every event -----------------------------------------------------------------------

    def after_event(self, *, moved: bool) -> None:
        """G1: nobody whom the coordinator counts in holds what another one holds."""
        if not moved and not self._moved:
            return
        self._moved = False
        groups = sorted({app.plan.group for app in self._world.all_apps})
        for group_id in groups:
            self._g1_one_owner(group_id)

    def _g1_one_owner(self, group_id: str) -> None:
        host = self._world.cluster.coordinator(group_id)
        if host is None or not host.loaded:
            return
        group = look_at(host.shard, group_id)
        if group is None:
            return
        holder: dict[TopicPartition, str] = {}
        for app in self._world.all_apps:
            session = app.consumer.core.session
            member = None if session is None else session.member
            if not app.alive or app.plan.group != group_id or member is None:
                continue
            known = group.members.get(member.member_id or "")
            if member.generation < 0 or known is None:
                continue
            fenced = member.generation not in known.epochs
            if fenced and (group.consumer or app.plan.instance is not None):
                # Kafka keeps a static member that misses a rebalance; its generation fences it.
                continue
            for tp in app.consumer.core.positions.partitions:
                other = holder.setdefault(tp, app.name)
                demand(
                    other == app.name,
                    "G1",
                    f"{tp} is held by {other} and by {app.name}, both members of {group_id}",
                )
