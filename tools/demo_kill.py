"""Kill the main job again and again, at random moments, and see that the books still balance.

    python tools/demo_kill.py                     the full year, six kills
    python tools/demo_kill.py --limit 5000 --kills 3 --seed 7

Each kill is `kill -9` of the driver, of the broker, or of both, at a moment drawn from the seed.
The last run is left alone; its report must say what the data alone says must come out.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

VICTIMS = ("driver", "broker", "both")
DRIVER_ENDS_S = 180
"""A driver whose broker has died first waits out the calls that it had begun."""
DEFAULT_RETRIES = "1s 1s 3s 3s 3s 6s"


@dataclass(frozen=True)
class Kill:
    """Who is killed, and how many seconds after the run began (or went on)."""

    victim: str
    after_s: float


def plan(seed: int, kills: int, longest_s: float) -> Iterator[Kill]:
    """The kills that a seed stands for; with three or more each victim has its turn."""
    rng = random.Random(seed)
    victims = [*rng.sample(VICTIMS, 3), *rng.choices(VICTIMS, k=max(0, kills - 3))][:kills]
    for victim in victims:
        yield Kill(victim, rng.uniform(1.0, longest_s))


def expected(limit: int | None, *, handlers: bool = False) -> dict[str, Any]:
    """What must come out, from the data alone; with row handlers without the other outputs."""
    from kohort.client.producer.plan.partitioner import for_key
    from kohort.demo import flights_data as data

    year = data.load_year(for_key, limit=limit)
    airports = set(data.read_table("airports")["faa"].to_pylist())
    hours = {e.key for e in year.weather} | {o.event.key for o in year.late}
    unknown = missing = 0
    for event in year.flights:
        flight = json.loads(event.value)
        if flight["dest"] not in airports:
            unknown += 1
        elif data.observation_key(flight["origin"], flight["time_hour"]) not in hours:
            missing += 1
    failed = {"unknown_airport": unknown, "missing_weather": missing}
    loaded = len(year.flights) - unknown - missing
    return {
        **({} if handlers else {"outputs": _outputs(limit, loaded)}),
        "inputs": len(year.flights),
        "loaded": loaded,
        "failed": {reason: count for reason, count in failed.items() if count},
        "duplicates": 0,
        "retrying": 0,
    }


def _outputs(limit: int | None, loaded: int) -> dict[str, Any]:
    """The part `outputs` of the report."""
    from kohort.demo.flights_outputs import expected_hours

    hours = expected_hours(limit)
    flights, minutes = (sum(column) for column in zip(*hours.values(), strict=True))
    assert flights == loaded, "every flight that can be loaded is in a group"
    return {
        "flights": {"rows": loaded},
        "delays_by_hour": {
            "groups": len(hours),
            "flights": loaded,
            "dep_delay_sum": minutes,
            "mismatches": 0,
        },
        "departures": {"records": loaded, "duplicates": 0},
    }


def command(
    directory: Path, limit: int | None, retries: str, resume: bool, handlers: bool = False
) -> list[str]:
    """The run's command line."""
    words = [sys.executable, "-m", "kohort", "demo", "flights", "--dir", str(directory)]
    words += ["--retries", retries]
    if limit is not None:
        words += ["--limit", str(limit)]
    if handlers:
        words.append("--handlers")
    return [*words, "--resume"] if resume else words


def broker_pid(directory: Path) -> int | None:
    try:
        return int(json.loads((directory / "broker" / "broker.json").read_text())["pid"])
    except (OSError, ValueError, KeyError):
        return None


def strike(kill: Kill, driver: subprocess.Popen[bytes], directory: Path) -> None:
    """`kill -9`. Killing the broker alone ends the driver too: it says so and stops."""
    pid = broker_pid(directory)
    if kill.victim in ("broker", "both") and pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    if kill.victim in ("driver", "both") or pid is None:
        driver.kill()
    try:
        driver.wait(DRIVER_ENDS_S)
    except subprocess.TimeoutExpired:
        raise AssertionError(
            f"the driver did not end within {DRIVER_ENDS_S} s of its broker's death"
        ) from None


def run_with_kills(
    directory: Path,
    *,
    seed: int,
    kills: int,
    longest_s: float,
    limit: int | None,
    retries: str = DEFAULT_RETRIES,
    handlers: bool = False,
    timeout_s: float = 900.0,
    say: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Run, kill, go on, until the last run ends by itself; returns its report."""
    with (directory.parent / f"{directory.name}.log").open("ab") as log:
        resume = False
        for kill in plan(seed, kills, longest_s):
            say(f"kill -9 of {kill.victim} after {kill.after_s:.1f} s")
            driver = subprocess.Popen(
                command(directory, limit, retries, resume, handlers), stdout=log, stderr=log
            )
            try:
                status = driver.wait(kill.after_s)
            except subprocess.TimeoutExpired:
                strike(kill, driver, directory)
            else:
                assert status == 0, f"the run ended by itself with status {status}; see {log.name}"
                say("  (the run had ended before)")
            resume = (directory / "run.json").exists()
        started = time.monotonic()
        last = command(directory, limit, retries, resume, handlers)
        status = subprocess.run(last, stdout=log, stderr=log, timeout=timeout_s).returncode
        say(f"the last run ended with status {status} after {time.monotonic() - started:.0f} s")
    return json.loads((directory / "report.json").read_text())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    parser.add_argument("--kills", type=int, default=6)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--longest", type=float, default=60.0, help="latest moment of a kill, s")
    parser.add_argument("--retries", default=DEFAULT_RETRIES)
    parser.add_argument("--handlers", action="store_true", help="row handlers, not DataFrames")
    args = parser.parse_args()
    print(f"seed {args.seed}", flush=True)
    directory = Path(tempfile.mkdtemp(prefix="kohort-demo-kill-")) / "run"
    report = run_with_kills(
        directory,
        seed=args.seed,
        kills=args.kills,
        longest_s=args.longest,
        limit=args.limit,
        retries=args.retries,
        handlers=args.handlers,
        say=lambda text: print(text, flush=True),
    )
    wanted = expected(args.limit, handlers=args.handlers)
    wrong = {key: (report[key], value) for key, value in wanted.items() if report[key] != value}
    for key, (found, value) in wrong.items():
        print(f"WRONG: {key} is {found}, must be {value}")
    print(f"{directory}: {'wrong' if wrong else 'the same figures as without a kill'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
