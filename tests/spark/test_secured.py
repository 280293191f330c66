"""Spec 6.1 under SASL_SSL: the source and the sink log in, and the plan shows no password."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kohort.testing import Cluster
from kohort.testing.certificates import Certificates

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.mark.extended
def test_write_and_read_with_a_login(spark: SparkSession, tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    word = tmp_path / "word"
    word.write_text("hidden-word")
    with Cluster(
        users={"alice": "hidden-word"}, security_protocol="SASL_SSL", **certificates.broker()
    ) as cluster:
        cluster.create_topic("t")
        options = {
            "kafka.bootstrap.servers": cluster.bootstrap,
            "kafka.security.protocol": "SASL_SSL",
            "kafka.ssl.ca.location": certificates.ca_file,
            "kafka.sasl.mechanism": "SCRAM-SHA-512",
            "kafka.sasl.username": "alice",
            "kafka.sasl.password.file": str(word),
        }
        frame = spark.createDataFrame([(b"v",)], "value binary")
        frame.write.format("kohort").options(**options, topic="t").mode("append").save()
        read = spark.read.format("kohort").options(**options, subscribe="t").load()
        assert [bytes(row.value) for row in read.collect()] == [b"v"]
        jvm_frame: Any = read._jdf
        assert "hidden-word" not in str(jvm_frame.queryExecution().toString())
