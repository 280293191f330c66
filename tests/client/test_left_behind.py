"""A member that its group has left behind commits nothing with a transaction (KIP-447, E2).

A TxnOffsetCommit that names nobody is taken by every group (old producers name nobody), so who was
a member must never say that it is nobody.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from kohort import Admin, Producer
from kohort.errors import AbortableTransactionError
from tests.client.consumer_world import World, take, until
from tests.clusters import Cluster
from tests.expelling import expel
from tests.patience import PATIENCE_S


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(group_initial_rebalance_delay_ms=0) as running:
        yield running


def wait_until(met: Callable[[], bool]) -> None:
    """Without polling: nothing is done about what has happened."""
    end, pause = time.monotonic() + PATIENCE_S, threading.Event()
    while not met():
        assert time.monotonic() < end
        pause.wait(0.01)


@pytest.mark.parametrize("others", [False, True], ids=["empty", "taken over"])
@pytest.mark.parametrize(
    ("protocol", "instance"), [("classic", None), ("classic", "i1"), ("consumer", None)]
)
def test_who_was_expelled_is_refused(
    world: World, admin: Admin, protocol: str, instance: str | None, others: bool
) -> None:
    """Also while it has not been told yet, by any poll, that its partitions are lost."""
    topic, out, group = world.topic(1, records=4), world.topic(1), world.group()
    settings = {"group_id": group, "group_protocol": protocol, "enable_auto_commit": False}
    consumer = world.consumer(**settings, group_instance_id=instance)
    consumer.subscribe([topic])
    take(consumer, 4)
    member = consumer.group_metadata()
    expel(admin, member, protocol)
    if others:
        other = world.consumer(**settings)
        other.subscribe([topic])
        until(lambda: bool(other.assignment()), other)
    wait_until(lambda: consumer.rebalance_pending)  # it has heard of it itself
    with Producer(bootstrap_servers=world.cluster.bootstrap, transactional_id=group) as producer:
        producer.init_transactions(PATIENCE_S)
        producer.begin_transaction()
        producer.send(out, b"once more")
        with pytest.raises(AbortableTransactionError):
            producer.send_offsets_to_transaction(consumer.positions(), consumer.group_metadata())
        producer.abort_transaction()
    until(lambda: consumer.group_metadata() != member, *world.made)  # it has joined again
