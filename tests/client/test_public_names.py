"""The public face of the client is pinned: a name comes or goes by decision, not by accident."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

import kohort
from tests.patience import PATIENCE_S

NAMES = {
    "Admin",
    "AdminConfig",
    "App",
    "Assignor",
    "AssignorError",
    "AsyncAdmin",
    "AsyncConsumer",
    "AsyncProducer",
    "CircuitConfig",
    "Consumer",
    "ConsumerConfig",
    "Execute",
    "GroupView",
    "Insert",
    "MemberView",
    "NewTopic",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "Permanent",
    "Plan",
    "Producer",
    "ProducerConfig",
    "RebalanceListener",
    "Record",
    "RecordMetadata",
    "RetryAfter",
    "SubscriptionPattern",
    "Temporary",
    "TopicPartition",
    "TopicView",
    "Upsert",
}


def test_the_public_names():
    assert set(kohort._HOMES) == set(kohort.__all__) == NAMES
    everything: dict[str, Any] = {}
    exec("from kohort import *", everything)  # a notebook's habit
    assert everything.keys() >= NAMES
    for name in NAMES:
        assert getattr(kohort, name).__name__ == name
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = kohort.no_such_name


def imported_by(statement: str) -> set[str]:
    """The modules that a statement imports, in an interpreter of its own."""
    code = f"import sys; before = set(sys.modules); {statement}; print(*set(sys.modules) - before)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_S,
    )
    return set(done.stdout.split())


def test_the_client_imports_nothing_heavy():
    """Import within 40 ms needs this; `tests/unit/test_lean.py` asks more of the two clients."""
    heavy = {"asyncio", "logging", "numpy", "pyarrow", "ssl"}
    assert not heavy & imported_by("from kohort import Admin, Consumer, Producer")


def test_the_package_imports_itself_alone():
    ours = {"__future__", "kohort"}  # setuptools' own hook may look for packages, too
    assert imported_by("import kohort") <= ours


def test_what_a_client_works_with_is_imported_with_the_first_one():
    """The classes cost what they are: no network, no protocol, none of the other's machinery."""
    found = imported_by("from kohort import Consumer, Producer")
    assert not {"heapq", "random", "selectors", "socket"} & found
    working = ("kohort.group", "kohort.metrics", "kohort.net", "kohort.sasl.", "kohort.wire")
    assert not [name for name in found if name.startswith(working)]
    cores = {
        "kohort.client.cluster.client",
        "kohort.client.consumer.core",
        "kohort.client.producer.core",
    }
    assert not cores & found
    made = imported_by("from kohort import Producer; Producer(bootstrap_servers='localhost:1')")
    assert "kohort.client.producer.core" in made
    assert not {"kohort.client.consumer.base", "kohort.client.consumer.core"} & made
