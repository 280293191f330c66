"""A driver for one `ClassicMember`: a clock, what it sent, and short ways to answer it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from kohort.errors import ErrorCode, KohortError
from kohort.group.assignors import Assignor, TopicView, make_assignors
from kohort.group.assignors.protocol import encode_assignment, encode_subscription
from kohort.group.member.classic import ClassicMember
from kohort.group.member.config import MemberConfig
from kohort.group.member.effects import Assign, Effect, FindCoordinator, Revoke, Send
from kohort.wire import Message
from kohort.wire.messages.heartbeat_request import HeartbeatRequest
from kohort.wire.messages.heartbeat_response import HeartbeatResponse
from kohort.wire.messages.join_group_request import JoinGroupRequest
from kohort.wire.messages.join_group_response import JoinGroupResponse, JoinGroupResponseMember
from kohort.wire.messages.leave_group_request import LeaveGroupRequest
from kohort.wire.messages.sync_group_request import SyncGroupRequest
from kohort.wire.messages.sync_group_response import SyncGroupResponse

E = TypeVar("E")
T2 = {"t": TopicView(2)}


class Driver:
    """One member, its clock, and the last effects."""

    def __init__(
        self, assignors: str | list[Assignor] = "range", topics: str = "t", **config: Any
    ) -> None:
        config = {"idle_heartbeat_ms": 0, **config}
        self.member = ClassicMember(
            MemberConfig(group_id="g", **config), make_assignors(assignors), lambda: 0.5
        )
        self.topics = topics.split()
        self.now = 1_000
        self.effects: list[Effect] = []
        self.log: list[Effect] = []
        self.sent: dict[type[Message], Send] = {}

    def did(self, effects: list[Effect]) -> list[Effect]:
        self.effects = effects
        self.log += effects
        for effect in effects:
            if isinstance(effect, Send):
                self.sent[type(effect.message)] = effect
        return effects

    def call(self, name: str, *args: Any) -> list[Effect]:
        """Call an input of the member at the driver's time."""
        return self.did(getattr(self.member, name)(*args, self.now))

    def only(self, kind: type[E]) -> E:
        """The one effect of this kind among the last ones."""
        found = [effect for effect in self.effects if isinstance(effect, kind)]
        assert len(found) == 1, self.effects
        return found[0]

    def none(self, *kinds: type[Any]) -> None:
        assert not [e for e in self.effects if isinstance(e, kinds)], self.effects

    def request(self, kind: type[Message]) -> Any:
        """The one request of this kind among the last effects."""
        found = [e.message for e in self.effects if isinstance(e, Send) and type(e.message) is kind]
        assert len(found) == 1, self.effects
        return found[0]

    def sent_none(self, kind: type[Message]) -> None:
        assert not [e for e in self.effects if isinstance(e, Send) and type(e.message) is kind]

    def later(self, ms: int) -> list[Effect]:
        """Let time pass, ticking whenever the member asks for it; all effects together."""
        end, seen = self.now + ms, list[Effect]()
        while (due := self.member.next_deadline()) is not None and due <= end:
            self.now = max(self.now, due)
            seen += self.call("tick")
            assert len(seen) < 10_000, "the member asks to be called without end"
            if self.member.next_deadline() == due == self.now:
                break
        self.now = end
        return self.did(seen)

    def answer(self, kind: type[Message], answer: Message | KohortError) -> list[Effect]:
        """Answer the latest request of this kind."""
        return self.call("answered", self.sent[kind].token, answer)

    # -- the usual answers -----------------------------------------------------------------

    def joined(
        self,
        generation: int = 1,
        *,
        member_id: str = "me",
        leader: str = "other",
        protocol: str = "range",
        members: Mapping[str, bytes] | None = None,
        error: int = 0,
        **more: Any,
    ) -> list[Effect]:
        found = [
            JoinGroupResponseMember(member_id=m, metadata=d) for m, d in (members or {}).items()
        ]
        response = JoinGroupResponse(
            error_code=error,
            generation_id=-1 if error else generation,
            protocol_type="consumer",
            protocol_name=protocol,
            leader=leader,
            member_id=member_id,
            members=found,
            **more,
        )
        return self.answer(JoinGroupRequest, response)

    def synced(self, parts: Mapping[str, Any] | None = None, error: int = 0) -> list[Effect]:
        data = b"" if error else encode_assignment(parts or {})
        return self.answer(SyncGroupRequest, SyncGroupResponse(error_code=error, assignment=data))

    def beat(self, error: int = 0) -> list[Effect]:
        return self.answer(HeartbeatRequest, HeartbeatResponse(error_code=error))

    def steps(self) -> list[Effect]:
        """The caller runs every step of the last effects; what the confirmations lead to."""
        seen = list[Effect]()
        for effect in list(self.effects):
            if isinstance(effect, Revoke):
                seen += self.call("revoked", effect.token)
            elif isinstance(effect, Assign):
                seen += self.call("assigned", effect.token)
        return self.did(seen) if seen else seen

    # -- shortcuts into a state --------------------------------------------------------------

    def subscribe(self, topics: str | None = None) -> list[Effect]:
        return self.call("subscribe", (self.topics if topics is None else topics.split()))

    def join(self) -> Driver:
        """Subscribed, coordinator found, the join is on its way."""
        self.subscribe()
        self.only(FindCoordinator)
        self.call("coordinator_found", 7)
        return self

    def stable(self, parts: Mapping[str, Any] | None = None, generation: int = 1) -> Driver:
        """A follower that owns `parts` (default: t 0 and 1)."""
        self.join()
        self.joined(generation, protocol=next(iter(self.member.assignors)))
        self.synced({"t": [0, 1]} if parts is None else parts)
        self.steps()
        return self


def metadata(topics: str, owned: Mapping[str, Any] | None = None, generation: int = -1) -> bytes:
    """A member's subscription as it stands in the leader's join answer."""
    return encode_subscription(topics.split(), None, dict(owned or {}), generation, None)


__all__ = ["T2", "Driver", "ErrorCode", "LeaveGroupRequest", "metadata"]
