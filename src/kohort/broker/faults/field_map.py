"""Where Kafka's messages name topics, partitions and groups, and where answers carry error codes.

Rules:
- An answer that refuses a request says so where Kafka says it: beside each partition, topic, group
  or resource that the request named, or at the top where there is no such place.
- Most answers mirror the request: a list of the request comes back as a list of the answer, with
  the same names. `FIELD_MAP` says which; what it does not list is answered at the top.
- A request may be split: the refused part is taken out, the rest is carried out, and the two
  answers are joined.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, Final

from kohort.broker.faults.rules import Seen
from kohort.lean import dataclass
from kohort.wire import API_NAMES, Message, Struct, response_class
from kohort.wire.messages import (
    add_partitions_to_txn_response as add_partitions,
)
from kohort.wire.messages import (
    alter_client_quotas_response,
    alter_configs_response,
    consumer_group_describe_response,
    create_acls_response,
    create_partitions_response,
    create_topics_response,
    delete_acls_response,
    delete_groups_response,
    delete_records_response,
    delete_topics_response,
    describe_configs_response,
    describe_groups_response,
    describe_producers_response,
    describe_topic_partitions_response,
    describe_transactions_response,
    elect_leaders_response,
    fetch_response,
    find_coordinator_response,
    incremental_alter_configs_response,
    list_offsets_response,
    metadata_response,
    offset_commit_response,
    offset_delete_response,
    offset_fetch_response,
    offset_for_leader_epoch_response,
    produce_response,
    txn_offset_commit_response,
    write_txn_markers_response,
)
from kohort.wire.messages import (
    alter_user_scram_credentials_response as alter_scram_response,
)

Wants = Callable[[str, int], bool]
NameOf = Callable[[bytes], str]

_FETCH, _METADATA, _OFFSET_FETCH, _FIND_COORDINATOR, _LOG_DIRS = 1, 3, 9, 10, 35
_TOPIC_FIELDS: Final = ("name", "topic")
_NOT_TOPICS: Final = frozenset({"group_id", "key", "transactional_id"})
_SAME: Final = frozenset(
    {
        "name",
        "topic",
        "topic_id",
        "index",
        "partition",
        "partition_index",
        "group_id",
        "resource_type",
        "resource_name",
        "transactional_id",
        "producer_id",
        "member_id",
        "key",
        "entity",
        "user",
    }
)


@dataclass(frozen=True, slots=True)
class Mirror:
    """A list of a request that comes back as a list of its answer."""

    source: str
    target: str
    element: type[Struct]
    inner: Mirror | None = None
    key: str = ""
    """The field of the answer that takes what the request lists, when those are plain values."""
    source_key: str = ""
    """The field of the request's element that `key` is taken from; empty: the element itself."""
    code: str = "error_code"


def _p(
    source: str,
    target: str,
    element: type[Struct],
    key: str = "",
    source_key: str = "",
    code: str = "error_code",
) -> Mirror:
    return Mirror(source, target, element, None, key, source_key, code)


