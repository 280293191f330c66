"""A clean close leaves nothing that the next start believes and the disk does not have."""

from __future__ import annotations

import random

import pytest

from kohort.simulator.files import SimFiles
from kohort.wire.messages.delete_topics_request import DeleteTopicsRequest, DeleteTopicState
from kohort.wire.messages.delete_topics_response import DeleteTopicsResponse
from tests.broker.harness import FakeEnv, Harness, batch_of


@pytest.mark.parametrize("seed", range(4))
def test_names_that_wait_for_the_flusher_are_on_the_disk(seed: int) -> None:
    """Found by seed 20000035: the broker closed while the first flush of a new log was under way.
    The next start believed its name, so that the power cut after that took acknowledged records.
    """
    files, env = SimFiles(), FakeEnv()
    harness = Harness(files, env, durability="fsync")
    harness.create("t")
    env.hold_flushes = True
    assert not harness.produce_async("t", batch_of([b"0"])).done
    harness.state.close()
    again = Harness(files, FakeEnv(), durability="fsync")
    assert again.produce("t", batch_of([b"1"])).base_offset == 1
    files.power_cut(random.Random(seed))
    after = Harness(files, FakeEnv(), durability="fsync")
    assert [value for _, value in after.read_all("t")] == [b"0", b"1"]


def test_names_of_a_deleted_topic_may_wait_for_the_flusher() -> None:
    files, env = SimFiles(), FakeEnv()
    harness = Harness(files, env, durability="fsync")
    harness.create("t")
    env.hold_flushes = True
    harness.produce_async("t", batch_of([b"0"]))
    topics = [DeleteTopicState(name="t")]
    harness.ask(DeleteTopicsRequest(topics=topics), DeleteTopicsResponse)
    harness.state.close()
    assert Harness(files, FakeEnv(), durability="fsync").state.directory.clean
