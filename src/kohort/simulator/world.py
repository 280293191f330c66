"""A simulated world: one plan, carried out until it is over, checked after every event.

Rules:
- Everything random comes from the plan's seed; equal plans give equal journals, byte for byte.
- After the last step the world is mended (`heal`) and left in peace; then liveness is judged.
- The first broken invariant ends the run. So does an error that comes out of the real code.
"""

from __future__ import annotations

import itertools
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from kohort.client.common.types import TopicPartition
from kohort.group.coordinator.state.topics_image import TopicImage, TopicsImage
from kohort.simulator.caller import Application
from kohort.simulator.checks import Checks, Violation
from kohort.simulator.cluster import NOBODY, SimCluster
from kohort.simulator.conditions import EXPECTATIONS
from kohort.simulator.event_log import Journal, Line
from kohort.simulator.machine import Clock
from kohort.simulator.network import Network
from kohort.simulator.node import SimNode
from kohort.simulator.plan import Plan
from kohort.simulator.schedule import Schedule
from kohort.simulator.script import Script
from kohort.simulator.scripted_members import Hand
from kohort.simulator.views import GroupLook, look_at

if TYPE_CHECKING:
    from kohort.group.coordinator.state.classic_records import StoredGroup

RESTART_MS = 500
MAX_EVENTS = 600_000
"""A small world that has not come to its end by then runs in circles."""


class Outcome(NamedTuple):
    """What became of a run."""

    plan: Plan
    code: str | None
    """The broken invariant; None when all held."""
    what: str
    digest: str
    events: int
    at_ms: int
    story: list[Line]
    read: int
    """Records that consumers were handed."""
    generations: int

    @property
    def failed(self) -> bool:
        """Whether something was broken."""
        return self.code is not None


