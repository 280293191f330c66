"""The command in this process, against an embedded broker in this process."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from kohort.cli.common.root import app, invoke
from tests.clusters import Cluster


@dataclass(frozen=True)
class Ran:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


Run = Callable[..., Ran]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as running:
        yield running


@pytest.fixture
def bare(capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs `kohort ARGS` without any environment of its own."""
    monkeypatch.delenv("KOHORT_BOOTSTRAP_SERVERS", raising=False)

    def run(*args: str, stdin: bytes = b"") -> Ran:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capsysbinary.readouterr()
        code = invoke(app, list(args))
        out, err = capsysbinary.readouterr()
        return Ran(code, out.decode(), err.decode())

    return run


@pytest.fixture
def kohort(bare: Run, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs `kohort ARGS` against the cluster."""
    monkeypatch.setenv("KOHORT_BOOTSTRAP_SERVERS", cluster.bootstrap)
    return bare
