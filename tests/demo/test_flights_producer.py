"""The process that produces the demonstration's data, as the run sees it."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

from kohort.demo.flights_producer import FeedSettings, ProducerProcess
from kohort.errors import KohortError
from tests.patience import until


def test_a_producer_that_fails_ends_the_run_with_the_reason(tmp_path: Path) -> None:
    settings = FeedSettings("no-port", "flights-loader", 10, handlers=False, max_lateness_ms=1)
    producer = ProducerProcess(settings, tmp_path / "producer.log")
    until(lambda: producer.counts() is not None)
    assert producer.counts() == (10, 18)
    until(lambda: producer._child.poll() is not None)
    with pytest.raises(KohortError, match=r"(?s)--resume\n.*no-port"):
        producer.is_done()
    producer.close()


def test_a_producer_ends_with_its_run(tmp_path: Path) -> None:
    """Its standard input closes, as it does when the run is killed."""
    settings = FeedSettings("127.0.0.1:9", "flights-loader", 10, handlers=False, max_lateness_ms=1)
    producer = ProducerProcess(settings, tmp_path / "producer.log")
    until(lambda: producer.counts() is not None)
    assert not producer.is_done()
    producer.close()
    assert producer._child.returncode == 1
