"""A driver for one `ConsumerMember`: a clock, what it sent, and short ways to answer it."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from typing import Any

from kohort.errors import KohortError
from kohort.group.assignors import TopicView
from kohort.group.member.config import MemberConfig
from kohort.group.member.consumer import ConsumerMember
from kohort.group.member.effects import Effect, Send
from kohort.wire.messages.consumer_group_heartbeat_request import (
    ConsumerGroupHeartbeatRequest as Beat,
)
from kohort.wire.messages.consumer_group_heartbeat_response import (
    Assignment,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from tests.group.member_driver import Driver

INTERVAL_MS = 1_000


def topic_id(name: str) -> bytes:
    return name.encode().rjust(16, b"\1")


def views(*names: str, size: int = 4) -> dict[str, TopicView | None]:
    return {name: TopicView(size, topic_id=topic_id(name)) for name in names}


class ConsumerDriver(Driver):
    """One member, its clock, and the last effects."""

    member: ConsumerMember  # type: ignore[assignment]

    def __init__(self, topics: str = "t", seen: str | None = None, **config: Any) -> None:
        ids = (f"id{n}" for n in count())
        config = {"join_heartbeat_ms": 0, "idle_heartbeat_ms": 0, **config}
        self.member = ConsumerMember(
            MemberConfig(group_id="g", **config), lambda: next(ids), lambda: 0.5
        )
        self.topics = topics.split()
        self.now = 1_000
        self.effects: list[Effect] = []
        self.log: list[Effect] = []
        self.sent = {}
        self.see(topics if seen is None else seen)

    def see(self, names: str) -> list[Effect]:
        return self.call("topics_changed", views(*names.split()))

    @property
    def beats(self) -> list[Any]:
        """The heartbeats among the last effects."""
        return [e.message for e in self.effects if isinstance(e, Send)]

    @property
    def sent_beat(self) -> Any:
        """The one heartbeat among the last effects."""
        return self.request(Beat)

    def reply(
        self,
        parts: Mapping[str, Any] | None = None,
        epoch: int = 1,
        *,
        error: int = 0,
        ids: Mapping[bytes, Any] | None = None,
        **more: Any,
    ) -> list[Effect]:
        """Answer the latest heartbeat; `parts` None: no change of the assignment."""
        found = ids if parts is None else {topic_id(t): n for t, n in parts.items()}
        answer = ConsumerGroupHeartbeatResponse(
            error_code=error,
            member_id=None if error else more.pop("member_id", self.member.member_id),
            member_epoch=0 if error else epoch,
            heartbeat_interval_ms=more.pop("interval", 0 if error else INTERVAL_MS),
            assignment=None
            if found is None or error
            else Assignment(
                topic_partitions=[
                    TopicPartitions(topic_id=t, partitions=list(n)) for t, n in found.items()
                ]
            ),
            **more,
        )
        return self.answer(Beat, answer)

    def fails(self, error: KohortError) -> list[Effect]:
        return self.answer(Beat, error)

    def join(self) -> ConsumerDriver:
        self.subscribe()
        self.call("coordinator_found", 7)
        return self

    def stable(self, parts: Mapping[str, Any] | None = None, generation: int = 1) -> ConsumerDriver:
        """A member that owns `parts` (default: t 0 and 1) and whose coordinator knows it, in the
        epoch `generation`."""
        self.join()
        self.reply({"t": [0, 1]} if parts is None else parts, generation)
        self.steps()
        if self.beats:
            self.reply(epoch=generation)
        return self


def owned(beat: Any) -> dict[str, list[int]] | None:
    """What a heartbeat says is owned, by name; None: as before."""
    if beat.topic_partitions is None:
        return None
    return {bytes(t.topic_id).lstrip(b"\1").decode(): t.partitions for t in beat.topic_partitions}


def is_full(beat: Any) -> bool:
    """KIP-848: what makes the coordinator answer with the whole assignment."""
    return (
        beat.rebalance_timeout_ms > 0
        and beat.subscribed_topic_names is not None
        and beat.topic_partitions is not None
    )


def is_bare(beat: Any) -> bool:
    """A keep-alive: nothing has changed."""
    return (
        beat.rebalance_timeout_ms == -1
        and beat.subscribed_topic_names is None
        and beat.subscribed_topic_regex is None
        and beat.topic_partitions is None
        and beat.server_assignor is None
        and beat.rack_id is None
    )
