"""The public face of `kohort.testing` is pinned: a name comes or goes by decision."""

from __future__ import annotations

import subprocess
import sys

import pytest

import kohort.testing
from kohort.testing import Cluster, History, VirtualClock
from tests.patience import PATIENCE_S

NAMES = {
    "AppHarness",
    "Attempt",
    "Cluster",
    "Copy",
    "FailedRecord",
    "History",
    "Kind",
    "LoggedRequest",
    "PipelineHarness",
    "Report",
    "SetFault",
    "Violation",
    "VirtualClock",
    "crash_everywhere",
}
FAULTS = {
    "answer",
    "clear",
    "cut",
    "delay",
    "fail",
    "fail_disk",
    "hold",
    "limit",
    "remove",
    "silence",
}
REQUESTS = {"clear", "of", "wait"}


def test_the_public_names():
    assert set(kohort.testing._HOMES) == set(kohort.testing.__all__) == NAMES
    for name in NAMES:
        assert getattr(kohort.testing, name).__name__ == name
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = kohort.testing.no_such_name


def test_what_a_cluster_offers():
    cluster = Cluster()
    for face, names in ((cluster.faults, FAULTS), (cluster.requests, REQUESTS)):
        shown = {n for n in dir(type(face)) if not n.startswith("_")}
        assert shown == names


CLUSTER = (
    "address_of advance bootstrap broker coordinator_of create_topic delete_topic elect_preferred "
    "hold_loading is_running kill kill_node leader_epoch_of leader_of move_coordinator move_leader "
    "nodes request restart restart_node running start stop stop_node tap"
)
HISTORY = (
    "assigned check committed died event events follow line lost moved read revoked sent verify "
    "wait wait_until_read"
)
CLOCK = (
    "advance drives elapsed_s forget new_loop notices now_ms run_app run_beside run_until wall_ms"
)


def test_what_the_objects_offer():
    for offered, names in ((Cluster, CLUSTER), (History, HISTORY), (VirtualClock, CLOCK)):
        assert sorted(n for n in dir(offered) if not n.startswith("_")) == names.split()


def test_importing_the_package_imports_no_broker():
    code = "import sys, kohort.testing; print([m for m in sys.modules if 'kohort.broker' in m])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=PATIENCE_S
    )
    assert done.stdout.strip() == "[]"
