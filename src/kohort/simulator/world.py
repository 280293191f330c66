"""A simulated world: everything in one run, and who takes part.

`Simulation` runs it; `checks` hears of every event. Everything random comes from the plan's seed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Protocol

from kohort.group.coordinator.state.topics_image import TopicImage, TopicsImage
from kohort.simulator.application import Application, ApplicationHooks
from kohort.simulator.cluster import SimCluster
from kohort.simulator.event_log import Journal
from kohort.simulator.group_log import GroupLog
from kohort.simulator.machine import Clock
from kohort.simulator.network import Network
from kohort.simulator.node import NodeHooks, SimNode
from kohort.simulator.observed_group import ObservedGroup
from kohort.simulator.plan import Plan
from kohort.simulator.schedule import Schedule
from kohort.simulator.scripted_members import Hand

RESTART_MS = 500


class WorldHooks(NodeHooks, ApplicationHooks, Protocol):
    """What hears of the world's events: the checks. See `Checks` for each."""

    def lost(self, log: GroupLog) -> None: ...
    def happens(self, text: str) -> None: ...
    def healed(self) -> None: ...
    def unowned(self) -> list[str]: ...


class World:
    """Everything in one run."""

    def __init__(self, plan: Plan, checks_of: Callable[[World], WorldHooks]) -> None:
        self.plan = plan
        self.settings = plan.settings
        self.schedule = Schedule(plan.seed)
        self.chance = self.schedule.split("world")
        self.journal = Journal(self.schedule)
        self.network = Network(self.schedule, self.journal)
        self.checks = checks_of(self)
        self.group = plan.consumers[0].group if plan.consumers else "g"
        self.apps: dict[str, Application] = {}
        self.all_apps: list[Application] = []
        self.hands: dict[str, Hand] = {}
        self.loading_held = False
        self.slow_disk_ms = 0
        self.healed_ms: int | None = None
        self.numbers = itertools.count(1)
        """Of requests, whichever node they come to: checks know them by it."""
        self.cluster = SimCluster(self, plan.group_partitions)
        self.observed = ObservedGroup(self.cluster, self.group, self.live, self.checks)
        """The group as its coordinator has it."""
        self._build()

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

    def heal(self) -> None:
        """Everything works again: held frames continue, dead nodes come back (not consumers)."""
        self.network.heal()
        self.network.latency_ms = (1, 5)
        self.slow_disk_ms = 0
        self.release_loading()
        for log in self.cluster.group_logs:
            log.file.failing_appends = 0
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
        app = self.apps.get(who)
        return app if app is not None and app.alive else None

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
        node = self.cluster.nodes.get(number)
        return node if node is not None and node.alive else None

    def revive(self, node: SimNode) -> None:
        """A dead node's process begins again."""
        if not node.alive:
            node.start()
            self.cluster.node_back(node.number)

    def release_loading(self) -> None:
        """Coordinators that could not get through loading do so now."""
        self.loading_held = False
        for node in self.cluster.nodes.values():
            if node.alive:
                node.groups.loading.release()

    def topics_changed(self) -> None:
        """Topics were created or have grown: notify every shard."""
        for node in self.cluster.nodes.values():
            if node.alive:
                node.groups.topics_changed()

    def topics_image(self) -> TopicsImage:
        """The cluster's topics."""
        ids = self.cluster.ids
        return TopicsImage.of(
            TopicImage(ids[name], name, len(logs)) for name, logs in self.cluster.topics.items()
        )
