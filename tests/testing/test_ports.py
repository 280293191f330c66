"""The ports of a cluster stay its own, also while its broker is down."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from contextlib import suppress

import pytest

from kohort import Admin
from kohort.testing import Cluster
from kohort.testing.ports import keep_ports
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="nothing is kept there")


def is_free(address: str) -> bool:
    """Whether somebody who asks for this port alone would get it."""
    host, _, port = address.rpartition(":")
    with socket.socket() as one:
        try:
            one.bind((host, int(port)))
        except OSError:
            return False
        return True


def test_nobody_else_gets_the_port_of_a_broker_that_is_down() -> None:
    """Else its clients would talk to a stranger, and it could not come back."""
    cluster = Cluster(nodes=2)
    with cluster:
        addresses = [cluster.address_of(node) for node in cluster.nodes]
        for down in (cluster.kill, cluster.stop):
            down()
            for address in addresses:
                assert not is_free(address)
                host, _, port = address.rpartition(":")
                with pytest.raises(ConnectionRefusedError):
                    socket.create_connection((host, int(port)))
            cluster.start()
            assert [cluster.address_of(node) for node in cluster.nodes] == addresses
        cluster.kill_node(2)
        assert not is_free(addresses[1])
        cluster.restart_node(2)
        with Admin(bootstrap_servers=cluster.bootstrap) as admin:
            assert admin.describe_cluster().nodes


def sockets() -> set[str]:
    """Of this process."""
    found: set[str] = set()
    for fd in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # another thread's, closed meanwhile
            found.add(os.readlink(f"/proc/self/fd/{fd}"))
    return found


def test_ports_are_kept_as_long_as_their_owner_lives() -> None:
    class Owner:
        """Somebody."""

    owner, before = Owner(), sockets()
    ports = keep_ports(owner, "127.0.0.1", 3)
    kept = sockets() - before
    assert (len(set(ports)), len(kept)) == (3, 3)
    assert not any(is_free(f"127.0.0.1:{port}") for port in ports)
    del owner
    assert not kept & sockets()
    assert keep_ports(Owner(), "192.0.2.1", 1) == [], "not an address of this machine"


def test_a_program_that_ends_with_its_cluster_leaves_no_warning() -> None:
    """The cluster of a script, of a notebook, of a module: it lives until the process ends."""
    program = "from kohort.testing import Cluster\nwith Cluster() as cluster: pass"
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
