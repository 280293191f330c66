"""What a transactional producer is answered, by Apache Kafka and by the embedded broker.

One difference is meant (docs/compatibility.md, InitProducerId): a fence raises our epoch by two.
"""

from __future__ import annotations

import threading
from typing import Any, TypeVar

import pytest

from kohort.errors import ErrorCode
from kohort.wire import Message
from kohort.wire.messages.find_coordinator_request import FindCoordinatorRequest
from kohort.wire.messages.find_coordinator_response import FindCoordinatorResponse
from kohort.wire.messages.init_producer_id_response import InitProducerIdResponse
from kohort.wire.messages.produce_response import ProduceResponse
from kohort.wire.messages.write_txn_markers_response import WriteTxnMarkersResponse
from tests.broker import transacting
from tests.broker.harness import batch_of, produce_request
from tests.broker.transacting import BEFORE, KIP_890, Tx
from tests.clusters import Embedded as Cluster
from tests.interop.java import ApacheKafka, needs_java

pytestmark = [needs_java, pytest.mark.slow, pytest.mark.java]
E = ErrorCode
WAIT = {E.COORDINATOR_LOAD_IN_PROGRESS, E.COORDINATOR_NOT_AVAILABLE, E.NOT_COORDINATOR}
TRIES = 50
M = TypeVar("M", bound=Message)


class Remote:
    """The face of the broker tests' `Harness`, for a cluster that is somewhere else."""

    def __init__(self, cluster: Any) -> None:
        self._cluster = cluster
        self.patient = True
        """Whether CONCURRENT_TRANSACTIONS is asked again."""

    def ask(self, request: Message, response: type[M], version: int | None = None) -> M:
        pause = threading.Event()
        for _ in range(TRIES):
            answer = self._cluster.request(request, response, version)
            wait = WAIT | {E.CONCURRENT_TRANSACTIONS} if self.patient else WAIT
            if code_in(answer) not in wait:
                return answer
            pause.wait(0.1)
        raise AssertionError(f"{request} is not answered")

    def send(self, request: Message, version: int) -> tuple[Message, int]:
        return request, version

    def read(self, asked: tuple[Message, int], response: type[M], version: int) -> M:
        return self.ask(asked[0], response, version)


def code_in(value: Any) -> int:
    """The highest error code anywhere in an answer."""
    if isinstance(value, list):
        return max((code_in(part) for part in value), default=0)
    codes = [0]
    for name in getattr(value, "FIELDS", ()):
        field = getattr(value, name)
        codes.append(field if name.endswith("error_code") else code_in(field))
    return max(codes)


def answers(cluster: Any, kind: str) -> dict[str, str]:
    """Every call of a scenario with its answer."""
    remote = Remote(cluster)
    codes: dict[str, str] = {}

    def note(what: str, code: int) -> None:
        assert what not in codes
        codes[what] = ErrorCode.name_of(code)

    name = f"tx {kind}"
    for key_type, key in ((1, name), (0, "g")):
        found = FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key])
        remote.ask(found, FindCoordinatorResponse)
    tx = Tx(remote, name, kind)  # type: ignore[arg-type]
    note("init", tx.init())
    note("commit nothing", tx.commit())
    note("abort nothing", tx.abort())
    note("a partition that was not added", tx.produce("t", b"x"))
    note("a record", tx.send("t", b"y"))
    note("a plain record", tx.produce("t", b"z", transactional=False))
    note("offsets", tx.commit_offsets("g", {("t", 0): 3}))
    who = {"generation_id": 5, "member_id": "m"}
    note("offsets of a stranger", tx.commit_offsets("g", {("t", 0): 3}, **who))
    note("offsets of no topic", tx.commit_offsets("g", {("nope", 0): 3}))
    ended(tx, note)
    strangers(tx, note)
    note("a topic that is not there", tx.add(("nope", 0)))
    note("an internal topic", tx.add(("__consumer_offsets", 0)))
    note("the next record", tx.send("t", b"y2"))
    fenced(remote, tx, note)
    refused(remote, kind, note)
    return codes


