"""Three nodes under any order of deaths, moves, held loads and held flushes.

After every event: one shard for each partition of `__consumer_offsets`, on its leader, in its epoch
(G11); no epoch with two leaders (L11); ends never fall (L8). At the end: what was acknowledged is
there (G10).
"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from kohort.broker.base.config import OFFSETS_TOPIC
from kohort.broker.coordinator.group_shard_host import GroupHost
from kohort.broker.coordinator.shard_host import replay_batch
from kohort.errors import BrokerError, ErrorCode
from kohort.wire.messages.produce_response import ProduceResponse
from tests.broker.coordinator.test_shard_host import GROUP, Nodes
from tests.broker.harness import Answer, batch_of, produce_request
from tests.effort import examples

NODES = st.sampled_from([1, 2, 3])
NOTHING_COMMITTED = -1
EVENTS = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from(["kill", "stop", "restart", "lead", "coordinate", "produce"]), NODES
        ),
        st.tuples(
            st.sampled_from(["commit", "commit", "hold", "release", "flush", "later", "prefer"]),
            st.just(0),
        ),
    ),
    min_size=1,
    max_size=40,
)


class World(Nodes):
    """What was asked, what was acknowledged, and what must hold of it."""

    def __init__(self) -> None:
        super().__init__(durability="fsync", offsets_topic_num_partitions=2)
        self.holds = 0
        self.asked = 0
        self.acked = 0
        self.commits: list[tuple[int, Answer]] = []
        self.sent: list[tuple[bytes, Answer]] = []
        self.led: dict[tuple[str, int, int], int] = {}
        self.ends: dict[tuple[str, int], int] = {}
        self.nodes.coordinators.partition_of(GROUP)

    def act(self, what: str, node: int) -> None:
        nodes = self.nodes
        running = [n.node_id for n in nodes]
        try:
            match what:
                case "kill" if len(running) > 1:
                    nodes.kill(node)
                case "stop" if len(running) > 1:
                    nodes.stop(node)
                case "restart" if node not in running:
                    nodes.restart(node)
                case "lead":
                    nodes.leaders.move("t", 0, node)
                case "coordinate":
                    nodes.leaders.move_coordinator(GROUP, node)
                case "prefer":
                    nodes.leaders.elect_preferred()
                case "hold":
                    self.holds += 1
                    nodes.loading.hold()
                case "release" if self.holds:
                    self.holds -= 1
                    nodes.loading.release()
                case "flush":
                    self.env.hold_flushes = not self.env.hold_flushes
                    self.env.run_flushes()
                case "later":
                    self.env.advance(150)
                case "produce" if node in running:
                    value = b"%d" % len(self.sent)
                    request = produce_request("t", batch_of([value]))
                    self.sent.append((value, self.send(request, 11, node)))
                case "commit" if self.coordinator in running:
                    self.asked += 1
                    self.commits.append((self.asked, self.begin_commit(self.asked)))
                case _:
                    return
        except BrokerError as error:
            if error.code != ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE:
                raise
        self.env.settle()

    def check(self) -> None:
        for topic in self.state.topics:
            for p in topic.partitions:
                leader = self.led.setdefault((*p.key, p.leader_epoch), p.leader)
                assert leader == p.leader, "one leader in an epoch"
                led = self.state.leadership.at(*p.key)
                assert (led.leader, led.epoch) == (p.leader, p.leader_epoch)
                assert p.end_offset >= self.ends.get(p.key, 0)
                self.ends[p.key] = p.end_offset
        for index, hosts in self.hosts().items():
            partition = self.state.topics.get(OFFSETS_TOPIC).partitions[index]  # type: ignore[union-attr]
            assert [node for node, _ in hosts] == [partition.leader]
            assert hosts[0][1].epoch == partition.leader_epoch
        for offset, answer in self.commits:
            if answer.done and self.code(answer) == 0:
                self.acked = max(self.acked, offset)
        self.commits = [(o, a) for o, a in self.commits if not a.done]

    def hosts(self) -> dict[int, list[tuple[int, GroupHost]]]:
        found: dict[int, list[tuple[int, GroupHost]]] = {}
        for node in self.nodes:
            for host in node.groups.hosts():
                found.setdefault(host.partition.index, []).append((node.node_id, host))
        return found

    def settle_all(self) -> None:
        """Everybody is there, and nothing is held."""
        for _ in range(self.holds):
            self.nodes.loading.release()
        self.env.hold_flushes = False
        self.env.run_flushes()
        self.env.settle()
        self.env.advance(150)
        running = [node.node_id for node in self.nodes]
        for node in self.config.node_ids():
            if node not in running:
                self.nodes.restart(node)
        self.env.advance(1_500)
        self.check()

    def check_log(self) -> None:
        """What lives is what a replay of its log gives."""
        for hosts in self.hosts().values():
            host = hosts[0][1]
            again = host.new_shard()
            opened = host.partition.log
            for header, batch in opened.batches() if opened is not None else ():
                replay_batch(OFFSETS_TOPIC, again, header, batch)
            assert again.durable == host.shard.durable

    def check_records(self) -> None:
        leader = self.state.leadership.at("t", 0).leader
        self.nodes.leaders.move("t", 0, self.config.node_id)  # where the harness asks
        stored = [value for _, value in self.read_all("t")]
        assert len(stored) == len(set(stored))
        for value, answer in self.sent:
            if answer.frame is not None:
                produced = self.read(answer, ProduceResponse, 11).responses[0]
                if produced.partition_responses[0].error_code == 0:
                    assert value in stored
        assert leader in self.config.node_ids()


@settings(max_examples=examples(150), deadline=None)
@given(EVENTS)
def test_promises_hold_over_any_order_of_events(events: list[tuple[str, int]]) -> None:
    """G10, G11, L8, L11, and `live state == replay(log)`."""
    world = World()
    for what, node in events:
        world.act(what, node)
        world.check()
    world.settle_all()
    assert world.committed() >= (world.acked or NOTHING_COMMITTED)
    world.check_log()
    world.check_records()
