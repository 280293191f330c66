"""What can be done to a simulated world: one function a sentence.

Rules: an action on something that is not there (a dead consumer, the last living node) does
nothing, so that a plan stays a plan when parts of it are taken out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kohort.broker.state.leadership import NO_NODE
from kohort.client.common.types import TopicPartition
from kohort.simulator.grammar import Grammar
from kohort.simulator.network import ANSWER, REQUEST, FrameRule

if TYPE_CHECKING:
    from kohort.simulator.node import SimNode
    from kohort.simulator.world import World

ACTIONS: Grammar[Callable[..., None]] = Grammar("action")
_does = ACTIONS.means


@_does("nothing")
def nothing(world: World) -> None:
    """Does nothing; the step is its condition."""
    del world


# -- consumers -----------------------------------------------------------------------------------


@_does("start {who}")
def start(world: World, who: str) -> None:
    """A consumer's process starts (again)."""
    world.start(who)


@_does("crash {who}")
def crash(world: World, who: str) -> None:
    """Its process dies; no LeaveGroup is sent."""
    app = world.app(who)
    if app is not None:
        app.die()


@_does("restart {who}")
def restart(world: World, who: str) -> None:
    """Its process dies, and a new one starts in its place."""
    crash(world, who)
    world.start(who)


@_does("start a twin of {who}")
def twin(world: World, who: str) -> None:
    """A second process with the same configuration starts; the first one continues."""
    world.start(who, beside=True)


@_does("close {who}")
def close(world: World, who: str) -> None:
    """Its application closes it after the current poll."""
    _wish(world, who, "close")


@_does("stall {who} for {ms} ms")
def stall(world: World, who: str, ms: int) -> None:
    """The whole process is frozen (a pause of the machine, SIGSTOP)."""
    app = world.app(who)
    if app is not None:
        app.machine.stall(ms)


@_does("slow {who} for {ms} ms")
def slow(world: World, who: str, ms: int) -> None:
    """Its application waits this long before it polls again; its network continues."""
    app = world.app(who)
    if app is not None:
        app.be_slow(ms)


@_does("wake {who}")
def wake(world: World, who: str) -> None:
    """Another thread calls its `wakeup()`."""
    app = world.app(who)
    if app is not None:
        app.machine.soon(app.consumer.wakeup)


@_does("seek {who} to {n} in {tp}")
def seek(world: World, who: str, offset: int, tp: TopicPartition) -> None:
    """Its application seeks, if it owns the partition; at most to the partition's end."""
    _wish(world, who, "seek", tp, offset)


@_does("pause {who} in {tp}")
def pause(world: World, who: str, tp: TopicPartition) -> None:
    """Its application pauses a partition, if it owns it."""
    _wish(world, who, "pause", tp)


@_does("resume {who} in {tp}")
def resume(world: World, who: str, tp: TopicPartition) -> None:
    """Its application resumes a partition."""
    _wish(world, who, "resume", tp)


@_does("commit {who}")
def commit(world: World, who: str) -> None:
    """Its application commits its positions and waits for the answer."""
    _wish(world, who, "commit")


@_does("unsubscribe {who}")
def unsubscribe(world: World, who: str) -> None:
    """Its application unsubscribes."""
    _wish(world, who, "unsubscribe")


@_does("subscribe {who} to {topics}")
def subscribe(world: World, who: str, topics: tuple[str, ...]) -> None:
    """Its application subscribes to these topics instead."""
    _wish(world, who, "subscribe", topics)


def _wish(world: World, who: str, *what: Any) -> None:
    app = world.app(who)
    if app is not None:
        app.wish(*what)


@_does("remove {who} from the group")
def remove(world: World, who: str) -> None:
    """An operator removes its member (LeaveGroup in its name, epoch -1) without notice to it."""
    app = world.app(who)
    session = None if app is None else app.consumer.core.session
    if session is not None and session.member is not None and session.member.member_id:
        world.hand("an administrator").leave(session.member.member_id)


# -- members driven by hand ----------------------------------------------------------------------


@_does("{who} joins by hand")
def hand_joins(world: World, who: str) -> None:
    """A scripted member, without a consumer, sends JoinGroup, with its member id if it has one."""
    world.hand(who).join(anew=False)


@_does("{who} joins by hand as new")
def hand_joins_anew(world: World, who: str) -> None:
    """The same without a member id, as a client sends that has lost it."""
    world.hand(who).join(anew=True)


@_does("{who} joins by hand owning {tps} since generation {n}")
def hand_claims(world: World, who: str, tps: tuple[TopicPartition, ...], since: int) -> None:
    """The same; its subscription claims these partitions since that generation."""
    world.hand(who).join(anew=False, owned=tps, since=since)


@_does("{who} syncs by hand")
def hand_syncs(world: World, who: str) -> None:
    """It sends SyncGroup; as leader it sends an empty assignment."""
    world.hand(who).sync()


