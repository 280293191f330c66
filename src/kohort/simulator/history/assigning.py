"""The second design: a coordinator on the server watches the topics, and assigns.

Rules (those of the drafts for Kafka 0.9, before the leading client came to assign):
- One broker is elected coordinator through ZooKeeper. It alone watches the topics; consumers
  register with it and heartbeat, and it drops those that were silent for a session timeout.
- At any change it tells every reader to stop, waits until all have (or were dropped),
  raises the generation, assigns by range, writes generation and members to ZooKeeper, and sends
  everybody what to read. A change in the middle makes another whole rebalance follow.
- Assignments are not stored. A new coordinator finds generation and members in ZooKeeper, waits
  until all have registered with it or a session has passed, and stops the world once.
- A consumer that hears nothing looks for the coordinator again, and reads on meanwhile.
- Nothing but the election makes a coordinator the only one: one that was deposed and does not know
  keeps confirming its generation.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kohort.group.assignors import GroupView, MemberView, TopicView
from kohort.group.assignors.range import RangeAssignor

FRAME, NUMBER = 16, 4


class Word(enum.Enum):
    """What consumer and coordinator say to each other."""

    REGISTER = "Register"
    HEARTBEAT = "Heartbeat"
    STOPPED = "Stopped"
    STARTED = "Started"
    LEAVE = "Leave"
    REGISTERED = "Registered"
    ALIVE = "HeartbeatAnswer"
    UNKNOWN = "UnknownConsumer"
    OLD = "IllegalGeneration"
    STOP = "StopFetch"
    START = "StartFetch"
    LEFT = "LeaveAnswer"


@dataclass(frozen=True, slots=True)
class Message:
    """One message. `reading`: the consumer still reads what an earlier coordinator gave it."""

    word: Word
    generation: int = 0
    parts: Mapping[str, Sequence[int]] | None = None
    reading: bool = False

    def size(self, name: str) -> int:
        """Bytes on the wire, in the manner of Kafka's own messages."""
        size = FRAME + 2 + len(name) + NUMBER
        for topic, numbers in (self.parts or {}).items():
            size += 2 + len(topic) + NUMBER + NUMBER * len(numbers)
        return size


@dataclass(frozen=True, slots=True)
class Send:
    """Send `message` to `member`."""

    member: str
    message: Message


@dataclass(frozen=True, slots=True)
class Save:
    """Write generation and members to ZooKeeper; then say `saved`."""

    generation: int
    members: tuple[str, ...]


class Phase(enum.Enum):
    """What a coordinator is doing."""

    GATHERING = "waiting for the members that ZooKeeper names"
    STABLE = "stable"
    STOPPING = "waiting until all have stopped"
    SAVING = "writing the generation"
    STARTING = "waiting until all have started"


