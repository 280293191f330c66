"""`kohort pipeline`: the user's own errors as they need them, and nothing begun when it cannot be.

What needs a Spark session is in `test_docs.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kohort.cli.pipeline.commands import Lines, line_of
from kohort.errors import KohortError
from kohort.retry.headers import Origin
from kohort.retry.ledger import FenceMove, LedgerRow, Place, Status
from kohort.retry.store import Transaction
from kohort.retry.stores import open_store
from kohort.spark import Pipeline, Progress, sessions
from tests.cli.conftest import Run

LOADER = """
from kohort.spark import Pipeline

pipeline = Pipeline("loader", store="sqlite:///{store}", retries="{retries}")


@pipeline.handler("{topic}", table="sales", origin=("part", "at"))
def load(record, store):
    return record.data
"""


def loader(directory: Path, topic: str = "sales", retries: str = "1s") -> Path:
    file = directory / "loader.py"
    text = LOADER.format(store=directory / "sales.db", topic=topic, retries=retries)
    file.write_text(text)
    return file


def progress(done: int) -> Progress:
    return Progress(inputs=1_000, done=done, retrying=2, failed=3, retries=4, next_offsets={})


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        ("def (", 1, "SyntaxError"),
        ("import nosuchmodule", 1, "No module named 'nosuchmodule'"),
        (
            "from kohort.spark import Pipeline\nPipeline('a', store='sqlite:///x', retires='1s')",
            2,
            "no argument or client setting 'retires'; did you mean 'retries'?",
        ),
        ("from kohort.spark import Pipeline\np = Pipeline('a', store='x')", 2, "sqlite:///FILE"),
        ("x = 1", 2, "defines 0 pipelines; one is needed"),
    ],
)
def test_an_error_in_the_file_is_shown_as_its_author_needs_it(
    bare: Run, tmp_path: Path, text: str, code: int, message: str
) -> None:
    """The line of their file and the reason; none of our own frames."""
    file = tmp_path / "mine.py"
    file.write_text(text)
    for command in (("pipeline", "run"), ("pipeline", "status"), ("retry", "status", "--pipeline")):
        ran = bare(*command, str(file))
        assert (ran.code, ran.out) == (code, "")
        assert message in ran.err
        assert "src/kohort" not in ran.err
        assert (", line " in ran.err) == (code == 1)


def test_an_unknown_topic_changes_nothing(
    kohort: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No database, no retry topics, no checkpoint, no Spark."""
    monkeypatch.chdir(tmp_path)
    kohort("topic", "create", "sales", "--if-not-exists")
    before = kohort("topic", "list").out
    ran = kohort("pipeline", "run", str(loader(tmp_path, "salse")), "--mode", "until_idle")
    assert (ran.code, ran.out) == (1, "")
    assert "topic 'salse', which does not exist" in ran.err
    assert "Did you mean 'sales'?" in ran.err
    assert kohort("topic", "list").out == before
    assert {path.name for path in tmp_path.iterdir()} - {"__pycache__"} == {"loader.py"}


@pytest.mark.parametrize("command", ["run", "status"])
def test_a_cluster_out_of_reach_is_told_at_once(bare: Run, tmp_path: Path, command: str) -> None:
    args = ("pipeline", command, str(loader(tmp_path)), "-b", "127.0.0.1:1")
    ran = bare(*args, "-X", "default.api.timeout.ms=300")
    assert (ran.code, ran.out) == (1, "")
    assert "no broker could be reached: 127.0.0.1:1" in ran.err
    assert not (tmp_path / "sales.db").exists()


def test_settings_reach_the_pipeline(
    kohort: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[Pipeline, str, object]] = []

    def run(
        self: Pipeline, mode: str, *, spark: object, master: str | None, on_progress: object
    ) -> Progress:
        assert spark is None, "only --ship and --conf make a session before"
        seen.append((self, mode, master))
        return progress(1_000)

    monkeypatch.setattr(Pipeline, "run", run)
    args = ("-X", "fetch.max.bytes=1000", "--master", "local[3]", "--mode", "available_now")
    ran = kohort("pipeline", "run", str(loader(tmp_path)), *args)
    assert (ran.code, ran.out) == (0, line_of(progress(1_000)) + "\n")
    ((found, mode, master),) = seen
    assert (mode, master) == ("available_now", "local[3]")
    assert found.client == {"fetch.max.bytes": "1000"}
    assert found.client_config["bootstrap.servers"].startswith("127.0.0.1:")
    ran = kohort("pipeline", "run", str(loader(tmp_path)), "-X", "fetch.mx.bytes=1")
    assert ran.code == 2
    assert "did you mean 'fetch.max.bytes'" in ran.err
    assert len(seen) == 1


