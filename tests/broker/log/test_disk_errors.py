"""EIO and ENOSPC in the n-th call that changes the disk, for every n of a short life (issue D).

On the fast path and the slow path: everybody is answered, what was acknowledged is there after a
power cut, and nothing is there twice or out of order.
"""

from __future__ import annotations

import errno
import itertools
import os
import random
from typing import Any

import pytest

from kohort.wire import decode_response
from kohort.wire.messages.offset_commit_request import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kohort.wire.messages.offset_commit_response import OffsetCommitResponse
from kohort.wire.messages.offset_fetch_request import OffsetFetchRequest
from kohort.wire.messages.offset_fetch_response import OffsetFetchResponse
from kohort.wire.messages.produce_response import ProduceResponse
from tests.broker.fast_path.test_fast_path import Served, frame_of
from tests.broker.harness import FakeEnv, Harness, batch_of, produce_request
from tests.broker.shadow_files import ShadowFiles

CONFIG: dict[str, Any] = {
    "durability": "fsync",
    "log_segment_bytes": 1_000,
    "log_index_interval_bytes": 200,
    "offsets_topic_segment_bytes": 800,
    "offsets_topic_num_partitions": 1,
}
TURNS = 6
CALLS_MAX = 400


def commit_of(offset: int) -> OffsetCommitRequest:
    part = OffsetCommitRequestPartition(
        partition_index=0, committed_offset=offset, committed_metadata=""
    )
    topic = OffsetCommitRequestTopic(name="t", partitions=[part])
    return OffsetCommitRequest(group_id="g", topics=[topic])


class Life:
    """Two connections that write to a partition each, and a third that commits."""

    def __init__(self, call: int, error: int, *, on_fast_path: bool) -> None:
        self.disk = ShadowFiles(random.Random(call))
        self.harness = Harness(self.disk, FakeEnv(), **CONFIG)
        self.harness.state.topics.create("t", 2, {})
        self.acked: tuple[list[bytes], list[bytes]] = ([], [])
        self.committed = -1
        self.refused = 0
        self._one = Served(self.harness, 3, on_fast_path=on_fast_path)
        self._turn(-1)  # logs are there; from now on requests may go by the fast path
        self.disk.error_at = self.disk.calls + call
        self.disk.error = OSError(error, os.strerror(error))

    def run(self) -> bool:
        """Whether the call was reached."""
        for turn in range(TURNS):
            self._turn(turn)
        return self.disk.calls >= (self.disk.error_at or 0)

    def _turn(self, turn: int) -> None:
        values = [[b"%d:%d:%d" % (turn, at, n) * 9 for n in range(3)] for at in (0, 1)]
        frames = [
            (at, frame_of(produce_request("t", batch_of([value]), at), 11))
            for at in (0, 1)
            for value in values[at]
        ]
        self._one.turn([*frames, (2, frame_of(commit_of(turn), 8))])
        self.harness.env.run_flushes()
        self.harness.env.settle()
        for at in (0, 1):
            sent = self._one.lines[at].sent
            assert len(sent) == len(values[at]), "everybody is answered"
            for answer, value in zip(sent, values[at], strict=True):
                topic = decode_response(ProduceResponse, 11, answer[4:])[1].responses[0]
                if topic.partition_responses[0].error_code:
                    self.refused += 1
                else:
                    self.acked[at].append(value)
            sent.clear()
        [answer] = self._one.lines[2].sent
        partition = decode_response(OffsetCommitResponse, 8, answer[4:])[1].topics[0].partitions[0]
        if partition.error_code:
            self.refused += 1
        else:
            self.committed = turn
        self._one.lines[2].sent.clear()

    def check(self) -> None:
        """After a power cut."""
        again = Harness(self.disk.after_crash(), FakeEnv(), **CONFIG)
        for at in (0, 1):
            found = again.read_all("t", at)
            assert [offset for offset, _ in found] == list(range(len(found)))
            values = [value for _, value in found]
            assert len(set(values)) == len(values)
            assert [value for value in values if value in self.acked[at]] == self.acked[at]
        asked = OffsetFetchRequest(group_id="g", topics=None)
        response = again.ask(asked, OffsetFetchResponse, 7)
        held = [p.committed_offset for topic in response.topics for p in topic.partitions]
        assert max(held, default=-1) >= self.committed


@pytest.mark.rows(1)
@pytest.mark.parametrize(
    ("on_fast_path", "error"),
    [
        pytest.param(True, errno.ENOSPC, id="fast-ENOSPC"),
        pytest.param(False, errno.EIO, id="slow-EIO"),
        pytest.param(True, errno.EIO, id="fast-EIO", marks=pytest.mark.extended),
        pytest.param(False, errno.ENOSPC, id="slow-ENOSPC", marks=pytest.mark.extended),
    ],
)
def test_an_error_in_any_call_loses_nothing_acknowledged(error: int, on_fast_path: bool) -> None:
    """L1, L8, L9."""
    refused = call = 0
    for call in itertools.count(1):
        life = Life(call, error, on_fast_path=on_fast_path)
        reached = life.run()
        life.check()
        refused += life.refused
        if not reached:
            break
        assert call < CALLS_MAX
    assert call > 2 * TURNS
    assert refused > call, "errors were told"
