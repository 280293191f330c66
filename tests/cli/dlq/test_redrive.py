"""`kohort dlq redrive` at work: look first, ask, send, go on, cancel."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from click.testing import CliRunner

from kohort.cli.common.root import EXIT_INTERRUPTED, invoke
from kohort.cli.dlq.redrive import redrive
from kohort.errors import ConfigError, UsageError
from kohort.retry.redrive import Redrive, Report
from tests.clusters import Cluster
from tests.retry.test_redrive import Failures

PRESSED = """\
import signal
calls = 0

def edit(key, value, headers):
    global calls
    calls += 1
    if {first} <= calls <= {last}:
        signal.raise_signal(signal.SIGINT)
    return key, value, headers
"""


@pytest.fixture(scope="module")
def cluster():
    with Cluster(group_initial_rebalance_delay_ms=0) as running:
        yield running


@pytest.fixture
def failures(cluster) -> Failures:
    return Failures(cluster)


def run(failures: Failures, *arguments: str, answer: str = "", **how):
    common = ["--topic", failures.topic, "--group", "billing", "-b", failures.cluster.bootstrap]
    return CliRunner().invoke(redrive, [*common, *arguments], input=answer, **how)


def unconnected(*arguments: str):
    """The command where a test has replaced what would connect."""
    common = ["--topic", "t", "--group", "g", "-b", "localhost:1"]
    return CliRunner().invoke(redrive, [*common, *arguments])


def test_a_dry_run_sends_nothing(failures) -> None:
    done = run(failures, "--dry-run", "--reason", "odd", "-o", "json")
    assert done.exit_code == 0, done.output
    report = json.loads(done.output)
    assert (report["would_send"], report["not_chosen"]) == (15, 15)
    assert failures.entry() == []


def test_it_asks_before_it_sends(failures) -> None:
    refused = run(failures, "--id", "r1", answer="n\n", standalone_mode=False)
    assert refused.return_value == 1
    assert "send these 30 records back?" in refused.output
    assert refused.output.endswith("nothing was sent\n")
    unasked = run(failures, "--id", "r1", answer="")
    assert unasked.exit_code == 2
    assert "nobody answers here; add --yes" in unasked.output
    assert "[y/N]: \n" in unasked.output, "the error begins a line of its own"
    assert failures.entry() == []
    done = run(failures, "--id", "r1", answer="y\n")
    assert done.exit_code == 0, done.output
    assert "redrive r1: 30 sent" in done.output
    assert len(failures.entry()) == 30
    again = run(failures, "--id", "r1", "--yes")
    assert "0 would be sent" in again.output
    assert "nothing was sent: redrive r1 has been through all that failed" in again.output
    assert "repeat it with" not in done.output, "it has a name of its user's"
    other = run(failures, "--reason", "unheard", "--yes")
    assert "nothing was sent: no failure is as asked; `kohort dlq list`" in other.output
    other = run(failures, "--reason", "unheard", "--dry-run")
    assert "nothing would be sent: no failure is as asked" in other.output
    unnamed = run(failures, "--reason", "odd", "--yes")
    assert "repeat it with --id 2" in unnamed.output
    assert run(failures, "--id", "r1", "--cancel").output.startswith("redrive r1 is forgotten")


def test_settings_of_its_clients_are_honoured(failures, tmp_path) -> None:
    """On the command line and in a file: a large record needs a larger `max.request.size`."""
    file = tmp_path / "kohort.toml"
    file.write_text("[producer]\nmax_request_size = 10\n")
    for words in (("-X", "max.request.size=10"), ("--config", str(file))):
        done = run(failures, "--id", "r1", "--yes", *words)
        assert "30  too large" in done.stdout
        assert "max.request.size" in done.stdout
        assert failures.entry() == []
    wrong = run(failures, "--dry-run", "-X", "max.poll.records=0", standalone_mode=False)
    assert isinstance(wrong.exception, ConfigError)


def test_only_json_is_printed_where_json_is_asked_for(failures) -> None:
    done = run(failures, "--id", "r1", "-o", "json", answer="y\n")
    assert json.loads(done.stdout)["sent"] == 30
    assert "redrive r1: 30 would be sent" in done.stderr
    assert "send these 30 records back?" in done.stderr


def test_a_reason_cannot_drive_the_terminal(failures, monkeypatch) -> None:
    found = Report(sent=1, kinds=Counter({("\x1b[2Jodd", "Bad\x07"): 1}))
    monkeypatch.setattr(Redrive, "preview", lambda _: found)
    assert "\\x1b[2Jodd  Bad\\x07\n" in run(failures, "--dry-run").stdout


@pytest.mark.parametrize("presses", [1, 2])
def test_ctrl_c_stops_after_the_page_and_a_second_one_at_once(failures, tmp_path, presses) -> None:
    file = tmp_path / "pressed.py"
    file.write_text(PRESSED.format(first=31, last=30 + presses))  # the preview edits 30, too
    common = ["--topic", failures.topic, "--group", "billing", "-b", failures.cluster.bootstrap]
    words = [*common, "--id", "r1", "--edit", str(file), "--rate", "5", "--yes"]
    assert invoke(redrive, words) == EXIT_INTERRUPTED
    sent = len(failures.entry())
    assert 0 < sent < 30 if presses == 1 else sent == 0
    assert run(failures, "--id", "r1", "--yes").exit_code == 0
    assert len(failures.entry()) == 30


def test_edit_and_offsets(failures, tmp_path) -> None:
    file = tmp_path / "mend.py"
    file.write_text("def edit(key, value, headers):\n    return key, b'mended', headers\n")
    done = run(failures, "--offsets", "1:0-3", "--edit", str(file), "--rate", "1000", "--yes")
    assert done.exit_code == 0, done.output
    assert [r.value for r in failures.entry()] == [b"mended"] * 4


def test_what_an_edit_leaves_out_is_counted(failures, tmp_path) -> None:
    file = tmp_path / "none.py"
    file.write_text("def edit(key, value, headers):\n    return None\n")
    done = run(failures, "--reason", "odd", "--edit", str(file), "--yes")
    assert "nothing was sent: all that are as asked stay: 15 left out by --edit" in done.stderr


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (Report(value_gone=2), "all that are as asked stay: 2 whose value is gone from the source"),
        (Report(value_gone=2, left_by_edit=1), "1 left out by --edit, 2 whose value is gone"),
        (Report(unreadable=3), "3 in batches that cannot be read"),
        (Report(again=4, not_chosen=1), "4 that it sent before, and that failed again"),
        (Report(not_chosen=5, inert=1), "no failure is as asked"),
        (Report(), "redrive r1 has been through all that failed"),
    ],
)
def test_it_says_why_nothing_is_sent(monkeypatch, found, reason) -> None:
    monkeypatch.setattr(Redrive, "preview", lambda _: found)
    assert reason in unconnected("--id", "r1", "--dry-run").stderr


@pytest.mark.parametrize(
    "more",
    [
        ["--dry-run"],
        ["--reason", "odd"],
        ["--error-class", "X"],
        ["--fingerprint", "f"],
        ["--since", "-2h"],
        ["--offsets", "0:1"],
        ["--to", "entry"],
        ["--retries", "1h"],
        ["--rate", "5"],
        ["--edit", __file__],
    ],
)
def test_cancel_stands_alone(monkeypatch, more) -> None:
    """`--cancel --dry-run` cancelled; so did options that choose, as if it were for a part."""
    monkeypatch.setattr(Redrive, "cancel", lambda _: pytest.fail("it is cancelled"))
    refused = unconnected("--id", "r1", "--cancel", *more)
    assert refused.exit_code == 2
    assert f"{more[0]} does nothing with --cancel, which forgets all of --id" in refused.output


def test_cancel_takes_the_name_and_the_place(monkeypatch) -> None:
    monkeypatch.setattr(Redrive, "cancel", lambda _: None)
    done = unconnected("--id", "r1", "--cancel", "--yes", "-o", "json", "-X", "client.id=me")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) == {"cancelled": "r1"}


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("return {}['id']", "KeyError: 'id'"),
        ("return key, 'text', headers", "TypeError: the value is a str"),
        ("return key, value", "it must return (key, value, headers) or None"),
        ("return key, value, [('name', 'text')]", "UsageError: send(): headers are pairs"),
    ],
)
def test_an_error_of_the_edit_names_the_record(failures, tmp_path, body, reason) -> None:
    """And nothing of its page is sent."""
    file = tmp_path / "mend.py"
    file.write_text(f"def edit(key, value, headers):\n    {body}\n")
    error = run(failures, "--id", "e1", "--edit", str(file), "--yes").exception
    assert isinstance(error, UsageError)
    dead_letter = f"{failures.topic}.billing.dlt"
    assert f"edit() failed for {dead_letter}-" in str(error)
    assert reason in str(error)
    assert failures.entry() == []


def test_a_file_that_does_not_load_is_refused(failures, tmp_path) -> None:
    file = tmp_path / "mend.py"
    file.write_text("import no_such_module\n")
    error = run(failures, "--edit", str(file)).exception
    assert isinstance(error, ConfigError)
    assert str(error).startswith(f"{file} does not load: ModuleNotFoundError: ")


def test_refusals(failures, tmp_path) -> None:
    assert "write PARTITION:FROM-TO" in run(failures, "--offsets", "x").output
    assert "--cancel needs the --id" in run(failures, "--cancel").output
    assert "from 20 to 10 is no range" in run(failures, "--offsets", "0:20-10").output
    empty = tmp_path / "empty.py"
    empty.write_text("")
    error = run(failures, "--edit", str(empty)).exception
    assert "has no function edit" in str(error)
