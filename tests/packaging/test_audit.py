"""`make audit` fails on a vulnerability or a licence, and says in words what it could not learn."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.pages import ROOT, tool

yaml = pytest.importorskip("yaml", reason="comes with mkdocs, of the group `docs`")

RESOLVED = "click==8.2.1 \\\n    --hash=sha256:00\nmsgspec==0.19.0 \\\n    --hash=sha256:00\n"
CLEAN = {"name": "click", "version": "8.2.1", "vulns": []}
KNOWN = {
    "name": "msgspec",
    "version": "0.19.0",
    "vulns": [{"id": "PYSEC-1", "fix_versions": ["0.20"]}],
}
SKIPPED = {"name": "msgspec", "skip_reason": "Dependency not found on PyPI"}


@pytest.fixture(name="audit")
def _audit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The tool, with programs of the test's own in place of uv and pip-audit."""
    module = tool("audit")
    monkeypatch.setattr(module, "HOME", tmp_path)
    monkeypatch.setattr(sys, "argv", ["audit.py"])
    (tmp_path / "bin").mkdir()
    return module


def program(audit: Any, name: str, out: str, err: str = "", code: int = 0) -> None:
    """A program that prints and ends."""
    path = audit.HOME / "bin" / name
    lines = [f"#!{sys.executable}", "import sys", f"sys.stdout.write({out!r})"]
    path.write_text("\n".join([*lines, f"sys.stderr.write({err!r})", f"sys.exit({code})\n"]))
    path.chmod(0o755)


def answers(audit: Any, *packages: dict[str, Any], code: int = 0) -> None:
    program(audit, "uv", RESOLVED)
    program(audit, "pip-audit", json.dumps({"dependencies": packages}), code=code)


def test_packages_without_a_known_vulnerability_pass(audit: Any, capsys: Any) -> None:
    answers(audit, CLEAN, {**CLEAN, "name": "msgspec"})
    assert audit.main() == 0
    assert "0 known vulnerabilities in the 2 packages audited" in capsys.readouterr().out


def test_a_known_vulnerability_fails(audit: Any, capsys: Any) -> None:
    answers(audit, CLEAN, KNOWN, code=1)
    assert audit.main() == 1
    assert "msgspec 0.19.0: PYSEC-1, mended in ['0.20']" in capsys.readouterr().out


def test_a_licence_that_is_not_listed_fails(
    audit: Any, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers(audit, CLEAN)
    monkeypatch.setattr(audit, "licence", lambda name: {"click": "Secret"}.get(name, "MIT"))
    assert audit.main() == 1
    assert "click: licence 'Secret' is not on the list" in capsys.readouterr().out


def test_a_package_without_an_answer_is_named_with_the_address(audit: Any, capsys: Any) -> None:
    answers(audit, CLEAN, SKIPPED)
    assert audit.main() == audit.NOT_AUDITED
    out = capsys.readouterr().out
    assert "1 packages audited" in out
    assert f"not audited: {audit.ASKED} gave no answer about 1: msgspec" in out


def test_a_resolver_that_reaches_nothing_is_quoted(audit: Any, capsys: Any) -> None:
    program(audit, "uv", "", "error: Request failed\n  dns error: name unknown\n", 2)
    assert audit.main() == audit.NOT_AUDITED
    assert capsys.readouterr().out == "not audited: uv got no answer: dns error: name unknown\n"


def test_an_auditor_that_reaches_nothing_is_quoted(audit: Any, capsys: Any) -> None:
    program(audit, "uv", RESOLVED)
    program(audit, "pip-audit", "", "Traceback\nConnectionError: no route\n", 1)
    assert audit.main() == audit.NOT_AUDITED
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "not audited: pip-audit got no answer: ConnectionError: no route"


@pytest.mark.parametrize(("name", "job"), [("tests", "audit"), ("release", "audit")])
def test_workflows_audit(name: str, job: str) -> None:
    """Each change and each release; a release publishes nothing before."""
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / f"{name}.yml").read_text())["jobs"]
    assert any("make audit" in step.get("run", "") for step in jobs[job]["steps"])
    assert name == "tests" or job in jobs["publish"]["needs"]


def test_vulnerabilities_found_between_changes_are_noticed_in_the_night() -> None:
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "nightly.yml").read_text())["jobs"]
    assert "audit" in jobs["long"]["strategy"]["matrix"]["target"]
