"""What the programs of a simulated system did and saw; the checks judge it at the end."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from kohort.client.common.types import TopicPartition


class Fate(StrEnum):
    """What a program knows of something it asked for."""

    UNKNOWN = "unknown"
    """No answer, or an error that leaves both possible."""
    DONE = "done"
    REFUSED = "refused"
    """It has not happened and never will."""


@dataclass
class Sent:
    """One record that a producer was given.

    Args:
        producer: program and life, for example `load-1/2`.
        number: its place among the producer's records.
        partition: where it was sent.
        value: unique in the world.
        transaction: index in `History.transactions`; None outside of transactions.
        fate: whether its storage was acknowledged.
        offset: the acknowledged offset; -1 without one.
        asked_ms, done_ms: when it was sent and acknowledged; -1 where that is not noted.
    """

    producer: str
    number: int
    partition: TopicPartition
    value: bytes
    key: bytes | None = None
    transaction: int | None = None
    fate: Fate = Fate.UNKNOWN
    offset: int = -1
    asked_ms: int = -1
    done_ms: int = -1


@dataclass
class Transaction:
    """One transaction of a producer; DONE is committed, REFUSED aborted."""

    producer: str
    fate: Fate = Fate.UNKNOWN


@dataclass(frozen=True)
class Seen:
    """One record that a consumer's poll returned."""

    consumer: str
    partition: TopicPartition
    offset: int
    value: bytes | None
    committed_only: bool


@dataclass(frozen=True)
class Read:
    """One record of the topic whose beginning goes, as a reader of it got it.

    Args:
        program: its name; its lives share their commits.
        label: program and life.
        after: the offset that the life had read before, or below which its program has committed.
        log_start: where the log started then; None while no broker ran.
        trimmed: up to where DeleteRecords had been acknowledged.
        deleted: below it records had been deleted before the last crash, which may have brought
            some back.
    """

    program: str
    label: str
    partition: TopicPartition
    offset: int
    value: bytes
    after: int
    log_start: int | None
    trimmed: int
    deleted: int = 0


@dataclass
class Round:
    """A topic is deleted and created again.

    Args:
        asked_ms: when it was asked to be deleted.
        deleted_ms: when that was acknowledged; None: perhaps it was not.
        ended_ms: from when on nothing of this round deletes any more.
    """

    asked_ms: int
    deleted_ms: int | None = None
    ended_ms: int | None = None


@dataclass
class Look:
    """One reading of the topic that is made again, from its beginning to its end.

    Args:
        label: program and life.
        committed: what its group had committed when it began.
        values: the records by offset.
        commits: what it committed at its end, and when that was acknowledged.
    """

    label: str
    began_ms: int
    ended_ms: int | None = None
    committed: int | None = None
    values: dict[int, bytes] = field(default_factory=dict[int, bytes])
    commits: int | None = None
    commits_done_ms: int | None = None


@dataclass(frozen=True)
class Attempt:
    """One call of an app's handler.

    Args:
        group: the app's.
        label: program and life.
        partition, offset: the input's first place.
        value: its content.
        number: 0 for the first try, 1 for the first retry, and so on.
        at_ms: when, by the world's clock.
        succeeded: whether the handler did not fail.
    """

    group: str
    label: str
    partition: TopicPartition
    offset: int
    value: bytes
    number: int
    at_ms: int
    succeeded: bool


class Kind(StrEnum):
    """What an operation does with the committed offsets of a group."""

    COMMIT = "commit"
    TRANSACTION = "transaction"
    """A commit that counts with its transaction."""
    DELETE = "delete"
    """A topic is deleted, and its committed offsets with it."""
    FETCH = "fetch"


@dataclass
class Operation:
    """One request about the committed offsets of a group, as its client's connection saw it.

    Args:
        who: program and life.
        group: the group.
        kind: what was asked for.
        offsets: what was committed, or fetched; None: no offset is committed.
        asked, done: its places among all requests and answers; None: no answer that decides.
        asked_ms, done_ms: the same by the world's clock.
        fate: whether it was answered, and how; a fetch is DONE.
        member, epoch: who commits as which member, in which generation (epoch).
    """

    who: str
    group: str
    kind: Kind
    offsets: dict[TopicPartition, int | None]
    asked: int
    asked_ms: int = -1
    done: int | None = None
    done_ms: int = -1
    fate: Fate = Fate.UNKNOWN
    member: str = ""
    epoch: int = -1


@dataclass
class History:
    """Everything that happened, in order."""

    sent: list[Sent] = field(default_factory=list[Sent])
    transactions: list[Transaction] = field(default_factory=list[Transaction])
    seen: list[Seen] = field(default_factory=list[Seen])
    attempts: list[Attempt] = field(default_factory=list[Attempt])
    commits: dict[tuple[str, TopicPartition], int] = field(
        default_factory=dict[tuple[str, TopicPartition], int]
    )
    """By group and partition: the greatest offset whose commit was acknowledged."""
    again: list[tuple[str, TopicPartition, int, int]] = field(
        default_factory=list[tuple[str, TopicPartition, int, int]]
    )
    """Member, partition, offset of a record below what was committed when the member got the
    partition, and that commit."""

    reads: list[Read] = field(default_factory=list[Read])
    positions: dict[tuple[str, TopicPartition], int] = field(
        default_factory=dict[tuple[str, TopicPartition], int]
    )
    """By program and partition: the greatest offset that a reader of `reads` asked to commit."""
    trims: set[tuple[TopicPartition, int]] = field(default_factory=set[tuple[TopicPartition, int]])
    """What DeleteRecords was asked for."""
    trimmed: dict[TopicPartition, int] = field(default_factory=dict[TopicPartition, int])
    """The greatest offset of each partition that it acknowledged."""
    wrong_starts: list[tuple[str, TopicPartition, int, int]] = field(
        default_factory=list[tuple[str, TopicPartition, int, int]]
    )
    """Program, partition, the offset asked for, and a lower one in the answer."""

    operations: list[Operation] = field(default_factory=list[Operation])
    stable: list[tuple[str, int, int]] = field(default_factory=list[tuple[str, int, int]])
    """Group, generation, and the place among all requests and answers from which on a member knew
    that all of its members were in it; of groups of the classic protocol."""

    rounds: list[Round] = field(default_factory=list[Round])
    looks: list[Look] = field(default_factory=list[Look])

    redrives: dict[str, int] = field(default_factory=dict[str, int])
    """By program: the number of the redrive that it is at."""
    ended_redrives: set[str] = field(default_factory=set[str])
    sent_after_the_end: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    """Redrives that had ended, and how many records they sent all the same."""

    def committed(self, group: str, partition: TopicPartition, offset: int) -> None:
        """A commit was acknowledged."""
        key = group, partition
        self.commits[key] = max(self.commits.get(key, 0), offset)
