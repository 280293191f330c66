"""The cluster that tests of clients run against: the embedded broker, or Apache Kafka itself.

`KOHORT_TEST_CLUSTER=apache` (as `make interop` sets it) starts Apache Kafka from its jars instead.
What cannot run there skips itself and says why (`-rs`).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import kohort.testing

APACHE = os.environ.get("KOHORT_TEST_CLUSTER") == "apache"


class Embedded(kohort.testing.Cluster):
    """The embedded broker without a log of requests, where none is asked for: with one, usual
    requests do not take the fast path (ADR 0014), which is what `kohort broker run` has."""

    def __init__(self, *args: Any, request_log: int = 0, **more: Any) -> None:
        super().__init__(*args, request_log=request_log, **more)


if TYPE_CHECKING or not APACHE:
    Cluster = Embedded
    from tests.e2e.broker_process import BrokerProcess as BrokerProcess
else:
    from tests.interop.java import ApacheKafka as Cluster
    from tests.interop.java import ApacheProcess as BrokerProcess

__all__ = ["APACHE", "BrokerProcess", "Cluster", "Embedded"]
