"""Run librdkafka's own test-runner against `kohort broker run` (`make compat`).

    python tools/compat.py                              both group protocols, every broker test
    python tools/compat.py --protocol classic --tests 0081 0103 --subtests do_test_basic
    python tools/compat.py --update                     add to the allow-lists what passed

Every test gets a broker of its own: three nodes, Kafka's replication factor, four partitions, as
the suite asks for. A test of the allow-lists (tests/compat/allowed-PROTOCOL.txt) that does not
pass, nor when it is run once more (many go by the clock), fails the whole; a test that skips itself
did not pass. Causes: docs/compat-findings.md.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import java_tools
from compat_setups import Setup, setup_of
from librdkafka_suite import NotBuildable, SuiteTest, build, plain_environment, read_tests

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build" / "compat"
LISTS = ROOT / "tests" / "compat"
FINDINGS = ROOT / "docs" / "compat-findings.md"
PROTOCOLS = ("classic", "consumer")
KAFKA_VERSION = "4.1.0"
"""What the tests are told that the broker is: share groups (4.2) are left out by the suite."""
NODES = 3
RACKS = "RACK1,RACK2,RACK3"
"""RACK and the node's id, as the suite names them."""
INITIAL_DELAY_MS = 1_000
"""The tests expect two members that come together to be in one first generation, as with Kafka's
default of 3000; ours is 0."""
TIME_LIMIT_S = 1_200
"""Hard limit for one run; the tests have their own limits below it."""
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
SUMMARY = re.compile(
    r"^\|\s*(\d{4}_\w+)\s*\|\s*(PASSED|FAILED|SKIPPED|RUNNING)\s*\|\s*([\d.]+)s\s*\|(.*)$"
)
FAILURE = re.compile(r'^### Test "(\d{4}_\w+)[^"]*" failed at (\S+)')
BANNER = re.compile(r"=+ Test (\d{4}_\w+) (PASSED|SKIPPED) =+")
SUBTEST = re.compile(r"\[(\d{4}_\w+).*\[ .+: (?:(PASS) \(|SKIP: (.*) \])")


@dataclass(frozen=True)
class Result:
    """How one test ended."""

    name: str
    state: str
    """PASSED, FAILED, SKIPPED, or CRASHED (no summary: killed, or out of time)."""
    seconds: float
    why: str


@contextmanager
def running_broker(settings: tuple[str, ...], log: Path) -> Iterator[str]:
    """`kohort broker run` in an empty directory; gives its bootstrap addresses."""
    with tempfile.TemporaryDirectory(prefix="kohort-compat-") as directory:
        words = [
            sys.executable, "-m", "kohort", "broker", "run", "--port", "0",
            "--nodes", str(NODES), "--racks", RACKS, "--partitions", "4", "--data-dir", directory,
            "-X", "replica.selector.class=RackAwareReplicaSelector",
            "-X", "acls=true", "-X", "allow.everyone.if.no.acl.found=true",
            "-X", f"group.initial.rebalance.delay.ms={INITIAL_DELAY_MS}",
        ]  # fmt: skip
        for setting in settings:
            words += ["-X", setting]
        environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "PYTHONUNBUFFERED": "1"}
        with log.open("w") as errors:
            process = subprocess.Popen(
                words, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment
            )
            try:
                assert process.stdout is not None
                line = process.stdout.readline()
                ready = re.match(r"ready on (\S+)", line)
                if ready is None:
                    raise RuntimeError(f"the broker did not start: {line!r}; see {log}")
                yield ready[1]
            finally:
                process.terminate()
                try:
                    process.wait(20)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


def make_kafka_home() -> None:
    """Make a directory like Apache Kafka's: bin/ holds the scripts that tests call, libs/ jars.

    Two tests run programs in Java beside librdkafka; they fail without Kafka's jars and a JDK.
    """
    home = BUILD / "kafka"
    (home / "bin").mkdir(parents=True, exist_ok=True)
    ours = f'PYTHONPATH="{ROOT / "src"}" "{sys.executable}" "{ROOT / "tools" / "kafka_script.py"}"'
    scripts = {name: f'{ours} {name} "$@"' for name in ("kafka-topics.sh", "kafka-acls.sh")}
    scripts["kafka-run-class.sh"] = f'exec java -cp "$CLASSPATH:{home / "libs"}/*" "$@"'
    for name, command in scripts.items():
        script = home / "bin" / name
        script.write_text(f"#!/bin/sh\n{command}\n")
        script.chmod(0o755)
    jars = home / "libs"
    if shutil.which("javac") and not jars.exists() and java_tools.kafka():
        jars.unlink(missing_ok=True)
        jars.symlink_to(java_tools.JARS)
    if not jars.exists():
        print("==> without javac or Kafka's jars: 0098 and a part of 0113 fail")


