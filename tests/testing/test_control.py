"""The control port: everything over HTTP and by the command line, and nothing for web pages."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner

from kohort.broker.control.port import MAX_BODY_BYTES, Control
from kohort.cli.common.root import app, invoke
from kohort.errors import ConfigError
from kohort.testing import Cluster
from kohort.wire.messages.heartbeat_request import HeartbeatRequest
from kohort.wire.messages.heartbeat_response import HeartbeatResponse
from tests.known import fake
from tests.patience import PATIENCE_S
from tests.testing.verifiable_run import ENV, KOHORT


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=3) as running:
        running.create_topic("orders", partitions=2)
        yield running


@pytest.fixture
def control(cluster: Cluster) -> Iterator[Control]:
    made = Control(cluster.broker, cluster._gate, 0)
    yield made
    made.close()
    cluster.faults.clear()
    cluster.requests.clear()


def ask(
    control: Control, method: str, path: str, body: Any = None, **headers: str
) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", control.port, timeout=PATIENCE_S)
    sent = {"content-type": "application/json"} | {
        key.replace("_", "-"): value for key, value in headers.items()
    }
    data = body if isinstance(body, bytes) else json.dumps(body or {}).encode()
    with contextlib.closing(connection):
        connection.request(method, path, data, sent)
        response = connection.getresponse()
        return response.status, json.loads(response.read())


def heartbeat(cluster: Cluster) -> int:
    node = cluster.coordinator_of("g")
    request = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
    return cluster.request(request, HeartbeatResponse, node=node).error_code


def test_faults_over_http(cluster: Cluster, control: Control):
    status, fault = ask(
        control,
        "POST",
        "/faults",
        {"then": "fail", "api": "heartbeat", "errors": ["REBALANCE_IN_PROGRESS", 14]},
    )
    assert (status, fault["api"], fault["left"]) == (200, ["Heartbeat"], 2)
    assert [heartbeat(cluster) for _ in range(3)] == [27, 14, 25]
    _, body = ask(control, "GET", "/faults")
    assert [(f["id"], f["hits"], f["errors"]) for f in body["faults"]] == [
        (fault["id"], 2, ["REBALANCE_IN_PROGRESS", "COORDINATOR_LOAD_IN_PROGRESS"])
    ]
    _, came = ask(control, "GET", "/requests?api=Heartbeat&wait_ms=1000")
    assert [r["errors"] for r in came["requests"]] == [
        ["REBALANCE_IN_PROGRESS"],
        ["COORDINATOR_LOAD_IN_PROGRESS"],
        ["UNKNOWN_MEMBER_ID"],
    ]
    assert ask(control, "DELETE", f"/faults/{fault['id']}")[0] == 200
    assert ask(control, "DELETE", f"/faults/{fault['id']}")[0] == 409
    assert ask(control, "DELETE", "/faults") == (200, {"removed": 0})
    assert ask(control, "DELETE", "/requests")[0] == 200


def test_a_request_is_waited_for(cluster: Cluster, control: Control):
    number = ask(control, "GET", "/requests")[1]["count"]
    answers: list[Any] = []
    path = f"/requests?since={number}&wait_ms=20000"
    waiting = threading.Thread(target=lambda: answers.append(ask(control, "GET", path)))
    waiting.start()
    heartbeat(cluster)
    waiting.join(PATIENCE_S)
    assert answers[0][1]["requests"][0]["api"] == "Heartbeat"


def test_failovers_over_http(cluster: Cluster, control: Control):
    coordinator = ask(control, "GET", "/coordinators/g")[1]["node"]
    moved = ask(control, "POST", "/coordinators", {"group": "g"})[1]["node"]
    assert moved != coordinator
    assert ask(control, "POST", "/leaders", {"topic": "orders", "partition": 0, "to": 3})[1] == {
        "leader": 3
    }
    leaders = ask(control, "GET", "/leaders?topic=orders")[1]["leaders"]
    assert leaders[0]["leader"] == 3
    for what, running in (("down", False), ("up", True), ("restart", True)):
        _, body = ask(control, "POST", f"/nodes/2/{what}", {"orderly": True})
        assert [n["running"] for n in body["nodes"]] == [True, running, True]
    assert ask(control, "POST", "/leaders/preferred")[0] == 200
    assert ask(control, "POST", "/loading", {"hold": True}) == (200, {"held": True})
    assert ask(control, "POST", "/loading", {"hold": False}) == (200, {"held": False})
    assert ask(control, "POST", "/disk", {"operation": "append", "path": "none/*"})[0] == 200


def test_mistakes_are_explained(control: Control):
    for path, body, status, words in (
        ("/faults", {"then": "fail", "api": "Fetsh", "errors": [1]}, 400, "did you mean 'Fetch'"),
        ("/faults", {"then": "cut", "topik": "x"}, 400, "did you mean 'topic'"),
        ("/faults", {"then": "explode"}, 400, "it is one of"),
        ("/faults", {"then": "cut", "times": "x"}, 400, "whole number"),
        ("/faults", b"{", 400, "not JSON"),
        ("/faults", b"[" * 100_000, 400, "not JSON"),
        ("/faults", b"[]", 400, "not a JSON object"),
        ("/disk", {"operation": "append", "x": 1}, 400, "no 'x'"),
        ("/disk", {"operation": "append", "after": "x"}, 400, "whole number"),
        ("/disk", {"operation": "append", "path": 5}, 400, "path"),
        ("/disk", {"operation": ["append"]}, 400, "operation"),
        ("/disk", {"operation": "append", "error": {}}, 400, "error"),
        ("/leaders", {"topic": "nosuch", "partition": 0}, 409, "UNKNOWN_TOPIC_OR_PARTITION"),
        ("/nodes/9/down", {}, 400, "9"),
        ("/nodes/x/down", {}, 400, "not the number"),
        ("/nodes/1/sideways", {}, 400, "sideways"),
        ("/nosuch", {}, 404, "not known"),
    ):
        got, answer = ask(control, "POST", path, body)
        assert (got, words in answer["error"]) == (status, True), (path, answer)


def test_a_body_is_bounded(control: Control):
    """It is refused by its length, before it is read."""
    head = (
        f"POST /faults HTTP/1.1\r\nhost: 127.0.0.1:{control.port}\r\n"
        f"content-type: application/json\r\ncontent-length: {MAX_BODY_BYTES + 1}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", control.port), timeout=PATIENCE_S) as connection:
        connection.sendall(head.encode())
        answer = b"".join(iter(lambda: connection.recv(4096), b""))
    assert b"400" in answer.splitlines()[0]
    assert b"at most" in answer


def test_web_pages_are_refused(control: Control):
    """DNS rebinding by the host, cross-site requests by origin and content type."""
    for headers in (
        {"origin": "http://evil.example"},
        {"origin": f"http://127.0.0.1:{control.port}"},
        {"sec_fetch_site": "cross-site"},
        {"host": f"evil.example:{control.port}"},
        {"host": "127.0.0.1"},
    ):
        assert ask(control, "GET", "/faults", **headers)[0] == 403
    assert ask(control, "POST", "/faults", {"then": "cut"}, content_type="text/plain")[0] == 400
    assert ask(control, "GET", "/faults") == (200, {"faults": []})


def test_a_token_is_asked_for(cluster: Cluster):
    control = Control(cluster.broker, cluster._gate, 0, token="secret")
    try:
        assert ask(control, "GET", "/nodes")[0] == 401
        assert ask(control, "GET", "/nodes", authorization="Bearer wrong")[0] == 401
        assert ask(control, "GET", "/nodes", authorization="Bearer secret")[0] == 200
    finally:
        control.close()


def test_it_listens_on_loopback_alone(control: Control):
    assert control._server.socket.getsockname()[0] == "127.0.0.1"
    with pytest.raises(ConfigError, match="cannot be used"):
        Control(control.broker, fake(control.broker.state.gate), control.port)


def test_connections_are_bounded(control: Control):
    """Who holds 32 connections open gets no further one."""
    held = [
        socket.create_connection(("127.0.0.1", control.port), timeout=PATIENCE_S) for _ in range(33)
    ]
    try:
        assert held[-1].recv(1) == b""
    finally:
        for connection in held:
            connection.close()


def kohort(control: Control, *arguments: str) -> str:
    """What a command prints."""
    ran = CliRunner().invoke(app, [*arguments, "--control", str(control.port)])
    if ran.exception is not None and not isinstance(ran.exception, SystemExit):
        raise ran.exception
    assert ran.exit_code == 0, ran.output
    return ran.output


def test_by_the_command_line(cluster: Cluster, control: Control):
    added = kohort(
        control,
        "faults",
        "add",
        "fail",
        "Heartbeat",
        "--error",
        "NONE",
        "--error",
        "REBALANCE_IN_PROGRESS",
        "--group",
        "g",
    )
    number = re.findall(r"\d+", added)[0]
    assert [heartbeat(cluster) for _ in range(2)] == [25, 27]
    listed = kohort(control, "faults", "list")
    assert re.search(
        rf"{number} +fail +Heartbeat +NONE, REBALANCE_IN_PROGRESS +2 +0 +group=g", listed
    )
    shown = kohort(control, "faults", "requests", "--api", "Heartbeat", "-o", "json")
    assert [row["fault"] for row in json.loads(shown)["rows"]] == [None, int(number)]
    for kind in (
        ["delay", "--ms", "1"],
        ["hold", "SyncGroup"],
        ["silence", "SyncGroup"],
        ["cut", "Fetch", "--handled", "--topic", "t", "--partition", "0"],
    ):
        kohort(control, "faults", "add", *kind)
    kohort(control, "faults", "disk", "append", "--path", "none/*", "--after", "1")
    kohort(control, "faults", "limit", "Fetch", "11")
    kohort(control, "faults", "limit", "ConsumerGroupHeartbeat", "-1")
    assert set(cluster._gate.limits.values()) == {11, -1}
    kohort(control, "faults", "clear", number)
    kohort(control, "faults", "clear")
    assert not list(cluster.faults)
    kohort(control, "broker", "down", "2")
    assert cluster.running == [1, 3]
    kohort(control, "broker", "up", "2")
    kohort(control, "broker", "restart", "2")
    assert "true" in kohort(control, "broker", "nodes", "-o", "json")
    assert "node 1 leads orders-0" in kohort(
        control, "broker", "move-leader", "orders", "0", "--to", "1"
    )
    to = kohort(control, "broker", "move-coordinator", "g").split()[1]
    assert kohort(control, "broker", "coordinator", "g").strip() == to
    kohort(control, "broker", "loading", "hold")
    kohort(control, "broker", "loading", "release")


def test_a_wrong_port_is_explained(capsys: pytest.CaptureFixture[str]):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
        assert invoke(app, ["faults", "list", "--control", port]) == 1
    assert "kohort broker run --control" in capsys.readouterr().err
    assert invoke(app, ["faults", "list", "--control", f"example.com:{port}"]) == 2
    assert "this machine only" in capsys.readouterr().err


def test_a_port_beside_passwords_needs_a_token(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("KOHORT_CONTROL_TOKEN", raising=False)
    assert invoke(app, ["broker", "run", "--user", "alice:secret", "--control", "0"]) == 2
    assert "KOHORT_CONTROL_TOKEN" in capsys.readouterr().err


def test_the_broker_as_a_process():
    """`kohort broker run --control 0`: another program lets a node die; the end is clean."""
    process = subprocess.Popen(
        [*KOHORT, "broker", "run", "--port", "0", "--nodes", "2", "--control", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **ENV, "KOHORT_CONTROL_TOKEN": "secret"},
    )
    try:
        assert process.stderr is not None
        line = next(line for line in process.stderr if line.startswith("control on"))
        port = line.strip().rpartition(":")[2]
        for token, code in (("secret", 0), ("wrong", 1)):
            ran = subprocess.run(
                [*KOHORT, "broker", "down", "2", "--control", port],
                env={**os.environ, **ENV, "KOHORT_CONTROL_TOKEN": token},
                capture_output=True,
            )
            assert ran.returncode == code, ran.stderr
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0
    finally:
        process.kill()
        process.communicate()