@_does("{who} heartbeats by hand")
def hand_heartbeats(world: World, who: str) -> None:
    """It sends one Heartbeat."""
    world.hand(who).heartbeat()


@_does("{who} heartbeats by hand every {ms} ms")
def hand_keeps_heartbeating(world: World, who: str, ms: int) -> None:
    """It sends heartbeats until the faults end, whatever the answers are."""
    world.hand(who).heartbeat_every(ms)


@_does("{who} leaves by hand")
def hand_leaves(world: World, who: str) -> None:
    """It sends LeaveGroup and stops its heartbeats."""
    world.hand(who).heartbeat_every(None)
    world.hand(who).leave()


@_does("{who} commits {n} in {tp} by hand")
def hand_commits(world: World, who: str, offset: int, tp: TopicPartition) -> None:
    """It sends OffsetCommit in its last known generation, or -1 if it has none."""
    world.hand(who).commit(tp, offset)


@_does("{who} commits {n} in {tp} by hand with an instance id")
def hand_commits_static(world: World, who: str, offset: int, tp: TopicPartition) -> None:
    """The same with an instance id of its own, as a static consumer sends that uses assign()."""
    world.hand(who).commit(tp, offset, f"i-{who}")


@_does("{who} stages {n} in {tp} by hand")
def hand_stages(world: World, who: str, offset: int, tp: TopicPartition) -> None:
    """It sends TxnOffsetCommit as a producer of its own, with its member id if it has one."""
    world.hand(who).stage(tp, offset)


@_does("{who} commits its transaction by hand")
def hand_commits_transaction(world: World, who: str) -> None:
    """The commit marker is written to the group's log: its staged offsets count."""
    world.hand(who).end_transaction(committed=True)


@_does("{who} aborts its transaction by hand")
def hand_aborts_transaction(world: World, who: str) -> None:
    """The abort marker is written to the group's log: its staged offsets are dropped."""
    world.hand(who).end_transaction(committed=False)


# -- the network ---------------------------------------------------------------------------------


@_does("cut {who}")
def cut(world: World, who: str) -> None:
    """All its connections break."""
    world.network.cut(who, None, world.chance)


@_does("cut {who} from {node}")
def cut_from(world: World, who: str, node: int | None) -> None:
    """Its connections to one node break."""
    target = world.node(node)
    if target is not None:
        world.network.cut(who, target.number, world.chance)


@_does("block {who} from {node} for {ms} ms")
def block(world: World, who: str, node: int | None, ms: int) -> None:
    """No frame passes between them for this long."""
    target = world.node(node)
    if target is not None:
        world.network.block(who, target.number, ms)


@_does("slow the network to {ms} ms")
def slow_network(world: World, ms: int) -> None:
    """Every frame may take up to this long."""
    world.network.latency_ms = (1, max(1, ms))


@_does("lose the {nth} {api} of {who}")
def lose_request(world: World, nth: int, api: str, who: str) -> None:
    """The request never arrives; its connection breaks."""
    _rule(world, FrameRule("drop", REQUEST, api, who, nth))


@_does("lose the answer to the {nth} {api} of {who}")
def lose_answer(world: World, nth: int, api: str, who: str) -> None:
    """The node executes the request, and the answer is lost; its connection breaks."""
    _rule(world, FrameRule("drop", ANSWER, api, who, nth))


@_does("delay the {nth} {api} of {who} by {ms} ms")
def delay_request(world: World, nth: int, api: str, who: str, ms: int) -> None:
    """The request arrives late, and so do those behind it on its connection."""
    _rule(world, FrameRule("delay", REQUEST, api, who, nth, ms))


@_does("delay the answer to the {nth} {api} of {who} by {ms} ms")
def delay_answer(world: World, nth: int, api: str, who: str, ms: int) -> None:
    """The answer arrives late, and so do those behind it on its connection."""
    _rule(world, FrameRule("delay", ANSWER, api, who, nth, ms))


@_does("repeat the {nth} {api} of {who} after {ms} ms")
def repeat(world: World, nth: int, api: str, who: str, ms: int) -> None:
    """The node gets the request twice; the second answer is dropped."""
    _rule(world, FrameRule("repeat", REQUEST, api, who, nth, ms))


@_does("hold answers to {api} of {who}")
def hold(world: World, api: str, who: str) -> None:
    """These answers, and those behind them on their connections, wait for `let go`."""
    _rule(world, FrameRule("hold", ANSWER, api, who, 1))


@_does("let go")
def let_go(world: World) -> None:
    """The answers that were held arrive."""
    world.network.let_go()


def _rule(world: World, rule: FrameRule) -> None:
    world.network.rules.append(rule)


# -- nodes ---------------------------------------------------------------------------------------


@_does("kill {node}")
def kill(world: World, node: int | None) -> None:
    """Its process dies; appended records stay."""
    _kill(world, world.node(node), silent=False)


@_does("kill {node} silently")
def kill_silently(world: World, node: int | None) -> None:
    """Its process dies, and its connections stay open: clients notice it by their time-outs."""
    _kill(world, world.node(node), silent=True)


