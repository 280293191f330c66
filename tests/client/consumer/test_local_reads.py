"""A consumer that reads the broker's files itself (ADR 0015): over real sockets and real files.

Whatever becomes of a file between the broker's answer and the read, the records are those that an
ordinary fetch would have brought (C13, F1), or they are fetched so.
"""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from kohort import Admin, Consumer, NewTopic, Producer, TopicPartition
from kohort.broker import Broker, BrokerConfig
from kohort.broker.apis.fetch import LOCAL_BYTES_MIN
from kohort.client.consumer import local_reads
from kohort.client.consumer.local_reads import (
    COLD_MS,
    FILES_MAX,
    LocalDirectory,
    LocalReads,
    LocalRecords,
)
from kohort.errors import CorruptRecordError, DecodeError, ErrorCode
from kohort.records import end_of_set, whole_batches
from kohort.testing import Cluster
from kohort.wire import decode_response, encode_request, local_files
from kohort.wire.local_files import Place
from kohort.wire.messages import fetch_request
from kohort.wire.messages.api_versions_request import ApiVersionsRequest
from kohort.wire.messages.api_versions_response import ApiVersionsResponse
from kohort.wire.messages.fetch_response import FetchResponse, PartitionData
from tests.broker.test_real_clients import VALUES as THEIR_VALUES
from tests.broker.test_real_clients import by_aiokafka, by_confluent, by_kafka_python
from tests.known import known
from tests.patience import PATIENCE_S, until
from tests.peers import PEERS

pytestmark = PEERS

TP = TopicPartition("t", 0)
COUNT = 60
VALUES = [b"%04d" % n + bytes([n]) * 6_000 for n in range(COUNT)]
FETCH_V = 12


class Reads:
    """What was read from files; `first` is done once, just before the first of it."""

    def __init__(self) -> None:
        self.read: list[bool] = []
        self.first: Callable[[], object] | None = None


