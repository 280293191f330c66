"""What planners and gates ask of a cluster (`kohort.retry.cluster_port`)."""

from __future__ import annotations

import threading

import pytest

from kohort import Producer
from kohort.errors import ClosedError, KohortError, WakeupError
from kohort.retry.cluster_port import ClusterPort
from tests.clusters import APACHE, Cluster, Embedded
from tests.patience import PATIENCE_S, until


def test_topics_by_name_are_those_that_exist() -> None:
    """One that was deleted is left out, and is no error: the planner decides what it means."""
    with Cluster() as cluster:
        cluster.create_topic("t", partitions=3)
        cluster.create_topic("other")
        port = ClusterPort({"bootstrap.servers": cluster.bootstrap})
        try:
            every = port.topics()
            assert port.topics(["t"]) == {"t": every["t"]}
            assert port.topics(["t", "gone"]) == {"t": every["t"]}
            assert (every["t"].partitions, {*every} >= {"t", "other"}) == (3, True)
        finally:
            port.close()


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


def test_ends_without_those_that_no_leader_tells() -> None:
    """One request for all waits for a leader in vain; open transactions count as for `latest`."""
    with Embedded(nodes=2) as cluster:
        cluster.create_topic("t", partitions=2, replication_factor=1)
        settings = {"bootstrap.servers": cluster.bootstrap, "isolation.level": "read_committed"}
        port = ClusterPort(settings)
        try:
            with Producer(bootstrap_servers=cluster.bootstrap, transactional_id="open") as producer:
                producer.init_transactions()
                producer.begin_transaction()
                for number in range(2):
                    producer.send("t", b"1", partition=number)
                producer.flush()
                everything = [("t", 0), ("t", 1), ("gone", 0)]
                known = port.latest(everything, PATIENCE_S, partial=True)
                assert known == {("t", 0): 0, ("t", 1): 0}
                producer.abort_transaction()
            cluster.stop_node(cluster.leader_of("t", 0))
            assert port.latest(everything, PATIENCE_S, partial=True) == {("t", 1): 2}
        finally:
            port.close()


def test_markers_and_aborted_records_are_no_records() -> None:
    """Two transactions: one record and its marker, then one that is aborted."""
    with Cluster() as cluster:
        cluster.create_topic("t", partitions=2)
        with Producer(bootstrap_servers=cluster.bootstrap, transactional_id="x") as producer:
            producer.init_transactions()
            for end in (producer.commit_transaction, producer.abort_transaction):
                producer.begin_transaction()
                producer.send("t", b"1", partition=0)
                producer.flush()
                end()
        settings = {"bootstrap.servers": cluster.bootstrap, "isolation.level": "read_committed"}
        port = ClusterPort(settings)
        try:
            until(lambda: port.latest([("t", 0)]) == {("t", 0): 4})
            assert port.has_records({("t", 0): (0, 1)})
            assert not port.has_records({("t", 0): (1, 2)})
            assert not port.has_records({("t", 0): (1, 4)})
            assert port.has_records({("t", 0): (0, 4), ("t", 1): (0, 0)})
            port.delete_before({("t", 0): 2})
            assert port.has_records({("t", 0): (1, 2)}), "what is gone is for its reader to report"
        finally:
            port.close()


@pytest.mark.skipif(APACHE, reason="tells the broker to be silent")
def test_closing_ends_what_another_thread_still_asks() -> None:
    """An app whose time is over does not wait for its thread of transactions, which may just ask
    what is committed: nothing is left open by that, and its end is no error."""
    errors: list[KohortError] = []
    with Cluster() as cluster:
        port = ClusterPort({"bootstrap.servers": cluster.bootstrap})

        def ask() -> None:
            try:
                port.commits("g", [("t", 0)])
            except KohortError as error:
                errors.append(error)

        thread = threading.Thread(target=ask)
        with cluster.faults.silence("OffsetFetch") as silence:
            thread.start()
            silence.wait()
            port.close()
            thread.join(PATIENCE_S)
        assert [type(error) for error in errors] == [WakeupError]
        for again in (lambda: port.commits("g", [("t", 0)]), port.topics):
            with pytest.raises(ClosedError, match="make a new port"):
                again()
        port.close()
