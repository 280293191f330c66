"""How a program ends that an error ends: once, soon, and not as if it had been killed."""

from __future__ import annotations

import pytest

from kohort import Admin
from kohort.errors import UsageError
from kohort.processing.engine.snapshot import decode
from kohort.processing.workers.worker_pools import Finished
from tests.processing.conftest import PATIENCE_S, Until

RECORDS = 20


@pytest.mark.parametrize("mode", [None, "kafka"])
def test_what_ends_several_workers_ends_the_program_once(
    cluster, topic, produce, app, start, mode
) -> None:
    """What is done is committed first, and the guard's count of crashes begins anew: a process that
    cannot start is not its records' fault (W2), however many of them there are."""
    produce(RECORDS)
    program, until = app(exactly_once=mode, drain=f"{2 * PATIENCE_S:.0f}s"), Until(RECORDS)

    @program.handler(topic)
    def handle(record) -> None:
        until.count()

    running = start(program)
    until.wait()
    for text in ("one", "two"):
        program._runner.post(Finished("threads", [], None, 0.0, UsageError(text)))
    error = running.ended()
    assert (str(error), error.__context__) == ("one", None)
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        committed = admin.list_group_offsets(program.group)
    assert sum(at.offset for tp, at in committed.items() if tp.topic == topic) > 0
    assert {decode(at.offset, at.metadata).crashes for at in committed.values()} == {0}
