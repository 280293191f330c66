"""The operator's end of remote control: read the status of processes, send them commands.

Rules:
- Looking creates nothing and changes nothing.
- A command is refused before it is sent when no process would obey it.
- Whether it was obeyed is read in the processes' next status.

Shell: the clock, the user's name.
"""

from __future__ import annotations

import getpass
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

from kohort.client.admin.admin import Admin
from kohort.client.common.config import AdminConfig, ConsumerConfig, ProducerConfig, known_to
from kohort.client.common.types import TopicPartition
from kohort.client.consumer.consumer import Consumer
from kohort.client.producer.producer import Producer
from kohort.errors import UsageError
from kohort.records import Record
from kohort.remote.messages import Action, Command, Result, encode_command
from kohort.remote.processes import Process, processes
from kohort.remote.topics import checked_prefix, commands_topic, status_topic
from kohort.setting_keys import nearest

READ_S: Final = 5.0
ANSWER_S: Final = 10.0
LOOK_AGAIN_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class Answer:
    """What one process did with a command; `result` None: it has not answered in time."""

    process: str
    result: Result | None


class RemoteControl:
    """Reads PREFIX.status and writes PREFIX.commands.

    Args:
        prefix: of the topics.
        client: the way to the cluster, by Kafka's names.

    Raises:
        ConfigError: a prefix that topics cannot have.
    """

    def __init__(self, prefix: str, client: Mapping[str, Any]) -> None:
        self._prefix = checked_prefix(prefix)
        self._status = status_topic(prefix)
        self._commands = commands_topic(prefix)
        self._client = dict(client)
        ours = {
            "enable_auto_commit": False,
            "auto_offset_reset": "earliest",
            "allow_auto_create_topics": False,
        }
        mine = known_to(ConsumerConfig, self._client)
        self._consumer = Consumer(ConsumerConfig.from_mapping({**mine, **ours}))
        self._records: dict[bytes, Record] = {}
        self._begun = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the clients."""
        self._consumer.close()

    def processes(self) -> list[Process]:
        """Every process that has published its status within a day, by group and name.

        Raises:
            UsageError: there is no such status topic.
        """
        self._read()
        return processes(self._records.values(), _now_ms())

    def send(
        self,
        group: str,
        action: Action,
        *,
        process: str = "",
        at: str = "",
        by: str = "",
        wait_s: float = ANSWER_S,
    ) -> list[Answer]:
        """Tell the processes of a group, or one of them, to do something.

        Args:
            group: the consumer group, or the pipeline's name.
            action: what to do.
            process: the only one that shall; empty for all.
            at: the record that it is about, as TOPIC/PARTITION/OFFSET.
            by: who sends it; this process's user by default.
            wait_s: how long their answers are waited for.

        Raises:
            UsageError: no process would obey.
        """
        targets = self._targets(group, action, process)
        command = Command(
            uuid.uuid4().hex[:12], group, action, process, by or _user(), _now_ms(), at
        )
        with Producer(**known_to(ProducerConfig, self._client)) as producer:
            producer.send(self._commands, encode_command(command), group.encode()).result(wait_s)
        answers: dict[str, Result | None] = dict.fromkeys(targets)
        until_s = time.monotonic() + wait_s
        while None in answers.values() and time.monotonic() < until_s:
            present = {one.status.process: one.status for one in self.processes()}
            for name in answers:
                if name not in present and answers[name] is None:
                    answers[name] = Result(command.id, True, "it has ended")
                elif name in present:
                    found = [r for r in present[name].results if r.command == command.id]
                    answers[name] = found[0] if found else answers[name]
            if None in answers.values():
                time.sleep(LOOK_AGAIN_S)
        return [Answer(name, result) for name, result in sorted(answers.items())]

    def _targets(self, group: str, action: Action, process: str) -> list[str]:
        there = [one for one in self.processes() if not one.gone]
        mine = [one for one in there if one.status.group == group]
        if not mine:
            groups = sorted({one.status.group for one in there})
            near = nearest(group, groups)
            hint = f" Did you mean {near!r}?" if near else ""
            raise UsageError(
                f"no process of group {group!r} tells of itself in {self._status}.{hint} Groups "
                f"there: {', '.join(groups[:20]) or 'none'}"
            )
        chosen = [one for one in mine if process in ("", one.status.process)]
        if not chosen:
            names = ", ".join(one.status.process for one in mine[:20])
            raise UsageError(f"group {group!r} has no process {process!r}; it has {names}")
        if action.of_record:  # one of them has it; others may be of an older version
            chosen = [one for one in chosen if action in one.status.actions] or chosen
        unable = [one.status for one in chosen if action not in one.status.actions]
        if unable:
            raise UsageError(
                f"{unable[0].process} is a {unable[0].kind}, which cannot {action.value}; it can "
                f"{', '.join(each.value for each in unable[0].actions)}"
            )
        return [one.status.process for one in chosen]

    def _read(self) -> None:
        """Bring the last record of every process up to date."""
        if not self._begun:
            count = self._partition_count()
            self._consumer.assign([TopicPartition(self._status, n) for n in range(count)])
            self._consumer.seek_to_beginning()
            self._begun = True
        ends = self._consumer.end_offsets(list(self._consumer.assignment()))
        until_s = time.monotonic() + READ_S
        while time.monotonic() < until_s and any(
            self._consumer.position(tp) < end for tp, end in ends.items()
        ):
            for record in self._consumer.poll(LOOK_AGAIN_S):
                key = record.key or b""
                if record.value:
                    self._records[key] = record.detach()
                else:
                    self._records.pop(key, None)

    def _partition_count(self) -> int:
        with Admin(**known_to(AdminConfig, self._client)) as admin:
            counts = {topic.name: topic.partition_count for topic in admin.list_topics()}
        if self._status not in counts:
            raise UsageError(
                f"there is no topic {self._status}: no process has reported under this prefix; "
                f'start one with App(..., remote="{self._prefix}"), or choose another --remote'
            )
        return counts[self._status]


def _user() -> str:
    with suppress(OSError, KeyError):  # no name for this user id, as in some containers
        return getpass.getuser()
    return ""


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
