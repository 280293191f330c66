"""kcat (Debian's, on librdkafka 2.0), where it is installed: what people type at a shell (issue 5).

On the embedded broker, or on Apache Kafka itself: see `tests.clusters`.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kohort import Producer
from kohort.testing.certificates import Certificates
from tests.clusters import Cluster, Embedded
from tests.e2e.makes import fresh
from tests.patience import PATIENCE_S

KCAT = shutil.which("kcat") or shutil.which("kafkacat")
pytestmark = pytest.mark.skipif(KCAT is None, reason="kcat is not installed (apt-get install kcat)")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as running:
        yield running


def kcat(cluster: Cluster | Embedded, *arguments: str, stdin: str = "", fails: bool = False) -> str:
    """What it prints; on a failure that is expected, what it complains of."""
    done = subprocess.run(
        [str(KCAT), "-b", cluster.bootstrap, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert bool(done.returncode) is fails, done.stderr
    return done.stderr if fails else done.stdout


def read(cluster: Cluster | Embedded, topic: str, *options: str) -> list[dict[str, Any]]:
    """The records of a topic, from its beginning to its end."""
    lines = kcat(cluster, "-C", "-t", topic, "-e", "-q", "-J", *options).splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_produce_and_consume(cluster: Cluster, codec: str) -> None:
    topic = fresh("kcat")
    cluster.create_topic(topic, partitions=1)
    lines = [f"key{n}:value {n}" for n in range(50)]
    kcat(
        cluster,
        "-P",
        "-t",
        topic,
        "-K:",
        "-z",
        codec,
        "-H",
        "h=1",
        "-H",
        "none",
        stdin="\n".join(lines) + "\n",
    )
    found = read(cluster, topic)
    assert [f"{r['key']}:{r['payload']}" for r in found] == lines
    assert [r["offset"] for r in found] == list(range(50))
    assert {tuple(r["headers"]) for r in found} == {("h", "1", "none", None)}


def test_null_and_empty(cluster: Cluster) -> None:
    """A tombstone is not an empty value."""
    topic = fresh("kcat")
    cluster.create_topic(topic)
    kcat(cluster, "-P", "-t", topic, "-K:", "-Z", stdin="k:\n")
    with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        producer.send(topic, b"", key=b"").result(PATIENCE_S)
    assert [(r["key"], r["payload"]) for r in read(cluster, topic)] == [("k", None), ("", "")]


def test_list(cluster: Cluster) -> None:
    """Metadata of all, of one topic, and of one that is not there."""
    topic, absent = fresh("kcat"), fresh("kcat")
    cluster.create_topic(topic, partitions=2)
    seen = json.loads(kcat(cluster, "-L", "-J"))
    assert {t["topic"]: len(t["partitions"]) for t in seen["topics"]}[topic] == 2
    assert [b["name"] for b in seen["brokers"]] == [cluster.bootstrap]
    (one,) = json.loads(kcat(cluster, "-L", "-J", "-t", topic))["topics"]
    node = seen["brokers"][0]["id"]
    assert one == {
        "topic": topic,
        "partitions": [
            {"partition": n, "leader": node, "replicas": [{"id": node}], "isrs": [{"id": node}]}
            for n in range(2)
        ],
    }
    options = ("-X", "allow.auto.create.topics=false")
    (none,) = json.loads(kcat(cluster, "-L", "-J", "-t", absent, *options))["topics"]
    assert "Unknown topic" in none["error"]


def test_a_group_goes_on_where_it_was(cluster: Cluster) -> None:
    topic, group = fresh("kcat"), fresh("kcat")
    cluster.create_topic(topic, partitions=2)
    options = ("-q", "-c", "2", "-X", "auto.offset.reset=earliest", "-X", "fetch.wait.max.ms=50")
    for first, second in (("a", "b"), ("c", "d")):
        kcat(cluster, "-P", "-t", topic, "-p", "0", stdin=f"{first}\n")
        kcat(cluster, "-P", "-t", topic, "-p", "1", stdin=f"{second}\n")
        got = kcat(cluster, "-G", group, *options, topic)
        assert sorted(got.split()) == [first, second]


def test_offsets_by_timestamp(cluster: Cluster) -> None:
    """Asked for (`-Q`), and read from one time to another (`-o s@ -o e@`)."""
    topic = fresh("kcat")
    cluster.create_topic(topic)
    with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        for n in range(5):
            producer.send(topic, b"%d" % n, timestamp_ms=1_700_000_000_000 + 1000 * n)
    for at, offset in ((1_699_999_999_999, 0), (1_700_000_002_000, 2), (1_700_000_002_001, 3)):
        assert kcat(cluster, "-Q", "-t", f"{topic}:0:{at}") == f"{topic} [0] offset {offset}\n"
    for at, offset in ((-1, 5), (-2, 0)):
        assert kcat(cluster, "-Q", "-t", f"{topic}:0:{at}") == f"{topic} [0] offset {offset}\n"
    some = read(cluster, topic, "-o", "s@1700000001000", "-o", "e@1700000003000")
    assert [r["payload"] for r in some] == ["1", "2"]
    assert [(r["tstype"], r["ts"]) for r in some] == [
        ("create", 1_700_000_001_000),
        ("create", 1_700_000_002_000),
    ]
    assert [r["payload"] for r in read(cluster, topic, "-o", "-2")] == ["3", "4"]


def test_transactions(cluster: Cluster) -> None:
    """It writes one, and sees no other's records before their commit, nor aborted ones ever."""
    topic = fresh("kcat")
    cluster.create_topic(topic)
    kcat(cluster, "-P", "-t", topic, "-X", f"transactional.id={fresh('tx')}", stdin="a\nb\n")

    def seen(isolation: str) -> list[str]:
        options = ("-X", f"isolation.level={isolation}")
        return [record["payload"] for record in read(cluster, topic, *options)]

    name = fresh("tx")
    with Producer(bootstrap_servers=cluster.bootstrap, transactional_id=name) as producer:
        producer.init_transactions(PATIENCE_S)
        producer.begin_transaction()
        producer.send(topic, b"never").result(PATIENCE_S)
        assert seen("read_committed") == ["a", "b"]
        assert seen("read_uncommitted") == ["a", "b", "never"]
        producer.abort_transaction(PATIENCE_S)
        with producer.transaction():
            producer.send(topic, b"c")
    assert seen("read_committed") == ["a", "b", "c"]
    assert seen("read_uncommitted") == ["a", "b", "never", "c"]


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_logins_over_tls(tmp_path: Path, mechanism: str) -> None:
    certificates = Certificates(tmp_path)
    with Embedded(
        security_protocol="SASL_SSL",
        users={"alice": "her word"},
        **certificates.broker(),
        connection_failed_authentication_delay_ms=1,
    ) as cluster:
        options = [
            "-X",
            "security.protocol=SASL_SSL",
            "-X",
            f"ssl.ca.location={certificates.ca_file}",
            "-X",
            f"sasl.mechanisms={mechanism}",
            "-X",
            "sasl.username=alice",
        ]
        known = [*options, "-X", "sasl.password=her word"]
        cluster.create_topic("t")
        kcat(cluster, "-P", "-t", "t", *known, stdin="x\n")
        assert [r["payload"] for r in read(cluster, "t", *known)] == ["x"]
        refused = kcat(cluster, "-L", *options, "-X", "sasl.password=no", "-m", "3", fails=True)
        assert "SASL" in refused
        assert "uthentication" in refused
