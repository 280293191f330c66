"""A group of member processes, watched: who owns what, what was seen, what is committed.

Checked all along (issue 2, "without overlap or gap"):
- a member begins each partition where the group had committed, and is handed it without a gap, and
  not after it was revoked; so nothing is lost, and what is seen twice was not committed;
- committed offsets never go back;
- in a stable generation the broker's assignment is complete and disjoint, and the members own
  exactly what it says.
"""

from __future__ import annotations

import contextlib
import json
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kohort import Admin, Producer, TopicPartition
from kohort.client.admin.types import GroupDescription
from tests.patience import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
SESSION_MS, HEARTBEAT_MS = 3_000, 300


class Member:
    """One process, and the last that it said."""

    def __init__(self, run: GroupRun, name: str, make: str, protocol: str) -> None:
        self.name, self.make = name, make
        self.owns: set[int] = set()
        self.left = False
        self.refused: list[str] = []
        settings = {
            "name": name,
            "make": make,
            "servers": run.servers,
            "group": run.group,
            "topic": run.topic,
            "options": {
                "strategy": run.strategy,
                "protocol": protocol,
                "session_ms": run.session_ms,
                "heartbeat_ms": HEARTBEAT_MS,
            },
        }
        self.errors = run.directory / f"{name}.stderr"
        with self.errors.open("wb") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.e2e.member", json.dumps(settings)],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
            )
        self._reader = threading.Thread(target=self._read, args=(run.events,), daemon=True)
        self._reader.start()

    def _read(self, events: queue.SimpleQueue[tuple[Member, list[Any]]]) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.endswith(b"\n"):  # a killed member may leave half a line
                events.put((self, json.loads(line)))
        events.put((self, ["ended"]))

    def end(self) -> None:
        """However the test ended: no process stays."""
        self.process.kill()
        self.process.wait()
        self._reader.join()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