def environment_of(
    suite: Path, bootstrap: str, protocol: str, test: SuiteTest, setup: Setup, conf: Path
) -> dict[str, str]:
    """What the test-runner reads from its environment."""
    lines = [f"bootstrap.servers={bootstrap}", "broker.address.family=v4"]
    lines += ["test.timeout.multiplier=2", *setup.client]
    conf.write_text("".join(f"{line}\n" for line in lines))
    paths = os.pathsep.join(str(suite / part) for part in ("src", "src-cpp"))
    return plain_environment() | {
        "LD_LIBRARY_PATH": paths,
        "RDKAFKA_TEST_CONF": str(conf),
        "TESTS": test.number,
        "TEST_SCENARIO": test.scenario,
        "TEST_KAFKA_VERSION": KAFKA_VERSION,
        "TEST_CONSUMER_GROUP_PROTOCOL": protocol,
        "KAFKA_PATH": str(BUILD / "kafka"),
        "BROKERS": bootstrap,
        **setup.environment,
    }


def run_one(
    suite: Path, protocol: str, test: SuiteTest, names: list[str], options: argparse.Namespace
) -> list[Result]:
    """Run the tests of one number and scenario on a fresh broker."""
    logs = BUILD / "logs" / protocol
    logs.mkdir(parents=True, exist_ok=True)
    log = logs / f"{test.number}-{test.scenario}.log"
    setup = setup_of(test.number, test.scenario, BUILD)
    flags = ["-p1", "-L", *(["-Q"] if options.quick else []), *(["-k"] if test.known_issue else [])]
    began = time.monotonic()
    with (
        running_broker(setup.broker, log.with_suffix(".broker.log")) as bootstrap,
        log.open("w") as out,
    ):
        conf = log.with_suffix(".conf")
        environment = environment_of(suite, bootstrap, protocol, test, setup, conf)
        if options.subtests:
            environment["SUBTESTS"] = options.subtests
        if options.debug:
            environment["TEST_DEBUG"] = options.debug
        process = subprocess.Popen(
            ["nice", "./test-runner", *flags], cwd=suite / "tests", env=environment,
            stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            process.wait(TIME_LIMIT_S)
        except subprocess.TimeoutExpired:
            pass
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    took = time.monotonic() - began
    found = read_ends(log)
    ended = f"exit status {process.returncode}, no summary; see {log.relative_to(ROOT)}"
    return [found.get(name) or Result(name, "CRASHED", took, ended) for name in names]


def read_ends(log: Path) -> dict[str, Result]:
    """How each test ended: what is said when it ends, the summary (which is lost when a test
    aborts the runner), and the last words of one that failed.

    One that passes because it has skipped all of its subtests counts as skipped.
    """
    found: dict[str, Result] = {}
    done: set[str] = set()
    left_out: dict[str, str] = {}
    lines = [COLOURS.sub("", line) for line in log.read_text(errors="replace").splitlines()]
    for number, line in enumerate(lines):
        banner = BANNER.search(line)
        if banner:
            found[banner[1]] = Result(banner[1], banner[2], 0.0, "skips itself")
        ended = SUMMARY.match(line)
        if ended:
            name, state, seconds, why = ended.groups()
            if name not in found or state != "RUNNING":
                found[name] = Result(name, state, float(seconds), why.strip())
        failed = FAILURE.search(line)
        if failed:
            why = " ".join([failed[2], *lines[number + 1 : number + 2]])
            found[failed[1]] = Result(failed[1], "FAILED", 0.0, why)
        subtest = SUBTEST.search(line)
        if subtest and subtest[2]:
            done.add(subtest[1])
        elif subtest:
            left_out[subtest[1]] = subtest[3]
    for name, why in left_out.items():
        if name in found and found[name].state == "PASSED" and name not in done:
            found[name] = Result(name, "SKIPPED", found[name].seconds, why)
    return found


def read_list(protocol: str) -> list[str]:
    """The names of an allow-list, in its order."""
    path = LISTS / f"allowed-{protocol}.txt"
    lines = path.read_text().splitlines() if path.exists() else []
    return [line for line in lines if line and not line.startswith("#")]


def add_to_list(protocol: str, names: list[str]) -> None:
    """The list only grows: nothing is ever taken from it here."""
    path = LISTS / f"allowed-{protocol}.txt"
    head = (
        "# Tests of librdkafka's test-runner that pass against `kohort broker run` with\n"
        f"# group.protocol={protocol}. `make compat` fails when one of them does not.\n"
        "# This list only grows (python tools/compat.py --update).\n"
    )
    every = sorted({*read_list(protocol), *names})
    path.write_text(head + "".join(f"{name}\n" for name in every))


def run_protocol(
    suite: Path, protocol: str, tests: list[SuiteTest], options: argparse.Namespace
) -> list[Result]:
    """Every chosen test, one after the other."""
    groups: dict[tuple[str, str], list[SuiteTest]] = {}
    for test in tests:
        groups.setdefault((test.number, test.scenario), []).append(test)
    results: list[Result] = []
    allowed = set(read_list(protocol))
    for members in groups.values():
        names = [member.name for member in members]
        ended = run_one(suite, protocol, members[0], names, options)
        show(protocol, ended)
        if any(result.state != "PASSED" and result.name in allowed for result in ended):
            print("         once more, because it is on the list:")
            ended = run_one(suite, protocol, members[0], names, options)
            show(protocol, ended)
        results += ended
    return results


def show(protocol: str, results: list[Result]) -> None:
    """A line each, at once."""
    for result in results:
        why = "" if result.state == "PASSED" else f"  {result.why[:300]}"
        print(f"{protocol:9}{result.name:48}{result.state:8}{result.seconds:7.1f} s{why}")
    sys.stdout.flush()


def judge(protocol: str, results: list[Result], update: bool) -> bool:
    """Compare with the allow-list; say what is new, what is gone. True when nothing is lost."""
    allowed = set(read_list(protocol))
    passed = [r.name for r in results if r.state == "PASSED"]
    lost = [r for r in results if r.state != "PASSED" and r.name in allowed]
    new = [name for name in passed if name not in allowed]
    print(f"==> {protocol}: {len(passed)} of {len(results)} broker tests pass")
    if new and update:
        add_to_list(protocol, new)
        print(f"    added to allowed-{protocol}.txt: {' '.join(new)}")
    elif new:
        print(f"    may be added (--update): {' '.join(new)}")
    known = FINDINGS.read_text()
    for result in results:
        if result.state != "PASSED" and result.name not in known:
            print(f"    no cause in {FINDINGS.name}: {result.name}: {result.why[:200]}")
    for result in lost:
        print(f"    LOST: {result.name} is on the list and {result.state}: {result.why}")
    return not lost


def main() -> int:
    """0 when all listed tests pass or the suite cannot be built here, 1 otherwise."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--protocol", choices=[*PROTOCOLS, "both"], default="both")
    parser.add_argument("--tests", nargs="*", metavar="NUMBER", help="only these, e.g. 0081")
    parser.add_argument("--listed", action="store_true", help="only what the allow-lists name")
    parser.add_argument("--subtests", help="only subtests whose name has this in it")
    parser.add_argument("--debug", help="librdkafka's debug contexts, for the logs")
    parser.add_argument("--quick", action="store_true", help="the suite's quick mode")
    parser.add_argument("--update", action="store_true", help="add what passed to the lists")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is ended
    try:
        suite = build(BUILD)
    except NotBuildable as error:
        print(f"==> SKIPPED: librdkafka's test-runner: {error}")
        return 0
    make_kafka_home()
    tests = read_tests(suite)
    if options.tests:
        tests = [t for t in tests if t.number in options.tests or t.name in options.tests]
    kept = True
    for protocol in PROTOCOLS if options.protocol == "both" else (options.protocol,):
        listed = set(read_list(protocol))
        chosen = [t for t in tests if not options.listed or t.name in listed]
        results = run_protocol(suite, protocol, chosen, options)
        whole = not (options.subtests or options.quick)
        kept = judge(protocol, results, options.update and whole) and kept
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
