"""The cluster that tests of clients run against: the embedded broker, or Apache Kafka itself.

`KOHORT_TEST_CLUSTER=apache` (as `make interop` sets it) starts Apache Kafka from its jars instead.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

APACHE = os.environ.get("KOHORT_TEST_CLUSTER") == "apache"

if TYPE_CHECKING or not APACHE:
    from kohort.testing import Cluster as Cluster
else:
    from tests.interop.java import ApacheKafka as Cluster

__all__ = ["APACHE", "Cluster"]
