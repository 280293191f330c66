"""Which node leads which partition, in which leader epoch: a table, events in, changes out.

Rules:
- A partition's leader is the first of its replicas that lives, until it is moved; -1 when
  none does. Every change of leader, also to -1, raises the epoch by one (KIP-101), so that no
  two nodes ever lead a partition in one epoch (spec L11).
- Replicas are nodes that may lead: the nodes share their logs. Without an assignment of its own a
  partition may be led by every node, and topics begin at different nodes, so that leaders spread.
- A node that comes back leads partitions without a leader; the rest stays where it is until
  `prefer` or `move`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple
from zlib import crc32

from kohort.errors import BrokerError, ErrorCode

NO_NODE = -1


class Led(NamedTuple):
    """Who leads a partition, since which epoch, and who may, the preferred one first."""

    leader: int
    epoch: int
    replicas: tuple[int, ...]


class Change(NamedTuple):
    """A partition has another leader."""

    topic: str
    partition: int
    leader: int
    epoch: int
    before: int


class Leadership:
    """The table of one cluster, whose nodes are fixed."""

    def __init__(self, nodes: Sequence[int]) -> None:
        self.nodes = tuple(nodes)
        self.alive = set(nodes)
        """The nodes that count as alive: one that died does until that is noticed."""
        self._topics: dict[str, list[Led]] = {}
        self._made: dict[Led, Led] = {}
        """Partitions that are led alike share one object."""

    # -- what is known

    def of(self, topic: str) -> Sequence[Led]:
        """The partitions of a topic."""
        return self._topics[topic]

    def at(self, topic: str, partition: int) -> Led:
        """One partition."""
        return self._topics[topic][partition]

    def unlike_new(self, topic: str) -> dict[int, tuple[int, int]]:
        """`(leader, epoch)` of the partitions that are not led as a new topic's."""
        return {
            index: (led.leader, led.epoch)
            for index, led in enumerate(self._topics[topic])
            if led.epoch or led.leader != led.replicas[0]
        }

    # -- topics

    def replicas(self, topic: str, partition: int, count: int = 0) -> tuple[int, ...]:
        """The replicas that a partition gets; `count` 0: every node."""
        nodes, replica_count = self.nodes, count or len(self.nodes)
        first = (crc32(topic.encode()) + partition) % len(nodes)
        rest = nodes[first + 1 :] + nodes[:first]
        shift = partition // len(nodes) % len(rest) if rest else 0
        return (nodes[first], *rest[shift:], *rest[:shift])[:replica_count]

    def add(
        self,
        topic: str,
        count: int,
        assigned: Sequence[Sequence[int]] = (),
        kept: Mapping[int, tuple[int, int]] | None = None,
    ) -> None:
        """A topic is there: a new one, or one of a data directory with what it `kept`."""
        self._topics[topic] = []
        self.grow(topic, count, assigned)
        for index, (leader, epoch) in (kept or {}).items():
            if index < count:
                self._keep(topic, index, leader, epoch)

    def _keep(self, topic: str, index: int, leader: int, epoch: int) -> None:
        led = self._topics[topic][index]
        if leader in self.alive and leader in led.replicas:
            self._set(topic, index, leader, epoch)
        else:
            self._set(topic, index, led.leader, epoch + 1)

    def grow(self, topic: str, count: int, assigned: Sequence[Sequence[int]] = ()) -> None:
        """A topic has `count` partitions now; `assigned` names the replicas of all of them."""
        table = self._topics[topic]
        for index in range(len(table), count):
            requested = assigned[index] if index < len(assigned) else ()
            known = tuple(n for n in requested if n in self.nodes)
            replicas = known or self.replicas(topic, index)
            table.append(self._shared(Led(self._first_alive(replicas), 0, replicas)))

    def shrink(self, topic: str, count: int) -> None:
        """Growing a topic was taken back."""
        del self._topics[topic][count:]

    def remove(self, topic: str) -> None:
        """A topic is gone."""
        del self._topics[topic]

    def raise_epochs(self) -> None:
        """The nodes are other ones than before: no partition keeps an epoch of their time."""
        for topic, table in self._topics.items():
            for index, led in enumerate(table):
                self._set(topic, index, led.leader, led.epoch + 1)

    def recovered(self, topic: str, partition: int, epoch: int) -> None:
        """A log was recovered after a crash, which began a new epoch with the same leader."""
        led = self.at(topic, partition)
        if epoch > led.epoch:
            self._set(topic, partition, led.leader, epoch)

    # -- nodes

    def failed(self, node: int) -> list[Change]:
        """A node is gone, and that is noticed: its partitions get other leaders."""
        self.alive.discard(node)
        return [
            self._lead(topic, index, self._first_alive(led.replicas))
            for topic, index, led in self._each()
            if led.leader == node
        ]

    def returned(self, node: int) -> list[Change]:
        """A node is there again: it leads partitions without a leader."""
        self.alive.add(node)
        return [
            self._lead(topic, index, node)
            for topic, index, led in self._each()
            if led.leader == NO_NODE and node in led.replicas
        ]

    def prefer(self, partitions: Iterable[tuple[str, int]] | None = None) -> list[Change]:
        """Partitions (None: all) go back to their preferred leader, where that one lives."""
        chosen = None if partitions is None else set(partitions)
        return [
            self._lead(topic, index, led.replicas[0])
            for topic, index, led in self._each()
            if (chosen is None or (topic, index) in chosen)
            and led.leader != led.replicas[0]
            and led.replicas[0] in self.alive
        ]

    def move(self, topic: str, partition: int, to: int | None = None) -> Change:
        """Give a partition to a node (None: the next of its replicas that lives).

        To the node that leads it already is a change too: it begins a new epoch. Raises BrokerError
        when there is no such partition, or the node may not lead it.
        """
        table = self._topics.get(topic, [])
        if not 0 <= partition < len(table):
            raise BrokerError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no {topic}-{partition}"
            )
        led = table[partition]
        if to is None:
            at = led.replicas.index(led.leader) + 1 if led.leader in led.replicas else 0
            ring = led.replicas[at:] + led.replicas[:at]
            to = self._first_alive(ring)
        if to not in self.alive or to not in led.replicas:
            raise BrokerError(
                ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
                f"node {to} cannot lead {topic}-{partition}: its replicas are "
                f"{list(led.replicas)}, alive are {sorted(self.alive)}",
            )
        return self._lead(topic, partition, to)

    def place(self, topic: str, partition: int, replicas: Sequence[int]) -> Change | None:
        """Other nodes may lead a partition. The leader stays where it can; else: the change."""
        led = self.at(topic, partition)
        placed = self._shared(Led(led.leader, led.epoch, tuple(replicas)))
        self._topics[topic][partition] = placed
        if led.leader in placed.replicas:
            return None
        return self._lead(topic, partition, self._first_alive(placed.replicas))

    def put_back(self, topic: str, partition: int, led: Led) -> None:
        """A placement could not be kept."""
        self._topics[topic][partition] = led

    # -- the table

    def _each(self) -> list[tuple[str, int, Led]]:
        return [(t, i, led) for t, table in self._topics.items() for i, led in enumerate(table)]

    def _first_alive(self, replicas: Sequence[int]) -> int:
        return next((node for node in replicas if node in self.alive), NO_NODE)

    def _lead(self, topic: str, index: int, leader: int) -> Change:
        before = self._topics[topic][index]
        self._set(topic, index, leader, before.epoch + 1)
        return Change(topic, index, leader, before.epoch + 1, before.leader)

    def _set(self, topic: str, index: int, leader: int, epoch: int) -> None:
        replicas = self._topics[topic][index].replicas
        self._topics[topic][index] = self._shared(Led(leader, epoch, replicas))

    def _shared(self, led: Led) -> Led:
        if len(self._made) > 10_000:
            self._made.clear()
        return self._made.setdefault(led, led)
