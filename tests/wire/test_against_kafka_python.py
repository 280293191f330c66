"""Byte for byte and field by field against kafka-python's codec (issue A, wire).

Both directions, for every message and version that the two share. kafka-python has no KIP-848, no
share groups and no tokens; those are compared with kio alone. What it does in its own way:
- authorized operations are a set under another name (their bytes are still compared);
- a tagged struct that was not sent is None, ours is its default;
- an ApiVersions response with any error is read as version 0, so ours has none here;
- user data of group members includes the version in front unless told otherwise.
"""

from __future__ import annotations

import importlib
import uuid
import warnings
from typing import Any

import pytest

from kohort.wire import ZERO_UUID, Message, decode, encode, message_class
from kohort.wire import _schema as schema
from kohort.wire.messages.api_versions_response import ApiVersionsResponse
from tests.wire.values import ALL_NAMES, Maker

MODULES = (
    "admin.acl",
    "admin.client_quotas",
    "admin.cluster",
    "admin.configs",
    "admin.groups",
    "admin.topics",
    "admin.transactions",
    "admin.users",
    "consumer.fetch",
    "consumer.group",
    "consumer.metadata",
    "consumer.offsets",
    "metadata.api_versions",
    "metadata.find_coordinator",
    "metadata.metadata",
    "producer.produce",
    "producer.transaction",
    "sasl",
)


def kafka_python_classes() -> dict[str, Any]:
    """kafka-python's message classes by Kafka's name, where both sides have the message."""
    found: dict[str, Any] = {}
    for name in MODULES:
        with warnings.catch_warnings():
            # It reads its resources by a function that Python 3.11 calls deprecated.
            warnings.simplefilter("ignore", DeprecationWarning)
            module = importlib.import_module(f"kafka.protocol.{name}")
        for key, value in vars(module).items():
            if key in ALL_NAMES:
                found[key] = value
    return found


THEIRS = kafka_python_classes()


def differences(ours: Any, theirs: Any, facts: schema.Struct | None, version: int) -> list[str]:
    """Where kafka-python's value is not our value; structs are compared field by field."""
    if facts is not None and isinstance(ours, list):
        pairs = zip(ours, theirs, strict=True)
        return [text for one, other in pairs for text in differences(one, other, facts, version)]
    if facts is not None and theirs is None and ours is not None:
        return [] if ours is type(ours).DEFAULT else [f"{ours!r} is not None"]
    if facts is not None and ours is not None:
        found: list[str] = []
        for field in facts.fields:
            if version in field.versions and "authorized_operations" not in field.name:
                mine, other = getattr(ours, field.name), getattr(theirs, field.name)
                texts = differences(mine, other, field.struct, version)
                found += [f"{field.name}: {text}" for text in texts]
        return found
    if isinstance(theirs, uuid.UUID):
        theirs = theirs.bytes
    elif isinstance(theirs, list) and theirs and isinstance(theirs[0], uuid.UUID):
        theirs = [one.bytes for one in theirs]
    elif theirs is None and ours == ZERO_UUID:
        return []  # a tagged uuid that was not sent
    return [] if ours == theirs else [f"{ours!r} is not {theirs!r}"]


def shared_versions(cls: type[Message]) -> range:
    """The versions that both sides have."""
    return range(cls.MIN_VERSION, min(cls.MAX_VERSION, THEIRS[cls.NAME].max_version) + 1)


@pytest.mark.rows(32)
@pytest.mark.parametrize("name", sorted(THEIRS))
def test_bytes_and_values_agree_in_both_directions(name: str) -> None:
    cls = message_class(name)
    facts = schema.load(name).root
    for version in shared_versions(cls):
        for seed in range(4):
            ours = Maker(seed).message(cls, version)
            if isinstance(ours, ApiVersionsResponse):
                ours.error_code = 0
            data = encode(ours, version)
            bare = {} if hasattr(THEIRS[name], "is_request") else {"header": False}
            theirs = THEIRS[name].decode(data, version=version, **bare)
            assert differences(ours, theirs, facts, version) == []
            if not bare:
                theirs._header = None  # else its encoder fails
            again = bytes(theirs.encode(version=version, **bare))
            assert again == data, (version, seed)
            assert decode(cls, version, again) == ours


def test_at_least_fifty_apis_are_shared_and_every_one_has_a_common_version() -> None:
    requests = [name for name in THEIRS if name.endswith("Request")]
    assert len(requests) >= 50
    for name in requests:
        assert shared_versions(message_class(name)), name
