"""The audit has a line with the outcome of every action that begins."""

from __future__ import annotations

import pytest

from kohort.console.screens.audit import Audit
from kohort.errors import KafkaTimeoutError, KohortError


@pytest.mark.parametrize(
    ("error", "raised", "outcome"),
    [
        (KafkaTimeoutError("no answer"), KohortError, "not known: no answer"),
        (KohortError("refused"), KohortError, "failed: refused"),
        (ZeroDivisionError("a bug"), ZeroDivisionError, "not known: ZeroDivisionError('a bug')"),
    ],
)
def test_an_action_that_fails_has_its_outcome(
    error: Exception, raised: type[Exception], outcome: str
) -> None:
    audit = Audit()
    with pytest.raises(raised), audit.doing("ann", "set offsets", "billing"):
        raise error
    assert outcome in [entry.outcome for entry in audit.entries]
