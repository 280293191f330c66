"""A stream of numbers and a database for each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kohort.retry.store import Store
from kohort.retry.stores import open_store
from tests.spark.outputs.stream import Stream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kohort.testing import Cluster


@pytest.fixture
def stream(
    spark: SparkSession, cluster: Cluster, topic: Callable[..., str], produce: Any, tmp_path: Path
) -> Stream:
    return Stream(spark, cluster, topic(name="numbers"), produce, tmp_path)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = open_store(f"sqlite:///{tmp_path / 'db.sqlite'}")
    yield made
    made.close()
