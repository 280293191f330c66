"""The documentation site, built for tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pages import ROOT, tool

pytest.importorskip("mkdocs", reason="the group `docs` is not installed")
from mkdocs.commands.build import build
from mkdocs.config import load_config


def make(root: Path, site: Path) -> None:
    """Build the site of a checkout. Raises Abort."""
    config = load_config(str(root / "mkdocs.yml"), site_dir=str(site), strict=True)
    build(config)


def make_ours(site: Path) -> None:
    """Build the site of this checkout; fetch its scripts where they are not there."""
    tool("build_docs").fetch_missing()
    make(ROOT, site)
