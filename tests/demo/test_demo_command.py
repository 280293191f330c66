"""`kohort demo flights` as a process: however it is ended, it leaves no broker behind."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from kohort.cli.demo.commands import _run  # pyright: ignore[reportPrivateUsage]
from tests.patience import PATIENCE_S


class Ended:
    """A run that is sent a signal while it works."""

    directory = Path("somewhere")

    def __init__(self, number: signal.Signals) -> None:
        self.number, self.closed = number, 0

    def prepare(self, settings: Any, *, resume: bool) -> None: ...

    def run(self, show: Any) -> None:
        signal.raise_signal(self.number)
        threading.Event().wait(PATIENCE_S)
        pytest.fail("it was not heard")

    def close(self) -> None:
        self.closed += 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_broker_and_says_how_to_go_on(
    number: signal.Signals, capsys: pytest.CaptureFixture[str]
) -> None:
    run: Any = Ended(number)
    settings: Any = None
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt):
        _run(run, settings, False, False)
    assert run.closed == 1
    assert "`kohort demo flights --resume --dir somewhere` continues" in capsys.readouterr().err
    assert signal.getsignal(number) is before
