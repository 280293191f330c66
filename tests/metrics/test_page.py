"""docs/metrics.md is true: its blocks run in their order, and give what the page says they give."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from kohort.testing import Cluster
from tests.pages import ROOT, SERVERS, blocks_of
from tests.patience import PATIENCE_S

PAGE = ROOT / "docs" / "metrics.md"
BEFORE = """
from kohort import Consumer, Producer
producer = Producer(bootstrap_servers="localhost:9092")
"""
AFTER = """
from urllib.request import urlopen
consumer.subscribe(["orders"])
while not consumer.assignment():
    consumer.poll(0.1)
producer.send("orders", b"1").result(30)
while not consumer.poll(0.1):
    pass
producer.close()
scraped = urlopen(f"http://127.0.0.1:{server.server_port}/metrics").read().decode()
consumer.close()
print(scraped)
server.shutdown()
server.server_close()
"""


def test_its_blocks_run_and_are_scraped() -> None:
    pytest.importorskip("prometheus_client")
    pytest.importorskip("opentelemetry")
    code = "".join([BEFORE, *blocks_of(PAGE, "python"), AFTER])
    assert "start_http_server(9464)" in code
    with Cluster(group_initial_rebalance_delay_ms=0) as cluster:
        cluster.create_topic("orders")
        code = code.replace(SERVERS, cluster.bootstrap)
        code = code.replace("start_http_server(9464)", "server, _ = start_http_server(0)")
        ran = subprocess.run(
            [sys.executable, "-W", "error", "-c", code],
            text=True,
            capture_output=True,
            timeout=PATIENCE_S,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        )
    assert ran.returncode == 0, ran.stderr
    assert "Traceback" not in ran.stderr
    assert "consumer-metrics request-total" in ran.stdout
    assert re.search(r"^joined, generation \d+ [\d.]+$|^.* \d+$", ran.stdout, re.MULTILINE)
    named = r"`(kafka_consumer\w+_total)\{client_id=\"kohort\",topic=\"orders\"\}`"
    shown = re.search(named, PAGE.read_text())
    assert shown is not None
    assert f'{shown[1]}{{client_id="kohort",topic="orders"}} 1.0' in ran.stdout