class World:
    """Everything in one run."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.settings = plan.settings
        self.schedule = Schedule(plan.seed)
        self.chance = self.schedule.split("world")
        self.journal = Journal(self.schedule)
        self.network = Network(self.schedule, self.journal)
        self.checks = Checks(self)
        self.group = plan.consumers[0].group if plan.consumers else "g"
        self.apps: dict[str, Application] = {}
        self.all_apps: list[Application] = []
        self.hands: dict[str, Hand] = {}
        self.loading_held = False
        self.slow_disk_ms = 0
        self.healed_ms: int | None = None
        self.numbers = itertools.count(1)
        """Of requests, whichever node they come to: checks know them by it."""
        self._ids = 0
        self.cluster = SimCluster(self, plan.group_partitions)
        self._build()
        self.script = Script(self, plan.steps)

    def _build(self) -> None:
        for number in range(1, self.plan.nodes + 1):
            speeds = self.plan.node_permille
            permille = speeds[number - 1] if number <= len(speeds) else 1_000
            clock = Clock(self.chance.randint(0, 100_000), permille)
            node = SimNode(self, number, clock)
            self.network.nodes[number] = node
            self.cluster.add_node(node)
        for topic, partitions in sorted(self.plan.topics.items()):
            self.cluster.create(topic, partitions)
        for partition in range(len(self.cluster.group_logs)):
            self.cluster.elect(partition, partition % self.plan.nodes + 1, at_once=True)
        self.last_leader = list(self.cluster.group_leaders)

    # -- running ---------------------------------------------------------------------------------

    def run(self) -> Outcome:
        """Until the end, or until something is broken."""
        try:
            self._until(lambda: self.script.over)
            if self.script.missed is not None:
                raise Violation("STORY", f"this never came: {self.script.missed}")
            self.heal()
            self._in_peace()
            self._expected()
        except Violation as violation:
            return self._outcome(violation.code, str(violation))
        except Exception as error:  # whatever the real code raises in its loop is a finding
            lines = traceback.format_exception(error)
            self.journal.tell(f"{type(error).__name__}: {error}")
            return self._outcome("CRASH", "".join(lines))
        return self._outcome(None, "")

    def _until(self, over: Callable[[], bool]) -> None:
        while not over():
            if not self.schedule.step():
                return
            self._after_event()

    def _after_event(self) -> None:
        self.checks.after_event()
        if not self.script.over:
            self.script.look()
        if self.schedule.events > MAX_EVENTS:
            raise Violation("GL4", f"{MAX_EVENTS} events and no end: it runs in circles")

    def _run_until(self, when_ms: int) -> None:
        while (due := self.schedule.next_ms) is not None and due <= when_ms:
            self.schedule.step()
            self._after_event()
        self.schedule.run_until(when_ms)

    def _in_peace(self) -> None:
        """Liveness: settled within the bound, then what is new is read by everybody."""
        bound_ms = self.plan.peace_ms or self.checks.liveness.bound_ms()
        begin_ms = self.schedule.now_ms
        while not self.is_settled() and self.schedule.now_ms < begin_ms + bound_ms:
            self._run_until(self.schedule.now_ms + 500)
        self.checks.liveness.settled()
        # Who is still at its slow work has not come to read yet; that is no promise broken.
        busy_ms = max([app.busy_until_ms for app in self.live()], default=0)
        self._run_until(max(busy_ms, self.schedule.now_ms))
        for log in self.cluster.all_logs():
            log.append(1, self.schedule.now_ms)
            self.cluster.progressed(log)
        self._until_read()
        self.checks.liveness.everything_read()
        self._run_until(self.schedule.now_ms + 2 * self.settings.heartbeat_ms)
        self._grace()
        self.checks.at_the_end()

    def _grace(self) -> None:
        """Until everything is committed and the dead are gone, or until they must be."""
        lives = self.checks.lives
        lives.rest()
        end_ms = self.schedule.now_ms + lives.grace_ms()
        while self.schedule.now_ms < end_ms and (lives.uncommitted() or lives.strangers()):
            self._run_until(self.schedule.now_ms + 500)
            if lives.moved_on():  # it was thrown out before, and hears of it only now
                self._until_read()
                lives.rest()
                end_ms = self.schedule.now_ms + lives.grace_ms()

    def _until_read(self) -> None:
        """Until every record was handed out, or none was for as long as one may take."""
        read, since_ms = -1, self.schedule.now_ms
        while not self.checks.liveness.all_read():
            now_ms, so_far = self.schedule.now_ms, sum(app.read for app in self.all_apps)
            if so_far > read:
                read, since_ms = so_far, now_ms
            if now_ms > since_ms + self.checks.liveness.read_bound_ms():
                return
            self._run_until(now_ms + 500)

    def _expected(self) -> None:
        for text in self.plan.expect:
            sentence = EXPECTATIONS.parse(text)
            if not sentence.call(self, *sentence.args):
                raise Violation("STORY", f"expected at the end: {text}")

    def _outcome(self, code: str | None, what: str) -> Outcome:
        read = sum(app.read for app in self.all_apps)
        return Outcome(
            self.plan, code, what, self.journal.digest, self.schedule.events,
            self.schedule.now_ms, self.journal.story, read, self.generation(),
        )  # fmt: skip

    def heal(self) -> None:
        """Everything works again: what is held goes on, what is dead comes back (not consumers)."""
        self.network.heal()
        self.network.latency_ms = (1, 5)
        self.slow_disk_ms = 0
        self.release_loading()
        for log in self.cluster.group_logs:
            log.refuse_appends = 0
        for node in self.cluster.nodes.values():
            self.revive(node)
        for app in self.apps.values():
            app.slow_until_ms = min(app.slow_until_ms, self.schedule.now_ms + 1_000)
            for partition in sorted(app.consumer.paused()):
                app.wish("resume", partition)
        self.healed_ms = self.schedule.now_ms
        self.checks.healed()
        self.journal.tell("*** from here on nothing goes wrong any more")

    # -- who takes part --------------------------------------------------------------------------

    def start(self, who: str, *, beside: bool = False) -> None:
        """A process for a consumer of the plan, unless it runs already."""
        plan = next((each for each in self.plan.consumers if each.name == who), None)
        running = self.apps.get(who)
        if plan is None or (running is not None and running.alive and not beside):
            return
        if running is not None and not running.machine.dead and not running.alive:
            running.die()
        self.apps[who] = app = Application(self, plan, len(self.all_apps))
        self.all_apps.append(app)

    def hand(self, name: str) -> Hand:
        """A member that is driven by hand; made when it is first named."""
        return self.hands.setdefault(name, Hand(self, name))

    def refused(self, app: Application) -> None:
        """Its instance id is another's: a twin ends, a successor is started again until it is in.

        (KIP-848 refuses a static member while the one before it may still come back.)
        """
        self.journal.tell(f"{app.name} is refused: its instance id is not released yet")
        other = next((a for a in self.all_apps if a.name == app.name and a.alive), None)
        if other is not None:
            self.apps[app.name] = other
        else:
            self.schedule.after(RESTART_MS, self.start, app.name)

    def app(self, who: str) -> Application | None:
        """A consumer's living process."""
        found = self.apps.get(who)
        return found if found is not None and found.alive else None

    def live(self) -> list[Application]:
        """Every living process that subscribes to something, or is about to."""
        return [
            app
            for app in self.all_apps
            if app.alive and (not app.begun or app.consumer.core.subscription.by_group)
        ]

    def node(self, number: int | None) -> SimNode | None:
        """A living node by number; None: the coordinator of the group."""
        if number is None:
            number = self.cluster.group_leaders[self.cluster.partition_of(self.group)]
        found = self.cluster.nodes.get(number)
        return found if found is not None and found.alive else None

    def revive(self, node: SimNode) -> None:
        """A dead node's process begins again."""
        if not node.alive:
            node.start()
            self.cluster.node_back(node.number)

    def remember_leaders(self) -> None:
        """For those who ask later whom a dead node led."""
        for partition, leader in enumerate(self.cluster.group_leaders):
            if leader != NOBODY:
                self.last_leader[partition] = leader

    def release_loading(self) -> None:
        """Coordinators that could not get through loading do so now."""
        self.loading_held = False
        for node in self.cluster.nodes.values():
            if node.alive:
                for host in node.hosts.values():
                    node.machine.soon(host.load, host.shard)

    def new_id(self) -> str:
        """A member id's unique part."""
        self._ids += 1
        return f"id{self._ids}"

    def topics_changed(self) -> None:
        """Topics were made or have grown: every shard is told."""
        image = self.topics_image()
        for node in self.cluster.nodes.values():
            if node.alive:
                for host in node.hosts.values():
                    host.topics_changed(image)

    def topics_image(self) -> TopicsImage:
        """The cluster's topics."""
        ids = self.cluster.ids
        return TopicsImage.of(
            TopicImage(ids[name], name, len(logs)) for name, logs in self.cluster.topics.items()
        )

    # -- what conditions and checks ask ----------------------------------------------------------

    def stored_group(self) -> StoredGroup | None:
        """The classic group as the coordinator in charge has it in its log."""
        host = self.cluster.coordinator(self.group)
        if host is None or host.shard is None or not host.loaded:
            return None
        return host.shard.durable.groups.get(self.group)

    def look(self) -> GroupLook | None:
        """The group as the coordinator in charge has it."""
        host = self.cluster.coordinator(self.group)
        if host is None or host.shard is None or not host.loaded:
            return None
        return look_at(host.shard, self.group)

    def generation(self) -> int:
        """The group's generation or epoch, -1 without a group or coordinator."""
        group = self.look()
        return -1 if group is None else group.epoch

    def group_state(self) -> str | None:
        """The coordinator's state of the group, as one word."""
        group = self.look()
        return None if group is None else group.state

    def committed(self, tp: TopicPartition) -> int | None:
        """The group's committed offset, as the coordinator in charge has it."""
        host = self.cluster.coordinator(self.group)
        if host is None or host.shard is None:
            return None
        found = host.shard.durable.offsets.get(self.group, {}).get((tp.topic, tp.partition))
        return None if found is None else found.offset

    def is_settled(self) -> bool:
        """Everybody alive is a stable member of one stable group, with nothing left to do."""
        live = self.live()
        if not live:
            return self.group_state() in {None, "empty", "dead"}
        if self.group_state() != "stable":
            return False
        for app in live:
            session = app.consumer.core.session
            member = None if session is None else session.member
            if member is None or member.state.name != "STABLE" or app.consumer.core.steps:
                return False
            if member.generation != self.generation():
                return False
        return not self.checks.liveness.unowned()
