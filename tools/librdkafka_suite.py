"""Fetch and build librdkafka's test-runner, and read which tests it has.

The npm package of Confluent's JavaScript client carries librdkafka whole, tests included. It is
kept in build/compat, built once; OpenSSL and zlib are used where their headers are there, SASL's
Kerberos and curl never. RapidJSON's headers, which two tests need, come with a Python package.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "@confluentinc/kafka-javascript@1.10.1"
"""Carries librdkafka 2.15.1."""
TARBALL = "confluentinc-kafka-javascript-1.10.1.tgz"
RAPIDJSON = "python-rapidjson==1.25"
"""Its source distribution holds the C++ headers."""
STEPS = (
    ("configure", ["./configure", "--disable-curl", "--disable-sasl"]),
    ("librdkafka", ["make", "-j2", "libs"]),
    ("test-runner", ["make", "-j2", "-C", "tests", "build"]),
)
TABLE = re.compile(r"struct test tests\[\] = \{(.*?)\n\s*\{NULL\}\};", re.DOTALL)
ENTRY = re.compile(r"_TEST\(\s*(\w+)\s*,(.*?)(?=_TEST\(|\Z)", re.DOTALL)
SCENARIO = re.compile(r'\.scenario = "([\w,]+)"')


class NotBuildable(Exception):
    """What is missing, and how to get it."""


@dataclass(frozen=True)
class SuiteTest:
    """A test of the suite that wants a broker."""

    name: str
    number: str
    scenario: str
    """`default`, or the way the broker must be set up for it."""
    known_issue: bool = False
    """The suite leaves it out unless it is asked for by this mark."""


def build(directory: Path) -> Path:
    """The folder of a built librdkafka; raises NotBuildable."""
    directory.mkdir(parents=True, exist_ok=True)
    suite = directory / "package" / "deps" / "librdkafka"
    if (suite / "tests" / "test-runner").exists():
        return suite
    needed = {
        "npm": "npm",
        "cc": "gcc",
        "c++": "g++",
        "make": "make",
        "bash": "bash",
    }
    for program, package in needed.items():
        if shutil.which(program) is None:
            raise NotBuildable(f"{program} is not installed (Debian: apt-get install {package})")
    tarball = directory / TARBALL
    if not tarball.exists():
        print(f"==> fetching {PACKAGE} with npm (3 MB, once)")
        run("npm pack", ["npm", "pack", "--silent", PACKAGE], directory, directory)
    shutil.rmtree(directory / "package", ignore_errors=True)
    run("tar", ["tar", "xzf", TARBALL], directory, directory)
    flags = {"CPPFLAGS": f"-I{headers}"} if (headers := rapidjson(directory)) else {}
    for title, command in STEPS:
        print(f"==> building librdkafka's test-runner: {title} (5 minutes in all, once)")
        run(title, ["nice", *command], suite, directory, flags)
    return suite


def rapidjson(directory: Path) -> Path | None:
    """A folder with RapidJSON's headers; None where they are installed, or cannot be had."""
    if Path("/usr/include/rapidjson/document.h").exists():
        return None
    unpacked = directory / "rapidjson"
    unpacked.mkdir(exist_ok=True)
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"]
    try:
        run("rapidjson", [*pip, RAPIDJSON], unpacked, directory)
        tarball = next(unpacked.glob("python_rapidjson-*.tar.gz")).name
        run("rapidjson-tar", ["tar", "xzf", tarball, "--strip-components=1"], unpacked, directory)
    except NotBuildable as error:
        print(f"==> without RapidJSON (0101 and a part of 0053 skip themselves): {error}")
        return None
    return unpacked / "rapidjson" / "include"


def run(
    title: str, command: list[str], where: Path, logs: Path, flags: dict[str, str] | None = None
) -> None:
    """Run a step with its output in a file; raises NotBuildable with the end of it."""
    # not in the source tree: its configure script reads every file named configure.*
    log = logs / f"build-{title.replace(' ', '-')}.log"
    with log.open("w") as out:
        done = subprocess.run(
            command,
            cwd=where,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=plain_environment() | (flags or {}),
        )
    if done.returncode:
        end = "\n".join(log.read_text(errors="replace").splitlines()[-12:])
        raise NotBuildable(f"{title} failed (all of it: {log}):\n{end}")


def plain_environment() -> dict[str, str]:
    """Without the settings of a `make` above, which would change this one."""
    return {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}


def read_tests(suite: Path) -> list[SuiteTest]:
    """Those that talk to a broker and are not started by hand, in the suite's order.

    Left out are the local ones, and two that are not marked so but run against librdkafka's mock.
    """
    table = TABLE.search((suite / "tests" / "test.c").read_text())
    if table is None:
        raise NotBuildable("tests/test.c of librdkafka has no table of tests as it is known here")
    found: list[SuiteTest] = []
    for name, rest in ENTRY.findall(table[1]):
        if "TEST_F_LOCAL" in rest or "TEST_F_MANUAL" in rest or name.endswith("_mock"):
            continue
        scenario = SCENARIO.search(rest)
        wanted = scenario[1].split(",")[0] if scenario else "default"
        # TEST_F_KNOWN_ISSUE_WIN32 and _OSX are of no concern here
        known = re.search(r"TEST_F_KNOWN_ISSUE\b", rest) is not None
        found.append(SuiteTest(name, name[:4], wanted, known))
    return found