class Assigner:
    """The coordinator. Times are milliseconds; every input returns what is to be done."""

    def __init__(
        self, topics: Mapping[str, int], session_ms: int, generation: int, members: Sequence[str]
    ) -> None:
        self.phase = Phase.GATHERING if members else Phase.STABLE
        self.generation = generation
        self.members: dict[str, int] = {}
        """When each was last heard from."""
        self._topics = dict(topics)
        self._session_ms = session_ms
        self._missing = dict.fromkeys(members)
        self._gather_ms: int | None = None
        self._readers: set[str] = set()
        self._waits: set[str] = set()
        self._again = False

    def accepts(self, member: str, generation: int) -> bool:
        """Whether a commit would be taken."""
        return member in self.members and generation == self.generation

    def next_deadline(self) -> int | None:
        """When `tick` may have something to do."""
        due = min(self.members.values(), default=None)
        times = [due + self._session_ms] if due is not None else []
        if self.phase is Phase.GATHERING and self._gather_ms is not None:
            times.append(self._gather_ms)
        return min(times, default=None)

    def begin(self, now_ms: int) -> None:
        """It was elected: those that ZooKeeper names have a session's time to come."""
        self._gather_ms = now_ms + self._session_ms

    def tick(self, now_ms: int) -> list[Send | Save]:
        """Drop those whose session is over."""
        if self._gather_ms is not None and now_ms >= self._gather_ms:
            self._missing.clear()
        quiet = now_ms - self._session_ms
        gone = [member for member, renewed_ms in self.members.items() if renewed_ms <= quiet]
        for member in gone:
            self._remove(member)
        return self._changed() if gone else self._proceed()

    def topics_changed(self, topics: Mapping[str, int]) -> list[Send | Save]:
        """The watch on the topics has fired, and they were read."""
        self._topics = dict(topics)
        return self._changed()

    def received(self, member: str, message: Message, now_ms: int) -> list[Send | Save]:
        """An event of a consumer."""
        word = message.word
        if word is Word.REGISTER:
            return self._register(member, message, now_ms)
        if word is Word.LEAVE:
            effects: list[Send | Save] = [Send(member, Message(Word.LEFT))]
            if member in self.members:
                self._remove(member)
                effects += self._changed()
            return effects
        if member not in self.members:
            return [Send(member, Message(Word.UNKNOWN))] if word is Word.HEARTBEAT else []
        self.members[member] = now_ms
        if word is Word.HEARTBEAT:
            right = message.generation == self.generation or self.phase is not Phase.STABLE
            return [Send(member, Message(Word.ALIVE if right else Word.OLD))]
        if word is Word.STOPPED and self.phase is Phase.STOPPING:
            self._readers.discard(member)
            self._waits.discard(member)
        elif word is Word.STARTED and message.generation == self.generation:
            self._waits.discard(member)
        return self._proceed()

    def saved(self) -> list[Send | Save]:
        """ZooKeeper has the generation: everybody may start who reads nothing.

        Who came back in the meantime, still reading, is left out and stopped by the next rebalance.
        """
        self.phase = Phase.STARTING
        ready = [member for member in self.members if member not in self._readers]
        self._waits = set(ready)
        self._readers.update(ready)
        view = GroupView(
            {m: MemberView(m, frozenset(self._topics)) for m in ready},
            {topic: TopicView(size) for topic, size in self._topics.items()},
        )
        plan = RangeAssignor().assign(view).assignments
        effects: list[Send | Save] = [
            Send(m, Message(Word.START, self.generation, plan.get(m, {}))) for m in ready
        ]
        return effects + self._proceed()

    # -- steps -------------------------------------------------------------------------------------

    def _register(self, member: str, message: Message, now_ms: int) -> list[Send | Save]:
        self.members[member] = now_ms
        self._missing.pop(member, None)
        if message.reading:
            self._readers.add(member)
        else:
            self._readers.discard(member)
        self._waits.discard(member)
        return [Send(member, Message(Word.REGISTERED, self.generation)), *self._changed()]

    def _remove(self, member: str) -> None:
        del self.members[member]
        self._readers.discard(member)
        self._waits.discard(member)

    def _changed(self) -> list[Send | Save]:
        """A rebalance is needed; if one is under way, perhaps another after it."""
        if self.phase is Phase.STABLE:
            return self._stop()
        # Until the plan is made nothing has been decided that the change could come too late for.
        self._again = self._again or self.phase in {Phase.SAVING, Phase.STARTING}
        effects: list[Send | Save] = []
        if self.phase is Phase.STOPPING:
            late = sorted(self._readers - self._waits)
            self._waits.update(late)
            effects += [Send(member, Message(Word.STOP, self.generation)) for member in late]
        return effects + self._proceed()

    def _proceed(self) -> list[Send | Save]:
        if self.phase is Phase.GATHERING and not self._missing:
            return self._stop()
        if self._waits:
            return []
        if self.phase is Phase.STOPPING:
            self.phase = Phase.SAVING
            self.generation += 1
            return [Save(self.generation, tuple(self.members))]
        if self.phase is Phase.STARTING:
            self.phase = Phase.STABLE
            if self._again:
                return self._stop()
        return []

    def _stop(self) -> list[Send | Save]:
        self.phase, self._again = Phase.STOPPING, False
        self._waits = set(self._readers)
        effects: list[Send | Save] = [
            Send(member, Message(Word.STOP, self.generation)) for member in sorted(self._waits)
        ]
        return effects + self._proceed()


class Doing(enum.Enum):
    """What a consumer is doing about its membership."""

    DOWN = "down"
    SEEKING = "looking for the coordinator"
    REGISTERING = "registering"
    MEMBER = "a member"
    CLOSING = "closing"
    LEFT = "left"


class Do(enum.Enum):
    """What a consumer asks of its shell, beside saying something and reading."""

    FIND = "ask any broker for the coordinator"
    STOP = "stop reading everything, then say `stopped`"


