"""Group errors that a member cannot mend by itself, each with what a person can do about it."""

from __future__ import annotations

from kohort.errors import ErrorCode, FencedError, GroupError, UnsupportedVersionError
from kohort.group.member.config import MemberConfig

_HINTS: dict[int, str] = {
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL: (
        "the group has members with which this one shares no assignor ({assignors} here), or it is "
        "used by another kind of client. Configure an assignor that all members have, or use "
        "another group id"
    ),
    ErrorCode.GROUP_AUTHORIZATION_FAILED: (
        "this client may not use the group. Grant it READ on the group, or check its credentials"
    ),
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: (
        "this client may not read a subscribed topic. Grant it READ on the topic"
    ),
    ErrorCode.GROUP_MAX_SIZE_REACHED: (
        "the group has as many members as the broker's group.max.size allows. Stop a member, or "
        "raise that limit"
    ),
    ErrorCode.INVALID_SESSION_TIMEOUT: (
        "session.timeout.ms is {session} here; choose one between the broker's "
        "group.min.session.timeout.ms and group.max.session.timeout.ms"
    ),
    ErrorCode.INVALID_GROUP_ID: "the broker does not take this group id; choose another",
    ErrorCode.UNRELEASED_INSTANCE_ID: (
        "group.instance.id {instance!r} is held by another member, or by one that died less than "
        "the broker's session timeout ago. Give each running consumer one of its own; after a "
        "crash, start again when the session is over (`kohort group describe` shows the holder)"
    ),
    ErrorCode.UNSUPPORTED_ASSIGNOR: (
        "the broker has no assignor {remote!r}. Set group_remote_assignor to one of its "
        "group.consumer.assignors, or leave it out for the broker's default"
    ),
    ErrorCode.INVALID_REGULAR_EXPRESSION: (
        "the broker cannot read the pattern (it takes RE2 syntax and matches whole names). Mend "
        "it, or subscribe by re.compile(...), which is matched here"
    ),
    ErrorCode.GROUP_ID_NOT_FOUND: (
        "there is a classic group of that name which cannot be taken over: its members use "
        "something that the consumer protocol has not, or the broker's "
        "group.consumer.migration.policy forbids it. Use group_protocol=classic, or another group"
    ),
    ErrorCode.UNSUPPORTED_VERSION: (
        "the broker is too old for what is configured (group.instance.id needs Kafka 2.3). Remove "
        "it or upgrade the broker"
    ),
}
_FENCED = (
    "another client has joined with group.instance.id {instance!r} and took this member's place. "
    "Give each running consumer an instance id of its own; this one has stopped consuming"
)
_OTHER = "the broker gave no reason that can be acted on; see its log"


def fatal_error(
    code: int, doing: str, config: MemberConfig, assignors: list[str], broker_message: str = ""
) -> GroupError:
    """The error to raise when `doing` was answered with `code`: what, to whom, why, what to do.

    `broker_message` is the broker's own text, where it sent one.
    """
    fenced = code == ErrorCode.FENCED_INSTANCE_ID
    hint = _FENCED if fenced else _HINTS.get(code, _OTHER)
    text = hint.format(
        assignors=", ".join(assignors),
        session=config.session_timeout_ms,
        instance=config.group_instance_id,
        remote=config.group_remote_assignor,
    )
    kind = FencedError if fenced else GroupError
    detail = f". The broker says: {broker_message}" if broker_message else ""
    return kind(code, f"{doing} in group {config.group_id!r} was refused: {text}{detail}")


def unsupported_protocol(
    config: MemberConfig, error: UnsupportedVersionError, *, pattern: bool
) -> UnsupportedVersionError:
    """The broker does not speak the consumer protocol (KIP-848), or only its first draft."""
    what = "server-side patterns" if pattern else "the consumer group protocol"
    return UnsupportedVersionError(
        f"group {config.group_id!r}: this broker does not serve {what} (KIP-848, Kafka 4.0): "
        f"{error}. Set group_protocol=classic, or upgrade the broker"
    )
