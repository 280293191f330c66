"""Issue 5: a broker is ready in less than 0.3 s: it loads what it needs when it needs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import kohort
from kohort.broker.apis import APIS
from kohort.wire import API_NAMES
from kohort.wire.messages.heartbeat_request import HeartbeatRequest
from tests.broker.harness import Harness
from tests.patience import PATIENCE_S

NOT_AT_START = {
    "asyncio",
    "ssl",
    "hashlib",
    "hmac",
    "shutil",
    "tomllib",
    "http.client",
    "numpy",
    "pyarrow",
    "kohort.client",
    "kohort.broker.control.port",
    "kohort.broker.faults.gate",
    "kohort.broker.faults.rules",
    "kohort.broker.faults.request_log",
    "kohort.broker.authorization",
    "kohort.broker.coordinator.group_shard_host",
    "kohort.broker.security.jwks",
    "kohort.broker.coordinator.transaction_shard_host",
    "kohort.broker.security.users",
    "kohort.group.coordinator.state.consumer_group",
    "kohort.group.coordinator.handlers.re2",
    "kohort.group.coordinator.shard",
    "kohort.net.tls",
    "kohort.sasl.oauthbearer",
    "kohort.sasl.scram",
    "kohort.testing",
    "kohort.transactions.shard",
}
CODE = """
import json, sys
from kohort.broker import Broker, BrokerConfig
with Broker(BrokerConfig(**json.loads(sys.argv[1]))):
    print(json.dumps(sorted(sys.modules)))
"""


def modules_of_a_start(**config: Any) -> set[str]:
    ran = subprocess.run(
        [sys.executable, "-c", CODE, json.dumps(config)],
        env={**os.environ, "PYTHONPATH": str(Path(kohort.__file__).parent.parent)},
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_S,
    )
    return set(json.loads(ran.stdout))


def test_a_plain_start_imports_what_every_broker_needs(tmp_path: Path) -> None:
    """No API, no coordinator, no login, no fault, no access control; again on its own directory."""
    for config in ({"durability": "memory"}, {"data_dir": str(tmp_path)}):
        loaded = modules_of_a_start(port=0, **config)
        assert sorted(loaded & NOT_AT_START) == []
        assert [m for m in loaded if m.startswith("kohort.broker.apis.")] == []
        messages = {m for m in loaded if m.startswith("kohort.wire.messages.")}
        assert {m.rpartition(".")[2].rpartition("_")[0] for m in messages} <= {"api_versions"}


def test_every_module_of_an_api_is_in_the_table() -> None:
    directory = Path(kohort.__file__).parent / "broker" / "apis"
    there = {path.stem for path in directory.glob("*.py") if not path.stem.startswith("_")}
    assert {api.module.rpartition(".")[2] for api in APIS.values()} == there
    for key, api in APIS.items():
        assert (api.key, api.request.API_KEY) == (key, key)
        name = API_NAMES[key].lower()
        assert api.module.rpartition(".")[2].replace("_", "") == name
        assert api.request.MIN_VERSION <= api.min_version <= api.max_version


def test_an_api_is_found_at_its_first_request_and_kept() -> None:
    harness = Harness()
    api = APIS[HeartbeatRequest.API_KEY]
    for _ in range(2):
        harness.send(HeartbeatRequest(group_id="g", member_id="m"), 4)
    from kohort.broker.apis import heartbeat

    assert api.handle is heartbeat.handle


def test_users_of_an_earlier_start_are_looked_at_without_a_login(tmp_path: Path) -> None:
    """What is damaged is told by the start, not by the first request that needs it."""
    (tmp_path / "users.json").write_text("{")
    ran = subprocess.run(
        [sys.executable, "-m", "kohort", "broker", "run", "--port", "0", "--data-dir", tmp_path],
        env={**os.environ, "PYTHONPATH": str(Path(kohort.__file__).parent.parent)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert ran.returncode == 1
    assert "users.json" in ran.stderr
