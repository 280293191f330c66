"""One request that is asked what it may do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from kohort.acl import CLUSTER_NAME, OPERATIONS, Operation, Resource
from kohort.broker.base.request import Call
from kohort.broker.security.authorizer import Authorizer
from kohort.wire import Message

if TYPE_CHECKING:
    from kohort.broker.base.config import BrokerConfig
    from kohort.broker.state.topics import Topics

Patch = Callable[[Any], None]
"""Changes the answer of an allowed request."""
Check = Callable[["Asking", Any], "Message | Patch | None"]
"""A refusal of the whole, a change to its answer, or None: nothing is refused."""

T = TypeVar("T")


def split(items: Sequence[T], may: Callable[[T], bool]) -> tuple[list[T], list[T]]:
    """The allowed and the refused resources; each is checked once, and none compared with
    others."""
    kept, refused = list[T](), list[T]()
    for one in items:
        (kept if may(one) else refused).append(one)
    return kept, refused


def with_refusals(field: str, answers: Sequence[Any]) -> Patch | None:
    """Put refusals behind the API's own answers in this field; None where there are none."""

    def patch(response: Any) -> None:
        setattr(response, field, [*getattr(response, field), *answers])

    return patch if answers else None


class AuthorizedNode(Protocol):
    """What authorizers see of the node that serves a request."""

    config: BrokerConfig
    topics: Topics


class Asking:
    """Who asks, from where, of which node."""

    __slots__ = ("_authorizer", "_host", "_principal", "call", "node")

    def __init__(self, node: AuthorizedNode, authorizer: Authorizer, call: Call) -> None:
        self.node = node
        self.call = call
        self._authorizer = authorizer
        self._principal = call.principal
        self._host = call.client_host.removeprefix("/")

    def may(self, operation: Operation, resource: Resource, name: str) -> bool:
        """Whether this may be done."""
        return self._authorizer.may(self._principal, self._host, operation, resource, name)

    def topic(self, operation: Operation, name: str) -> bool:
        """With a topic."""
        return self.may(operation, Resource.TOPIC, name)

    def group(self, operation: Operation, group_id: str) -> bool:
        """With a group."""
        return self.may(operation, Resource.GROUP, group_id)

    def transactional(self, operation: Operation, transactional_id: str) -> bool:
        """With a transactional id."""
        return self.may(operation, Resource.TRANSACTIONAL_ID, transactional_id)

    def cluster(self, operation: Operation) -> bool:
        """With the cluster itself."""
        return self.may(operation, Resource.CLUSTER, CLUSTER_NAME)

    def some_topic(self, operation: Operation) -> bool:
        """With any topic at all."""
        return self._authorizer.may_any(self._principal, self._host, operation, Resource.TOPIC)

    def operations(self, resource: Resource, name: str) -> int:
        """Everything that may be done, as bits (KIP-430)."""
        every = OPERATIONS[resource]
        return self._authorizer.operations(self._principal, self._host, every, resource, name)

    def cluster_operations(self) -> int:
        """Everything that may be done with the cluster, as bits; none without DESCRIBE."""
        if not self.cluster(Operation.DESCRIBE):
            return 0
        return self.operations(Resource.CLUSTER, CLUSTER_NAME)

    def name_of(self, name: str | None, topic_id: bytes) -> str | None:
        """A topic's name, given it or its id; None for an unknown id."""
        if name:
            return name
        topic = self.node.topics.by_id(topic_id)
        return None if topic is None else topic.name

    def knows(self, operation: Operation, name: str | None, topic_id: bytes) -> bool:
        """As `topic`, where the request may name it by id; what does not exist is let through."""
        topic_name = self.name_of(name, topic_id)
        return topic_name is None or self.topic(operation, topic_name)
