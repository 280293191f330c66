"""An archive of Spark's classes: a local JVM that maps it starts in half the time.

Java calls this class data sharing (JEP 350). `kohort pipeline archive-classes` makes the archive.

Shell: files in the user's cache directory, the environment.

Rules:
- A JVM checks an archive against its own build and class path and ignores one that does not
  fit. The name of the file only keeps archives of different installations apart.
- An archive is written beside its place and renamed, because JVMs may map the file at any moment.
"""

from __future__ import annotations

import hashlib
import importlib
import os
from pathlib import Path
from typing import Final

USE: Final = "KOHORT_CLASS_ARCHIVE"
"""`off`: no JVM uses an archive."""
WRITE: Final = "KOHORT_WRITE_CLASS_ARCHIVE"
"""The file into which a JVM writes its classes when it ends."""
_QUIET: Final = "-Xshare:auto -Xlog:cds=off -Xlog:cds+dynamic=off -Xlog:class+path=off"


def path(java: str) -> Path:
    """Where the archive of this Java and this Spark is, or would be.

    Args:
        java: the `java` that Spark starts.
    """
    real = Path(os.path.realpath(java))
    version = importlib.import_module("pyspark.version").__version__
    package = importlib.import_module("pyspark").__file__ or ""
    parts = (str(real), str(real.stat().st_mtime_ns), version, package)
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]
    return Path.home() / ".cache" / "kohort" / f"spark-{version}-{digest}.jsa"


def java_options(java: str | None) -> str:
    """The options with which a JVM maps the archive, or writes it; "" where there is none."""
    if os.environ.get(USE, "").lower() == "off" or java is None:
        return ""
    if target := os.environ.get(WRITE):
        return f'"-XX:ArchiveClassesAtExit={target}" {_QUIET}'
    try:
        archive = path(java)
        there = archive.is_file()
    except (OSError, RuntimeError):  # no home, or one that cannot be read
        return ""
    return f'"-XX:SharedArchiveFile={archive}" {_QUIET}' if there else ""
