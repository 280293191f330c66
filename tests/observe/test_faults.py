"""Faults as they are described to a control port, and rows of its answers (spec 8.1)."""

from __future__ import annotations

import pytest

from kohort.broker.faults.rules import fault_from
from kohort.errors import UsageError
from kohort.observe.faults import KINDS, counted, fault_body, fault_row, request_row


@pytest.mark.parametrize("kind", KINDS)
def test_every_description_is_a_fault(kind: str) -> None:
    errors = ("NOT_COORDINATOR", "NONE") if kind == "fail" else ()
    delay_ms = 5 if kind == "delay" else None
    body = fault_body(
        kind, ["Fetch"], errors=errors, delay_ms=delay_ms, times=3, narrowed={"skip": 1, "node": 2}
    )
    made = fault_from(body)
    assert made.then == kind
    assert made.times == (6 if kind == "fail" else 3)
    assert (made.skip, made.node, made.topic) == (1, 2, None)


def test_cut_and_silence_meet_one_request_where_nothing_else_is_asked() -> None:
    assert [fault_body(kind, [])["times"] for kind in ("cut", "silence", "hold")] == [1, 1, None]


def test_errors_are_for_fail() -> None:
    with pytest.raises(UsageError, match="errors are for fail"):
        fault_body("cut", [], errors=["NONE"])


def test_rows_say_what_they_are_about() -> None:
    fault = {"id": 1, "then": "cut", "api": ["Fetch"], "hits": 0, "left": 1, "group": "g"}
    assert fault_row(fault)["about"] == "group=g"
    assert fault_row({"id": 1, "then": "cut"})["about"] is None
    assert request_row({"partitions": [["t", 0], ["u", -1]]})["about"] == ["t-0", "u"]
    assert counted(["A", "A", "NONE", "A"]) == "A x2, NONE, A"