class GroupRun:
    """A topic, a group that reads it, and what is known of both."""

    def __init__(
        self,
        servers: str,
        topic: str,
        group: str,
        strategy: str,
        partitions: int,
        directory: Path,
        session_ms: int = SESSION_MS,
    ) -> None:
        self.servers, self.topic, self.group = servers, topic, group
        self.strategy, self.directory, self.session_ms = strategy, directory, session_ms
        self.events: queue.SimpleQueue[tuple[Member, list[Any]]] = queue.SimpleQueue()
        self.members: dict[str, Member] = {}
        self.produced = dict.fromkeys(range(partitions), 0)
        self.seen: dict[int, set[int]] = {p: set() for p in self.produced}
        self.acknowledged = dict.fromkeys(self.produced, 0)
        self.committed = dict.fromkeys(self.produced, 0)
        self.generations: list[str] = []
        self._started = 0
        self.admin = Admin(bootstrap_servers=servers)
        # librdkafka 2.16 may send its first offset query again and go back to the answer
        # (docs/compat-findings.md). A committed offset needs no query.
        beginning = {TopicPartition(topic, p): 0 for p in self.produced}
        self.admin.alter_group_offsets(group, beginning)

    def __enter__(self) -> GroupRun:
        return self

    def __exit__(self, *_: object) -> None:
        for member in self.members.values():
            member.end()
        self.admin.close()

    # -- what happens to the group

    def start(self, make: str, name: str | None = None, protocol: str = "classic") -> str:
        """One more member, of the classic or the consumer protocol (KIP-848)."""
        self._started += 1
        name = name or f"{make}-{self._started}"
        self.members[name] = Member(self, name, make, protocol)
        return name

    def stop(self, *names: str) -> None:
        """They leave in order."""
        for name in names:
            stdin = self.members[name].process.stdin
            assert stdin is not None
            stdin.close()
        self.until(lambda: all(self.members[name].left for name in names), f"{names} leave")
        for name in names:
            assert self.members[name].process.wait(PATIENCE_S) == 0
            self._forget(name)

    def kill(self, name: str) -> None:
        """SIGKILL: nobody leaves, the session has to time out."""
        member = self.members[name]
        member.process.send_signal(signal.SIGUSR2 if member.make == "java" else signal.SIGKILL)
        self._forget(name)

    def _forget(self, name: str) -> None:
        """What it had said before it ended counts; its process ends here."""
        member = self.members[name]
        member.process.wait()
        member._reader.join()
        self._drain()
        member.end()
        del self.members[name]

    def produce(self, count: int) -> None:
        """`count` records to each partition, while members consume."""
        with Producer(bootstrap_servers=self.servers, linger_ms=2) as producer:
            for n in range(count):
                for p in self.produced:
                    producer.send(self.topic, b"%d" % (self.produced[p] + n), partition=p)
        for p in self.produced:
            self.produced[p] += count

    # -- what is seen of it

    def until(self, met: Callable[[], bool], what: str) -> None:
        """Take in what members say until `met`."""
        end = time.monotonic() + PATIENCE_S
        while not met():
            assert time.monotonic() < end, f"waited {PATIENCE_S} s: {what}\n{self._story()}"
            with contextlib.suppress(queue.Empty):
                self._take(*self.events.get(timeout=0.1))
            self._drain()
            self.check_committed()

    def _drain(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                self._take(*self.events.get_nowait())

    def _take(self, member: Member, event: list[Any]) -> None:
        match event:
            case ["owns", owned]:
                member.owns = set(owned)
            case ["records", spans]:
                for p, (first, last) in spans.items():
                    self.seen[int(p)].update(range(first, last + 1))
            case ["committed", offsets]:
                for p, offset in offsets.items():
                    self.acknowledged[int(p)] = max(self.acknowledged[int(p)], offset)
            case ["refused", text]:
                member.refused.append(text)
            case ["left"]:
                member.left = True
            case ["gap", partition, offset, expected]:
                raise AssertionError(
                    f"{member.name} was handed {partition}@{offset} instead of {expected}"
                )
            case ["ended"]:
                expected = member.left or self.members.get(member.name) is not member
                killed = (member.process.poll() or 0) == -9
                assert expected or killed, f"{member.name} ended by itself\n{self._story()}"
            case _:
                assert event[0] == "assigned"

    def check_committed(self) -> None:
        """Never back, never behind what a member was told, never ahead of what was seen."""
        before = dict(self.acknowledged)
        found = self.admin.list_group_offsets(self.group)
        for p, last in self.committed.items():
            entry = found.get(TopicPartition(self.topic, p))
            now = entry.offset if entry is not None else 0
            assert now >= last, f"the committed offset of {p} went back from {last} to {now}"
            assert now >= before[p], f"{before[p]} of {p} was acknowledged, {now} is committed"
            self.committed[p] = now

    def await_stable(self) -> GroupDescription:
        """A generation with exactly the running members, each with what the broker gave it."""
        group: GroupDescription | None = None

        def settled() -> bool:
            nonlocal group
            group = self.admin.describe_groups([self.group])[self.group]
            assignments = {
                m.client_id: {tp.partition for tp in m.assignment if tp.topic == self.topic}
                for m in group.members
            }
            return (
                group.state == "Stable"
                and len(group.members) == len(self.members)
                and assignments == {name: member.owns for name, member in self.members.items()}
                and sum(map(len, assignments.values())) == len(self.produced)
            )

        self.until(settled, f"a stable group of {len(self.members)}")
        assert group is not None
        owned = [p for m in group.members for p in (tp.partition for tp in m.assignment)]
        assert sorted(owned) == sorted(self.produced), "complete, and nobody shares"
        assert group.group_type == "consumer" or group.protocol == self.strategy
        return group

    def await_consumed(self) -> None:
        """Everything produced has been seen, and committed."""
        everything = {p: set(range(count)) for p, count in self.produced.items()}
        self.until(lambda: self.committed == self.produced, "everything is committed")
        self.until(lambda: self.seen == everything, "what is committed has been handed out")

    def _story(self) -> str:
        unseen = {p: sorted(set(range(n)) - self.seen[p])[:5] for p, n in self.produced.items()}
        lines = [f"produced {self.produced}, committed {self.committed}, not seen {unseen}"]
        for name, member in self.members.items():
            with contextlib.suppress(ProcessLookupError):
                member.process.send_signal(signal.SIGUSR1)
            with contextlib.suppress(subprocess.TimeoutExpired):
                member.process.wait(1)  # it writes its stack meanwhile
            state = f"{name}: owns {sorted(member.owns)}, refused {member.refused}"
            lines += [state, member.errors.read_text(errors="replace")[-4_000:]]
        with contextlib.suppress(Exception):  # only to explain a failure that is raised anyway
            lines.append(str(self.admin.describe_groups([self.group])[self.group]))
        return "\n".join(lines)
