"""What planners and gates ask of a cluster (`kohort.retry.cluster_port`)."""

from __future__ import annotations

from kohort import Producer
from kohort.retry.cluster_port import ClusterPort
from tests.clusters import Cluster
from tests.patience import until


def test_settings_that_only_consumers_have() -> None:
    """`kafka.isolation.level` of a Spark source: its admin does without, its ends heed it."""
    with Cluster() as cluster:
        cluster.create_topic("t")
        settings = {
            "bootstrap.servers": cluster.bootstrap,
            "isolation.level": "read_committed",
            "fetch.min.bytes": "1",
            "max_poll_records": "7",
        }
        port = ClusterPort(settings)
        try:
            with Producer(bootstrap_servers=cluster.bootstrap, transactional_id="open") as producer:
                producer.init_transactions()
                producer.begin_transaction()
                producer.send("t", b"1")
                producer.flush()
                assert port.topics()["t"].partitions == 1
                assert port.latest([("t", 0)]) == {("t", 0): 0}
                producer.commit_transaction()
            # Apache Kafka answers before its marker stands
            until(lambda: port.latest([("t", 0)]) == {("t", 0): 2})
        finally:
            port.close()
