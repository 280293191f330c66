"""`--ship`: the driver's packages as an archive for executors that have Python and nothing else.

Shell: files of the driver's environment.

Rules:
- What is shipped is kohort and what it needs, by the metadata of the installed packages; Python
  itself and pyspark are the cluster's. So both sides need the same minor version of Python on the
  same kind of machine: `kohort pipeline check --ship` reports where they differ.
- An archive is named by what is in it, and made once.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import re
import sys
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import kohort
from kohort.errors import ConfigError

EXTRAS: Final = ("spark", "sql", "registry")
DIRECTORY: Final = "kohort_environment"
LEFT_OUT: Final = ("pyspark", "py4j")
_NAME: Final = re.compile(r"^[A-Za-z0-9._-]+")


def settings_of(archive: Path) -> dict[str, str]:
    """The settings of a session whose executors use an archive."""
    return {
        "spark.archives": f"{archive.as_uri()}#{DIRECTORY}",
        "spark.executorEnv.PYTHONPATH": f"./{DIRECTORY}",
    }


def pack(directory: Path | None = None) -> Path:
    """Pack kohort and its packages; the archive of the same versions is used again.

    Args:
        directory: where to write; default `~/.cache/kohort`.

    Raises:
        ConfigError: a package is not installed as pip does it, so that its files are not known.
    """
    names = sorted(needed("kohort", EXTRAS))
    versions = [f"{name}=={importlib.metadata.version(name)}" for name in names]
    python = f"{sys.implementation.cache_tag}-{sys.platform}"
    own = _own_files()
    stamps = [f"{name}:{file.stat().st_mtime_ns}" for name, file in own]
    digest = hashlib.sha256("\n".join([python, *versions, *stamps]).encode()).hexdigest()[:12]
    home = directory or Path.home() / ".cache" / "kohort"
    archive = home / f"environment-{digest}.tar.gz"
    if archive.exists():
        return archive
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = archive.with_suffix(".part")
    with tarfile.open(draft, "w:gz", compresslevel=1, dereference=True) as tar:
        for name, file in [*own, *_files(n for n in names if n != "kohort")]:
            tar.add(file, name, recursive=False)
    draft.replace(archive)
    return archive


def needed(name: str, extras: Iterable[str] = ()) -> set[str]:
    """The installed packages that a package needs, itself included."""
    found: set[str] = set()
    waiting = [(name, frozenset(extras))]
    while waiting:
        current, wanted = waiting.pop()
        key = re.sub(r"[-_.]+", "-", current).lower()
        if key in found or key in LEFT_OUT:
            continue
        try:
            requirements = importlib.metadata.requires(current) or []
        except importlib.metadata.PackageNotFoundError:
            continue  # of an extra that is not installed, or of another platform
        found.add(key)
        for requirement in requirements:
            matched = _NAME.match(requirement)
            extra = re.search(r"extra\s*==\s*['\"]([^'\"]+)", requirement)
            if matched and (extra is None or extra[1] in wanted):
                of_it = re.match(r"[^\[;]+\[([^\]]+)\]", requirement)
                more = frozenset(of_it[1].split(",")) if of_it else frozenset[str]()
                waiting.append((matched[0], more))
    return found


def _own_files() -> list[tuple[str, Path]]:
    """Our own package as it is imported here, installed in place or not."""
    root = Path(kohort.__file__).resolve().parent
    files = [
        (f"kohort/{file.relative_to(root)}", file)
        for file in sorted(root.rglob("*"))
        if file.is_file() and "__pycache__" not in file.parts
    ]
    found = importlib.import_module("pyspark_kohort").__file__
    return [*files, ("pyspark_kohort.py", Path(found or ""))]


def _files(names: Iterable[str]) -> Iterator[tuple[str, Path]]:
    for name in names:
        distribution = importlib.metadata.distribution(name)
        listed = distribution.files
        if listed is None:
            raise ConfigError(
                f"package {name} cannot be shipped: its metadata lists no files. Install it with "
                "pip, or install kohort on the executors"
            )
        for file in listed:
            if ".." not in file.parts and "__pycache__" not in file.parts:
                yield str(file), Path(str(distribution.locate_file(file)))
