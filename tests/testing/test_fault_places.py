"""Where answers carry error codes: every API, every version, judged by what a client decodes."""

from __future__ import annotations

import typing
from collections.abc import Callable

import pytest

from kohort.broker.apis import APIS
from kohort.broker.faults.field_map import STAMPED, errors_in, joined, refused, seen, stamp
from kohort.broker.faults.request_log import RequestLog
from kohort.broker.faults.rules import Fault, Then
from kohort.errors import ProtocolError
from kohort.wire import (
    Message,
    Struct,
    decode_body,
    decode_request_header,
    decode_response,
    encode_request,
    encode_response,
    response_class,
)
from kohort.wire.messages.fetch_response import FetchResponse
from kohort.wire.messages.offset_commit_request import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kohort.wire.messages.offset_commit_response import OffsetCommitResponse
from tests.known import known, of_type

CODE = 15  # COORDINATOR_NOT_AVAILABLE
ROW = "an API whose answer lists what its request named needs a row in FIELD_MAP"
TOPIC_ID = b"0123456789abcdef"


def name_of(topic_id: bytes) -> str:
    return "orders" if topic_id == TOPIC_ID else ""


def filled(struct: Struct) -> Struct:
    """One element in every list, a name in every name."""
    hints = annotations_of(type(struct))
    for field in struct.FIELDS:
        hint = hints.get(field, "")
        if field == "topic_id":
            setattr(struct, field, TOPIC_ID)
        elif field in ("name", "topic", "group_id", "transactional_id", "resource_name", "key"):
            setattr(struct, field, "orders")
        elif field == "resource_type":
            struct.resource_type = 2  # type: ignore[attr-defined]
        elif hint.startswith("list["):
            inner = hint[5:].split("]")[0].split(" ")[0]
            module = __import__(type(struct).__module__, fromlist=["x"])
            plain = {"str": "orders", "int": 0, "bytes": b""}
            made = plain[inner] if inner in plain else filled(getattr(module, inner)())
            setattr(struct, field, [made])
    return struct


def annotations_of(cls: type) -> dict[str, str]:
    """The types that the generated `__init__` gives its parameters."""
    return {k: str(v) for k, v in typing.cast("typing.Any", cls.__init__).__annotations__.items()}


def as_sent(request: Message, version: int) -> Message:
    """What the broker decodes of it; fields that the version has no place for are left out."""
    known = fitted(request, lambda message: encode_request(message, version, 1, "c"))
    frame = b"".join(bytes(p) for p in encode_request(known, version, 1, "c"))[4:]
    return decode_body(frame, decode_request_header(frame))


def test_api_versions():
    """Every API in every version that is served: the refusal encodes, and its code is found."""
    for key, api in APIS.items():
        for version in range(api.min_version, api.max_version + 1):
            request = as_sent(typing.cast("Message", filled(api.request())), version)
            answer = refused(request, CODE, lambda t, p: True, name_of)
            if answer is None or key in STAMPED:
                response = typing.cast("Message", filled(response_class(key)()))
                response = fitted(response, lambda made, v=version: encode_response(made, v, 1))
                assert stamp(response, CODE, lambda t, p: True, name_of), (response, ROW)
            else:
                response, rest = answer
                assert rest is None, (request, rest)
            received = decoded(response, version)
            assert CODE in errors_in(received), (request, received, ROW)


def fitted(message: Message, encode: Callable[[Message], object]) -> Message:
    """The message without fields that its version has no place for."""
    known = type(message)()
    for field in message.FIELDS:
        before = getattr(known, field)
        setattr(known, field, getattr(message, field))
        try:
            encode(known)
        except ProtocolError:
            setattr(known, field, before)
    return known


def decoded(response: Message, version: int) -> Message:
    frame = b"".join(bytes(part) for part in encode_response(response, version, 1))[4:]
    return decode_response(type(response), version, frame)[1]


def commit(*partitions: tuple[str, int]) -> OffsetCommitRequest:
    topics: dict[str, list[OffsetCommitRequestPartition]] = {}
    for topic, index in partitions:
        topics.setdefault(topic, []).append(OffsetCommitRequestPartition(partition_index=index))
    return OffsetCommitRequest(
        group_id="g",
        topics=[OffsetCommitRequestTopic(name=t, partitions=ps) for t, ps in topics.items()],
    )


def codes(response: OffsetCommitResponse) -> dict[tuple[str, int], int]:
    return {
        (t.name, p.partition_index): p.error_code for t in response.topics for p in t.partitions
    }


def test_a_narrowed_fault_leaves_the_rest():
    """Only the named partition is taken out; the two answers become one."""
    request = commit(("a", 0), ("a", 1), ("b", 0))
    fault = Fault(Then.FAIL, ("OffsetCommit",), topic="a", partition=1, errors=(CODE,))
    answer = refused(request, CODE, fault.wants, name_of)
    assert answer is not None
    refusal, rest = answer
    assert codes(typing.cast("OffsetCommitResponse", refusal)) == {("a", 1): CODE}
    assert rest == commit(("a", 0), ("b", 0))
    assert request == commit(("a", 0), ("a", 1), ("b", 0))
    done, _ = refused(known(rest), 0, lambda t, p: True, name_of) or (None, None)
    whole = of_type(joined(known(done), refusal), OffsetCommitResponse)
    assert codes(whole) == {("a", 0): 0, ("a", 1): CODE, ("b", 0): 0}
    assert len(of_type(done, OffsetCommitResponse).topics) == 2


def test_what_a_request_names():
    known = seen(2, "me", commit(("a", 0), ("b", 3)), 9, name_of)
    assert (known.api, known.groups) == ("OffsetCommit", ("g",))
    assert known.partitions == (("a", 0), ("b", 3))
    assert Fault(Then.CUT, topic="b").meets(known)
    assert not Fault(Then.CUT, topic="b", partition=0).meets(known)
    assert not Fault(Then.CUT, group="h").meets(known)
    assert not Fault(Then.CUT, node=1).meets(known)


def test_a_stamped_fetch_carries_no_records():
    response = typing.cast("FetchResponse", filled(FetchResponse()))
    partition = response.responses[0].partitions[0]
    partition.records = b"records"
    assert stamp(response, 6, lambda t, p: True, name_of) == 1
    assert (partition.error_code, bytes(partition.records or b"")) == (6, b"")


@pytest.mark.parametrize("key", sorted(APIS))
def test_healthy_answers_have_no_errors(key: int):
    assert errors_in(response_class(key)()) == ()


def test_the_log_of_requests_is_bounded():
    """In requests, and in what is kept of each."""
    log = RequestLog(3)
    request = commit(*(("a", n) for n in range(1_000)))
    entries = [log.came(seen(1, "me", request, 9, name_of), now_ms=number) for number in range(5)]
    entry = entries[-1]
    assert [kept.number for kept in log.since()] == [3, 4, 5]
    assert [kept.number for kept in log.since(4)] == [5]
    assert len(entry.partitions) == 100
    log.answered(entry, 9, (16, 999))
    assert str(entry).endswith("NOT_COORDINATOR, 999")
    log.clear()
    assert log.since() == []
    assert log.count == 5
