"""One tree for every error that Kohort raises.

Rules:
- Everything raised on purpose is a `KohortError`. `UsageError` and `ConfigError` are the caller's
  to mend; `BrokerError` is a peer's answer; `ProtocolError` is bytes that break a format;
  `StorageError` is the disk's.
- A message says what happened, to which group, member, partition or offset, why, and what to do.
- `retriable` says whether the same call may succeed later without anything being changed.

Source of the codes: the `Errors` table of Apache Kafka 4.3.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TypeVar


class ErrorCode(IntEnum):
    """Kafka's error codes, as in every response (int16)."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    INVALID_FETCH_SIZE = 4
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    BROKER_NOT_AVAILABLE = 8
    REPLICA_NOT_AVAILABLE = 9
    MESSAGE_TOO_LARGE = 10
    STALE_CONTROLLER_EPOCH = 11
    OFFSET_METADATA_TOO_LARGE = 12
    NETWORK_EXCEPTION = 13
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    INVALID_COMMIT_OFFSET_SIZE = 28
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    NOT_CONTROLLER = 41
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTION_COORDINATOR_FENCED = 52
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SECURITY_DISABLED = 54
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56
    LOG_DIR_NOT_FOUND = 57
    SASL_AUTHENTICATION_FAILED = 58
    UNKNOWN_PRODUCER_ID = 59
    REASSIGNMENT_IN_PROGRESS = 60
    DELEGATION_TOKEN_AUTH_DISABLED = 61
    DELEGATION_TOKEN_NOT_FOUND = 62
    DELEGATION_TOKEN_OWNER_MISMATCH = 63
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65
    DELEGATION_TOKEN_EXPIRED = 66
    INVALID_PRINCIPAL_TYPE = 67
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    INVALID_FETCH_SESSION_EPOCH = 71
    LISTENER_NOT_FOUND = 72
    TOPIC_DELETION_DISABLED = 73
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    STALE_BROKER_EPOCH = 77
    OFFSET_NOT_AVAILABLE = 78
    MEMBER_ID_REQUIRED = 79
    PREFERRED_LEADER_NOT_AVAILABLE = 80
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83
    ELECTION_NOT_NEEDED = 84
    NO_REASSIGNMENT_IN_PROGRESS = 85
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88
    THROTTLING_QUOTA_EXCEEDED = 89
    PRODUCER_FENCED = 90
    RESOURCE_NOT_FOUND = 91
    DUPLICATE_RESOURCE = 92
    UNACCEPTABLE_CREDENTIAL = 93
    INCONSISTENT_VOTER_SET = 94
    INVALID_UPDATE_VERSION = 95
    FEATURE_UPDATE_FAILED = 96
    PRINCIPAL_DESERIALIZATION_FAILURE = 97
    SNAPSHOT_NOT_FOUND = 98
    POSITION_OUT_OF_RANGE = 99
    UNKNOWN_TOPIC_ID = 100
    DUPLICATE_BROKER_REGISTRATION = 101
    BROKER_ID_NOT_REGISTERED = 102
    INCONSISTENT_TOPIC_ID = 103
    INCONSISTENT_CLUSTER_ID = 104
    TRANSACTIONAL_ID_NOT_FOUND = 105
    FETCH_SESSION_TOPIC_ID_ERROR = 106
    INELIGIBLE_REPLICA = 107
    NEW_LEADER_ELECTED = 108
    OFFSET_MOVED_TO_TIERED_STORAGE = 109
    FENCED_MEMBER_EPOCH = 110
    UNRELEASED_INSTANCE_ID = 111
    UNSUPPORTED_ASSIGNOR = 112
    STALE_MEMBER_EPOCH = 113
    MISMATCHED_ENDPOINT_TYPE = 114
    UNSUPPORTED_ENDPOINT_TYPE = 115
    UNKNOWN_CONTROLLER_ID = 116
    UNKNOWN_SUBSCRIPTION_ID = 117
    TELEMETRY_TOO_LARGE = 118
    INVALID_REGISTRATION = 119
    TRANSACTION_ABORTABLE = 120
    INVALID_RECORD_STATE = 121
    SHARE_SESSION_NOT_FOUND = 122
    INVALID_SHARE_SESSION_EPOCH = 123
    FENCED_STATE_EPOCH = 124
    INVALID_VOTER_KEY = 125
    DUPLICATE_VOTER = 126
    VOTER_NOT_FOUND = 127
    INVALID_REGULAR_EXPRESSION = 128
    REBOOTSTRAP_REQUIRED = 129
    STREAMS_INVALID_TOPOLOGY = 130
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131
    STREAMS_TOPOLOGY_FENCED = 132
    SHARE_SESSION_LIMIT_REACHED = 133

    @classmethod
    def name_of(cls, code: int) -> str:
        """The code's name, or `UNKNOWN_ERROR_CODE_n` for one that this version does not know."""
        try:
            return cls(code).name
        except ValueError:
            return f"UNKNOWN_ERROR_CODE_{code}"