_PARTITIONS: Final = "partitions"
FIELD_MAP: Final[dict[int, tuple[Mirror, ...]]] = {
    0: (
        Mirror(
            "topic_data",
            "responses",
            produce_response.TopicProduceResponse,
            _p("partition_data", "partition_responses", produce_response.PartitionProduceResponse),
        ),
    ),
    1: (
        Mirror(
            "topics",
            "responses",
            fetch_response.FetchableTopicResponse,
            _p(
                _PARTITIONS,
                _PARTITIONS,
                fetch_response.PartitionData,
                "partition_index",
                "partition",
            ),
        ),
    ),
    2: (
        Mirror(
            "topics",
            "topics",
            list_offsets_response.ListOffsetsTopicResponse,
            _p(_PARTITIONS, _PARTITIONS, list_offsets_response.ListOffsetsPartitionResponse),
        ),
    ),
    3: (Mirror("topics", "topics", metadata_response.MetadataResponseTopic),),
    8: (
        Mirror(
            "topics",
            "topics",
            offset_commit_response.OffsetCommitResponseTopic,
            _p(_PARTITIONS, _PARTITIONS, offset_commit_response.OffsetCommitResponsePartition),
        ),
    ),
    9: (
        Mirror(
            "topics",
            "topics",
            offset_fetch_response.OffsetFetchResponseTopic,
            _p(
                "partition_indexes",
                _PARTITIONS,
                offset_fetch_response.OffsetFetchResponsePartition,
                "partition_index",
            ),
        ),
        Mirror("groups", "groups", offset_fetch_response.OffsetFetchResponseGroup),
    ),
    10: (_p("coordinator_keys", "coordinators", find_coordinator_response.Coordinator, "key"),),
    15: (_p("groups", "groups", describe_groups_response.DescribedGroup, "group_id"),),
    19: (Mirror("topics", "topics", create_topics_response.CreatableTopicResult),),
    20: (
        Mirror("topics", "responses", delete_topics_response.DeletableTopicResult),
        _p("topic_names", "responses", delete_topics_response.DeletableTopicResult, "name"),
    ),
    21: (
        Mirror(
            "topics",
            "topics",
            delete_records_response.DeleteRecordsTopicResult,
            _p(_PARTITIONS, _PARTITIONS, delete_records_response.DeleteRecordsPartitionResult),
        ),
    ),
    23: (
        Mirror(
            "topics",
            "topics",
            offset_for_leader_epoch_response.OffsetForLeaderTopicResult,
            _p(_PARTITIONS, _PARTITIONS, offset_for_leader_epoch_response.EpochEndOffset),
        ),
    ),
    24: (
        Mirror(
            "v3_and_below_topics",
            "results_by_topic_v3_and_below",
            add_partitions.AddPartitionsToTxnTopicResult,
            _p(
                _PARTITIONS,
                "results_by_partition",
                add_partitions.AddPartitionsToTxnPartitionResult,
                "partition_index",
                code="partition_error_code",
            ),
        ),
        Mirror(
            "transactions",
            "results_by_transaction",
            add_partitions.AddPartitionsToTxnResult,
            Mirror(
                "topics",
                "topic_results",
                add_partitions.AddPartitionsToTxnTopicResult,
                _p(
                    _PARTITIONS,
                    "results_by_partition",
                    add_partitions.AddPartitionsToTxnPartitionResult,
                    "partition_index",
                    code="partition_error_code",
                ),
            ),
        ),
    ),
    27: (
        Mirror(
            "markers",
            "markers",
            write_txn_markers_response.WritableTxnMarkerResult,
            Mirror(
                "topics",
                "topics",
                write_txn_markers_response.WritableTxnMarkerTopicResult,
                _p(
                    "partition_indexes",
                    _PARTITIONS,
                    write_txn_markers_response.WritableTxnMarkerPartitionResult,
                    "partition_index",
                ),
            ),
        ),
    ),
    28: (
        Mirror(
            "topics",
            "topics",
            txn_offset_commit_response.TxnOffsetCommitResponseTopic,
            _p(
                _PARTITIONS,
                _PARTITIONS,
                txn_offset_commit_response.TxnOffsetCommitResponsePartition,
            ),
        ),
    ),
    30: (Mirror("creations", "results", create_acls_response.AclCreationResult),),
    31: (Mirror("filters", "filter_results", delete_acls_response.DeleteAclsFilterResult),),
    32: (Mirror("resources", "results", describe_configs_response.DescribeConfigsResult),),
    33: (Mirror("resources", "responses", alter_configs_response.AlterConfigsResourceResponse),),
    37: (Mirror("topics", "results", create_partitions_response.CreatePartitionsTopicResult),),
    42: (_p("groups_names", "results", delete_groups_response.DeletableGroupResult, "group_id"),),
    43: (
        Mirror(
            "topic_partitions",
            "replica_election_results",
            elect_leaders_response.ReplicaElectionResult,
            _p(
                _PARTITIONS,
                "partition_result",
                elect_leaders_response.PartitionResult,
                "partition_id",
            ),
        ),
    ),
    44: (
        Mirror(
            "resources",
            "responses",
            incremental_alter_configs_response.AlterConfigsResourceResponse,
        ),
    ),
    47: (
        Mirror(
            "topics",
            "topics",
            offset_delete_response.OffsetDeleteResponseTopic,
            _p(_PARTITIONS, _PARTITIONS, offset_delete_response.OffsetDeleteResponsePartition),
        ),
    ),
    49: (Mirror("entries", "entries", alter_client_quotas_response.EntryData),),
    51: (
        _p(
            "upsertions",
            "results",
            alter_scram_response.AlterUserScramCredentialsResult,
            "user",
            "name",
        ),
        _p(
            "deletions",
            "results",
            alter_scram_response.AlterUserScramCredentialsResult,
            "user",
            "name",
        ),
    ),
    61: (
        Mirror(
            "topics",
            "topics",
            describe_producers_response.TopicResponse,
            _p(
                "partition_indexes",
                _PARTITIONS,
                describe_producers_response.PartitionResponse,
                "partition_index",
            ),
        ),
    ),
    65: (
        _p(
            "transactional_ids",
            "transaction_states",
            describe_transactions_response.TransactionState,
            "transactional_id",
        ),
    ),
    75: (
        Mirror(
            "topics",
            "topics",
            describe_topic_partitions_response.DescribeTopicPartitionsResponseTopic,
        ),
    ),
    69: (_p("group_ids", "groups", consumer_group_describe_response.DescribedGroup, "group_id"),),
}
"""By API key. Two rows: each is used in the versions that fill its source."""