@dataclass(frozen=True, slots=True)
class Read:
    """Read `parts` from now on."""

    parts: Mapping[str, Sequence[int]]


FIRST_BACKOFF_MS, MOST_BACKOFF_MS = 100, 1_000


class Follower:
    """A consumer of this design: it follows its instructions. Times are milliseconds."""

    def __init__(self, name: str, session_ms: int, heartbeat_ms: int) -> None:
        self.name = name
        self.doing = Doing.DOWN
        self.generation = 0
        self.reading = False
        self._session_ms, self._heartbeat_ms = session_ms, heartbeat_ms
        self._last_answer_ms = self._beat_ms = self._find_ms = 0
        self._finding = False
        self._tries = 0
        self._stopping: Word | None = None

    def next_deadline(self) -> int | None:
        """When `tick` has something to do."""
        if self.doing is Doing.SEEKING:
            return None if self._finding else self._find_ms
        if self.doing is Doing.REGISTERING:
            return self._last_answer_ms + self._session_ms
        if self.doing is Doing.MEMBER:
            return min(self._beat_ms, self._last_answer_ms + self._session_ms)
        return None

    def start(self, now_ms: int) -> list[Message | Read | Do]:
        """Look for the coordinator; also whenever the connection to it is lost."""
        if self.doing is Doing.CLOSING:
            self.doing = Doing.LEFT
            return []
        self.doing, self._find_ms = Doing.SEEKING, now_ms
        self._finding, self._tries = True, 0
        return [Do.FIND]

    def found(self, now_ms: int) -> list[Message | Read | Do]:
        """There is a coordinator, and a connection to it."""
        if self.doing is not Doing.SEEKING:
            return []
        self._finding = False
        self.doing, self._last_answer_ms = Doing.REGISTERING, now_ms
        return [Message(Word.REGISTER, self.generation, reading=self.reading)]

    def not_found(self, now_ms: int) -> list[Message | Read | Do]:
        """There is none yet."""
        self._finding = False
        self._find_ms = now_ms + min(MOST_BACKOFF_MS, FIRST_BACKOFF_MS << self._tries)
        self._tries += 1
        return []

    def close(self) -> list[Message | Read | Do]:
        """Stop, then leave."""
        self.doing, self._stopping = Doing.CLOSING, Word.LEAVE
        return [Do.STOP]

    def tick(self, now_ms: int) -> list[Message | Read | Do]:
        """Heartbeat, look again, or notice that the session is over."""
        if self.doing is Doing.SEEKING and not self._finding and now_ms >= self._find_ms:
            self._finding = True
            return [Do.FIND]
        if self.doing not in {Doing.MEMBER, Doing.REGISTERING}:
            return []
        if now_ms >= self._last_answer_ms + self._session_ms:
            return self.start(now_ms)
        if self.doing is Doing.MEMBER and now_ms >= self._beat_ms:
            self._beat_ms = now_ms + self._heartbeat_ms
            return [Message(Word.HEARTBEAT, self.generation)]
        return []

    def received(self, message: Message, now_ms: int) -> list[Message | Read | Do]:
        """An event of the coordinator."""
        word = message.word
        if self.doing is Doing.CLOSING:
            if word is Word.LEFT:
                self.doing = Doing.LEFT
            return []
        if self.doing is Doing.LEFT:
            return []
        self._last_answer_ms = now_ms
        if word is Word.REGISTERED:
            self.doing, self._beat_ms = Doing.MEMBER, now_ms + self._heartbeat_ms
        elif word in {Word.UNKNOWN, Word.OLD}:
            # Its place is gone: it stops reading, and registers as one that reads nothing.
            stopping, self._stopping = self._stopping is not None, Word.REGISTER
            self.generation = 0
            return [] if stopping else [Do.STOP]
        elif word is Word.STOP:
            stopping, self._stopping = self._stopping is not None, self._stopping or Word.STOPPED
            return [] if stopping else [Do.STOP]
        elif word is Word.START:
            self.generation, self.reading = message.generation, bool(message.parts)
            self._stopping = None
            return [Read(message.parts or {}), Message(Word.STARTED, message.generation)]
        return []

    def stopped(self) -> list[Message | Read | Do]:
        """Reading could stop now; a start that came in the meantime takes the stop's place."""
        why, self._stopping = self._stopping, None
        if why is None:
            return []
        self.reading = False
        return [Message(why, self.generation)]
