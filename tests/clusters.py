"""The cluster that tests of clients run against: the embedded broker, or Apache Kafka itself.

`KOHORT_TEST_CLUSTER=apache` (as `make interop` sets it) starts Apache Kafka from its jars instead.
What cannot run there skips itself and says why (`-rs`).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

APACHE = os.environ.get("KOHORT_TEST_CLUSTER") == "apache"

if TYPE_CHECKING or not APACHE:
    from kohort.testing import Cluster as Cluster
    from tests.e2e.broker_process import BrokerProcess as BrokerProcess
else:
    from tests.interop.java import ApacheKafka as Cluster
    from tests.interop.java import ApacheProcess as BrokerProcess

__all__ = ["APACHE", "BrokerProcess", "Cluster"]
