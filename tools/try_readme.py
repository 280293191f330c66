"""Paste the README's first example into a shell, as a newcomer does: `make wheels` runs it.

In an empty directory, with the `kohort` and `python` of the interpreter that runs it: the block of
Python is saved under the name that the text gives, the commands run one after another, and what
they print is compared with what the README shows. Standard library only.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

README = Path(__file__).resolve().parents[1] / "README.md"
TIMEOUT_S = 120
COMMENT = re.compile(r"  #.*$")


def first_block(language: str) -> str:
    """The README's first block of a language."""
    found = re.search(rf"^```{language}\n(.*?)^```$", README.read_text(), re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


def steps() -> list[tuple[str, list[str]]]:
    """The commands, each with the lines that the README shows below it."""
    found: list[tuple[str, list[str]]] = []
    for line in first_block("console").splitlines():
        if line.startswith("$ "):
            found.append((COMMENT.sub("", line[2:]), []))
        else:
            found[-1][1].append(line)
    return found


def start(command: str, home: Path) -> subprocess.Popen[str]:
    """A command of the README in a shell's place."""
    scripts = sysconfig.get_path("scripts")
    return subprocess.Popen(
        ["bash", "-c", command if "|" in command else f"exec {command}"],
        cwd=home,
        env={**os.environ, "PATH": f"{scripts}:{os.environ['PATH']}", "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,  # a terminal shows both
        text=True,
    )


def line_of(process: subprocess.Popen[str]) -> str:
    """The next line that it prints."""
    assert process.stdout is not None
    return process.stdout.readline().rstrip("\n")


def printed(process: subprocess.Popen[str], lines: int, *, interrupt: bool) -> list[str]:
    """What it prints; interrupted after so many lines where it would go on."""
    found = [line_of(process) for _ in range(lines)]
    if interrupt:
        process.send_signal(signal.SIGINT)
    rest = process.communicate(timeout=TIMEOUT_S)[0].splitlines()
    assert process.returncode == 0, process.args
    return found + rest


def paste(home: Path) -> None:
    """Run every command and compare. Raises AssertionError."""
    (home / "billing.py").write_text(first_block("python"))
    behind: list[subprocess.Popen[str]] = []
    try:
        for command, shown in steps():
            process = start(command.removesuffix(" &"), home)
            if command.endswith(" &"):
                behind.append(process)
                got = [line_of(process) for _ in shown]
            else:
                got = printed(process, len(shown), interrupt=command.startswith("python "))
            assert got == shown, f"$ {command}\nprinted {got}\nthe README shows {shown}"
    finally:
        for process in behind:
            process.send_signal(signal.SIGINT)
            out = process.communicate(timeout=TIMEOUT_S)[0]
            assert not process.returncode, f"{process.args} ended with {process.returncode}: {out}"


def main() -> None:
    """Paste, and say how long it took."""
    # as in a terminal: what a script starts in its background ignores Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)
    since = time.monotonic()
    with tempfile.TemporaryDirectory() as home:
        paste(Path(home))
    seconds = time.monotonic() - since
    version = sys.version.split()[0]
    print(f"CPython {version}: the README's lines print what it shows, {seconds:.0f} s")


if __name__ == "__main__":
    main()
