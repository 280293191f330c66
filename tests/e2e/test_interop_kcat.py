"""kcat (Debian's, on librdkafka 2.0), where it is installed: list, produce, consume."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest

from kohort.testing import Cluster

from .makes import fresh

KCAT = shutil.which("kcat") or shutil.which("kafkacat")
pytestmark = pytest.mark.skipif(KCAT is None, reason="kcat is not installed (apt-get install kcat)")


def kcat(cluster: Cluster, *arguments: str, given: str = "") -> str:
    done = subprocess.run(
        [str(KCAT), "-b", cluster.bootstrap, *arguments],
        input=given, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    return done.stdout


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_produce_and_consume(cluster: Cluster, codec: str) -> None:
    topic = fresh("kcat")
    cluster.create_topic(topic, partitions=1)
    lines = [f"key{n}:value {n}" for n in range(50)]
    kcat(
        cluster, "-P", "-t", topic, "-K:", "-z", codec, "-H", "h=1", given="\n".join(lines) + "\n"
    )  # fmt: skip
    records = kcat(cluster, "-C", "-t", topic, "-e", "-q", "-J").splitlines()
    found = [json.loads(record) for record in records]
    assert [f"{r['key']}:{r['payload']}" for r in found] == lines
    assert {tuple(r["headers"]) for r in found} == {("h", "1")}


def test_list_and_group(cluster: Cluster) -> None:
    topic = fresh("kcat")
    cluster.create_topic(topic, partitions=2)
    seen = json.loads(kcat(cluster, "-L", "-J"))
    assert {t["topic"]: len(t["partitions"]) for t in seen["topics"]}[topic] == 2
    kcat(cluster, "-P", "-t", topic, "-p", "0", given="x\n")
    group = fresh("kcat")
    assert kcat(cluster, "-G", group, "-q", "-c", "1", "-o", "beginning", topic) == "x\n"