@pytest.fixture(autouse=True)
def _warm(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is in memory is up to the machine: files are read as they are, except by tests of it."""
    monkeypatch.setattr(local_reads, "_NO_WAIT", 0)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    seen, plain = Reads(), LocalDirectory.read

    def read(directory: LocalDirectory, place: Place) -> memoryview | None:
        act, seen.first = seen.first, None
        if act is not None:
            act()
        data = plain(directory, place)
        seen.read.append(data is not None)
        return data

    monkeypatch.setattr(LocalDirectory, "read", read)
    return seen


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker(BrokerConfig(data_dir=str(tmp_path), durability="os")) as made:
        yield made


def produce(bootstrap: str, values: list[bytes] = VALUES, topic: str = "t", **how: Any) -> None:
    with Producer(bootstrap_servers=bootstrap, **how) as producer:
        for first in range(0, len(values), 3):
            for value in values[first : first + 3]:
                producer.send(topic, value, partition=0)
            producer.flush()  # so there are many batches


def consume(bootstrap: str, count: int = COUNT, **how: Any) -> list[bytes]:
    with Consumer(bootstrap_servers=bootstrap, **how) as consumer:
        consumer.assign([TP])
        consumer.seek_to_beginning()
        return taken(consumer, count)


def taken(consumer: Consumer, count: int) -> list[bytes]:
    found: list[bytes] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(found) < count and time.monotonic() < deadline:
        found += [bytes(record.value or b"") for record in consumer.poll(0.5)]
    return found


def ask(bootstrap: str, message: Any, version: int, answer: Any) -> Any:
    host, _, port = bootstrap.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as one:
        one.sendall(b"".join(encode_request(message, version, 7, "test")))
        with one.makefile("rb") as stream:
            frame = stream.read(int.from_bytes(stream.read(4), "big"))
    return decode_response(answer, version, frame)[1]


def fetched(broker: Broker, offset: int = 0, *, local: bool = True, most: int = 1 << 20) -> Any:
    """What a Fetch of one partition is answered."""
    request = fetch_request.FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=most,
        session_epoch=-1,
        topics=[
            fetch_request.FetchTopic(
                topic="t",
                partitions=[
                    fetch_request.FetchPartition(
                        partition=0, fetch_offset=offset, partition_max_bytes=most
                    )
                ],
            )
        ],
    )
    if local:
        request.unknown_tags = [(local_files.TAG, b"")]
    answer = ask(broker.bootstrap, request, FETCH_V, FetchResponse)
    return answer.responses[0].partitions[0]


def place_of(data: PartitionData) -> Place:
    encoded = local_files.found(data.unknown_tags)
    assert encoded is not None
    assert not data.records
    return Place.decode(encoded)


def announced(bootstrap: str, software: str = "kohort") -> str | None:
    message = ApiVersionsRequest(client_software_name=software, client_software_version="1.0")
    answer = ask(bootstrap, message, 4, ApiVersionsResponse)
    encoded = local_files.found(answer.unknown_tags)
    return None if encoded is None else local_files.decode_directory(encoded)


def directory_of(broker: Broker) -> LocalDirectory:
    path = announced(broker.bootstrap)
    assert path is not None
    return LocalDirectory(path, 100 << 20)


# -- what is read so -----------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_records_are_read_from_the_file(broker: Broker, reads: Reads, codec: str) -> None:
    """C1: all records, once and in order, as an ordinary fetch brings them."""
    produce(broker.bootstrap, [os.urandom(6_000) for _ in VALUES] + VALUES, compression_type=codec)
    found = consume(broker.bootstrap, 2 * COUNT)
    assert True in reads.read
    assert False not in reads.read
    reads.read.clear()
    assert consume(broker.bootstrap, 2 * COUNT, local_reads=False) == found
    assert not reads.read
    assert found[COUNT:] == VALUES


def test_nothing_of_aborted_transactions(broker: Broker, reads: Reads) -> None:
    """KIP-98: the answer names what was aborted beside the place in the file."""
    with Producer(bootstrap_servers=broker.bootstrap, transactional_id="x") as producer:
        producer.init_transactions()
        for end in (producer.abort_transaction, producer.commit_transaction):
            producer.begin_transaction()
            for value in VALUES:
                producer.send("t", end.__name__.encode() + value, partition=0)
            end()
    found = consume(broker.bootstrap, isolation_level="read_committed")
    assert found == [b"commit_transaction" + value for value in VALUES]
    assert True in reads.read


def test_what_is_large_is_read_piece_by_piece(
    broker: Broker, reads: Reads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ADR 0015: whole batches of a piece, then on behind them; a larger batch at once."""
    monkeypatch.setattr(local_reads, "PIECE_BYTES", 50_000)
    produce(broker.bootstrap)
    assert consume(broker.bootstrap) == VALUES
    assert len(reads.read) >= COUNT * 6_000 // 50_000
    directory, place = directory_of(broker), place_of(fetched(broker, most=1 << 20))
    pieces: list[bytes] = []
    left: LocalRecords | None = LocalRecords(directory, place)
    while left is not None:
        assert left.end_offset == place.end_offset
        found = left.read()
        assert found is not None
        pieces.append(bytes(found[0]))
        left = found[1]
        assert len(pieces[-1]) == whole_batches(pieces[-1]) <= 50_000
    whole = LocalRecords(directory, place).read(whole=True)
    assert whole is not None
    assert (bytes(whole[0]), whole[1]) == (b"".join(pieces), None)
    assert len(pieces) > 6
    monkeypatch.setattr(local_reads, "PIECE_BYTES", 100)
    assert consume(broker.bootstrap) == VALUES


def test_a_file_that_goes_between_two_pieces(
    broker: Broker, reads: Reads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is behind is fetched the ordinary way, from where reading stands (C13)."""
    monkeypatch.setattr(local_reads, "PIECE_BYTES", 50_000)
    produce(broker.bootstrap)
    with Consumer(bootstrap_servers=broker.bootstrap) as consumer:
        consumer.assign([TP])
        consumer.seek_to_beginning()
        found = [record.value for record in consumer.poll(PATIENCE_S, max_records=5)]
        assert reads.read == [True]
        broken = local_reads.LocalDirectory._read
        monkeypatch.setattr(local_reads.LocalDirectory, "_read", lambda *_: None)
        while len(found) < COUNT:
            found += [record.value for record in consumer.poll(PATIENCE_S)]
        monkeypatch.setattr(local_reads.LocalDirectory, "_read", broken)
    assert found == VALUES
    assert set(reads.read[1:]) == {False}


def test_a_place_is_what_the_bytes_would_be(broker: Broker, tmp_path: Path) -> None:
    """The same span, wherever it ends; and where reading goes on behind it."""
    produce(broker.bootstrap)
    for most in (LOCAL_BYTES_MIN + 10_000, 200_000, 1 << 20):
        plain, data = fetched(broker, local=False, most=most), fetched(broker, most=most)
        place = place_of(data)
        assert bytes(directory_of(broker).read(place) or b"") == bytes(plain.records)
        assert place.end_offset == end_of_set(plain.records)
        assert data.high_watermark == plain.high_watermark == COUNT


def test_small_ones_are_sent(broker: Broker) -> None:
    """What is hardly worth a file stands in the answer."""
    produce(broker.bootstrap, VALUES[:3])
    data = fetched(broker)
    assert len(data.records) > 3 * 6_000
    assert not data.unknown_tags


def test_a_damaged_file_is_noticed(broker: Broker, reads: Reads, tmp_path: Path) -> None:
    """The CRC is checked as ever (F6)."""
    produce(broker.bootstrap)
    with open(tmp_path / "t-0" / f"{0:020d}.log", "r+b") as file:
        file.seek(3_000)
        file.write(b"damage")
    with pytest.raises(CorruptRecordError):
        consume(broker.bootstrap)
    assert reads.read == [True, True]  # once more, in case it was damaged on its way


# -- who is told ---------------------------------------------------------------------------------


def test_only_our_clients_are_told(broker: Broker) -> None:
    """Other software never sees the tagged field, even if it would have to ignore it (KIP-482)."""
    path = announced(broker.bootstrap)
    assert path is not None
    assert os.path.isdir(path)
    assert os.stat(path).st_mode & 0o777 == 0o700
    assert announced(broker.bootstrap, "librdkafka") is None


@pytest.mark.parametrize(
    "config", [{"local_reads": False, "durability": "os"}, {"durability": "memory"}]
)
def test_not_where_it_is_switched_off(tmp_path: Path, config: Any) -> None:
    """`local_reads=False`, or no files: nobody is told, and who asks all the same gets records."""
    with Broker(BrokerConfig(data_dir=str(tmp_path), **config)) as broker:
        assert announced(broker.bootstrap) is None
        produce(broker.bootstrap)
        assert fetched(broker).records


def test_not_where_faults_may_come_in(tmp_path: Path) -> None:
    """Faults and taps have to see what is answered."""
    with Cluster(data_dir=str(tmp_path), durability="os") as cluster:
        assert announced(cluster.bootstrap) is None


@pytest.mark.filterwarnings("ignore:.* is deprecated. Use files.*:DeprecationWarning")
@pytest.mark.parametrize("client", [by_confluent, by_aiokafka, by_kafka_python])
def test_other_clients_read_on(broker: Broker, client: Callable[[str], list[bytes]]) -> None:
    """A broker that offers its files: they are not told, do not ask, and are sent everything."""
    found = client(broker.bootstrap)
    assert sorted(found) == sorted(THEIR_VALUES)


def test_rights_are_asked_for(tmp_path: Path) -> None:
    """Who may not read a topic is not told where it stands (READ of the topic)."""
    with Broker(BrokerConfig(data_dir=str(tmp_path), durability="os")) as broker:
        produce(broker.bootstrap)
        assert place_of(fetched(broker))
    config = BrokerConfig(data_dir=str(tmp_path), durability="os", acls=True)
    with Broker(config) as broker:
        data = fetched(broker)
        assert data.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert not data.unknown_tags
        assert not data.records


# -- what may become of the file meanwhile -------------------------------------------------------


def test_deleted_before_it_is_opened(broker: Broker, reads: Reads) -> None:
    """Retention or DeleteRecords took it: asked for again, and the broker says what there is."""
    produce(broker.bootstrap)

    def remove() -> None:
        path = announced(broker.bootstrap)
        for name in os.listdir(path):
            os.unlink(f"{path}/{name}")

    reads.first = remove
    assert consume(broker.bootstrap) == VALUES
    assert reads.read[0] is False


def test_deleted_while_it_is_open(broker: Broker) -> None:
    """An open file keeps its content, whatever becomes of its name."""
    produce(broker.bootstrap)
    directory, place = directory_of(broker), place_of(fetched(broker))
    before = bytes(directory.read(place) or b"")
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.delete_topics(["t"])
    assert before
    assert bytes(directory.read(place) or b"") == before
    # so the disk gets its space back
    until(lambda: os.listdir(announced(broker.bootstrap)) == [], "the end of the link")


def test_the_name_is_another_topics_now(broker: Broker, reads: Reads) -> None:
    """A topic deleted and made again gets its path back, and on ext4 its inode too: the new topic's
    records are never taken for the old one's.
    """
    produce(broker.bootstrap)
    directory, place = directory_of(broker), place_of(fetched(broker))
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.delete_topics(["t"])
        admin.create_topics([NewTopic("t", 1)])
    produce(broker.bootstrap, [b"new" + value[3:] for value in VALUES])
    assert directory.read(place) is None
    again = place_of(fetched(broker))
    assert again.file > place.file
    assert b"new" + VALUES[5][3:] in bytes(directory.read(again) or b"")


def test_compacted_meanwhile(broker: Broker) -> None:
    """Compaction writes another file and renames it to the same path: the place still means the
    old one, or nothing, and the new one has a name of its own.
    """
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        configs = {"cleanup.policy": "compact", "segment.bytes": "200000"}
        admin.create_topics([NewTopic("t", 1, configs=configs)])
    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        for n in [*range(COUNT), *range(0, COUNT, 2), *range(1)]:
            producer.send("t", VALUES[n], key=b"%d" % n, partition=0)
            producer.flush()
    kept, lost = directory_of(broker), directory_of(broker)
    place = place_of(fetched(broker))
    before = bytes(kept.read(place) or b"")
    state: Any = broker.state
    log = state.topics.partition("t", 0).log
    old, deadline = log.segments[0].file, time.monotonic() + PATIENCE_S
    while broker.call(lambda: log.segments[0].file) is old:
        assert time.monotonic() < deadline
        broker.call(state._clean)
    assert before
    assert bytes(kept.read(place) or b"") == before
    assert lost.read(place) is None
    again = place_of(fetched(broker))
    assert again.file > place.file
    assert bytes(kept.read(again) or b"") == bytes(fetched(broker, local=False).records) != before


def test_a_start_anew_ends_what_was_promised(tmp_path: Path) -> None:
    """Recovery may cut a file and write other records there: an open one counts no more."""
    config = BrokerConfig(data_dir=str(tmp_path), durability="os")
    with Broker(config) as broker:
        produce(broker.bootstrap)
        directory, place = directory_of(broker), place_of(fetched(broker))
        assert directory.read(place) is not None
    with Broker(config) as broker:
        assert directory.read(place) is None
        assert directory.gone
        assert consume(broker.bootstrap) == VALUES


def test_a_consumer_outlives_its_broker(tmp_path: Path, reads: Reads) -> None:
    """After a restart on the same port it reads the new run's files."""
    with Broker(BrokerConfig(data_dir=str(tmp_path), durability="os")) as broker:
        port = int(broker.bootstrap.rpartition(":")[2])
        produce(broker.bootstrap)
        consumer = Consumer(bootstrap_servers=broker.bootstrap)
        consumer.assign([TP])
        consumer.seek_to_beginning()
        assert taken(consumer, COUNT) == VALUES
        count = len(reads.read)
    with (
        consumer,
        Broker(BrokerConfig(data_dir=str(tmp_path), durability="os", port=port)) as again,
    ):
        produce(again.bootstrap)
        assert taken(consumer, COUNT) == VALUES
    assert count
    assert all(reads.read)


def test_links_of_a_killed_broker_go(tmp_path: Path) -> None:
    """What a run left behind does not hold the disk's space."""
    left = tmp_path / ".local" / "0123"
    left.mkdir(parents=True)
    (left / "1").write_bytes(b"old")
    with Broker(BrokerConfig(data_dir=str(tmp_path), durability="os")) as broker:
        path = announced(broker.bootstrap)
        assert os.listdir(tmp_path / ".local") == [os.path.basename(known(path))]
    assert os.listdir(tmp_path / ".local") == []


def test_links_are_bounded(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond `LINKS_MAX` the one that was asked for longest ago goes; its number is never used
    again.
    """
    monkeypatch.setattr("kohort.broker.log.local_links.LINKS_MAX", 2)
    for topic in "abc":
        produce(broker.bootstrap, VALUES[:1], topic)
    state: Any = broker.state
    topics, links = state.topics, state.links
    files = [topics.partition(name, 0).log.active.file for name in "abc"]
    numbers = broker.call(lambda: [links.number(file) for file in (*files, files[0])])
    assert numbers == [1, 2, 3, 4]
    assert sorted(os.listdir(links.directory)) == ["3", "4"]


# -- the reading end -----------------------------------------------------------------------------


def plain_directory(path: Path, size_max: int = 1 << 20) -> LocalDirectory:
    path.mkdir(exist_ok=True)
    (path / "1").write_bytes(bytes(range(200)) * 100)
    return LocalDirectory(str(path), size_max)


def test_what_is_not_in_memory_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk would hold the caller up; the broker is asked for a while instead."""
    directory = plain_directory(tmp_path / "d")
    assert directory.is_usable(0)

    def cold(*args: object) -> int:
        raise BlockingIOError(errno.EAGAIN, "not in memory")

    with monkeypatch.context() as patch:
        patch.setattr(local_reads.os, "preadv", cold)
        assert directory.read(Place(1, 0, 100, 1)) is None
    assert not directory.is_usable(5)
    assert not directory.is_usable(4 + COLD_MS)
    assert directory.is_usable(5 + COLD_MS)


def test_what_is_in_memory_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the flag that says so; a machine that is short of memory may have dropped it."""
    directory = plain_directory(tmp_path / "d")
    monkeypatch.setattr(directory, "_flags", getattr(os, "RWF_NOWAIT", 0))
    found = directory.read(Place(1, 200, 200, 1))
    assert found is None or bytes(found) == bytes(range(200))
    assert directory.is_usable(0) == (found is not None)


def test_a_file_system_that_cannot_tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody knows what is in memory the file is read as it is."""
    directory, plain = plain_directory(tmp_path / "d"), os.preadv

    def preadv(fd: int, buffers: Any, position: int, flags: int = 0) -> int:
        if flags:
            raise OSError(errno.EOPNOTSUPP, "flags")
        return plain(fd, buffers, position)

    monkeypatch.setattr(local_reads.os, "preadv", preadv)
    monkeypatch.setattr(directory, "_flags", 8)
    assert bytes(directory.read(Place(1, 200, 200, 1)) or b"") == bytes(range(200))


def test_what_is_no_plain_file_is_not_read(tmp_path: Path) -> None:
    """A broker may announce anything: a link, a pipe, too much, a file that is shorter."""
    directory = plain_directory(tmp_path / "d", size_max=1_000)
    os.symlink("1", tmp_path / "d" / "2")
    os.mkfifo(tmp_path / "d" / "3")
    (tmp_path / "d" / "4").mkdir()
    wanted = [(2, 0, 100), (3, 0, 100), (4, 0, 100), (5, 0, 100), (1, 0, 1_001), (1, 19_950, 100)]
    for file, position, size in wanted:
        assert directory.read(Place(file, position, size, 1)) is None
    assert directory.read(Place(1, 19_900, 100, 1)) is not None


def test_a_directory_that_cannot_be_opened_is_tried_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another machine's (a tunnel, a container), or another user's."""
    tried: list[str] = []

    def opened(path: str, size_max: int) -> LocalDirectory:
        tried.append(path)
        return LocalDirectory(path, size_max)

    monkeypatch.setattr(local_reads, "LocalDirectory", opened)
    reads = LocalReads(1 << 20)
    absent = str(tmp_path / f"{local_files.kernel_id()}.absent")
    assert [reads.usable(absent, 0), reads.usable(absent, 9_999), reads.usable(None, 0)] == [
        None
    ] * 3
    assert tried == [absent]
    (tmp_path / "0123.elsewhere").mkdir()
    assert reads.usable(str(tmp_path / "0123.elsewhere"), 0) is None
    assert tried == [absent]  # its name says that it is another machine's


def test_open_files_are_bounded_and_closed(tmp_path: Path) -> None:
    """At most `FILES_MAX`; none after `close`, and what was unread is then not to be had."""

    def opened() -> int:
        count = 0
        for fd in os.listdir("/proc/self/fd"):
            with suppress(FileNotFoundError):  # another thread's, closed meanwhile
                count += os.readlink(f"/proc/self/fd/{fd}").startswith(str(tmp_path))
        return count

    path = tmp_path / f"{local_files.kernel_id()}.d"
    plain_directory(path)
    for number in range(FILES_MAX + 10):
        (path / str(number)).write_bytes(bytes(100))
    reads = LocalReads(1 << 20)
    directory = reads.usable(str(path), 0)
    assert directory is not None
    for number in range(FILES_MAX + 10):
        assert directory.read(Place(number, 0, 100, 1)) is not None
    assert opened() == FILES_MAX + 1
    reads.close()
    assert LocalRecords(directory, Place(1, 0, 100, 1)).read() is None
    del directory
    assert opened() == 0


def test_the_wire(tmp_path: Path) -> None:
    """A place and a directory as they travel; what is none is refused."""
    place = Place(1 << 40, 1 << 33, 1 << 31, 1 << 62)
    assert Place.decode(place.encode()) == place
    with pytest.raises(DecodeError):
        Place.decode(b"short")
    assert local_files.decode_directory(local_files.encode_directory(str(tmp_path))) == str(
        tmp_path
    )
    assert local_files.decode_directory(b"etc") is None
    assert local_files.decode_directory(b"/etc\0") is None
    assert local_files.found([(1, b"x"), (local_files.TAG, b"y")]) == b"y"
    assert local_files.found(None) is None
