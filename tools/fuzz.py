"""Fuzzes the entry points that read foreign bytes (`tests/fuzz/targets.py`), guided by coverage.

An input that reaches code which none before has reached is kept and changed further. The corpus to
start from is tests/fuzz/corpus; what an input breaks is written to build/sanitize/found.
`make sanitize` runs this on modules that count coverage; elsewhere it works without guidance.

    python tools/fuzz.py --seconds 60 --only wire
    python tools/fuzz.py --replay build/sanitize/found/records-0123456789ab
    python tools/fuzz.py --keep           # what reached new code joins the corpus
"""

from __future__ import annotations

import argparse
import ctypes
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.fuzz.corpus_files import corpus, seeds, write
from tests.fuzz.mutations import changed
from tests.fuzz.targets import TARGETS

FOUND = ROOT / "build" / "sanitize" / "found"
MAX_BYTES = 1 << 16


class Coverage:
    """The map of `coverage_map.c`; without it nothing is ever new."""

    def __init__(self) -> None:
        path = os.environ.get("KOHORT_SANITIZED")
        self._library = ctypes.CDLL(path) if path else None
        self._seen = 0
        if self._library is not None:
            self._library.coverage_map.restype = ctypes.POINTER(ctypes.c_uint8)
            self._size = self._library.coverage_size()
            self._map = self._library.coverage_map()

    @property
    def guided(self) -> bool:
        return self._library is not None

    @property
    def reached(self) -> int:
        """How many edges have been reached."""
        return self._seen.bit_count()

    def clear(self) -> None:
        if self._library is not None:
            self._library.coverage_clear()

    def is_new(self) -> bool:
        """Whether the last input reached what none before it has reached."""
        if self._library is None:
            return False
        now = int.from_bytes(ctypes.string_at(self._map, self._size), "little")
        new = now & ~self._seen
        self._seen |= now
        return bool(new)


def run(target: Callable[[bytes], None], name: str, data: bytes) -> None:
    """One input. It is on the disk while it runs, because a sanitizer ends the process."""
    (FOUND / f"{name}-running").write_bytes(data)
    try:
        target(data)
    except Exception:
        print(f"{name}: failed by {write(FOUND, name, data)}", flush=True)
        raise


def fuzz(name: str, seconds: float, seed: int, *, keep: bool) -> None:
    """Run one entry point for some time. Raises what it raised."""
    target, coverage, pick = TARGETS[name], Coverage(), random.Random(f"{name}-{seed}")
    pool: list[bytes] = []
    for data in [*corpus(name), *seeds(name)]:
        coverage.clear()
        run(target, name, data)
        coverage.is_new()
        pool.append(data)
    start, until, runs = len(pool), time.monotonic() + seconds, 0
    while time.monotonic() < until:
        data = changed(pick.choice(pool), pick, pool)[:MAX_BYTES]
        coverage.clear()
        run(target, name, data)
        runs += 1
        if coverage.is_new():
            pool.append(data)
            if keep:
                write(ROOT / "tests" / "fuzz" / "corpus" / name, "", data)
    (FOUND / f"{name}-running").unlink()
    how = f"{coverage.reached} edges" if coverage.guided else "not guided"
    print(f"{name}: {runs} inputs, {how}, {len(pool) - start} of them new", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seconds", type=float, default=20, help="for each entry point")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=sorted(TARGETS))
    parser.add_argument("--keep", action="store_true", help="add to the corpus what was new")
    parser.add_argument("--replay", type=Path, help="a file that was found")
    options = parser.parse_args()
    FOUND.mkdir(parents=True, exist_ok=True)
    if options.replay is not None:
        TARGETS[options.replay.name.partition("-")[0]](options.replay.read_bytes())
        return
    for name in [options.only] if options.only else TARGETS:
        fuzz(name, options.seconds, options.seed, keep=options.keep)


if __name__ == "__main__":
    main()
