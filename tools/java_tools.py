"""Fetch what others wrote in Java from Maven Central: Apache Kafka's jars (broker, clients, console
tools) into build/java, Spark's own Kafka connector into build/java/spark, apart from them.

`make interop` runs this first. Says what is missing where Maven or Java is not there or Maven
Central cannot be reached, so that the caller can say what it skipped, and exits with 3 when that
is Kafka's jars. Without the connector only its own tests are skipped, and pytest names them.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
POMS = ROOT / "tools" / "java"
JARS = ROOT / "build" / "java"
CONNECTOR = JARS / "spark"
LAKE = JARS / "lake"
SKIPPED = 3


def main() -> int:
    """Fetch all of them."""
    if not kafka():
        return SKIPPED
    fetch(POMS / "spark" / "pom.xml", CONNECTOR, "Spark's own Kafka connector", "10 MB")
    return 0


def kafka() -> bool:
    """Fetch Apache Kafka's jars; whether they are there."""
    return fetch(POMS / "pom.xml", JARS, "Apache Kafka's jars", "54 MB")


def lake() -> bool:
    """Fetch Delta Lake's and Iceberg's jars; whether they are there."""
    return fetch(POMS / "lake" / "pom.xml", LAKE, "Delta Lake and Iceberg", "58 MB")


def fetch(pom: Path, target: Path, what: str, size: str) -> bool:
    """Fetch the jars of a pom, unless they are there for it; whether they are there now."""
    stamp = target / "pom.xml"
    if stamp.exists() and stamp.read_bytes() == pom.read_bytes():
        return True
    for program, package in (("java", "openjdk-17-jre-headless"), ("mvn", "maven")):
        if shutil.which(program) is None:
            print(
                f"==> SKIPPED: {what}: {program} is not installed "
                f"(Debian: apt-get install {package})"
            )
            return False
    print(f"==> fetching {what} from Maven Central ({size}, once)", flush=True)
    shutil.rmtree(target, ignore_errors=True)
    fetched = subprocess.run(
        [
            "mvn",
            "-q",
            "-B",
            "-f",
            str(pom),
            "dependency:copy-dependencies",
            f"-DoutputDirectory={target}",
        ],
        capture_output=True,
        text=True,
    )
    if fetched.returncode:
        print(f"==> SKIPPED: {what}: Maven could not fetch them:\n{fetched.stdout[-2000:]}")
        return False
    stamp.write_bytes(pom.read_bytes())
    return True


if __name__ == "__main__":
    sys.exit(main())
