"""What is compiled in this tree is what its sources say: no stale build is tested in silence."""

from __future__ import annotations

from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

SOURCES = Path(__file__).resolve().parents[2] / "src"


@pytest.mark.parametrize("source", sorted(SOURCES.rglob("*.pyx")), ids=lambda path: path.stem)
def test_no_compiled_module_is_older_than_its_sources(source: Path) -> None:
    parts = [source, *source.parent.glob("*.pxi"), *source.parent.glob("*.h")]
    newest = max(part.stat().st_mtime for part in parts)
    built = [source.with_suffix(suffix) for suffix in EXTENSION_SUFFIXES]
    for module in (path for path in built if path.exists()):
        old = module.stat().st_mtime < newest
        assert not old, f"{module.name} is stale: python setup.py build_ext --inplace"
