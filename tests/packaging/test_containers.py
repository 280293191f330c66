"""Containerfile, compose.yaml, workflows: what can be checked without a daemon or a forge."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.pages import ROOT, blocks_of

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


def test_kafka_starts_where_nobody_chose_a_token_for_the_console() -> None:
    """A variable that has to be set is demanded for every service, also those that do not start."""
    text = (ROOT / "compose.yaml").read_text()
    assert re.findall(r"\$\{\w+:?\?", text) == []


def broker_commands() -> list[list[str]]:
    """What the page's commands pass to `kohort` in the container."""
    blocks = "\n".join(blocks_of(ROOT / "docs" / "containers.md", "sh"))
    lines = re.findall(r"^podman run .* (kohort broker run .*)$", blocks.replace("\\\n", ""), re.M)
    return [shlex.split(line)[1:] for line in lines]


@pytest.mark.parametrize("words", broker_commands(), ids=lambda words: words[-1])
def test_the_pages_brokers_are_allowed_to_listen(words: list[str], tmp_path: Path) -> None:
    """On an address that no machine has: the broker gets as far as listening, and no further."""
    (tmp_path / "users.txt").write_text("ada:adas-word\n")
    places = {"/data": str(tmp_path), "/users.txt": str(tmp_path / "users.txt")}
    words = [places.get(word, word).replace("0.0.0.0", "203.0.113.9") for word in words]
    done = subprocess.run(
        [sys.executable, "-m", "kohort", *words], capture_output=True, text=True, timeout=60
    )
    assert "can be reached from other machines" not in done.stderr
    assert "203.0.113.9" in done.stderr


def test_the_page_has_a_broker_for_one_machine_and_one_for_others() -> None:
    assert len(broker_commands()) == 2


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
