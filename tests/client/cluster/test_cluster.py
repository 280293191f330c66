"""The cluster client against scripted brokers: negotiation, metadata, loss at every point."""

from __future__ import annotations

import queue
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from kohort.client.cluster.client import ALL, ANY, Versioned
from kohort.client.cluster.find_coordinator import coordinator_in, find_coordinator
from kohort.client.cluster.metadata import Node
from kohort.errors import (
    BrokerError,
    ClosedError,
    ConnectionFailedError,
    DamagedAnswerError,
    KafkaTimeoutError,
    KohortError,
    ProtocolError,
    UnsupportedVersionError,
)
from kohort.wire import encode_response
from kohort.wire.messages.api_versions_response import ApiVersion, ApiVersionsResponse
from kohort.wire.messages.find_coordinator_request import FindCoordinatorRequest
from kohort.wire.messages.find_coordinator_response import Coordinator, FindCoordinatorResponse
from kohort.wire.messages.heartbeat_request import HeartbeatRequest
from kohort.wire.messages.heartbeat_response import HeartbeatResponse
from kohort.wire.messages.metadata_request import MetadataRequest
from tests.client.scripted import CLOSE, ScriptedBroker
from tests.patience import PATIENCE_S

BEAT = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")


@pytest.fixture
def unused_port() -> Iterator[Callable[[], int]]:
    """Ports at which nobody listens, and which nobody else gets meanwhile."""
    with ExitStack() as bound:

        def bind() -> int:
            one = bound.enter_context(socket.socket())
            one.bind(("127.0.0.1", 0))
            return one.getsockname()[1]

        yield bind


def test_metadata_of_watched_topics_is_learned_and_nodes_take_over_from_bootstrap(broker, client):
    broker.cluster.topics["t"] = {0: (0, 3), 1: (0, 4)}
    c = client(broker.address)
    c.do(c.cluster.watch_topics, ["t", "missing"])
    metadata = c.refresh()
    assert metadata.cluster_id == "scripted"
    assert metadata.leader("t", 1) == 0
    assert metadata.leader_epoch("t", 1) == 4
    assert metadata.leader("t", 7) == -1
    assert [p.partition for p in metadata.partitions_of("t")] == [0, 1]
    assert metadata.errors == {"missing": 3}
    broker.answers["HeartbeatRequest"] = lambda r, call: HeartbeatResponse()
    c.ask(0, BEAT)
    assert len(broker.connections) == 1  # the bootstrap connection became node 0's


def test_all_topics_may_be_watched(broker, client):
    broker.cluster.topics.update(a={0: (0, 1)}, b={0: (0, 1)})
    c = client(broker.address)
    c.do(c.cluster.watch_topics, ALL)
    assert sorted(c.refresh().topics) == ["a", "b"]


def test_the_newest_common_version_is_spoken(broker, client):
    broker.versions[12] = (0, 2)
    seen = []
    broker.answers["HeartbeatRequest"] = lambda r, call: (
        seen.append(call.version) or HeartbeatResponse()
    )
    c = client(broker.address)
    c.ask(ANY, BEAT)
    c.ask(ANY, Versioned(HeartbeatRequest, lambda v: seen.append(("built", v)) or BEAT, at_most=1))
    assert seen == [2, ("built", 1), 1]


def test_no_common_version_is_an_error_with_both_ranges_and_the_connection_stays(broker, client):
    broker.versions[12] = (50, 60)
    del broker.versions[10]
    c = client(broker.address)
    with pytest.raises(UnsupportedVersionError, match="50 to 60"):
        c.ask(ANY, BEAT)
    with pytest.raises(UnsupportedVersionError, match="does not serve FindCoordinator"):
        c.ask(ANY, FindCoordinatorRequest(key="g"))
    c.refresh()
    assert len(broker.connections) == 1


@pytest.mark.parametrize("body_version", [0, 3])
def test_an_unknown_api_versions_version_falls_back_whatever_the_body(broker, client, body_version):
    """KIP-511: librdkafka's mock answers v4 with error 35 in a v3 body, brokers in a v0 body."""
    asked = []

    def refuse_new(frame, head, connection) -> bool:
        asked.append(head.api_version)
        if head.api_version == 0:
            return False
        own = ApiVersion(api_key=18, min_version=0, max_version=0)
        answer = ApiVersionsResponse(error_code=35, api_keys=[own])
        connection.send(encode_response(answer, body_version, head.correlation_id))
        return True

    broker.raw[18] = refuse_new
    c = client(broker.address)
    c.refresh()
    assert asked == [4, 0]


