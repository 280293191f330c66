"""Run librdkafka's own test-runner against `kohort broker run` (`make compat`).

    python tools/compat.py                              both group protocols, every broker test
    python tools/compat.py --protocol classic --tests 0081 0103 --subtests do_test_basic
    python tools/compat.py --update                     add to the allow-lists what passed

Every test gets a broker of its own: three nodes, Kafka's replication factor, four partitions, as
the suite asks for. What fails the whole: `compat_run`. Causes: docs/compat-findings.md.
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
from contextlib import ExitStack
from pathlib import Path

import java_tools
from compat_relay import relayed
from compat_run import ROOT, Result, judge, read_list, running_broker, twice
from compat_setups import Setup, setup_of
from librdkafka_suite import NotBuildable, SuiteTest, build, plain_environment, read_tests

BUILD = ROOT / "build" / "compat"
PROTOCOLS = ("classic", "consumer")
KAFKA_VERSION = "4.1.0"
"""What the tests are told that the broker is: share groups (4.2) are left out by the suite."""
TIME_LIMIT_S = 1_200
"""Hard limit for one run; the tests have their own limits below it."""
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
SUMMARY = re.compile(
    r"^\|\s*(\d{4}_\w+)\s*\|\s*(PASSED|FAILED|SKIPPED|RUNNING)\s*\|\s*([\d.]+)s\s*\|(.*)$"
)
FAILURE = re.compile(r'^### Test "(\d{4}_\w+)[^"]*" failed at (\S+)')
BANNER = re.compile(r"=+ Test (\d{4}_\w+) (PASSED|SKIPPED) =+")
SUBTEST = re.compile(r"\[(\d{4}_\w+).*\[ .+: (?:(PASS) \(|SKIP: (.*) \])")


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
    setup = setup_of(
        test.number, test.scenario, logs
    )  # a protocol's own keys: both may run at once
    flags = ["-p1", "-L", *(["-Q"] if options.quick else []), *(["-k"] if test.known_issue else [])]
    began = time.monotonic()
    with (
        running_broker(setup.broker, log.with_suffix(".broker.log")) as bootstrap,
        log.open("w") as out,
        ExitStack() as later,
    ):
        conf = log.with_suffix(".conf")
        servers = later.enter_context(relayed(bootstrap)) if setup.relayed else bootstrap
        environment = environment_of(suite, servers, protocol, test, setup, conf)
        if options.subtests:
            environment["SUBTESTS"] = options.subtests
        if options.debug:
            environment["TEST_DEBUG"] = options.debug
        process = subprocess.Popen(
            ["nice", "./test-runner", *flags],
            cwd=suite / "tests",
            env=environment,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
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


def run_protocol(
    suite: Path, protocol: str, tests: list[SuiteTest], options: argparse.Namespace
) -> list[Result]:
    """Every chosen test, one after the other."""
    groups: dict[tuple[str, str], list[SuiteTest]] = {}
    for test in tests:
        groups.setdefault((test.number, test.scenario), []).append(test)
    results: list[Result] = []
    for members in groups.values():
        names = [member.name for member in members]
        results += twice(
            protocol,
            lambda first=members[0], names=names: run_one(suite, protocol, first, names, options),
        )
    return results


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