RETRIABLE_CODES: frozenset[int] = frozenset(
    {
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.LISTENER_NOT_FOUND,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        ErrorCode.ELECTION_NOT_NEEDED,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
        ErrorCode.SHARE_SESSION_NOT_FOUND,
        ErrorCode.INVALID_SHARE_SESSION_EPOCH,
        ErrorCode.SHARE_SESSION_LIMIT_REACHED,
    }
)


class KohortError(Exception):
    """The base class. `retriable` is True if the same call may succeed later."""

    retriable: bool = False


class ConfigError(KohortError, ValueError):
    """A configuration value or key was refused. Nothing has been started or changed."""


class UsageError(KohortError):
    """A call that the contract forbids (for example subscribe and assign on one consumer)."""


class ClosedError(UsageError):
    """The client or broker was closed before this call."""


class ConcurrentUseError(UsageError):
    """A second thread called into a consumer that serves one thread at a time (spec 4.9)."""


class ForkedError(UsageError):
    """The object was made in another process; sockets do not survive a fork. Make a new one."""


class WakeupError(KohortError):
    """A blocking call was ended by `wakeup()`. Nothing is lost; call again."""


class KafkaTimeoutError(KohortError, TimeoutError):
    """A call did not finish within its time limit. You can repeat the call."""

    retriable = True


class ConnectionFailedError(KohortError, ConnectionError):
    """A connection to a broker failed: refused, unreachable, closed, or an unknown host name."""

    retriable = True


class DamagedAnswerError(ConnectionFailedError):
    """An answer could not be decoded, and its connection was closed. A retry may succeed."""


class AuthenticationError(KohortError):
    """Client and broker could not authenticate each other. Kohort does not retry.

    `mechanism` is the SASL mechanism or `SSL`, `user` and `broker` are "" where they are not known,
    `reason` says why it was refused and `advice` what to do. None of them contains a secret.
    """

    def __init__(
        self,
        reason: str,
        *,
        mechanism: str = "",
        user: str = "",
        broker: str = "",
        advice: str = "check the user's name, password and mechanism on both sides",
    ) -> None:
        self.reason = reason
        self.mechanism = mechanism
        self.user = user
        self.broker = broker
        self.advice = advice
        by = f" by {mechanism}" if mechanism else ""
        who = f" as {user!r}" if user else ""
        where = f" at {broker}" if broker else ""
        super().__init__(f"authentication{by}{who}{where} failed: {reason}; {advice}")

    def at(self, broker: str, user: str = "") -> AuthenticationError:
        """The same, with the broker, and the user if it was not known."""
        return AuthenticationError(
            self.reason,
            mechanism=self.mechanism,
            user=self.user or user,
            broker=broker,
            advice=self.advice,
        )


class ProtocolError(KohortError):
    """Bytes that break the wire or record format. `ProtocolError`s never carry partial results."""


class DecodeError(ProtocolError):
    """A message could not be decoded: too short, too long, a bad length, or a limit passed."""