STAMPED: Final = frozenset({_FETCH, _METADATA, _LOG_DIRS})
"""Reads whose answer has more than the error in it: they are done, and the code is put in."""


# -- what a request names


_GROUP_LISTS: Final = ("groups", "groups_names", "group_ids", "coordinator_keys")
_TRANSACTIONS: Final = ("transactional_id", "v3_and_below_transactional_id")


@cache
def _fields(request: type[Message]) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Which fields of a request name a group, lists of groups, a transactional id."""
    names = request.FIELDS
    single = ("group_id", "key") if request.API_KEY == _FIND_COORDINATOR else ("group_id",)
    return (
        tuple(name for name in single if name in names),
        tuple(name for name in _GROUP_LISTS if name in names),
        tuple(name for name in _TRANSACTIONS if name in names),
    )


def seen(node: int, client_id: str, request: Message, version: int, name_of: NameOf) -> Seen:
    """What a request names. `name_of` gives the name of a topic id ("": not known)."""
    key = request.API_KEY
    single, lists, transactions = _fields(type(request))
    groups: tuple[str, ...] = ()
    transactional_id: str | None = None
    for field in single:
        group: str = getattr(request, field)
        if group:
            groups = (*groups, group)
    for field in lists:
        listed = getattr(request, field) or ()
        groups += tuple(g if isinstance(g, str) else getattr(g, "group_id", "") for g in listed)
    for field in transactions:
        transactional_id = transactional_id or getattr(request, field) or None
    if key == _FIND_COORDINATOR and request.key_type == 1:  # type: ignore[attr-defined]
        transactional_id, groups = (groups[0] if groups else None), ()
    return Seen(
        node,
        client_id,
        API_NAMES[key],
        version,
        groups,
        transactional_id,
        tuple(_named(request, name_of)) if key in FIELD_MAP else (),
        key in STAMPED and not getattr(request, "topics", None),
    )


def _named(request: Message, name_of: NameOf) -> Iterator[tuple[str, int]]:
    for mirror in FIELD_MAP.get(request.API_KEY, ()):
        yield from _leaves(request, mirror, name_of)
    for group in (getattr(request, "groups", None) or ()) if request.API_KEY == 9 else ():
        for topic in group.topics or ():
            name = topic_of(topic, name_of)
            yield from ((name, index) for index in topic.partition_indexes)


def _leaves(struct: Struct, mirror: Mirror, name_of: NameOf) -> Iterator[tuple[str, int]]:
    if mirror.key in _NOT_TOPICS:
        return
    for element in getattr(struct, mirror.source, None) or ():
        inner = mirror.inner
        name = topic_of(element, name_of)
        if inner is not None and inner.inner is not None:
            yield from _leaves(element, inner, name_of)
        elif inner is None and name:
            yield name, -1
        elif inner is not None:
            listed = getattr(element, inner.source) or ()
            yield from ((name, _index_of(one, inner)) for one in listed)


def topic_of(element: Any, name_of: NameOf) -> str:
    """The topic that an element names; "": none, or not known."""
    if isinstance(element, str):
        return element
    for field in _TOPIC_FIELDS:
        name = getattr(element, field, None)
        if name:
            return name
    if getattr(element, "resource_type", 0) == 2:
        return element.resource_name
    topic_id = getattr(element, "topic_id", None)
    return name_of(topic_id) if topic_id else ""


def _index_of(element: Any, mirror: Mirror) -> int:
    if isinstance(element, int):
        return element
    for field in (mirror.source_key, "index", "partition_index", "partition"):
        if field and (index := getattr(element, field, None)) is not None:
            return index
    return -1


# -- an answer that refuses


def refused(
    request: Message, code: int, wants: Wants, name_of: NameOf
) -> tuple[Message, Message | None] | None:
    """The answer for what `wants` matches, and the request without it (None: nothing is left).

    None where the answer is to be made first and marked (`stamp`).
    """
    key = request.API_KEY
    response = response_class(key)()
    for name in _SAME & set(response.FIELDS) & set(request.FIELDS):
        setattr(response, name, getattr(request, name) or getattr(response, name))
    rest = copy.copy(request)
    mirrored = left = False
    for mirror in FIELD_MAP.get(key, ()):
        if not getattr(request, mirror.source, None):
            continue
        mirrored = True
        taken, kept = _split(request, mirror, code, wants, name_of, "")
        setattr(response, mirror.target, [*getattr(response, mirror.target), *taken])
        setattr(rest, mirror.source, kept)
        left = left or bool(kept)
    if not mirrored or (key == _OFFSET_FETCH and not left):
        if "error_code" in response.FIELDS:
            response.error_code = code  # type: ignore[attr-defined]
        elif not mirrored:
            return None
    return response, rest if left else None


def _split(
    struct: Struct, mirror: Mirror, code: int, wants: Wants, name_of: NameOf, topic: str
) -> tuple[list[Any], list[Any]]:
    taken: list[Any] = []
    kept: list[Any] = []
    for element in getattr(struct, mirror.source):
        name = topic or topic_of(element, name_of)
        if mirror.inner is None:
            at = _index_of(element, mirror) if topic else -1
            if wants(name, at):
                taken.append(_like(element, mirror))
                setattr(taken[-1], mirror.code, code)
            else:
                kept.append(element)
            continue
        inner_topic = name if mirror.inner.inner is None else ""
        inner, others = _split(element, mirror.inner, code, wants, name_of, inner_topic)
        if inner:
            taken.append(_like(element, mirror))
            setattr(taken[-1], mirror.inner.target, inner)
        if others:
            rest = copy.copy(element)
            setattr(rest, mirror.inner.source, others)
            kept.append(rest)
    return taken, kept


def _like(element: Any, mirror: Mirror) -> Struct:
    made = mirror.element()
    if mirror.key:
        value = getattr(element, mirror.source_key) if mirror.source_key else element
        setattr(made, mirror.key, value)
    else:
        for name in _SAME & set(made.FIELDS) & set(element.FIELDS):
            setattr(made, name, getattr(element, name))
    return made


def joined(response: Message, refusal: Message) -> Message:
    """The answer to the rest of a request with the refusals of what was taken out of it."""
    for mirror in FIELD_MAP.get(response.API_KEY, ()):
        _join(response, refusal, mirror)
    return response


def _join(into: Struct, more: Struct, mirror: Mirror) -> None:
    present = list(getattr(into, mirror.target) or ())
    for element in getattr(more, mirror.target) or ():
        twin = next((p for p in present if _same(p, element)), None) if mirror.inner else None
        if twin is None or mirror.inner is None:
            present.append(element)
        else:
            _join(twin, element, mirror.inner)
    setattr(into, mirror.target, present)


def _same(one: Any, other: Any) -> bool:
    names = _SAME & set(one.FIELDS)
    return all(getattr(one, name) == getattr(other, name) for name in names)


# -- codes in an answer that was made


def stamp(response: Message, code: int, wants: Wants, name_of: NameOf) -> int:
    """Put a code wherever the answer has room for one, about what `wants`; returns how often."""
    if response.API_KEY == _METADATA:
        return _stamp_metadata(response, code, wants, name_of)
    count = 0
    if response.API_KEY == _LOG_DIRS:
        for result in response.results:  # type: ignore[attr-defined]
            result.error_code, count = code, 1
    if response.API_KEY == _OFFSET_FETCH:
        count = _stamp_offsets(response, code, wants, name_of)
    for mirror in () if count else FIELD_MAP.get(response.API_KEY, ()):
        for element in getattr(response, mirror.target) or ():
            count += _stamp_element(element, mirror, code, wants, name_of, "")
    if not count and "error_code" in response.FIELDS:
        response.error_code = code  # type: ignore[attr-defined]
        count = 1
    return count


def _stamp_element(
    element: Any, mirror: Mirror, code: int, wants: Wants, name_of: NameOf, topic: str
) -> int:
    name = topic or topic_of(element, name_of)
    inner = mirror.inner
    if inner is not None:
        below = getattr(element, inner.target) or ()
        deeper = name if inner.inner is None else ""
        return sum(_stamp_element(one, inner, code, wants, name_of, deeper) for one in below)
    if not wants(name, _index_of(element, mirror) if topic else -1):
        return 0
    setattr(element, mirror.code, code)
    if isinstance(element, fetch_response.PartitionData):
        element.records, element.aborted_transactions = b"", None
        element.high_watermark = element.last_stable_offset = -1
    return 1


def _stamp_offsets(response: Any, code: int, wants: Wants, name_of: NameOf) -> int:
    """Single partitions of OffsetFetch; an error of all of them is the group's."""
    if wants("", -1):
        return 0
    topics = [*response.topics, *(topic for group in response.groups for topic in group.topics)]
    marked = [
        partition
        for topic in topics
        for partition in topic.partitions
        if wants(topic_of(topic, name_of), partition.partition_index)
    ]
    for partition in marked:
        partition.error_code, partition.committed_offset = code, -1
    return len(marked)


