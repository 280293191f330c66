"""The first design's world: consumers, each with a session at a ZooKeeper ensemble of three.

Rules:
- A consumer's requests follow one after the other, each a round trip; the ensemble's three servers
  share the reads, its leader does the writes, each of which waits for a quorum.
- A cut link holds what was sent: the client library finds another server and asks again.
- Nobody is ever fenced: nothing that a consumer writes is compared with anything.
"""

from __future__ import annotations

from kohort.simulator.history.ledger import KEEP_ALIVE, NOTIFICATION
from kohort.simulator.history.network import Link, Station
from kohort.simulator.history.plan import Plan
from kohort.simulator.history.watcher import (
    TOPICS,
    Ask,
    Effect,
    Read,
    State,
    Stop,
    Watcher,
)
from kohort.simulator.history.world import World
from kohort.simulator.history.zookeeper import (
    PING_BYTES,
    RECONNECT_BYTES,
    Answer,
    Create,
    Delete,
    Ensemble,
    Look,
    Notice,
    Request,
)

SERVERS = 3
KINDS: dict[type[Request], str] = {Create: "create", Delete: "delete", Look: "read"}


class Client:
    """A consumer's process: its machine, its session, its link, and what waits for the link."""

    __slots__ = ("alive", "held", "link", "machine", "member", "missed", "session", "wake_ms")

    def __init__(self, member: int, machine: Watcher, session: int) -> None:
        self.member, self.machine, self.session = member, machine, session
        self.link = Link()
        self.alive = True
        self.held: list[Ask] = []
        self.missed = 0
        self.wake_ms: int | None = None


