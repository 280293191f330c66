"""A process's end of remote control: a thread that publishes its status and obeys commands.

Rules:
- It never harms the process: refusals by the cluster are logged and retried later.
- The status goes out every `interval_ms`, at once after a command, and as a tombstone at the end.
- Commands are read from the end of their topic at the start: older ones are not for this process.
- An error in an action is its result; the thread continues.

Shell: threads, clocks, the process's id.
"""

from __future__ import annotations

import logging
import os
import platform
import socket
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from kohort import __version__
from kohort.client.admin.admin import Admin
from kohort.client.admin.types import NewTopic
from kohort.client.common.config import AdminConfig, ConsumerConfig, ProducerConfig, known_to
from kohort.client.common.types import TopicPartition
from kohort.client.consumer.consumer import Consumer
from kohort.client.producer.producer import Producer
from kohort.errors import BrokerError, ErrorCode, KohortError, WakeupError
from kohort.records import Record
from kohort.remote.messages import (
    Action,
    Command,
    MessageFault,
    ProcessStatus,
    decode_command,
    encode_status,
)
from kohort.remote.obeying import Obedience
from kohort.remote.topics import (
    COMMANDS_CONFIG,
    STATUS_CONFIG,
    checked_prefix,
    commands_topic,
    status_topic,
)

log = logging.getLogger("kohort.remote")
INTERVAL_MS: Final = 5_000
PAUSE_S: Final = 5.0
"""After an error of the cluster."""
POLL_S: Final = 1.0
WRITE_S: Final = 5.0
"""The longest that a status is waited for to be stored."""
STOP_S: Final = 5.0


@dataclass(frozen=True)
class Look:
    """How a process is at one instant; see `ProcessStatus`."""

    state: str
    figures: Mapping[str, Any] = field(default_factory=dict[str, Any])
    partitions: Sequence[Mapping[str, Any]] = ()
    troubles: Sequence[str] = ()


