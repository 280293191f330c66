"""A broker that is sent what nobody honest sends, without sockets: made, damaged, and both.

Requests are filled at random, then names, ids and numbers are put right by chance, so that many
come through to the bottom of the APIs; half of the frames are damaged on top. A fifth of the turns
begins as what the fast path takes (`hostile_fast_path.py`); a broker without one serves these as it
serves all others. All of it follows from one seed.
"""

from __future__ import annotations

import random
import resource
import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from kohort.broker.apis import APIS
from kohort.broker.fast_path.fast_path import FAST_PATH
from kohort.broker.server.connection import ClientConnection
from kohort.errors import EncodeError, KohortError, ProtocolError
from kohort.records import BatchHeader, Chunk, Compression
from kohort.records.batch import check_batch
from kohort.wire import Message, decode_response, encode_request
from kohort.wire import _schema as schema
from kohort.wire.messages.api_versions_request import ApiVersionsRequest
from kohort.wire.messages.api_versions_response import ApiVersionsResponse
from tests.broker.harness import Harness, batch_of
from tests.broker.hostile_batches import hostile_batch
from tests.broker.hostile_fast_path import Usual
from tests.wire.test_fuzz import mutated
from tests.wire.values import Maker

NAMES = ("t", "u", "g", "m", "x", "", "absent", "../t", "t" * 250, "*", "__consumer_offsets")
_SMALL = (0, 1, -1, 2, 5, 100)
NUMBERS = {
    f"int{bits}": (*_SMALL, 2 ** (bits - 1) - 1, -(2 ** (bits - 1))) for bits in (8, 16, 32, 64)
}
PLAUSIBLE = 0.7
USUAL = 0.2
TURNS_A_MEMBER = 100


class Line:
    """One connection, as far as a peer sees it."""

    def __init__(self, world: HostileWorld) -> None:
        self.peer = "127.0.0.1:1"
        self.peer_subject: str | None = None
        self.is_closed = False
        self.queued_bytes = 0
        self.sent: list[bytes] = []
        self.error: KohortError | None = None
        self.reading = True
        self._world = world

    def send(self, buffers: Sequence[Any]) -> None:
        self.sent.append(b"".join(buffers))

    def close(self, error: KohortError | None = None) -> None:
        self.is_closed, self.error = True, error

    def close_when_idle(self, ms: int) -> None:
        """Nobody is idle here."""

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


