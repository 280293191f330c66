"""Every message at every version comes back as it went (issue A, wire)."""

from __future__ import annotations

import pytest

from kohort.wire import decode, encode, encode_parts, message_class
from tests.wire.values import ALL_NAMES, Maker, encoded


@pytest.mark.parametrize("name", ALL_NAMES)
def test_random_values_come_back_equal_and_encode_to_the_same_bytes(name: str) -> None:
    cls = message_class(name)
    for version in range(cls.MIN_VERSION, cls.MAX_VERSION + 1):
        for seed in range(6):
            message = Maker(seed, unknown=seed > 2).message(cls, version)
            data = encode(message, version)
            assert encoded(message, version) == data
            for form in (data, memoryview(data), bytearray(data)):
                back = decode(cls, version, form)
                assert back == message, (version, seed)
                assert encode(back, version) == data


@pytest.mark.parametrize("name", ALL_NAMES)
def test_defaults_come_back(name: str) -> None:
    cls = message_class(name)
    for version in range(cls.MIN_VERSION, cls.MAX_VERSION + 1):
        message = cls()
        back = decode(cls, version, encode(message, version))
        assert back == message
        assert repr(back).startswith(f"{name}(")


def test_large_records_are_not_copied() -> None:
    from kohort.wire.messages.fetch_response import (
        FetchableTopicResponse,
        FetchResponse,
        PartitionData,
    )

    big, small = bytearray(5000), b"x" * 10
    partitions = [
        PartitionData(partition_index=0, records=[memoryview(big), small]),
        PartitionData(partition_index=1, records=small),
    ]
    message = FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=partitions)])
    parts = encode_parts(message, 12)
    assert any(isinstance(part, memoryview) and part.obj is big for part in parts)
    assert len(parts) == 3
    data = b"".join(parts)
    back = decode(FetchResponse, 12, data)
    records = back.responses[0].partitions[0].records
    assert isinstance(records, memoryview)
    assert records.obj is data
    assert bytes(records) == bytes(big) + small