class Agent:
    """Publishes and obeys for one process, between `start` and `stop`.

    Args:
        prefix: of the topics PREFIX.status and PREFIX.commands.
        client: the way to the cluster: what every client has of the configuration.
        kind: `app`, `consumer` or `pipeline`.
        group: the consumer group, or the pipeline's name.
        look: returns the state of the process; called on the agent's thread.
        actions: the commands that it accepts; each returns its result as text.
        interval_ms: how often the status goes out.

    Raises:
        ConfigError: a prefix that topics cannot have.
    """

    def __init__(
        self,
        prefix: str,
        client: Mapping[str, Any],
        kind: str,
        group: str,
        look: Callable[[], Look],
        actions: Mapping[Action, Callable[[Command], str]],
        *,
        interval_ms: int = INTERVAL_MS,
    ) -> None:
        self._status, self._commands = (
            status_topic(checked_prefix(prefix)),
            commands_topic(prefix),
        )
        self._client = dict(client)
        self._kind, self._group = kind, group
        self._look, self._actions = look, dict(actions)
        self._interval_ms = interval_ms
        self._host = socket.gethostname()
        self.process = f"{group}@{self._host}/{os.getpid()}-{uuid.uuid4().hex[:6]}"
        """The name that commands for this process alone carry."""
        self._obedience = Obedience(group, self.process)
        self._started_ms = _now_ms()
        self._stopped = threading.Event()
        self._consumer: Consumer | None = None
        self._complained = ""
        self._thread = threading.Thread(target=self._run, name="kohort-remote", daemon=True)

    def start(self) -> None:
        """Begin to publish and to listen."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread, which says that the process is gone."""
        self._stopped.set()
        consumer = self._consumer
        if consumer is not None:
            consumer.wakeup()
        if self._thread.is_alive():
            self._thread.join(STOP_S)

    # -- the thread

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                self._serve()
            except WakeupError:
                continue  # stopped
            except KohortError as error:
                self._complain(error)
                self._stopped.wait(PAUSE_S)

    def _complain(self, error: KohortError) -> None:
        """A warning once for each kind of trouble: the process itself works on."""
        kind = type(error).__name__ + getattr(error, "name", "")
        level = logging.DEBUG if kind == self._complained else logging.WARNING
        self._complained = kind
        log.log(
            level,
            "%s cannot be watched or commanded at present: %s; trying again every %g s",
            self.process,
            error,
            PAUSE_S,
        )

    def _serve(self) -> None:
        reading = {
            "auto_offset_reset": "latest",
            "enable_auto_commit": False,
            "allow_auto_create_topics": False,
        }
        mine = known_to(ConsumerConfig, self._client)
        writing = {"max_block_ms": round(WRITE_S * 1000)}
        count = ensure_topics(self._client, self._status, self._commands)
        with (
            Consumer(ConsumerConfig.from_mapping({**mine, **reading})) as consumer,
            Producer({**known_to(ProducerConfig, self._client), **writing}) as producer,
        ):
            self._consumer = consumer
            try:
                consumer.assign([TopicPartition(self._commands, n) for n in range(count)])
                self._listen(consumer, producer)
            finally:
                self._consumer = None
                if self._stopped.is_set():
                    with suppress(KohortError):
                        producer.send(self._status, None, self.process.encode()).result(WRITE_S)

    def _listen(self, consumer: Consumer, producer: Producer) -> None:
        consumer.seek_to_end()
        for at in consumer.assignment():
            consumer.position(at)  # from here on, whenever it is polled
        due_s = 0.0
        while not self._stopped.is_set():
            if time.monotonic() >= due_s:
                self._publish(producer)
                due_s = time.monotonic() + self._interval_ms / 1000
            records = consumer.poll(max(0.0, min(POLL_S, due_s - time.monotonic())))
            for record in records:
                if self._handle(record):
                    due_s = 0.0

    def _publish(self, producer: Producer) -> None:
        look = self._look()
        status = ProcessStatus(
            process=self.process,
            kind=self._kind,
            group=self._group,
            host=self._host,
            pid=os.getpid(),
            version=f"{__version__} on Python {platform.python_version()}",
            started_ms=self._started_ms,
            at_ms=_now_ms(),
            interval_ms=self._interval_ms,
            state=look.state,
            actions=tuple(self._actions),
            figures=look.figures,
            partitions=look.partitions,
            troubles=look.troubles,
            results=self._obedience.results,
        )
        producer.send(self._status, encode_status(status), self.process.encode()).result(WRITE_S)
        self._complained = ""

    def _handle(self, record: Record) -> bool:
        """Do what a record says, if it is for us; whether there is a result to publish."""
        try:
            command = decode_command(record.value or b"")
        except MessageFault as fault:
            log.info(
                "%s-%d %d is no command: %s", record.topic, record.partition, record.offset, fault
            )
            return False
        if not self._obedience.takes(command):
            return False
        if late := self._obedience.too_late(record.timestamp, _now_ms()):
            self._obedience.done(command, ok=False, text=late)
            return True
        self._obey(command)
        return True

    def _obey(self, command: Command) -> None:
        log.warning(
            "%s: command %s from %s (%s)",
            self.process,
            command.action.value,
            command.by or "nobody named",
            command.id,
        )
        action = self._actions.get(command.action)
        if action is None:
            known = ", ".join(each.value for each in self._actions)
            self._obedience.done(command, ok=False, text=f"a {self._kind} can only {known}")
            return
        try:
            text = action(command)
        except KohortError as error:
            self._obedience.done(command, ok=False, text=str(error))
        except Exception as error:  # the process's own code: the thread must continue
            log.exception("%s: %s failed", self.process, command.action.value)
            self._obedience.done(command, ok=False, text=f"{type(error).__name__}: {error}")
        else:
            self._obedience.done(command, ok=True, text=text)


def ensure_topics(client: Mapping[str, Any], status: str, commands: str) -> int:
    """Create the two topics where they are missing; how many partitions the commands have.

    Raises BrokerError where that is refused.
    """
    with Admin(**known_to(AdminConfig, client)) as admin:
        there = {topic.name: topic.partition_count for topic in admin.list_topics()}
        for name, config in ((status, STATUS_CONFIG), (commands, COMMANDS_CONFIG)):
            if name in there:
                continue
            try:
                admin.create_topics([NewTopic(name, 1, configs=config)])
            except BrokerError as error:
                if error.code != ErrorCode.TOPIC_ALREADY_EXISTS:
                    raise
    return there.get(commands, 1)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
