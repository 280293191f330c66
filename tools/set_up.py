"""Make the virtual environment that every target of the Makefile runs in, from PyPI alone.

`check_machine.py` decides; this carries it out. Standard library only.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from check_machine import PURE, Plan, arguments, compiles, decide, find_compiler, look, show

ROOT = Path(__file__).resolve().parents[1]
ZIG = "zig-cc"
WRAPPER = """#!/bin/sh
# The C compiler of the package ziglang; `baseline`: what is built runs on every machine of a kind.
export ZIG_GLOBAL_CACHE_DIR="{cache}"
exec "{zig}" cc -mcpu=baseline "$@"
"""


class Environment:
    """The virtual environment to be."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.python = home / "bin" / "python"

    def create(self) -> None:
        """Make it, unless it is there, with a pip that knows dependency groups."""
        if not self.python.exists():
            subprocess.run([sys.executable, "-m", "venv", str(self.home)], check=True)
        self.pip("--quiet", "--upgrade", "pip>=25.1")

    def pip(self, *words: str, **environment: str) -> None:
        """`pip install`. Raises CalledProcessError."""
        subprocess.run(
            [self.python, "-m", "pip", "install", *words],
            check=True,
            cwd=ROOT,
            env={**os.environ, **environment},
        )

    def install(self, extras: str, **environment: str) -> None:
        """Kohort with its extras and the tools for its tests, in place."""
        self.pip("--progress-bar", "on", "--group", "dev", "-e", f".[{extras}]", **environment)

    def install_wheels(self, extras: str, wheels: str) -> None:
        """The same from wheels of this Kohort; the sources are not looked at."""
        ours = ("--no-index", "--no-deps", "--force-reinstall", "--find-links", wheels)
        self.pip("--quiet", *ours, "kohort", "kohort-demo")
        self.pip("--progress-bar", "on", "--group", "dev", f"kohort[{extras}]")

    def archive_classes(self) -> None:
        """Let Spark start faster; it works without."""
        print(
            "==> archiving Spark's classes, so that its sessions start in half the time", flush=True
        )
        command = [self.home / "bin" / "kohort", "pipeline", "archive-classes"]
        if subprocess.run(command, check=False).returncode:
            print("==> no archive was made; Spark works without one", flush=True)

    def zig(self) -> dict[str, str] | None:
        """Install the compiler from PyPI; the environment that uses it, None if it does not work.

        A build has an environment of its own, in which `python -m ziglang` is not there: a script
        on its path starts the compiler.
        """
        try:
            self.pip("--quiet", "ziglang")
        except subprocess.CalledProcessError:
            return None
        find = "import ziglang; print(ziglang.__path__[0])"
        found = subprocess.run(
            [self.python, "-c", find], capture_output=True, text=True, check=True
        )
        script = self.python.with_name(ZIG)
        script.write_text(
            WRAPPER.format(zig=Path(found.stdout.strip(), "zig"), cache=self.home / ".zig-cache")
        )
        script.chmod(0o755)
        path = f"{script.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        return {"CC": ZIG, "PATH": path} if compiles(str(script)) else None


def extras(plan: Plan) -> str:
    """The extras that the tests need."""
    return "all,spark-jre" if plan.java_from_pypi else "all"


def install(environment: Environment, plan: Plan) -> None:
    """Install everything, with the compiler of the plan or, where it fails, without one."""
    if plan.compiler == "none":
        return environment.install(extras(plan), KOHORT_BUILD_PURE="1")
    if plan.compiler == "system":
        return environment.install(extras(plan), CC=find_compiler() or "cc")
    compiler = environment.zig()
    if compiler is not None:
        try:
            return environment.install(extras(plan), **compiler)
        except subprocess.CalledProcessError:
            print("==> the kernel did not compile with ziglang, see above", flush=True)
    print(f"==> no C compiler from PyPI works here: {PURE}", flush=True)
    return environment.install(extras(plan), KOHORT_BUILD_PURE="1")


def main() -> int:
    """Look, decide, set up."""
    parser = arguments("Make the virtual environment of the Makefile's targets.")
    parser.add_argument("--venv", default=".venv")
    parser.add_argument("--wheels", help="a folder of wheels to install instead of the sources")
    options = parser.parse_args()
    plan = decide(look(), options.java, options.compiler)
    if not show(plan):
        return 1
    environment = Environment(ROOT / options.venv)
    print(
        f"==> setting up {options.venv} (the first time takes a few minutes: Spark alone is "
        "about 450 MB)",
        flush=True,
    )
    try:
        environment.create()
        print("==> installing Kohort with all its extras and the tools for its tests", flush=True)
        if options.wheels:
            environment.install_wheels(extras(plan), options.wheels)
        else:
            install(environment, plan)
    except subprocess.CalledProcessError as error:
        print(f"error: the set-up failed in: {' '.join(map(str, error.cmd))}", file=sys.stderr)
        return 1
    environment.archive_classes()
    kernel = "import kohort.records as r; print('==> ready; kernel:', r.KERNEL)"
    return subprocess.run([environment.python, "-c", kernel], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
