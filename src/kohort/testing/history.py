"""`History`: what the members of a group and their producers did, and what they must not have.

    history = History()
    history.follow("a", process.stdout)      # the events of `kohort verifiable-consumer`, or Java's
    history.follow("p", producer.stdout)     # of `kohort verifiable-producer`, or Java's
    history.wait_until_read()
    history.verify(complete=True)

or, around any client, by calls: `history.assigned("a", [("orders", 0)])`, `history.read(...)`.

Rules:
- Every method may be called from any thread. Times are milliseconds since 1970, by default now.
- Members are of one group. A member that comes back with the same name is the same member; one that
  was killed must be reported (`died`), because it cannot say so itself.
- `kohort.testing.history_check` has the checks and their assumptions.

Shell: the clock, threads.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kohort.errors import KafkaTimeoutError, UsageError
from kohort.testing.history_check import Act, Event, Kind, Replay, Violation
from kohort.testing.ranges import Ranges

MAX_ACTS: Final = 5_000_000
Partition = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Report:
    """What was found in a history."""

    violations: tuple[Violation, ...]
    acts: int
    """The number of reported events."""

    def of(self, kind: Kind) -> list[Violation]:
        """Those of one kind."""
        return [violation for violation in self.violations if violation.kind is kind]

    def __str__(self) -> str:
        if not self.violations:
            return f"no violation in {self.acts} acts"
        lines = "\n".join(f"  {violation}" for violation in self.violations[:50])
        more = len(self.violations) - 50
        tail = f"\n  … and {more} more" if more > 0 else ""
        return f"{len(self.violations)} violations in {self.acts} acts:\n{lines}{tail}"


class History:
    """The events, as far as they were reported.

    `from_start`: the group reads each partition from its first record. Else what lies before its
    first read is not judged, nor a partition that it has never read. `exactly_once`: nothing may be
    read twice. `zombies`: members were cut off or stopped and do not tell a loss from a revocation
    (as Java's tool), so that only their commits prove a second owner.
    """

    def __init__(
        self, *, from_start: bool = True, exactly_once: bool = False, zombies: bool = False
    ) -> None:
        self._options = {
            "from_start": from_start,
            "exactly_once": exactly_once,
            "zombies": zombies,
        }
        self._acts: list[Event] = []
        self._last_ms: dict[str, int] = {}
        self._verbose: dict[tuple[str, str, int], list[tuple[int, str | None]]] = {}
        self._sent: dict[Partition, Ranges] = {}
        self._read: dict[Partition, Ranges] = {}
        self._counts: dict[tuple[Act, str], int] = {}
        self._changed = threading.Condition()

    # -- by calls

    def sent(
        self,
        topic: str,
        partition: int,
        offset: int,
        value: str | None = None,
        *,
        time_ms: int | None = None,
    ) -> None:
        """A record was acknowledged at an offset."""
        self._add("", Act.SENT, [(topic, partition)], offset, offset, value, time_ms)

    def assigned(
        self, member: str, partitions: Iterable[Partition], *, time_ms: int | None = None
    ) -> None:
        """A member was given partitions, beside those it has."""
        self._add(member, Act.ASSIGNED, partitions, time_ms=time_ms)

    def revoked(
        self, member: str, partitions: Iterable[Partition], *, time_ms: int | None = None
    ) -> None:
        """A member has given partitions up, by the group's order."""
        self._add(member, Act.REVOKED, partitions, time_ms=time_ms)

    def lost(
        self, member: str, partitions: Iterable[Partition], *, time_ms: int | None = None
    ) -> None:
        """A member has heard that it owns partitions no longer, maybe for long."""
        self._add(member, Act.LOST, partitions, time_ms=time_ms)

    def read(
        self,
        member: str,
        topic: str,
        partition: int,
        first: int,
        last: int | None = None,
        *,
        value: str | None = None,
        time_ms: int | None = None,
    ) -> None:
        """A member was handed a record, or all from the first to the last of a partition."""
        stop = first if last is None else last
        self._add(member, Act.READ, [(topic, partition)], first, stop, value, time_ms)

    def committed(
        self, member: str, offsets: Mapping[Partition, int], *, time_ms: int | None = None
    ) -> None:
        """The group has acknowledged a member's commit; offsets are those to read next."""
        for tp, offset in offsets.items():
            self._add(member, Act.COMMITTED, [tp], offset, offset, time_ms=time_ms)

    def moved(
        self, member: str, topic: str, partition: int, offset: int, *, time_ms: int | None = None
    ) -> None:
        """A member sought, or an operator (member "") set the group's offset."""
        self._add(member, Act.MOVED, [(topic, partition)], offset, offset, time_ms=time_ms)

    def died(self, member: str, *, time_ms: int | None = None) -> None:
        """A member was killed, or ended without a word."""
        self._add(member, Act.DIED, [("", -1)], time_ms=time_ms)

    def _add(
        self,
        member: str,
        act: Act,
        partitions: Iterable[Partition],
        first: int = -1,
        last: int = -1,
        value: str | None = None,
        time_ms: int | None = None,
    ) -> None:
        with self._changed:
            now_ms = time.time_ns() // 1_000_000 if time_ms is None else time_ms
            # A clock that is set back must not turn a member's own acts round.
            now_ms = self._last_ms[member] = max(now_ms, self._last_ms.get(member, 0))
            for topic, partition in partitions:
                if len(self._acts) >= MAX_ACTS:
                    raise UsageError(f"a history takes {MAX_ACTS} acts at the most")
                self._acts.append(Event(now_ms, member, act, topic, partition, first, last, value))
                if act in (Act.SENT, Act.READ):
                    known = self._sent if act is Act.SENT else self._read
                    known.setdefault((topic, partition), Ranges()).add(first, last + 1)
            for name in (member, ""):
                self._counts[act, name] = self._counts.get((act, name), 0) + 1
            self._changed.notify_all()

    # -- by the events of Kafka's verifiable programs

    def follow(self, member: str, stream: Iterable[str] | Iterable[bytes]) -> threading.Thread:
        """Take in a program's lines as they come, on a thread that ends with them."""

        def take() -> None:
            for line in stream:
                self.line(member, line.decode() if isinstance(line, bytes) else line)

        thread = threading.Thread(target=take, name=f"history-{member}", daemon=True)
        thread.start()
        return thread

    def line(self, member: str, line: str) -> None:
        """One line of a program; what is no JSON object, as the half line of a killed one, is
        left out."""
        if not line.startswith("{"):
            return
        try:
            event = json.loads(line)
        except ValueError:
            return
        self.event(member, event)

    def event(self, member: str, event: Mapping[str, Any]) -> None:
        """One event of VerifiableConsumer or VerifiableProducer."""
        name, at = event.get("name"), event.get("timestamp")
        if name == "producer_send_success":
            self.sent(
                event["topic"], event["partition"], event["offset"], event["value"], time_ms=at
            )
        elif name in ("partitions_assigned", "partitions_revoked"):
            act = Act.ASSIGNED if name == "partitions_assigned" else Act.REVOKED
            act = Act.LOST if event.get("lost") else act
            self._add(member, act, _partitions(event["partitions"]), time_ms=at)
        elif name == "record_data":
            key = member, event["topic"], event["partition"]
            self._verbose.setdefault(key, []).append((event["offset"], event["value"]))
        elif name == "records_consumed":
            for part in event["partitions"]:
                self._consumed(member, part, at)
        elif name == "offsets_committed" and event.get("success"):
            offsets = {
                (part["topic"], part["partition"]): part["offset"] for part in event["offsets"]
            }
            self.committed(member, offsets, time_ms=at)

    def _consumed(self, member: str, part: Mapping[str, Any], at: int | None) -> None:
        topic, partition = part["topic"], part["partition"]
        low, high, count = part["minOffset"], part["maxOffset"], part["count"]
        single = self._verbose.pop((member, topic, partition), [])
        if len(single) == count:
            for offset, value in single:
                self.read(member, topic, partition, offset, value=value, time_ms=at)
            return
        self.read(member, topic, partition, low, high, time_ms=at)
        if count > high - low + 1:  # some came twice in one poll; which ones is unknown
            self.read(member, topic, partition, high, time_ms=at)

    # -- waiting

    def wait(self, act: str, member: str = "", *, count: int = 1, timeout_s: float = 120.0) -> None:
        """Return when an act (`assigned`, `committed`, …) was reported `count` times, of a member
        or of all together. Raises KafkaTimeoutError."""
        awaited = Act(act)
        self._until(
            lambda: self._counts.get((awaited, member), 0) >= count,
            f"{awaited} {count} times by {member or 'all'}",
            timeout_s,
        )

    def wait_until_read(self, *, timeout_s: float = 120.0) -> None:
        """Return when every acknowledged record was read. Raises KafkaTimeoutError."""
        self._until(lambda: not self._unread(), "every acknowledged record read", timeout_s)

    def _unread(self) -> int:
        """How many acknowledged records have not been read so far."""
        none = Ranges()
        return sum(
            high - low
            for tp, sent in self._sent.items()
            for start, stop in sent
            for low, high in self._read.get(tp, none).missing(start, stop)
        )

    def _until(self, met: Callable[[], bool], what: str, timeout_s: float) -> None:
        with self._changed:
            if not self._changed.wait_for(met, timeout_s):
                counts = {f"{act} {name or 'all'}": n for (act, name), n in self._counts.items()}
                raise KafkaTimeoutError(
                    f"not within {timeout_s} s: {what}; {self._unread()} records are unread; "
                    f"reported so far: {counts}"
                )

    # -- judging

    @property
    def events(self) -> Sequence[Event]:
        """All acts in the order of their times."""
        with self._changed:
            return sorted(self._acts, key=lambda act: act.time_ms)

    def check(self, *, complete: bool = False) -> Report:
        """The violations so far. `complete`: records that are unread now will never be read."""
        acts = self.events
        return Report(tuple(Replay(**self._options).run(acts, complete=complete)), len(acts))

    def verify(self, *, complete: bool = False) -> None:
        """Raise an AssertionError that lists every violation, if there is any."""
        report = self.check(complete=complete)
        if report.violations:
            raise AssertionError(str(report))


def _partitions(parts: Iterable[Mapping[str, Any]]) -> list[Partition]:
    return [(part["topic"], part["partition"]) for part in parts]
