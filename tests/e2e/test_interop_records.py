"""Every make's records, read by every make (issue 2, "Must hold": produce with every codec)."""

from __future__ import annotations

import pytest

from kohort.records import Compression, iter_batches
from kohort.wire.messages.fetch_request import FetchPartition, FetchRequest, FetchTopic
from kohort.wire.messages.fetch_response import FetchResponse
from tests.clusters import Cluster
from tests.e2e.makes import (
    AIOKAFKA,
    CODECS,
    KAFKA_PYTHON,
    KOHORT,
    MAKES,
    READERS,
    Row,
    fresh,
    missing_codecs,
    read,
    write,
)
from tests.known import of_type

START_MS = 1_700_000_000_000


def rows_of(make: str, partition: int) -> list[Row]:
    """Null and empty keys and values, headers, timestamps out of order, runs worth compressing."""
    rows = [
        Row(partition, START_MS, None, b"no key"),
        Row(partition, START_MS + 50, b"no value", None),
        Row(partition, START_MS + 20, b"", b"", (("h", b""), ("h", b"2"), ("\u00fc", b"\xff"))),
        Row(partition, START_MS + 86_400_000, b"\x00\xff", bytes(range(256))),
    ]
    if make not in (AIOKAFKA, KAFKA_PYTHON):  # these refuse to send it
        rows.append(Row(partition, START_MS + 20, None, None, (("h", b"only a header"),)))
    if make != KAFKA_PYTHON:
        rows.append(Row(partition, START_MS + 1, b"k", b"v", (("null", None), ("h", b"x"))))
    return rows + [
        Row(partition, START_MS + n, b"key-%d" % (n % 7), b"value %d " % n * 20) for n in range(150)
    ]


@pytest.fixture(scope="module")
def written(cluster: Cluster):
    """Topics of each make, one partition a codec; made once for all readers."""
    made: dict[tuple[str, bool], str] = {}

    def of(make: str, idempotent: bool) -> str:
        if (make, idempotent) not in made:
            topic = fresh(f"rows-{make}")
            cluster.create_topic(topic, partitions=len(CODECS))
            for n, codec in enumerate(codecs_of(make)):
                write(
                    make,
                    cluster.bootstrap,
                    topic,
                    rows_of(make, n),
                    codec=codec,
                    idempotent=idempotent,
                )
            made[make, idempotent] = topic
        return made[make, idempotent]

    return of


def codecs_of(make: str) -> list[str]:
    """The codecs by partition; what the make lacks on this machine is left uncompressed."""
    missing = missing_codecs(make)
    return ["none" if codec in missing else codec for codec in CODECS]


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("writer", MAKES)
def test_rows_are_equal(cluster: Cluster, written, writer: str, reader: str) -> None:
    """Keys, values, headers and timestamps of every codec, whoever wrote and whoever reads."""
    topic = written(writer, False)
    unread = missing_codecs(reader)
    partitions = [n for n, codec in enumerate(codecs_of(writer)) if codec not in unread]
    expected = {n: rows_of(writer, n) for n in partitions}
    found = read(reader, cluster.bootstrap, topic, partitions, sum(map(len, expected.values())))
    assert found == expected


@pytest.mark.parametrize("idempotent", [False, True], ids=["plain", "idempotent"])
@pytest.mark.parametrize("writer", MAKES)
def test_batches_are_what_was_asked_for(
    cluster: Cluster, written, writer: str, idempotent: bool
) -> None:
    """Stored with the codec; with producer id and a sequence without a gap where idempotent."""
    topic = written(writer, idempotent)
    for n, codec in enumerate(codecs_of(writer)):
        headers = list(iter_batches(stored(cluster, topic, n)))
        assert {Compression(h.codec).name.lower() for h in headers} == {codec}
        assert sum(h.record_count for h in headers) == len(rows_of(writer, n))
        assert {h.producer_id >= 0 for h in headers} == {idempotent}
        if idempotent:
            assert [h.base_sequence for h in headers] == [h.base_offset for h in headers]
    expected = {n: rows_of(writer, n) for n in range(len(CODECS))}
    count = sum(map(len, expected.values()))
    assert read(KOHORT, cluster.bootstrap, topic, expected, count) == expected


@pytest.mark.parametrize("make", MAKES)
def test_nothing_was_left_out(make: str) -> None:
    """Says it when this machine lacks a package that `make setup` installs."""
    if missing := missing_codecs(make):
        pytest.skip(f"{make} lacks packages for {sorted(missing)}; `make setup` installs them")


def stored(cluster: Cluster, topic: str, partition: int) -> bytes:
    """The record set of a partition, as it is handed out."""
    wanted = FetchPartition(partition=partition, fetch_offset=0, partition_max_bytes=10 << 20)
    request = FetchRequest(
        replica_id=-1,
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=10 << 20,
        topics=[FetchTopic(topic=topic, partitions=[wanted])],
    )
    answer = cluster.request(request, FetchResponse, version=12)
    records = answer.responses[0].partitions[0].records
    return b"" if records is None else bytes(of_type(records, memoryview))
