"""One JVM for everything that needs jars beside Spark's own."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from tests.interop.java import JARS
from tests.java import skip_without

CONNECTOR = JARS / "spark"


@pytest.fixture(scope="session")
def connectors() -> Iterator[Any]:
    """A session whose JVM was launched with Spark's Kafka connector.

    Its jars must be on the class path when the JVM is launched, so the tests are skipped, and say
    so, where something else has launched one before.
    """
    if not (CONNECTOR / "pom.xml").exists() or shutil.which("java") is None:
        pytest.skip("Spark's Kafka connector is not in build/java/spark; `make interop` fetches it")
    skip_without()
    from pyspark import SparkContext

    from kohort.spark import session

    if SparkContext._gateway is not None:
        pytest.skip("a JVM without the connector runs already; run tests/interop by itself")
    jars = ":".join(str(jar) for jar in sorted(CONNECTOR.glob("*.jar")))
    made = session(
        "kohort interop",
        master="local[2,1]",
        profile="test",
        config={"spark.driver.extraClassPath": jars},
    )
    yield made
    made.stop()
