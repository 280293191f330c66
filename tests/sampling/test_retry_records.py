"""Records of dead-letter topics for pages: the youngest, of large ones fewer."""

from __future__ import annotations

from kohort import Admin, NewTopic, Producer
from kohort.retry.classify import Disposition
from kohort.retry.headers import Origin, RetryHeaders
from kohort.sampling.retry_records import latest_copies
from tests.clusters import Cluster


def test_large_records_are_kept_up_to_so_many_bytes() -> None:
    """5,000 records of a megabyte are no page; each partition keeps its youngest, one at least."""
    with Cluster() as cluster, Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.create_topics([NewTopic("t.g.dlt", 2, 1)])
        with Producer(bootstrap_servers=cluster.bootstrap) as producer:
            for n in range(20):
                origin = Origin("t", 0, n, 1_000, 0)
                ours = RetryHeaders(0, 0, origin, "g", 0, 1, 1, Disposition.FATAL).encode()
                producer.send("t.g.dlt", b"x" * 1_000, None, n % 2, None, ours)
        topic = admin.describe_topics(["t.g.dlt"])["t.g.dlt"]
        settings = {"bootstrap_servers": cluster.bootstrap}

        def kept(most_bytes: int) -> list[tuple[int, int]]:
            copies = latest_copies(admin, settings, topic, 5_000, most_bytes)
            assert (copies.total, copies.strangers, copies.silent) == (20, 0, [])
            return sorted((one.record.partition, one.record.offset) for one in copies.copies)

        assert len(kept(64 << 20)) == 20
        assert kept(6_000) == [(0, 8), (0, 9), (1, 8), (1, 9)]
        assert kept(1) == [(0, 9), (1, 9)]