@pytest.mark.parametrize("command", ["run", "check", "replay"])
def test_settings_reach_the_session(
    kohort: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """A stateful step's shuffle partitions must be chosen before its first start."""
    seen: list[tuple[str | None, dict[str, str]]] = []

    def session(app: str, *, master: str | None, config: dict[str, str]) -> None:
        seen.append((master, config))
        raise KohortError("no session is started here")

    monkeypatch.setattr(sessions, "session", session)
    more = ("--replaces", "other", "--into", "sales=next") if command == "replay" else ()
    args = ("pipeline", command, str(loader(tmp_path)), "--master", "local[3]", *more)
    ran = kohort(*args, "--conf", "spark.sql.shuffle.partitions=3", "--conf", "a.b=c=d")
    assert (ran.code, ran.out) == (1, "")
    assert seen == [("local[3]", {"spark.sql.shuffle.partitions": "3", "a.b": "c=d"})]
    ran = kohort(*args, "--conf", "spark.sql.shuffle.partitions")
    assert "--conf 'spark.sql.shuffle.partitions' is not KEY=VALUE" in ran.err


def test_an_interrupt_is_no_error_of_the_pipeline(
    kohort: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(self: Pipeline, *args: object, **options: Any) -> Progress:
        raise KeyboardInterrupt

    monkeypatch.setattr(Pipeline, "run", run)
    ran = kohort("pipeline", "run", str(loader(tmp_path)))
    assert (ran.code, ran.out) == (130, "")
    assert "continues where it stopped with the same command" in ran.err


def test_a_failure_is_one_error(
    kohort: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(self: Pipeline, *args: object, **options: Any) -> Progress:
        raise KohortError("the table has no column named amuont")

    monkeypatch.setattr(Pipeline, "run", run)
    ran = kohort("pipeline", "run", str(loader(tmp_path)))
    assert (ran.code, ran.err) == (1, "error: the table has no column named amuont\n")


def test_progress_is_said_when_it_changed_and_at_most_once_a_second() -> None:
    printed: list[str] = []
    now = [10.0]
    lines = Lines(printed.append, lambda: now[0])
    for at, done in ((10.0, 0), (10.5, 10), (11.0, 10), (12.5, 10), (12.6, 1_000), (14.0, 1_000)):
        now[0] = at
        lines.show(progress(done))
    assert [text.split("   ")[0] for text in printed] == [
        "handled 0 of 1,000",
        "handled 10 of 1,000",
        "handled 1,000 of 1,000",
    ]


def test_status_of_a_pipeline_that_has_not_run(kohort: Run, tmp_path: Path) -> None:
    """Its books do not balance yet: nothing is handled; --check makes exit code 3 of it."""
    kohort("topic", "create", "sales", "--if-not-exists")
    kohort("produce", "sales", stdin=b"{}\n")
    file = str(loader(tmp_path))
    ran = kohort("pipeline", "status", file)
    assert ran.code == 1
    assert "there is no database" in ran.err
    assert not (tmp_path / "sales.db").exists()


def test_vacuum_says_what_would_go_and_does_it_when_asked(bare: Run, tmp_path: Path) -> None:
    file = loader(tmp_path)
    ran = bare("pipeline", "vacuum", str(file))
    assert (ran.code, ran.out) == (1, "")
    assert "sales.db" in ran.err, "nothing is created by looking"
    store = open_store(f"sqlite:///{tmp_path}/sales.db")
    store.prepare()
    store.open_fence("loader", "sales", "", 0, 0, 0)
    row = LedgerRow(
        Origin("sales", 0, 0, 0), 0, 1, Status.DONE, None, None, None, "", "", "", "", "", 0, 5
    )
    store.apply(Transaction("loader", FenceMove("sales", 0, 0, 1), 0, rows=[row]))
    store.close()
    ran = bare("pipeline", "vacuum", str(file))
    assert (ran.code, ran.out) == (0, "would forget 1 record loaded over 7d ago\n")
    ran = bare("pipeline", "vacuum", str(file), "--older-than", "1h", "--execute")
    assert (ran.code, ran.out) == (0, "forgot 1 record loaded over 1h ago\n")
    ran = bare("pipeline", "vacuum", str(file))
    assert ran.out.startswith("would forget 0 records")


def test_diff_says_what_the_next_run_would_do(kohort: Run, tmp_path: Path) -> None:
    """Spec 6.10: a changed file is compared with what is stored; nothing is changed."""
    kohort("topic", "create", "fares", "--if-not-exists")
    file = loader(tmp_path, "fares", "5m 1h")
    fresh = kohort("pipeline", "diff", str(file), "--check")
    assert fresh.code == 0
    assert "fares: a new handler; is read from the beginning of its" in fresh.out
    assert "fares.loader.retry.1h: a new retry topic of fares; is created" in fresh.out
    assert not (tmp_path / "sales.db").exists()

    store = open_store(f"sqlite:///{tmp_path / 'sales.db'}")
    store.prepare()
    for topic in ("fares", "old", "old.loader.retry.5m"):
        store.open_fence("loader", topic, "", 0, 0, 0)
    row = LedgerRow(
        Origin("old", 0, 0, 0),
        0,
        1,
        Status.SCHEDULED,
        Place("old.loader.retry.5m", 0, 3),
        due_ms=1,
        key_hash="",
        disposition="retryable",
        reason="r",
        error_class="E",
        error_message="",
        fingerprint="",
        created_ms=1,
        closed_ms=None,
        delay_ms=1,
    )
    store.apply(Transaction("loader", FenceMove("old", 0, 0, 1), 1, rows=[row]))
    store.close()
    changed = kohort("pipeline", "diff", str(file), "--check")
    assert changed.code == 3
    first, *rest = changed.out.splitlines()
    assert first.startswith(
        "refused: old.loader.retry.5m: is not read any more, and 1 records wait"
    )
    assert any(line.startswith("old: is not read any more; its fence is kept") for line in rest)
    assert "fares: a new handler" not in changed.out
    as_json = kohort("pipeline", "diff", str(file), "-o", "json")
    assert as_json.code == 0
    assert '"refused": true' in as_json.out
