"""docs/security.md names settings that there are, and its example for tests runs."""

from __future__ import annotations

import re
from pathlib import Path

from kohort import Consumer
from kohort.broker.config import BrokerConfig
from kohort.client.config import ConsumerConfig
from kohort.spark.options import parse_source
from kohort.testing import Cluster

PAGE = Path(__file__).parents[2] / "docs" / "security.md"
JAVAS = {"ssl_truststore_location", "ssl_truststore_type", "ssl_keystore_location",
         "sasl_jaas_config", "sasl_password_file"}  # fmt: skip


def test_every_setting_exists() -> None:
    known = {*BrokerConfig.field_names(), *ConsumerConfig.field_names(), *JAVAS}
    named = re.findall(r"\b(?:ssl|sasl|connections|max|security|authentication)[._][a-z_.]+[a-z]\b",
                       PAGE.read_text())  # fmt: skip
    names = {name.replace(".", "_") for name in named}
    assert len(names) > 20
    assert names - known == set()


def test_the_example_for_tests(tmp_path: Path) -> None:
    block = next(b for b in PAGE.read_text().split("```") if "from kohort.testing import" in b)
    code = block.removeprefix("python\n").replace("    Consumer(", "    made = Consumer(")
    names = {"tmp_path": tmp_path, "Consumer": Consumer, "Cluster": Cluster}
    exec(code + "\n    made.close()\n", names)


def test_a_password_file_in_spark(tmp_path: Path) -> None:
    """The plan has the file's name, the client its content."""
    word = tmp_path / "word"
    word.write_text("hidden")
    options = parse_source(
        {
            "kafka.bootstrap.servers": "b:1", "subscribe": "t",
            "kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "PLAIN",
            "kafka.sasl.username": "alice", "kafka.sasl.password.file": str(word),
        },
        streaming=False,
    )  # fmt: skip
    assert "hidden" not in str(dict(options.client))
    assert ConsumerConfig.from_mapping(options.client).sasl_password == "hidden"