def test_an_error_in_api_versions_is_reported_and_tried_again(broker, client):
    answers = [ApiVersionsResponse(error_code=41), None]
    broker.answers["ApiVersionsRequest"] = lambda r, call: (
        answers.pop(0) or broker.api_versions(r, call) if answers else broker.api_versions(r, call)
    )
    c = client(broker.address)
    assert c.refresh().nodes[0] == Node(0, "127.0.0.1", broker.port)
    assert len(broker.connections) == 2


def test_every_bootstrap_address_is_tried(broker, client, unused_port):
    c = client(f"127.0.0.1:{unused_port()}", f"127.0.0.1:{unused_port()}", broker.address)
    assert 0 in c.refresh().nodes


def test_when_nobody_answers_every_address_is_named(client, unused_port):
    ports = [unused_port(), unused_port()]
    c = client(*(f"127.0.0.1:{port}" for port in ports))
    with pytest.raises(ConnectionFailedError) as caught:
        c.refresh(timeout_ms=300)
    for port in ports:
        assert f"127.0.0.1:{port}" in str(caught.value)
    with pytest.raises(ConnectionFailedError, match="no broker could be reached"):
        c.ask(ANY, BEAT, timeout_ms=50)


def test_a_node_that_is_not_known_fails_at_once(broker, client):
    c = client(broker.address)
    with pytest.raises(ConnectionFailedError, match="node 7"):
        c.ask(7, BEAT)
    c.do(c.cluster.connections.learn, Node(7, "127.0.0.1", broker.port))
    broker.answers["HeartbeatRequest"] = lambda r, call: HeartbeatResponse()
    assert c.ask(7, BEAT) == HeartbeatResponse()


def test_answers_belong_to_their_requests_in_order(broker, client):
    broker.answers["HeartbeatRequest"] = lambda r, call: HeartbeatResponse(
        throttle_time_ms=r.generation_id
    )
    c = client(broker.address)
    waiting = [c.start(ANY, HeartbeatRequest(group_id="g", generation_id=n)) for n in range(200)]
    assert [w.get(timeout=PATIENCE_S).throttle_time_ms for w in waiting] == list(range(200))


def test_any_broker_is_the_one_with_the_fewest_requests_under_way(brokers, client):
    """Spec 1.1: least loaded. Where all else is equal, the first broker would be taken."""
    busy, idle = ScriptedBroker(brokers, 0), ScriptedBroker(brokers, 1)
    busy.answers["HeartbeatRequest"] = lambda r, call: None
    idle.answers["HeartbeatRequest"] = lambda r, call: HeartbeatResponse()
    c = client(busy.address)
    c.refresh()
    for node in (0, 1):  # both connections stand
        c.ask(node, MetadataRequest(topics=[]))
    c.cluster.uniform = lambda: 0.5
    c.start(0, BEAT)
    busy.wait_for("HeartbeatRequest")
    for _ in range(3):
        assert c.ask(ANY, BEAT) == HeartbeatResponse()
    assert (len(busy.of("HeartbeatRequest")), len(idle.of("HeartbeatRequest"))) == (1, 3)


def test_lanes_have_connections_of_their_own(broker, client):
    """A heartbeat never waits behind a fetch."""
    c = client(broker.address)
    c.refresh()
    broker.answers["HeartbeatRequest"] = lambda r, call: (
        None if r.group_id == "held" else HeartbeatResponse()
    )
    c.start(0, HeartbeatRequest(group_id="held"), kind="fetch")
    assert c.ask(0, BEAT, kind="group") == HeartbeatResponse()
    assert len(broker.connections) == 3


