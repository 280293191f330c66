"""Topics that a client has stopped to use: it no longer asks for them (KIP-526)."""

from __future__ import annotations

import pytest

from kohort import Admin, Consumer, Producer
from kohort.client.cluster.metadata import TOPIC_IDLE_MS
from kohort.testing import VirtualClock
from tests.clusters import APACHE, Embedded

pytestmark = pytest.mark.skipif(APACHE, reason="needs the clock of the embedded broker")
IDLE_S = TOPIC_IDLE_MS / 1_000
REFRESH_S = 60


def names(admin: Admin) -> set[str]:
    return {topic.name for topic in admin.list_topics()}


def test_a_producer_does_not_create_again_what_it_wrote_to_once() -> None:
    """A topic that was deleted came back at each refresh of the metadata."""
    with VirtualClock() as clock, Embedded(clock=clock) as cluster:
        servers = cluster.bootstrap
        cluster.create_topic("used", partitions=1)
        settings = {"bootstrap_servers": servers, "metadata_max_age_ms": REFRESH_S * 1_000}
        with Producer(**settings) as producer, Admin(bootstrap_servers=servers) as admin:
            producer.send("reply-1", b"1").result()
            for _ in range(round(IDLE_S / REFRESH_S) + 2):
                producer.send("used", b"v").result()
                clock.advance(REFRESH_S)
            admin.delete_topics(["reply-1"])
            clock.advance(3 * REFRESH_S)
            assert names(admin) == {"used"}
            producer.send("used", b"v").result()
            producer.send("reply-1", b"2").result()
            assert names(admin) == {"used", "reply-1"}


def test_a_consumer_does_not_create_again_what_it_looked_up_once() -> None:
    with VirtualClock() as clock, Embedded(clock=clock) as cluster:
        servers = cluster.bootstrap
        cluster.create_topic("read", partitions=1)
        cluster.create_topic("seen", partitions=1)
        settings = {"bootstrap_servers": servers, "metadata_max_age_ms": REFRESH_S * 1_000}
        with Consumer(**settings) as consumer, Admin(bootstrap_servers=servers) as admin:
            consumer.assign([("read", 0)])
            consumer.end_offsets([("seen", 0)])
            clock.advance(IDLE_S + 2 * REFRESH_S)
            admin.delete_topics(["seen"])
            clock.advance(3 * REFRESH_S)
            assert names(admin) == {"read"}