class EncodeError(ProtocolError):
    """A message cannot be encoded at this version: a value is out of range or not representable."""


class UnsupportedVersionError(ProtocolError):
    """The two sides share no version of an API, or a field has no place in the chosen version."""


class CorruptRecordError(ProtocolError):
    """A record batch is damaged (CRC, length, count). Names topic, partition, offset if known.

    `offset` is the first offset that cannot be read, `next_offset` the first one after the damaged
    batch, as far as its header can be trusted, `batch` its bytes as they were fetched, 16 MiB of
    them at most. Each is None where it is not known.
    """

    def __init__(
        self,
        message: str,
        *,
        topic: str | None = None,
        partition: int | None = None,
        offset: int | None = None,
        next_offset: int | None = None,
        batch: bytes | None = None,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.next_offset = next_offset
        self.batch = batch
        super().__init__(message)


class DecompressionLimitError(CorruptRecordError):
    """A batch expands past the limit of bytes it may have when it is decompressed."""


class DeserializationError(KohortError):
    """A key or value does not match its format. A retry would fail again."""


class SchemaRegistryError(KohortError):
    """The schema registry refused a request, or does not have the schema.

    `status` is the HTTP status of its answer, or None if there was no answer.
    """

    status: int | None = None


class RecordTooLargeError(KohortError):
    """A record exceeds a size limit. Raise `max_request_size` and `max.message.bytes`."""


class DeliveryFailedError(KohortError):
    """Records were not stored, and the program did not check their futures.

    `count` is the number of records, `first` the error of the first one.
    """

    def __init__(self, message: str, *, count: int, first: KohortError) -> None:
        super().__init__(message)
        self.count = count
        self.first = first


class StorageError(KohortError):
    """The data directory or one of its files cannot be used."""


class DataDirectoryInUseError(StorageError):
    """Another process holds the data directory's lock."""


class BrokerError(KohortError):
    """A broker answered with an error code.

    `code` is Kafka's int16 code, `name` its name; `retriable` is Kafka's own classification.
    `detail` is the text without both; a broker that answers with this error sends it.
    """

    def __init__(self, code: int, message: str = "") -> None:
        self.code = int(code)
        self.name = ErrorCode.name_of(self.code)
        self.detail = message
        self.retriable = self.code in RETRIABLE_CODES
        super().__init__(f"{self.name} ({self.code}){': ' + message if message else ''}")


class GroupError(BrokerError):
    """A group request was refused; see `code`."""


class FencedError(GroupError):
    """Another client holds this identity (instance id, producer epoch) now. Fatal here."""


class CommitFailedError(GroupError):
    """Offsets were not committed: the partitions now belong to another member or generation."""


class AbortableTransactionError(KohortError):
    """The open transaction cannot be committed. Call `abort_transaction()`, then repeat it."""


class TransactionAbortedError(KohortError):
    """A record or offset was dropped because the caller aborted its transaction."""


class NoOffsetForPartitionError(KohortError):
    """`auto_offset_reset="none"` and a partition has no committed offset, or it is out of range."""


class ConsumerStalledError(KohortError):
    """A partition with unread records made no progress for longer than `watchdog_ms`."""


class DataLossError(KohortError):
    """Requested records no longer exist (retention, truncation, or a recreated topic)."""


_E = TypeVar("_E", bound=BaseException)


def fresh(error: _E) -> _E:
    """A copy of an error that is kept, to be raised.

    One object that is raised again and again gets a longer traceback each time, and keeps the
    frames of every caller alive.

    Args:
        error: the error that is kept; errors that are not Kohort's are returned as they are.

    Returns:
        An error of the same class, with the same arguments, attributes and cause, and no traceback.
    """
    if not isinstance(error, KohortError):
        return error
    cls = type(error)
    made = cls.__new__(cls, *error.args)
    made.args = error.args
    made.__dict__.update(error.__dict__)
    made.__cause__ = error.__cause__
    return made
