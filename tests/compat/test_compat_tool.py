"""`make compat` counts honestly: only a test that says PASSED did, and nothing leaves the lists."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

TOOLS = Path(__file__).resolve().parents[2] / "tools"
LOG = """\
[0045_subscribe_update/ 1.0s] \x1b[32m======= Test 0045_subscribe_update PASSED =====\x1b[0m
[0011_produce_batch / 3.0s] TEST FAILURE
\x1b[31m### Test "0011_produce_batch (sub:629)" failed at 0011-produce_batch.c:718:f() at Sat: ###
Test assertion failed: "fail_cnt == 10":
|\x1b[32m <MAIN>                  |     PASSED |   0.401s \x1b[0m|
|\x1b[32m 0012_produce_consume    |     PASSED |   1.500s \x1b[0m|
|\x1b[36m 0092_mixed_msgver   |    SKIPPED |   0.000s \x1b[0m|\x1b[36m MsgVersion 1 gone\x1b[0m
[0135_sasl_credentials / 0.1s] [ do_test:78: SKIP: sasl.username not configured ]
[0081_admin / 0.1s] [ do_test_acls:78: SKIP: no authorizer ]
[0081_admin / 0.1s] [ do_test_groups:90: PASS (1.02s) ]
|\x1b[32m 0135_sasl_credentials   |     PASSED |   0.100s \x1b[0m|
|\x1b[32m 0081_admin              |     PASSED |   1.500s \x1b[0m|
|\x1b[35m 0018_cgrp_term          |    RUNNING |  30.000s \x1b[0m|
|\x1b[31m 0019_list_groups        |     FAILED |   2.000s \x1b[0m|\x1b[31m timed out\x1b[0m
"""
TABLE = """\
struct test tests[] = {
        {.name = "<MAIN>", .flags = TEST_F_LOCAL},
        _TEST(0000_unittests, TEST_F_LOCAL, _THRES(.ucpu = 100.0)),
        _TEST(0001_multiobj, 0),
        _TEST(0045_topic_remove,
          0,
          TEST_BRKVER(0, 9, 0, 0),
          .scenario = "noautocreate"),
        _TEST(0103_transactions, 0, .scenario = "default,ak23"),
        _TEST(0150_telemetry_mock, 0),
        _TEST(8000_idle, TEST_F_MANUAL),

    {NULL}};
"""

GO_LOG = """\
=== RUN   TestTxnEtl
--- PASS: TestPing (0.08s)
    consumer_test.go:289: __consumer_offsets is not assigned
--- FAIL: TestRegex (15.11s)
--- SKIP: TestShareGroup (0.00s)
--- PASS: TestTxnEtl (30.71s)
    --- PASS: TestTxnEtl/range/848/static (17.03s)
"""
GO_SOURCE = """\
func TestParse(t *testing.T) {
	t.Parallel()
}

func TestPing(t *testing.T) {
	if true {
		cl, _ := newTestClient()
	}
}
"""


@pytest.fixture
def tools(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(TOOLS))
    names = ("compat", "librdkafka_suite", "compat_run", "compat_go", "compat_setups")
    yield tuple(importlib.import_module(name) for name in names)
    for name in names:
        sys.modules.pop(name, None)


def test_how_tests_ended_is_read_from_the_log(tools: Any, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(LOG)
    ends = tools[0].read_ends(log)
    assert {name: end.state for name, end in ends.items()} == {
        "0011_produce_batch": "FAILED",
        "0012_produce_consume": "PASSED",
        "0092_mixed_msgver": "SKIPPED",
        "0045_subscribe_update": "PASSED",
        "0135_sasl_credentials": "SKIPPED",
        "0081_admin": "PASSED",
        "0018_cgrp_term": "RUNNING",
        "0019_list_groups": "FAILED",
    }
    assert "fail_cnt == 10" in ends["0011_produce_batch"].why


def test_the_broker_is_a_plain_one_but_where_a_test_wants_more(tools: Any, tmp_path: Path) -> None:
    """With access control usual requests would not go by the lane (ADR 0014)."""
    setups = tools[4]
    assert setups.setup_of("0011", "default", tmp_path) == setups.Setup()
    assert "acls=true" in setups.setup_of("0081", "default", tmp_path).broker
    source = Path(tools[2].__file__).read_text()
    assert "acls" not in source


def test_only_tests_that_want_a_broker_are_chosen(tools: Any, tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test.c").write_text(TABLE)
    found = [(t.name, t.scenario) for t in tools[1].read_tests(tmp_path)]
    assert found == [
        ("0001_multiobj", "default"),
        ("0045_topic_remove", "noautocreate"),
        ("0103_transactions", "default"),
    ]


def test_a_listed_test_must_pass_and_stays_listed(
    tools: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compat = tools[2]
    monkeypatch.setattr(compat, "LISTS", tmp_path)
    compat.add_to_list("classic", ["0002_b", "0001_a"])
    results = [
        compat.Result("0001_a", "SKIPPED", 0.0, "skips itself"),
        compat.Result("0003_c", "PASSED", 1.0, ""),
    ]
    assert not compat.judge("classic", results, update=True)
    assert compat.read_list("classic") == ["0001_a", "0002_b", "0003_c"]
    assert compat.judge("classic", results[1:], update=False)


def test_the_findings_page_counts_what_the_lists_name(tools: Any) -> None:
    compat = tools[2]
    page = compat.FINDINGS.read_text()
    row = next(line for line in page.splitlines() if line.startswith("| pass |"))
    counted = [int(cell) for cell in row.split("|")[2:4]]
    assert counted == [len(compat.read_list(protocol)) for protocol in ("classic", "consumer")]
    go = next(line for line in page.splitlines() if line.startswith("| listed as passing |"))
    assert int(go.split("|")[2]) == len(compat.read_list("go"))


def test_how_tests_in_go_ended_is_read_from_the_log(tools: Any) -> None:
    ends = tools[3].read_ends(GO_LOG, "TestTxnEtl+chaos")
    assert [(end.name, end.state, end.why) for end in ends] == [
        ("TestPing", "PASSED", ""),
        ("TestRegex", "FAILED", "__consumer_offsets is not assigned"),
        ("TestShareGroup", "SKIPPED", "__consumer_offsets is not assigned"),
        ("TestTxnEtl+chaos", "PASSED", ""),
        ("TestTxnEtl+chaos/range/848/static", "PASSED", ""),
    ]


def test_only_tests_in_go_that_want_a_broker_are_chosen(tools: Any, tmp_path: Path) -> None:
    (tmp_path / "a_test.go").write_text(GO_SOURCE)
    assert tools[3].read_tests(tmp_path) == ["TestPing", "TestGroupETL+chaos", "TestTxnEtl+chaos"]
