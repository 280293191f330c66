"""docs/migration.md is true: what it calls ours runs, and its table is what the errors say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kohort import AsyncConsumer, Consumer, Producer
from kohort.client.common.config import AdminConfig, ConsumerConfig, ProducerConfig
from kohort.client.common.foreign_settings import FOREIGN_KEYS
from kohort.errors import ConfigError
from kohort.testing import Cluster
from tests.patience import PATIENCE_S

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "migration.md").read_text()
OURS = re.findall(r"^<!-- ours -->\n```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def cluster():
    with Cluster(group_initial_rebalance_delay_ms=0) as running:
        running.create_topic("orders", partitions=1)
        with Producer(bootstrap_servers=running.bootstrap) as producer:
            for n in range(10):
                producer.send("orders", b"not JSON" if n == 3 else b"%d" % n)
        yield running


@pytest.mark.parametrize("number", range(len(OURS)))
def test_what_is_ours_runs_as_it_stands(cluster: Cluster, number: int) -> None:
    code = OURS[number].replace("localhost:9092", cluster.bootstrap)
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout


def test_the_calls_of_the_tables_exist() -> None:
    """Every call in a row's last column is one of a consumer's, a producer's or an admin's."""
    from kohort import Admin
    from kohort.serdes import Serdes

    for line in PAGE.splitlines():
        if not line.startswith("| ") or line.count("|") < 5:
            continue
        last = line.rstrip(" |").split(" | ")[-1]
        for name in re.findall(r"`(\w+)\(", last):
            homes = (Consumer, AsyncConsumer, Producer, Admin, Serdes)
            known = any(hasattr(home, name) for home in homes)
            assert known or name in ("SubscriptionPattern", "await"), f"{name} in {line}"


def test_the_table_of_settings_is_what_errors_say() -> None:
    table = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", PAGE.split("## Settings")[1], re.MULTILINE))
    assert table == FOREIGN_KEYS
    for config in (ConsumerConfig, ProducerConfig, AdminConfig):
        for key, message in FOREIGN_KEYS.items():
            assert key not in config.field_names()
            with pytest.raises(ConfigError) as caught:
                config.from_mapping({key.replace("_", "."): "x"})
            assert message in str(caught.value)