def _stamp_metadata(response: Any, code: int, wants: Wants, name_of: NameOf) -> int:
    count = 0
    for topic in response.topics or ():
        name = topic_of(topic, name_of)
        if wants(name, -1):
            topic.error_code, topic.partitions = code, []
            count += 1
            continue
        for partition in topic.partitions:
            if wants(name, partition.partition_index):
                partition.error_code = code
                count += 1
    return count


def errors_in(response: Message | None) -> tuple[int, ...]:
    """The error codes of an answer that are not 0, each once."""
    if response is None:
        return ()
    codes: list[int] = []
    top = getattr(response, "error_code", 0)
    if top:
        codes.append(top)
    for mirror in FIELD_MAP.get(response.API_KEY, ()):
        _collect(getattr(response, mirror.target), mirror, codes)
    if response.API_KEY == _METADATA:
        assert isinstance(response, metadata_response.MetadataResponse)
        for topic in response.topics:
            codes.extend(p.error_code for p in topic.partitions)
    if response.API_KEY == _LOG_DIRS:
        codes.extend(result.error_code for result in response.results)  # type: ignore[attr-defined]
    return tuple(code for code in dict.fromkeys(codes) if code)


def _collect(elements: Any, mirror: Mirror, codes: list[int]) -> None:
    for element in elements or ():
        if mirror.inner is not None:
            _collect(getattr(element, mirror.inner.target), mirror.inner, codes)
        code = getattr(element, mirror.code, 0)
        if code:
            codes.append(code)
