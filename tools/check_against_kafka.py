"""Lets Apache Kafka's own Java classes read and write what our codecs write.

Usage: `python tools/check_against_kafka.py JAR...` with the `kafka-clients`,
`kafka-group-coordinator`, `kafka-transaction-coordinator` and `slf4j-api` jars of the release that
the facts in `kohort/wire/schema` come from. Needs Java 17 or later. All versions, random
values, unknown tagged fields. Not part of the suite, which must run with PyPI alone: the vectors in
`tests/wire/records.golden` were confirmed by it.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

from tests.wire.values import Maker, every_version

from kohort.wire import Message, encode

SEEDS = 5


def value(cls: type[Message], version: int, seed: int) -> Message:
    """A random message."""
    return Maker(seed, unknown=True).message(cls, version)


def vectors() -> str:
    """Lines of message, version and bytes."""
    return "".join(
        f"{cls.NAME} {version} {encode(value(cls, version, seed), version).hex()}\n"
        for cls, version in every_version()
        for seed in range(SEEDS)
    )


def main(jars: list[str]) -> int:
    """Exit status 0 when all bytes come back as they went."""
    command = ["java", "-cp", ":".join(jars), str(ROOT / "tools" / "KafkaOracle.java")]
    return subprocess.run(command, input=vectors(), text=True, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