@_does("cut the power of {node}")
def power(world: World, node: int | None) -> None:
    """It dies, and unflushed records of the logs that it led may be lost."""
    target = world.node(node)
    if target is None or len(world.cluster.alive()) < 1:
        return
    _kill(world, target, silent=True)
    for partition, log in enumerate(world.cluster.group_logs):
        if world.last_leader[partition] != target.number:
            continue
        lost = log.lose(world.chance)
        for other in world.cluster.nodes.values():
            if other.alive:
                other.groups.lost_end(log.partition)
        if lost:
            world.journal.tell(f"{lost} records of __consumer_offsets-{partition} are lost")
        world.checks.lost(log)


def _kill(world: World, node: SimNode | None, *, silent: bool) -> None:
    if node is None or not node.alive:
        return
    for partition, leader in enumerate(world.cluster.group_leaders):
        if leader != NO_NODE:  # `power` asks after the node has died
            world.last_leader[partition] = leader
    node.die()
    world.network.node_dies(node.number, silent=silent)
    world.cluster.node_gone(node.number)


@_does("restart {node}")
def restart_node(world: World, node: int | None) -> None:
    """It starts again, if it was dead."""
    if node is None:
        for each in world.cluster.nodes.values():
            world.revive(each)
    elif node in world.cluster.nodes:
        world.revive(world.cluster.nodes[node])


@_does("stall {node} for {ms} ms")
def stall_node(world: World, node: int | None, ms: int) -> None:
    """It is frozen; its connections stay open."""
    target = world.node(node)
    if target is not None:
        target.machine.stall(ms)


@_does("forget the fetch sessions of {node}")
def forget_sessions(world: World, node: int | None) -> None:
    """Its fetch sessions are evicted: each fetcher has to begin a new one (KIP-227)."""
    target = world.node(node)
    if target is not None:
        target.sessions = target.no_sessions()


@_does("move the coordinator to {node}")
def move_to(world: World, node: int | None) -> None:
    """Another node is elected for the group's partition."""
    target = world.node(node)
    if target is not None:
        world.cluster.elect(world.cluster.partition_of(world.group), target.number)


@_does("move the coordinator")
def move(world: World) -> None:
    """A living node is elected for the group's partition, perhaps the same one again."""
    partition = world.cluster.partition_of(world.group)
    alive = world.cluster.alive()
    others = [n for n in alive if n != world.cluster.group_leaders[partition]] or alive
    if others:
        world.cluster.elect(partition, world.chance.choice(others))


@_does("move {tp} to {node}")
def move_partition(world: World, tp: TopicPartition, node: int | None) -> None:
    """Another node leads a partition of a topic."""
    target, log = world.node(node), world.cluster.topic_log(*tp)
    if target is not None and log is not None:
        world.cluster.move(log, target.number)


@_does("hold loading")
def hold_loading(world: World) -> None:
    """Coordinators that are elected from now on keep loading."""
    world.loading_held = True


@_does("release loading")
def release_loading(world: World) -> None:
    """They finish loading."""
    world.release_loading()


@_does("refuse {n} appends")
def refuse(world: World, count: int) -> None:
    """The next appends to the group's partition of `__consumer_offsets` fail."""
    partition = world.cluster.partition_of(world.group)
    world.cluster.group_logs[partition].file.failing_appends += count


@_does("slow the disk by {ms} ms")
def slow_disk(world: World, ms: int) -> None:
    """Every flush takes this much longer."""
    world.slow_disk_ms = ms


# -- topics --------------------------------------------------------------------------------------


@_does("create {topic} with {n} partitions")
def create(world: World, topic: str, partitions: int) -> None:
    """A new topic."""
    if topic not in world.cluster.topics:
        world.cluster.create(topic, partitions)


@_does("grow {topic} to {n} partitions")
def grow(world: World, topic: str, partitions: int) -> None:
    """The topic grows, if it has fewer partitions."""
    if topic in world.cluster.topics:
        world.cluster.grow(topic, partitions)


@_does("write {n} records to {tp}")
def write(world: World, count: int, tp: TopicPartition) -> None:
    """A producer appends records."""
    log = world.cluster.topic_log(*tp)
    if log is not None:
        log.append(count, world.schedule.now_ms)
        world.cluster.progressed(log)


@_does("write a marker to {tp}")
def write_marker(world: World, tp: TopicPartition) -> None:
    """A producer ends a transaction: its marker has an offset and no record (CL3)."""
    log = world.cluster.topic_log(*tp)
    if log is not None:
        log.append_marker(world.schedule.now_ms)
        world.cluster.progressed(log)


@_does("trim {tp} to {n}")
def trim(world: World, tp: TopicPartition, start: int) -> None:
    """Retention deletes the records below this offset, at most all of them."""
    log = world.cluster.topic_log(*tp)
    if log is not None:
        log.trim(start)
        world.cluster.progressed(log)
