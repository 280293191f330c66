"""What a member asks its shell to do.

Rules:
- Effects are applied in order.
- `Send` goes to the coordinator, on one connection and in order; its answer, or the error that came
  instead, goes back with its token. Answers with a token that has been overtaken are dropped (C7).
- `Revoke` and `Assign` are the caller's steps: its thread runs all that are queued, in order,
  inside one `poll` and before it delivers a record, and confirms each. Only the last is waited for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kohort.errors import KohortError
from kohort.lean import dataclass
from kohort.wire import Message

if TYPE_CHECKING:  # the shells import this module long before there is a member
    from kohort.group.assignors.base import Partitions


@dataclass(frozen=True, slots=True)
class FindCoordinator:
    """Ask any broker, once. Answer by `coordinator_found` or `coordinator_not_found`."""


@dataclass(frozen=True, slots=True)
class Send:
    """Send `message` to node `node_id`; answer by `answered(token, …)` within `timeout_ms`."""

    token: int
    message: Message
    node_id: int
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class Revoke:
    """The caller gives up `partitions`, then confirms with `revoked(token)`.

    With `lost`, others may own them already: the listener's `lost` is called and nothing is
    committed. Without, its `revoked` is called, and it may commit, positions still in place.
    """

    token: int
    partitions: Partitions
    lost: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Assign:
    """The caller now owns `assignment` in `generation`; `added` is new. Confirm: `assigned`."""

    token: int
    added: Partitions
    assignment: Partitions
    generation: int


@dataclass(frozen=True, slots=True)
class WatchTopics:
    """The member needs to know these topics, beside those that it subscribes to by name.

    Report them by `topics_changed`, None for a topic that does not exist. Empty: watch no more.
    `ids` are of topics whose names are to be found out (KIP-848 assigns by id); they are reported
    by name, with their ids, as soon as the cluster knows them.
    """

    topics: frozenset[str]
    ids: frozenset[bytes] = frozenset()


@dataclass(frozen=True, slots=True)
class Warn:
    """A warning for the user's log; the group continues."""

    text: str


@dataclass(frozen=True, slots=True)
class Fatal:
    """The member has stopped permanently; `error` is raised from every later call."""

    error: KohortError


Effect = FindCoordinator | Send | Revoke | Assign | WatchTopics | Warn | Fatal
