"""Brokers that ask who is there, and settings of clients that can tell."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from kohort.testing import Cluster
from kohort.testing.certificates import Certificates

USER, PASSWORD = "alice", "se=cret,pass:word"


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def start(certificates: Certificates) -> Iterator[Callable[..., Cluster]]:
    """Start a cluster with a protocol."""
    with ExitStack() as stack:

        def begin(protocol: str, **overrides: Any) -> Cluster:
            if protocol.endswith("SSL"):
                overrides = {**certificates.broker(), **overrides}
            if protocol.startswith("SASL") and "users" not in overrides:
                overrides["users"] = {USER: PASSWORD}
            overrides.setdefault("connection_failed_authentication_delay_ms", 1)
            cluster = Cluster(security_protocol=protocol, **overrides)
            return stack.enter_context(cluster)

        yield begin


def settings(
    cluster: Cluster,
    certificates: Certificates | None,
    mechanism: str | None = None,
    password: str = PASSWORD,
) -> dict[str, Any]:
    """Of a client of `cluster`."""
    protocol = cluster.config.security_protocol
    client_settings: dict[str, Any] = {
        "bootstrap_servers": cluster.bootstrap,
        "security_protocol": protocol,
    }
    if protocol.endswith("SSL"):
        assert certificates is not None
        client_settings["ssl_ca_location"] = certificates.ca_file
    if mechanism is not None:
        client_settings |= {
            "sasl_mechanism": mechanism,
            "sasl_username": USER,
            "sasl_password": password,
        }
    return client_settings
