"""The built-in formats, and records whose key and value fail as values (issue C, deserialisers)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kohort import AsyncConsumer, Consumer, Producer
from kohort.errors import DeserializationError, UsageError
from kohort.records import Record
from kohort.serdes import (
    IntegerSerde,
    JsonSerde,
    LongSerde,
    Serde,
    Serdes,
    StringSerde,
    Undecodable,
)
from tests.clusters import Cluster

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(JSON_VALUES)
def test_json_comes_back(value):
    serde = JsonSerde()
    assert serde.deserialize("t", serde.serialize("t", value)) == value


@given(st.integers(-(2**31), 2**31 - 1))
def test_integers_are_javas(number):
    assert IntegerSerde().serialize("t", number) == number.to_bytes(4, "big", signed=True)
    assert IntegerSerde().deserialize("t", IntegerSerde().serialize("t", number)) == number
    assert LongSerde().deserialize("t", LongSerde().serialize("t", number)) == number


def test_text_comes_back():
    assert StringSerde().deserialize("t", StringSerde().serialize("t", "é")) == "é"


@pytest.mark.parametrize(
    ("serde", "data"),
    [
        (JsonSerde(), b"{"),
        (JsonSerde(), b"\xff"),
        (JsonSerde(), b"[" * 100_000),
        (StringSerde(), b"\xff"),
        (IntegerSerde(), b"123"),
        (LongSerde(), b""),
    ],
)
def test_what_does_not_fit_is_named(serde, data):
    with pytest.raises(DeserializationError):
        serde.deserialize("t", data)


def test_a_number_that_does_not_fit_is_refused():
    with pytest.raises(UsageError, match="wider"):
        IntegerSerde().serialize("t", 2**31)


def record(value, key=None):
    return Record("t", 0, 5, timestamp=1, key=key, value=value, headers=[("h", b"x")])


def test_a_value_that_does_not_decode_is_a_value_with_the_raw_bytes():
    found = Serdes(key=StringSerde(), value=JsonSerde()).of(record(b"{", b"k"))
    assert found.key == "k"
    assert isinstance(found.value, Undecodable)
    assert (found.value.raw, found.failure) == (b"{", found.value)
    assert isinstance(found.value.error, DeserializationError)
    assert (found.topic, found.partition, found.offset, found.timestamp) == ("t", 0, 5, 1)
    assert found.headers == (("h", b"x"),)
    assert "Undecodable" in repr(found)


def test_a_tombstone_stays_none_and_bytes_stay_bytes():
    assert Serdes(value=JsonSerde()).of(record(None)).value is None
    assert Serdes().of(record(b"v", b"k")).key == b"k"
    assert Serdes().of(record(b"v")).failure is None


def test_each_is_decoded_once_and_only_when_looked_at():
    calls = []

    def decode(data):
        calls.append(data)
        raise KeyError("mine")  # a function of the user's may raise anything

    found = Serdes(value=Serde(bytes, decode)).of(record(b"v"))
    assert calls == []
    first, second = found.value, found.value
    assert first is second
    assert isinstance(first, Undecodable)
    assert isinstance(first.error.__cause__, KeyError)
    assert calls == [b"v"]


ORDERS = Serdes(key=StringSerde(), value=JsonSerde())
ANY: dict[str, Any] = {"group_id": "g", "auto_offset_reset": "earliest"}


def test_there_and_back_through_a_broker():
    with Cluster() as cluster:
        with Producer(bootstrap_servers=cluster.bootstrap) as producer:
            producer.send("orders", **ORDERS.to_bytes("orders", value={"id": 1}, key="a"))
            producer.send("orders", b"broken", key=b"b")
            producer.send("orders", **ORDERS.to_bytes("orders", key="gone"))
        seen = []
        with Consumer(bootstrap_servers=cluster.bootstrap, **ANY) as consumer:
            consumer.subscribe(["orders"])
            for found in ORDERS.each(consumer):
                seen.append((found.key, found.value))
                if len(seen) == 3:
                    break
    assert seen[0] == ("a", {"id": 1})
    assert seen[1][0] == "b"
    assert isinstance(seen[1][1], Undecodable)
    assert seen[2] == ("gone", None)


def test_the_same_in_a_task():
    import asyncio

    async def read(bootstrap):
        async with AsyncConsumer(bootstrap_servers=bootstrap, **ANY) as consumer:
            await consumer.subscribe(["orders"])
            async for found in ORDERS.each(consumer):
                return found.value

    with Cluster() as cluster:
        with Producer(bootstrap_servers=cluster.bootstrap) as producer:
            producer.send("orders", json.dumps([1]).encode())
        assert asyncio.run(read(cluster.bootstrap)) == [1]