def test_a_request_without_answer_in_time_fails_and_takes_its_connection_along(broker, client):
    broker.answers["HeartbeatRequest"] = lambda r, call: None
    c = client(broker.address)
    c.refresh()
    late, behind = queue.SimpleQueue(), queue.SimpleQueue()

    def ask() -> None:
        c.cluster.request(0, BEAT, late.put, timeout_ms=30)
        c.cluster.request(0, BEAT, behind.put, timeout_ms=600_000)

    c.do(ask)  # in one turn, so that both are under way when the time of the first is over
    error = late.get(timeout=PATIENCE_S)
    assert isinstance(error, KafkaTimeoutError)
    assert "HeartbeatRequest" in str(error)
    assert isinstance(behind.get(timeout=PATIENCE_S), ConnectionFailedError)
    broker.answers["HeartbeatRequest"] = lambda r, call: HeartbeatResponse()
    assert c.ask(0, BEAT) == HeartbeatResponse()


def test_a_handshake_without_answer_is_given_up(brokers, client):
    silent, good = ScriptedBroker(brokers, 0), ScriptedBroker(brokers, 1)
    silent.answers["ApiVersionsRequest"] = lambda r, call: None
    c = client(silent.address, request_timeout_ms=300)
    with pytest.raises(KohortError):
        c.ask(ANY, BEAT)
    silent.answers["ApiVersionsRequest"] = silent.api_versions
    assert set(c.refresh().nodes) == {0, 1}
    assert good.seen == []


def test_a_cut_while_a_request_is_under_way_fails_it_once_and_the_next_one_works(broker, client):
    broker.answers["HeartbeatRequest"] = lambda r, call: CLOSE
    c = client(broker.address)
    c.refresh()
    answers = c.start(0, BEAT)
    assert isinstance(answers.get(timeout=PATIENCE_S), ConnectionFailedError)
    broker.answers["HeartbeatRequest"] = lambda r, call: HeartbeatResponse()
    assert c.ask(0, BEAT) == HeartbeatResponse()
    assert answers.empty()


def test_a_cut_in_the_handshake_is_survived(broker, client):
    cuts = [CLOSE, CLOSE]
    broker.answers["ApiVersionsRequest"] = lambda r, call: (
        cuts.pop() if cuts else broker.api_versions(r, call)
    )
    assert 0 in client(broker.address).refresh().nodes


def test_an_answer_with_a_wrong_correlation_id_breaks_the_connection(broker, client):
    def wrong_id(frame, head, connection) -> bool:
        connection.send(
            encode_response(HeartbeatResponse(), head.api_version, head.correlation_id + 5)
        )
        return True

    broker.raw[12] = wrong_id
    c = client(broker.address)
    c.refresh()
    with pytest.raises(ConnectionFailedError, match="correlation id"):
        c.ask(0, BEAT)


def test_an_answer_that_does_not_decode_is_as_good_as_lost(broker, client):
    def damaged(frame, head, connection) -> bool:
        connection.send([b"\0\0\0\6", head.correlation_id.to_bytes(4, "big"), b"\0\7"])
        return True

    broker.raw[12] = damaged
    c = client(broker.address)
    c.refresh()
    with pytest.raises(DamagedAnswerError, match="Heartbeat with 6 bytes") as raised:
        c.ask(0, BEAT)
    assert isinstance(raised.value.__cause__, ProtocolError)
    assert raised.value.retriable


def test_unsent_requests_to_any_broker_move_on_to_another(brokers, client):
    first, second = ScriptedBroker(brokers, 0), ScriptedBroker(brokers, 1)
    for b in (first, second):
        b.answers["HeartbeatRequest"] = lambda r, call: HeartbeatResponse(
            throttle_time_ms=call.broker.node_id
        )
    c = client(first.address, second.address)
    c.refresh()
    first.stop()
    for _ in range(5):
        answer = None
        while answer is None:  # one may be lost in flight when its broker dies
            try:
                answer = c.ask(ANY, BEAT)
            except ConnectionFailedError:
                continue
        assert answer.throttle_time_ms == 1


@pytest.mark.parametrize("newest", [3, 6])
def test_the_coordinator_is_found_in_either_shape_of_the_request(broker, client, newest):
    broker.versions[10] = (0, newest)

    def answer(request, call):
        if call.version >= 4:
            assert request.coordinator_keys == ["g"]
            return FindCoordinatorResponse(
                coordinators=[Coordinator(key="g", node_id=4, host="h", port=1)]
            )
        assert request.key == "g"
        return FindCoordinatorResponse(node_id=4, host="h", port=1)

    broker.answers["FindCoordinatorRequest"] = answer
    found = client(broker.address).ask(ANY, find_coordinator("g"))
    assert coordinator_in(found, "g") == Node(4, "h", 1)
    refused = coordinator_in(FindCoordinatorResponse(error_code=15), "g")
    assert isinstance(refused, BrokerError)
    assert refused.code == 15