class HostileWorld:
    """A broker with small limits, one hostile connection at a time, and an honest one."""

    def __init__(self, seed: int, **config: Any) -> None:
        self.harness = Harness(
            max_topics=60,
            max_partitions=600,
            num_partitions=2,
            group_min_session_timeout_ms=10,
            **config,
        )
        self.random = random.Random(seed)
        self.harness.state.topics.create("t", 2, {})
        self.harness.state.topics.create("u", 1, {"cleanup.policy": "compact"})
        self.frames = self.refused = self.answered = 0
        self.read = 0
        """Records that were stored, each as often as it was looked at."""
        self.turns = self.taken = 0
        """Turns of usual requests, and how many of these the fast path served."""
        peers: set[ClientConnection] = set()
        self.endpoint: Any = SimpleNamespace(
            node=self.harness.node, gate=None, peers=peers, left=peers.discard
        )
        self._line, self._peer = self._connect()
        self._honest_line, self._honest = self._connect()
        self._apis = sorted(APIS)
        self._quick_line, self._quick = self._connect()
        self._usual = Usual(self.harness, self.random)
        self.has_lane = FAST_PATH == "cython"

    def _connect(self) -> tuple[Line, ClientConnection]:
        line = Line(self)
        peer = ClientConnection(self.endpoint, line)  # type: ignore[arg-type]
        self.endpoint.peers.add(peer)
        peer.connected(line)  # type: ignore[arg-type]
        serve: Any = peer._is_permitted  # pyright: ignore[reportPrivateUsage]

        def counted(entry: Any) -> bool:
            served = bool(serve(entry))
            self.taken += served
            return served

        peer._is_permitted = counted  # type: ignore[method-assign]  # pyright: ignore[reportPrivateUsage]
        return line, peer

    def attack(self) -> str:
        """Send one hostile frame, or a turn of usual ones; what it was."""
        if self.random.random() < USUAL:
            return self._usual_turn()
        api = APIS[self.random.choice(self._apis)]
        version = self.random.randint(api.min_version, api.max_version)
        maker = Maker(self.random.getrandbits(32), unknown=True)
        request = maker.message(api.request, version)
        if self.random.random() < PLAUSIBLE:
            self._mend(request, schema.load(request.NAME).root, version)
        name = f"{api.request.NAME} v{version}"
        client = self.random.choice(("c", "c2", ""))
        frame = b"".join(encode_request(request, version, self.frames, client))[4:]
        if self.random.random() < 0.5:
            frame, name = mutated(frame, self.random), f"{name}, damaged"
        self.send(frame)
        return name

    def send(self, frame: bytes) -> None:
        """Send the bytes of one frame, on a new connection where the last one was closed."""
        if self._line.is_closed or not self._line.reading:
            if not self._line.is_closed:
                self._line.close()
            self._peer.closed(self._line, None)  # type: ignore[arg-type]
            self._line, self._peer = self._connect()
        self.frames += 1
        self._peer.frame_received(self._line, memoryview(frame))  # type: ignore[arg-type]
        self.harness.env.settle()
        if self._line.is_closed:
            self.refused += 1
            error = self._line.error
            assert error is None or isinstance(error, ProtocolError), error
            ours = isinstance(error, EncodeError) or "must keep its default" in str(error)
            assert not ours, f"an answer cannot be encoded: {error}"
        self.answered += len(self._line.sent)
        self._line.sent.clear()
        if self.random.random() < 0.02:
            self.harness.env.advance(self.random.choice((1, 20, 1_000, 60_000)))

    def _usual_turn(self) -> str:
        """Several requests of the fast path in one turn, all well or some of them damaged."""
        if self.turns % TURNS_A_MEMBER == 0:
            self._usual.join()
        self.turns += 1
        damaged = self.random.choice((0.0, 0.3, 1.0))
        line, names, numbers = self._quick_line, [], []
        if line.is_closed or not line.reading:
            self._quick.closed(line, None)  # type: ignore[arg-type]
            self._quick_line, self._quick = line, _ = self._connect()
        for _ in range(self.random.choice((1, 1, 2, 3, 8))):
            self.frames += 1
            frame, name = self._usual.frame(self.frames, damaged=self.random.random() < damaged)
            numbers.append(self.frames)
            names.append(name)
            if not line.is_closed and line.reading:
                self._quick.frame_received(line, memoryview(frame))  # type: ignore[arg-type]
        self.harness.env.settle()
        answer_ids = [int.from_bytes(sent[4:8], "big") for sent in line.sent]
        if not damaged:
            assert answer_ids[-len(numbers) :] == numbers, f"{numbers} asked, {answer_ids} answered"
        if line.is_closed:
            self.refused += 1
            assert line.error is None or isinstance(line.error, ProtocolError), line.error
        self.answered += len(answer_ids)
        line.sent.clear()
        return "; ".join(names)

    def prove_sound(self) -> None:
        """No partition was taken away, and what stands in the logs is whole: every batch in its
        place, with its checksum, and every record can be read."""
        for partition in self.harness.state.topics.partitions():
            opened = partition.log
            assert partition.offline is None, f"{partition.key}: {partition.offline}"
            if opened is None or opened.closed:
                continue
            after, times = 0, list[int]()
            for header, batch in opened.batches(opened.log_start_offset):
                check_batch(batch, BatchHeader(batch, 0))
                self._prove_readable(header, batch)
                thin = partition.topic.config.compact
                assert header.base_offset == after or (thin or not after)
                assert header.record_count == header.last_offset_delta + 1 or thin, partition.key
                after = header.last_offset + 1
                times.append(header.max_timestamp)
            assert after <= opened.end.offset, partition.key
            for time_ms in self.random.sample(times, min(len(times), 20)):
                opened.offset_for_time(time_ms, opened.end)  # raises for a damaged log alone

    def _prove_readable(self, header: BatchHeader, batch: memoryview) -> None:
        """As a consumer would read it, who stops at what cannot be read."""
        if header.is_control:
            return
        chunk, count, latest = Chunk("", 0, batch, header.base_offset), 0, -1
        while not chunk.exhausted:
            records = chunk.next_records(1_000)
            count += len(records)
            latest = max(latest, *(record.timestamp for record in records))
        self.read += count
        assert count == header.record_count
        assert latest == header.max_timestamp

    def _mend(self, value: Any, facts: schema.Struct, version: int) -> None:
        """Put plausible things where they belong."""
        for field in facts.fields:
            if version not in field.versions or self.random.random() < 0.1:
                continue
            held = getattr(value, field.name)
            if isinstance(held, list):
                mended = [self._mended(field, each, version) for each in held[:8]]
            else:
                mended = self._mended(field, held, version)
            setattr(value, field.name, mended)

    def _mended(self, field: schema.Field, held: Any, version: int) -> Any:
        pick = self.random
        if held is None:
            return None
        if field.struct is not None:
            if version in field.tagged:
                return held  # one that was left out is shared, and cannot be set
            self._mend(held, field.struct, version)
            return held
        if field.name == "topic_id":
            topic = self.harness.state.topics.get(pick.choice(("t", "u")))
            return bytes(16) if topic is None or pick.random() < 0.2 else topic.topic_id
        if field.base == "records" and pick.random() < 0.7:
            return hostile_batch(pick)
        if field.base == "records":
            codec = pick.choice(list(Compression))
            return batch_of([b"v" * pick.randint(0, 50)] * pick.randint(1, 5), compression=codec)
        if field.base == "string":
            return pick.choice(NAMES)
        if field.name in ("num_partitions", "count"):
            return pick.choice((1, 2, -1, 0, 500, 2**31 - 1))
        return pick.choice(NUMBERS.get(field.base, (held,)))

    def prove_unharmed(self) -> None:
        """The honest connection is served as ever."""
        asked = ApiVersionsRequest(client_software_name="honest", client_software_version="1")
        frame = b"".join(encode_request(asked, 4, 7, "honest"))[4:]
        self._honest.frame_received(self._honest_line, memoryview(frame))  # type: ignore[arg-type]
        assert not self._honest_line.is_closed
        (sent,) = self._honest_line.sent
        self._honest_line.sent.clear()
        answer: Message = decode_response(ApiVersionsResponse, 4, sent[4:])[1]
        assert isinstance(answer, ApiVersionsResponse)
        assert len(answer.api_keys) == len(APIS)


def most_memory() -> int:
    """The most bytes that this process has had; Linux counts in kilobytes, macOS in bytes."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most << 10
