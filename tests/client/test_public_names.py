"""The public face of the client is pinned: a name comes or goes by decision, not by accident."""

from __future__ import annotations

import subprocess
import sys

import pytest

import kohort

NAMES = {
    "Admin",
    "AdminConfig",
    "App",
    "Assignor",
    "AssignorError",
    "AsyncConsumer",
    "AsyncProducer",
    "Consumer",
    "ConsumerConfig",
    "GroupView",
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
}


def test_the_public_names():
    assert set(kohort._HOMES) == NAMES
    for name in NAMES:
        assert getattr(kohort, name).__name__ == name
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = kohort.no_such_name


def test_the_client_imports_nothing_heavy():
    """Import of the client within 40 ms needs this."""
    code = (
        "import sys; from kohort import Admin, Consumer, Producer; "
        "print(*[m for m in ('asyncio','ssl','pyarrow','numpy','logging') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split() == []
