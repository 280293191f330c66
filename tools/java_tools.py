"""Fetch Apache Kafka's jars (broker, clients, console tools) from Maven Central into build/java.

`make interop` runs this first. Says what is missing and exits with 3 where Maven or Java is not
there or Maven Central cannot be reached, so that the caller can say what it skipped.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
POM = ROOT / "tools" / "java" / "pom.xml"
JARS = ROOT / "build" / "java"
SKIPPED = 3


def main() -> int:
    """Fetch them unless they are there for this pom."""
    stamp = JARS / "pom.xml"
    if stamp.exists() and stamp.read_bytes() == POM.read_bytes():
        return 0
    for program, package in (("java", "openjdk-17-jre-headless"), ("mvn", "maven")):
        if shutil.which(program) is None:
            print(f"==> SKIPPED: {program} is not installed (Debian: apt-get install {package})")
            return SKIPPED
    print("==> fetching Apache Kafka's jars from Maven Central (54 MB, once)")
    shutil.rmtree(JARS, ignore_errors=True)
    fetched = subprocess.run(
        ["mvn", "-q", "-B", "-f", str(POM), "dependency:copy-dependencies",
         f"-DoutputDirectory={JARS}"], capture_output=True, text=True,
    )  # fmt: skip
    if fetched.returncode:
        print(f"==> SKIPPED: Maven could not fetch them:\n{fetched.stdout[-2000:]}")
        return SKIPPED
    stamp.write_bytes(POM.read_bytes())
    return 0


if __name__ == "__main__":
    sys.exit(main())