class WatchersWorld(World):
    """Every consumer watches ZooKeeper and assigns for itself."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self._ensemble = Ensemble(self.timing.session_ms)
        self._reads = Station(self.timing.service_us, SERVERS)
        self._writes = Station(self.timing.service_us)
        self._clients: dict[int, Client] = {}
        self._sessions: dict[int, Client] = {}
        self._down_until_ms = 0
        self._expiry_ms: int | None = None
        for topic, partitions in self.topics.items():
            self._ensemble.set_data(f"{TOPICS}/{topic}", str(partitions))

    # -- the plan's events -------------------------------------------------------------------------

    def start(self, member: int) -> None:
        """A process starts: it connects, registers, looks, claims."""
        timing = self.timing
        machine = Watcher(
            f"c{member:05}",
            tuple(self.topics),
            timing.rebalance_retries,
            timing.rebalance_backoff_ms,
        )
        client = Client(member, machine, 0)
        self._clients[member] = client
        self._connect(client)
        self._do(client, machine.start())
        self.schedule.after(self._draw.randrange(self.timing.heartbeat_ms), self._ping, client)

    def leave(self, member: int) -> None:
        """It stops, and closes its session."""
        client = self._clients[member]
        self._do(client, client.machine.close())

    def crash(self, member: int) -> None:
        """Its session is left to expire."""
        self._gone(self._clients[member])

    def grow(self, topic: str) -> None:
        """An administrator writes the topic's node."""
        self._notify(self._ensemble.set_data(f"{TOPICS}/{topic}", str(self.topics[topic])))

    def slow(self, member: int, by_ms: int) -> None:
        """Notifications and answers come late."""
        if (client := self._clients.get(member)) is not None:
            client.link.slow_ms = by_ms

    def cut(self, member: int, cut: bool) -> None:
        """No server can be reached; when one can, what waited is sent."""
        client = self._clients[member]
        client.link.cut = cut
        if not cut:
            self._reconnects(1)
            self.schedule.at(self.network.up(client.link), self._reached, client)

    def server_dies(self) -> None:
        """The ensemble's leader: nothing is answered until there is another."""
        now = self.schedule.now_ms
        self._down_until_ms = now + self.timing.failover_ms
        self._ensemble.renew_all(self._down_until_ms)
        self._reconnects(len(self._sessions))

    def depose(self) -> None:
        """A server of the ensemble loses the others, so it serves nobody: its clients move."""
        self._reconnects(len(self._sessions) // SERVERS)

    # -- sessions ----------------------------------------------------------------------------------

    def _connect(self, client: Client) -> None:
        client.session = self._ensemble.connect(self.schedule.now_ms)
        self._sessions[client.session] = client
        self._reconnects(1)
        self._watch_expiry()

    def _reconnects(self, sessions: int) -> None:
        self.ledger.traffic.add("connect", 2 * sessions, RECONNECT_BYTES * sessions)

    def _gone(self, client: Client) -> None:
        client.alive = False
        self.ledger.ownership.drop_all(client.member, self.schedule.now_ms)
        self._sessions.pop(client.session, None)

    def _ping(self, client: Client) -> None:
        if not client.alive:
            return
        self.schedule.after(self.timing.heartbeat_ms, self._ping, client)
        if client.link.cut:
            return
        self.ledger.traffic.add(KEEP_ALIVE, 2, PING_BYTES)
        there_ms = max(self.network.up(client.link), self._down_until_ms)
        self.schedule.at(there_ms, self._pinged, client, client.session)

    def _pinged(self, client: Client, session: int) -> None:
        if not self._ensemble.renew(session, self.schedule.now_ms) and client.alive:
            self._expired(client, session)

    def _reached(self, client: Client) -> None:
        """A cut link is repaired: the session has expired, or the waiting messages continue."""
        if not self._ensemble.renew(client.session, self.schedule.now_ms):
            self._expired(client, client.session)
            return
        held, client.held = client.held, []
        for ask in held:
            self._send(client, ask)
        if client.missed:
            client.missed = 0
            self._tell(client)

    def _expired(self, client: Client, session: int) -> None:
        if client.session != session or not client.alive:
            return
        client.held.clear()
        client.missed = 0
        self._sessions.pop(session, None)
        self._connect(client)
        self._do(client, client.machine.expired())

    def _watch_expiry(self) -> None:
        due = self._ensemble.next_deadline()
        if due is not None and (self._expiry_ms is None or due < self._expiry_ms):
            self._expiry_ms = due
            self.schedule.at(due, self._expire)

    def _expire(self) -> None:
        self._expiry_ms = None
        if self.schedule.now_ms >= self._down_until_ms:
            self._notify(self._ensemble.tick(self.schedule.now_ms))
            self._watch_expiry()
        else:
            self._expiry_ms = self._down_until_ms
            self.schedule.at(self._down_until_ms, self._expire)

    # -- requests ----------------------------------------------------------------------------------

    def _send(self, client: Client, ask: Ask) -> None:
        if client.link.cut:
            client.held.append(ask)
            return
        there_ms = max(self.network.up(client.link), self._down_until_ms)
        self.schedule.at(there_ms, self._arrive, client, client.session, ask)

    def _arrive(self, client: Client, session: int, ask: Ask) -> None:
        now = self.schedule.now_ms
        done = self._ensemble.request(session, ask.request, now)
        if done is None:
            if client.alive:
                self._expired(client, session)
            return
        answer, notices = done
        self._notify(notices)
        self.schedule.at(self._done_ms(answer, now), self._answer, client, session, ask, answer)

    def _done_ms(self, answer: Answer, now: int) -> int:
        """The requests of a batch follow each other: a round trip each, a quorum for a write."""
        reads = answer.requests - answer.writes
        round_trip = sum(self.timing.network_ms)
        alone_ms = (answer.requests - 1) * round_trip + answer.writes * self.timing.write_ms
        done = now + alone_ms
        if reads:
            done = max(done, self._reads.done_ms(now, reads))
        if answer.writes:
            done = max(done, self._writes.done_ms(now, answer.writes))
        return done

    def _answer(self, client: Client, session: int, ask: Ask, answer: Answer) -> None:
        kind = KINDS.get(type(ask.request), "close")
        self.ledger.traffic.add(kind, 2 * answer.requests, answer.size)
        if client.alive and client.session == session:
            # The reads of a long batch renewed the session all the while.
            self._ensemble.renew(session, self.schedule.now_ms)
            at_ms = self.network.down(client.link, self.schedule.now_ms)
            self.schedule.at(at_ms, self._answered, client, session, ask.token, answer)

    def _answered(self, client: Client, session: int, token: int, answer: Answer) -> None:
        if not client.alive or client.session != session or client.link.cut:
            return
        self._do(client, client.machine.answered(token, answer.result))
        if client.machine.state is State.CLOSED:
            self._gone(client)

    # -- notifications -----------------------------------------------------------------------------

    def _notify(self, notices: list[Notice]) -> None:
        for notice in notices:
            client = self._sessions.get(notice.session)
            if client is None:
                continue
            self.ledger.traffic.add(NOTIFICATION, 1, notice.size)
            if client.link.cut:
                client.missed += 1
            else:
                self._tell(client)

    def _tell(self, client: Client) -> None:
        at_ms = self.network.down(client.link, self.schedule.now_ms)
        self.schedule.at(at_ms, self._notified, client, client.session)

    def _notified(self, client: Client, session: int) -> None:
        if client.alive and client.session == session:
            self._do(client, client.machine.notified())

    # -- effects -----------------------------------------------------------------------------------

    def _do(self, client: Client, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Ask):
                self._send(client, effect)
            elif isinstance(effect, Stop):
                self.schedule.after(self.timing.step_ms, self._stopped, client)
            elif isinstance(effect, Read):
                self.ledger.ownership.take(client.member, effect.parts, self.schedule.now_ms)
            else:
                self.ledger.failed_claims += effect.count
        machine = client.machine
        machine.rest(self.schedule.now_ms)
        if machine.wake_ms is not None and machine.wake_ms != client.wake_ms:
            client.wake_ms = machine.wake_ms
            self.schedule.at(machine.wake_ms, self._wake, client, machine.wake_ms)

    def _stopped(self, client: Client) -> None:
        if client.alive:
            self.ledger.ownership.drop_all(client.member, self.schedule.now_ms)
            self._do(client, client.machine.stopped())

    def _wake(self, client: Client, at_ms: int) -> None:
        if client.alive and client.machine.wake_ms == at_ms:
            self._do(client, client.machine.tick())
