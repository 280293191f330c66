"""Run franz-go's own tests against `kohort broker run` (`make compat-go`).

    python tools/compat_go.py                           every test that wants a broker
    python tools/compat_go.py --tests TestTxnEtl
    python tools/compat_go.py --update                  add to the allow-list what passed

franz-go is the client in Go that many programs use. Its module carries its tests; `go` fetches and
compiles them (Go's module proxy, once). Every test gets a fresh broker, as in `make compat`. The
two long ones, chains of groups under all its balancers and both group protocols, with and without
transactions, run once more as `TEST+chaos` with connections that die after a second.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from compat_run import ROOT, Result, judge, read_list, running_broker, twice

MODULE = "github.com/twmb/franz-go"
SOURCE = ROOT / "tools" / "go"
BUILD = ROOT / "build" / "compat-go"
LIST = "go"
RECORDS = 20_000
"""What a chain of groups passes on; the suite's default of 500,000 takes ten minutes on two cores.
"""
TIME_LIMIT_S = 300
CHAOS = "+chaos"
UNDER_CHAOS = ("TestGroupETL", "TestTxnEtl")
USER = "franz:of-no-secret"
LOGIN = "SCRAM"
"""Tests with this in their name log in."""
TEST = re.compile(r"^func (Test\w+)\(t \*testing\.T\) \{(.*?)^\}", re.DOTALL | re.MULTILINE)
WANTS_BROKER = re.compile(
    r"newTestClient|testClientOpts|tmpTopic|tmpNamed|\badm\(\)|getSeedBrokers|scramSeeds"
)
ENDED = re.compile(r"^\s*--- (PASS|FAIL|SKIP): (\S+) \(([\d.]+)s\)")
STATES = {"PASS": "PASSED", "FAIL": "FAILED", "SKIP": "SKIPPED"}
SAID = re.compile(r"^\s+\w+_test\.go:\d+: (.*)")


class NotBuildable(Exception):
    """What is missing, and how to get it."""


def build() -> Path:
    """The compiled tests of its package kgo; raises NotBuildable."""
    if shutil.which("go") is None:
        raise NotBuildable("go is not installed (1.26 or later)")
    BUILD.mkdir(parents=True, exist_ok=True)
    program = BUILD / "kgo.test"
    if not program.exists() or program.stat().st_mtime < (SOURCE / "go.mod").stat().st_mtime:
        print("==> fetching and compiling franz-go's tests with go (3 minutes, once)", flush=True)
        go("test", "-c", "-o", str(program), f"{MODULE}/pkg/kgo")
    return program


def go(*words: str) -> str:
    """What a command of go's says; raises NotBuildable with the end of what it says else."""
    done = subprocess.run(
        ["go", *words],
        cwd=SOURCE,
        capture_output=True,
        text=True,
        env=os.environ | {"GOTOOLCHAIN": "local", "GOFLAGS": "-mod=readonly"},
    )
    if done.returncode:
        raise NotBuildable(f"go {words[0]} failed:\n{done.stderr[-2000:]}")
    return done.stdout.strip()


def read_tests(package: Path) -> list[str]:
    """The tests that want a broker, and the long ones once more under chaos."""
    names: list[str] = []
    for file in sorted(package.glob("*_test.go")):
        names += [
            name for name, body in TEST.findall(file.read_text()) if WANTS_BROKER.search(body)
        ]
    return names + [name + CHAOS for name in UNDER_CHAOS]


def run_one(program: Path, package: Path, name: str) -> list[Result]:
    """Run one test on a fresh broker, in the folder of its sources; its subtests too."""
    logs = BUILD / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    log = logs / f"{name}.log"
    logins = ("security.protocol=SASL_PLAINTEXT", f"sasl.users={USER}") if LOGIN in name else ()
    began = time.monotonic()
    with running_broker(logins, log.with_suffix(".broker.log")) as bootstrap, log.open("w") as out:
        process = subprocess.Popen(
            [
                str(program),
                "-test.v",
                "-test.timeout",
                f"{TIME_LIMIT_S}s",
                "-test.run",
                f"^{name.removesuffix(CHAOS)}$",
            ],
            cwd=package,
            env=environment_of(name, bootstrap),
            stdout=out,
            stderr=subprocess.STDOUT,
        )
        try:
            process.wait(TIME_LIMIT_S + 30)
        finally:
            process.kill()
            process.wait()
    ends = read_ends(log.read_text(errors="replace"), name)
    if ends:
        return ends
    why = f"exit status {process.returncode}; see {log.relative_to(ROOT)}"
    return [Result(name, "CRASHED", time.monotonic() - began, why)]


def environment_of(name: str, bootstrap: str) -> dict[str, str]:
    """What the tests read from their environment."""
    return os.environ | {
        "KGO_SEEDS": bootstrap,
        "KGO_TEST_RECORDS": str(RECORDS),
        "KGO_LOG_LEVEL": "none",
        "KGO_TEST_CHAOS": str(int(name.endswith(CHAOS))),
        **({"KGO_TEST_SCRAM_SEEDS": bootstrap, "KGO_TEST_SCRAM": USER} if LOGIN in name else {}),
    }


def read_ends(log: str, name: str) -> list[Result]:
    """How a test and its subtests ended; of the one that failed, what it said last."""
    found: list[Result] = []
    said = ""
    for line in log.splitlines():
        if says := SAID.match(line):
            said = says[1]
        if ended := ENDED.match(line):
            state, full, seconds = ended.groups()
            shown = full.replace(name.removesuffix(CHAOS), name, 1)
            why = "" if state == "PASS" else said
            found.append(Result(shown, STATES[state], float(seconds), why))
    return found


def main() -> int:
    """0 when all listed tests pass or the suite cannot be built here, 1 otherwise."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tests", nargs="*", metavar="NAME", help="only these")
    parser.add_argument("--update", action="store_true", help="add what passed to the list")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is ended
    try:
        program = build()
        package = Path(go("list", "-m", "-f", "{{.Dir}}", MODULE)) / "pkg" / "kgo"
    except NotBuildable as error:
        print(f"==> SKIPPED: franz-go's tests: {error}")
        return 0
    names = [n for n in read_tests(package) if not options.tests or n in options.tests]
    results: list[Result] = []
    for name in names:
        results += twice(LIST, lambda name=name: run_one(program, package, name))
    missing = {n for n in read_list(LIST) if n.partition("/")[0] in names}
    missing -= {result.name for result in results}
    results += [Result(name, "CRASHED", 0.0, "it did not run") for name in sorted(missing)]
    return 0 if judge(LIST, results, options.update) else 1


if __name__ == "__main__":
    sys.exit(main())
