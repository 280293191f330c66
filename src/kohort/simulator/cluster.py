"""The simulated cluster: topics, leaders, and when each node learns of a change.

Rules:
- There is one truth (leaders, epochs) and every node learns of it after a while of its own; in
  between an old leader may still think that it leads, and can append nothing any more.
- Metadata answers tell the truth as of now; coordinator lookups tell what the asked node knows.
- A partition whose leader is dead has no leader until another node is elected, which takes a while.
"""

from __future__ import annotations

from typing import Protocol

from kohort.broker.state.leadership import NO_NODE
from kohort.errors import ErrorCode
from kohort.group.coordinator.state.routing import coordinator_partition
from kohort.simulator.group_host import WatchedHost
from kohort.simulator.group_log import DiskWorld, GroupLog
from kohort.simulator.logs import TopicLog
from kohort.simulator.node import PORT, SimNode, host_name
from kohort.simulator.reading import ReadingNode
from kohort.wire.messages.metadata_request import MetadataRequest
from kohort.wire.messages.metadata_response import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)


class ClusterWorld(DiskWorld, Protocol):
    """The world, as far as the cluster uses it."""

    def topics_changed(self) -> None: ...


class SimCluster:
    """Nodes, logs, and leaders."""

    def __init__(self, world: ClusterWorld, group_partitions: int) -> None:
        self.world = world
        self.chance = world.schedule.split("cluster")
        self.nodes: dict[int, SimNode] = {}
        self.topics: dict[str, list[TopicLog]] = {}
        self.names: dict[bytes, str] = {}
        self.ids: dict[str, bytes] = {}
        self.group_logs = [GroupLog(world, n) for n in range(group_partitions)]
        self.group_leaders = [NO_NODE] * group_partitions
        self._known: dict[int, list[int]] = {}
        """What each node takes for the leaders of `__consumer_offsets`."""
        self._known_epochs: dict[tuple[int, str], int] = {}
        """(node, topic partition) to the leader epoch that the node knows of."""

    # -- building --------------------------------------------------------------------------------

    def add_node(self, node: SimNode) -> None:
        """A node, from the beginning."""
        self.nodes[node.number] = node
        self._known[node.number] = [NO_NODE] * len(self.group_logs)

    def create(self, topic: str, partitions: int) -> None:
        """A new topic; its partitions are led by the nodes in turn."""
        topic_id = (len(self.ids) + 1).to_bytes(16, "big")
        self.ids[topic], self.names[topic_id] = topic_id, topic
        self.topics[topic] = []
        self.grow(topic, partitions)

    def grow(self, topic: str, partitions: int) -> None:
        """More partitions."""
        logs, alive = self.topics[topic], self.alive() or [min(self.nodes)]
        for number in range(len(logs), partitions):
            logs.append(TopicLog(topic, number, alive[number % len(alive)]))
        self.world.topics_changed()

    def topic_log(self, topic: str | None, partition: int) -> TopicLog | None:
        """One partition of a topic, if there is such a one."""
        logs = self.topics.get(topic or "")
        return logs[partition] if logs is not None and 0 <= partition < len(logs) else None

    def all_logs(self) -> list[TopicLog]:
        """Every partition of every topic."""
        return [log for name in sorted(self.topics) for log in self.topics[name]]

    def alive(self) -> list[int]:
        """The nodes whose processes run."""
        return [number for number, node in sorted(self.nodes.items()) if node.alive]

    # -- leaders of groups -----------------------------------------------------------------------

    def partition_of(self, group_id: str) -> int:
        """The partition of `__consumer_offsets` that a group lives in."""
        return coordinator_partition(group_id, len(self.group_logs))

    def coordinator(self, group_id: str) -> WatchedHost | None:
        """The host of the shard that is truly in charge of a group now, if its node lives."""
        partition = self.partition_of(group_id)
        node = self.nodes.get(self.group_leaders[partition])
        if node is None or not node.alive:
            return None
        host = node.groups.watched(partition)
        return host if host is not None and host.epoch == self.group_logs[partition].epoch else None

    def known_group_leader(self, asked: SimNode, partition: int) -> int | None:
        """Whom a node names as the coordinator; None when it knows none that lives."""
        leader = self._known[asked.number][partition]
        return leader if leader in self.nodes and self.nodes[leader].alive else None

    def elect(self, partition: int, node: int, *, at_once: bool = False) -> None:
        """A node leads a partition of `__consumer_offsets` from now on; all learn of it later."""
        log = self.group_logs[partition]
        log.lead(node)
        self.group_leaders[partition] = node
        for number in self.alive():
            most_ms = 0 if at_once else self.world.settings.news_ms
            delay_ms = self.chance.randint(0, most_ms)
            machine = self.nodes[number].machine
            args = (number, partition, node, log.epoch)
            self.world.schedule.after(delay_ms, machine.run, self._learns, args)

    def _learns(self, number: int, partition: int, leader: int, epoch: int) -> None:
        log, groups = self.group_logs[partition], self.nodes[number].groups
        if epoch == log.epoch:
            self._known[number][partition] = leader
        if leader != number:
            groups.resigned(log.partition)
        elif epoch == log.epoch:
            groups.elected(log.partition)

    # -- leaders of topics -----------------------------------------------------------------------

    def move(self, log: TopicLog, node: int) -> None:
        """Another node leads a partition of a topic."""
        old = log.leader
        log.lead(node)
        for number in (node, old):
            if number in self.nodes and self.nodes[number].alive:
                delay_ms = self.chance.randint(0, self.world.settings.news_ms)
                machine = self.nodes[number].machine
                args = (number, log, log.epoch)
                self.world.schedule.after(delay_ms, machine.run, self._hears, args)

    def _hears(self, number: int, log: TopicLog, epoch: int) -> None:
        key = number, log.name
        self._known_epochs[key] = max(self._known_epochs.get(key, 0), epoch)
        self.progressed(log)

    def leads(self, node: ReadingNode, log: TopicLog) -> bool:
        """Whether a node answers for a partition: it leads, and knows that it does."""
        known = self._known_epochs.get((node.number, log.name), 0)
        return log.leader == node.number and known >= log.epoch

    def progressed(self, log: TopicLog) -> None:
        """Fetches that wait for this partition look again."""
        for number in self.alive():
            node = self.nodes[number]
            for wait in list(node.waits.get(log.name, ())):
                node.machine.soon(wait.progressed)

    # -- nodes that come and go ------------------------------------------------------------------

    def node_gone(self, number: int) -> None:
        """After a while the others take over what a dead node led."""
        for partition, leader in enumerate(self.group_leaders):
            if leader == number:
                self.group_leaders[partition] = NO_NODE
        delay_ms = self.chance.randint(*self.world.settings.election_ms)
        self.world.schedule.after(delay_ms, self.elect_missing)

    def node_back(self, number: int) -> None:
        """A restarted node knows the present leaders, and may be elected where there is none."""
        self._known[number] = list(self.group_leaders)
        for log in self.all_logs():
            self._known_epochs[number, log.name] = log.epoch
        self.world.schedule.after(1, self.elect_missing)

    def elect_missing(self) -> None:
        """Every partition without a living leader gets one, if any node lives."""
        alive = self.alive()
        if not alive:
            return
        for partition, leader in enumerate(self.group_leaders):
            if leader not in alive:
                self.elect(partition, self.chance.choice(alive))
        for log in self.all_logs():
            if log.leader not in alive:
                self.move(log, self.chance.choice(alive))

    # -- metadata --------------------------------------------------------------------------------

    def metadata(self, request: MetadataRequest) -> MetadataResponse:
        """What a Metadata request is answered."""
        alive = self.alive()
        if request.topics is None:
            topics = [self._described(name, alive) for name in sorted(self.topics)]
        else:
            names = [t.name or self.names.get(bytes(t.topic_id), "") for t in request.topics]
            topics = [self._described(name, alive) for name in names]
        brokers = [
            MetadataResponseBroker(node_id=number, host=host_name(number), port=PORT)
            for number in alive
        ]
        return MetadataResponse(
            brokers=brokers, cluster_id="simulated", controller_id=alive[0], topics=topics
        )

    def _described(self, name: str, alive: list[int]) -> MetadataResponseTopic:
        logs = self.topics.get(name)
        if logs is None:
            code = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            return MetadataResponseTopic(error_code=code, name=name)
        everybody = sorted(self.nodes)
        return MetadataResponseTopic(
            name=name,
            topic_id=self.ids[name],
            partitions=[
                MetadataResponsePartition(
                    error_code=0 if log.leader in alive else int(ErrorCode.LEADER_NOT_AVAILABLE),
                    partition_index=log.partition,
                    leader_id=log.leader if log.leader in alive else NO_NODE,
                    leader_epoch=log.epoch,
                    replica_nodes=everybody,
                    isr_nodes=alive,
                )
                for log in logs
            ],
        )