def test_a_new_leader_is_seen_and_an_older_epoch_is_not_believed(broker, client):
    broker.cluster.topics["t"] = {0: (0, 5)}
    c = client(broker.address)
    c.do(c.cluster.watch_topics, ["t"])
    assert c.refresh().leader_epoch("t", 0) == 5
    broker.cluster.topics["t"] = {0: (9, 4)}
    assert c.refresh().partition("t", 0).leader == 0
    broker.cluster.topics["t"] = {0: (9, 6)}
    assert c.refresh().partition("t", 0).leader == 9
    broker.cluster.topics["t"] = {0: (0, 1)}
    broker.cluster.topic_ids["t"] = b"i" * 16  # created again: its epochs start again
    metadata = c.refresh()
    assert metadata.leader_epoch("t", 0) == 1
    assert metadata.names_by_id == {b"i" * 16: "t"}


def test_a_leader_hint_in_an_answer_is_taken_when_it_is_newer(broker, client):
    """KIP-951."""
    broker.cluster.topics["t"] = {0: (0, 5)}
    c = client(broker.address)
    c.do(c.cluster.watch_topics, ["t"])
    c.refresh()
    seen = []
    c.do(c.cluster.add_listener, seen.append)
    c.do(c.cluster.leader_hint, "t", 0, 3, 5)
    assert c.do(lambda: c.cluster.metadata.leader("t", 0)) == 0
    c.do(c.cluster.leader_hint, "t", 0, 3, 6, [Node(3, "127.0.0.1", 1)])
    assert c.do(lambda: c.cluster.metadata.leader("t", 0)) == 3
    assert [m.leader_epoch("t", 0) for m in seen] == [6]


def test_missing_topics_are_asked_for_again_by_themselves(broker, client):
    c = client(broker.address)
    found: queue.SimpleQueue = queue.SimpleQueue()

    def listen(metadata) -> None:
        if "later" in metadata.topics:
            found.put(metadata)

    c.do(c.cluster.add_listener, listen)
    c.do(c.cluster.watch_topics, ["later"])
    broker.wait_for("MetadataRequest")
    broker.cluster.topics["later"] = {0: (0, 1)}
    assert found.get(timeout=PATIENCE_S).leader("later", 0) == 0


def test_metadata_ages(broker, client):
    c = client(broker.address, metadata_max_age_ms=20)
    c.refresh()
    for _ in range(3):
        broker.wait_for("MetadataRequest")


def test_idle_connections_are_closed_and_come_back(broker, client):
    broker.answers["HeartbeatRequest"] = lambda r, call: HeartbeatResponse()
    c = client(broker.address, connections_max_idle_ms=30)
    c.ask(ANY, BEAT)
    while c.do(lambda: any(p.state.value != "idle" for p in c.cluster.connections._peers.values())):
        pass
    c.ask(ANY, BEAT)


def test_closing_fails_everything_under_way(broker, client):
    broker.answers["HeartbeatRequest"] = lambda r, call: None
    c = client(broker.address)
    c.refresh()
    answers = c.start(0, BEAT)
    broker.wait_for("HeartbeatRequest")
    c.do(c.cluster.close)
    c.do(c.cluster.close)
    assert isinstance(answers.get(timeout=PATIENCE_S), ClosedError)
    with pytest.raises(ClosedError):
        c.ask(0, BEAT)
    with pytest.raises(ClosedError):
        c.refresh()


def test_a_broker_error_in_metadata_is_not_taken_for_metadata(broker, client):
    codes = [15, 0]
    plain = broker.answers["MetadataRequest"]

    def answer(request, call):
        response = plain(request, call)
        response.error_code = codes.pop(0) if codes else 0
        return response

    broker.answers["MetadataRequest"] = answer
    assert 0 in client(broker.address).refresh().nodes
    assert len(broker.of("MetadataRequest")) == 2
    assert BrokerError(15).retriable
