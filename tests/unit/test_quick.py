"""`make quick` chooses the tests of what changed."""

from __future__ import annotations

from tools.quick import ALWAYS, selection


def test_a_changed_module_runs_the_tests_of_its_package(tmp_path) -> None:
    for name in ("client/test_a.py", "client/consumer/test_b.py"):
        (tmp_path / "tests" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tests" / name).touch()

    def run(*names: str) -> list[str]:
        return selection(names, tmp_path)[len(ALWAYS) :]

    assert run("src/kohort/client/consumer/plan/fetcher.py") == ["tests/client/consumer"]
    assert run("src/kohort/client/x.py", "tests/client/consumer/test_b.py") == ["tests/client"]
    assert run("tests/client/test_a.py") == ["tests/client/test_a.py"]
    assert run("src/kohort/unknown/x.py", "tests/patience.py", "tools/quick.py") == []