def ended(tx: Tx, note: Any) -> None:
    before = tx.epoch
    note("commit", tx.commit())
    after, tx.epoch = tx.epoch, before
    note("commit again", tx.commit())
    assert tx.epoch == after
    tx.epoch = before
    note("abort what was committed", tx.abort())
    tx.epoch = after


def strangers(tx: Tx, note: Any) -> None:
    epoch, producer_id = tx.epoch, tx.producer_id
    tx.epoch = epoch + 5
    note("an end of another epoch", tx.commit())
    note("a partition of another epoch", tx.add(("t", 0)))
    tx.epoch, tx.producer_id = epoch, 99_999
    note("an end of another id", tx.commit())
    note("a partition of another id", tx.add(("t", 0)))
    tx.producer_id = producer_id


def fenced(remote: Remote, old: Tx, note: Any) -> None:
    new = old.twin()
    remote.patient = False
    note("a second producer", new.init())
    remote.patient = True
    note("the second producer again", new.init())
    note("a record of the first", old.produce("t", b"late"))
    note("a commit of the first", old.commit())
    note("an abort of the first", old.abort())
    note("a partition of the first", old.add(("t", 1)))
    note("offsets of the first", old.store_offsets("g", {("t", 0): 9}))
    note("an init of the first", old.init(again=True))
    note("an init of the first, v3", old.init(again=True, version=3))
    note("the next epoch", new.init(again=True))
    epoch, new.epoch = new.epoch, new.epoch - 1
    note("the next epoch, asked again", new.init(again=True))
    assert new.epoch == epoch
    for epoch, coordinator in ((new.epoch, 50), (new.epoch, 40), (new.epoch - 2, 50)):
        request = transacting.markers_request(
            new.producer_id, epoch, commit=False, coordinator_epoch=coordinator
        )
        what = f"a marker of epoch {epoch - new.epoch:+} by coordinator {coordinator}"
        note(what, code_in(remote.ask(request, WriteTxnMarkersResponse)))
    verify = transacting.add_request(
        5, new.name, new.producer_id, new.epoch, (("t", 0),), verify=True
    )
    for version in (4, 5):
        answer = remote.ask(verify, transacting.AddPartitionsToTxnResponse, version)
        note(f"a verification, v{version}", code_in(answer))


def refused(remote: Remote, kind: str, note: Any) -> None:
    nobody = Tx(remote, "nobody", kind)  # type: ignore[arg-type]
    note("no time", nobody.init(timeout_ms=0))
    note("too much time", nobody.init(timeout_ms=900_001))
    note("no name", Tx(remote, "").init())  # type: ignore[arg-type]
    half = transacting.init_request("nobody")
    half.producer_id = 5
    note("half an identity", remote.ask(half, InitProducerIdResponse, 5).error_code)
    nobody.producer_id, nobody.epoch = 7, 0
    note("a partition of nobody", nobody.add(("t", 0)))
    note("a commit of nobody", nobody.commit())
    note("what nobody does", nobody.state().error_code)
    note("what no name does", transacting.described(remote, "").error_code)  # type: ignore[arg-type]
    unnamed = batch_of([b"x"], producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
    answer = remote.ask(produce_request("t", unnamed), ProduceResponse, 12)
    note("a record without a name", code_in(answer))


def test_every_answer_is_the_same() -> None:
    all_codes: list[dict[str, str]] = []
    for kind_of_cluster in (Cluster, ApacheKafka):
        with kind_of_cluster() as cluster:
            cluster.create_topic("t", 2)
            all_codes.append(
                {f"{k}: {w}": c for k in (BEFORE, KIP_890) for w, c in answers(cluster, k).items()}
            )
    ours, theirs = all_codes
    assert ours == theirs
