"""Containerfile, compose.yaml, workflows: what can be checked without a daemon or a forge."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import pytest

from tests.pages import ROOT

yaml = pytest.importorskip("yaml", reason="comes with mkdocs, of the group `docs`")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def compose() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "compose.yaml").read_text())


def extras_of(words: str) -> set[str]:
    return set(words.split(","))


def test_the_image_installs_extras_that_there_are() -> None:
    text = (ROOT / "Containerfile").read_text()
    named = [re.search(r"^ARG EXTRAS=(\S+)$", text, re.MULTILINE)[1]]  # type: ignore[index]
    named.append(compose()["services"]["pipeline"]["build"]["args"]["EXTRAS"])
    for words in named:
        assert extras_of(words) <= set(PROJECT["optional-dependencies"])


def test_the_image_runs_as_a_user_and_knows_the_command() -> None:
    lines = (ROOT / "Containerfile").read_text().splitlines()
    assert "USER kohort" in lines
    assert 'ENTRYPOINT ["kohort"]' in lines
    assert "kohort" in PROJECT["scripts"]


def test_services_name_one_another_and_their_volumes() -> None:
    document = compose()
    services = document["services"]
    for name, service in services.items():
        assert set(service.get("depends_on", {})) <= set(services), name
        volumes = {v.split(":")[0] for v in service.get("volumes", []) if v[0] not in "./"}
        assert volumes <= set(document["volumes"]), name
        servers = service.get("environment", {}).get("KOHORT_BOOTSTRAP_SERVERS")
        if servers:
            listeners = services["kafka"]["environment"]["KAFKA_ADVERTISED_LISTENERS"]
            assert f"INSIDE://{servers}" in listeners


@pytest.mark.parametrize(
    "path", sorted((ROOT / ".github" / "workflows").glob("*.yml")), ids=lambda p: p.stem
)
def test_workflows_run_targets_that_there_are(path: Any) -> None:
    """And grant no more than they say: each names its permissions. `make workflows` lints them."""
    text = path.read_text()
    document = yaml.safe_load(text)
    assert document["permissions"] == {"contents": "read"}
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    used = set(re.findall(r"\bmake (?:-C \S+ )?([a-z][a-z-]*)", text))
    matrix = re.search(r"target: \[(.*)\]", text)
    used |= set(matrix[1].split(", ")) if matrix else set()
    assert used <= targets
    assert all("timeout-minutes" in job or "uses" in job for job in document["jobs"].values())
