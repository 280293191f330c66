"""Formats of `kohort.serdes` in a pipeline: pickled by configuration, kept in the worker."""

from __future__ import annotations

import pickle
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kohort.errors import ConfigError
from kohort.serdes import (
    AvroSerde,
    IntegerSerde,
    JsonSchemaSerde,
    JsonSerde,
    SchemaRegistry,
    Serde,
    StringSerde,
)
from kohort.spark import Pipeline
from tests.serdes.fake_registry import Registry, running

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kohort.testing import Cluster

USER = {
    "type": "record",
    "name": "User",
    "fields": [{"name": "name", "type": "string"}, {"name": "age", "type": "int"}],
}


@pytest.fixture
def fake() -> Iterator[Registry]:
    with running() as registry:
        yield registry


def again(value: Any) -> Any:
    cloudpickle = pytest.importorskip("pyspark.cloudpickle")
    return pickle.loads(cloudpickle.dumps(value))


def test_formats_are_pickled_by_configuration(fake: Registry) -> None:
    user = {"name": "Eva", "age": 7}
    registry = SchemaRegistry(fake.url, token="secret", timeout_s=3)
    serdes: list[tuple[Serde[Any], object]] = [
        (StringSerde("latin-1"), "\xe9"),
        (IntegerSerde(), 7),
        (JsonSerde(), user),
        (AvroSerde(registry, USER), user),
        (Serde(str.encode, bytes.decode), "x"),
        (JsonSchemaSerde(registry, {"type": "object"}, register=False, validate=False), user),
    ]
    for serde, value in serdes:
        copy = again(serde)
        assert type(copy) is type(serde)
        if isinstance(serde, JsonSchemaSerde):
            registry.register("t-value", serde._schema_for("t-value", value))
        assert copy.deserialize("t", serde.serialize("t", value)) == value
        assert copy.serialize("t", value) == serde.serialize("t", value)
    assert set(fake.authorization) == {"Bearer secret"}


def test_what_cannot_be_sent_is_named_before_anything_starts(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    registry = SchemaRegistry("https://r:8081", tls=ssl.create_default_context())
    for decode, says in ((AvroSerde(registry), "SSL_CERT_FILE"), (Stubborn(), "cannot be sent")):
        pipeline = Pipeline("p", store=f"sqlite:///{tmp_path}/s.db")
        pipeline.handler("t", decode=decode)(lambda record, store: None)
        with pytest.raises(ConfigError, match=says):
            pipeline.spec({})


class Stubborn:
    """A decoder that holds what belongs to one process."""

    def __call__(self, data: bytes) -> bytes:
        return data

    def __reduce__(self) -> str:
        raise TypeError("cannot pickle a socket")


def test_a_worker_asks_the_registry_once_for_all_its_tasks(fake: Registry, tmp_path: Path) -> None:
    data = AvroSerde(SchemaRegistry(fake.url), USER).serialize("users", {"name": "Eva", "age": 7})
    pipeline = Pipeline("p", store=f"sqlite:///{tmp_path}/s.db")
    pipeline.handler("users", decode=AvroSerde(SchemaRegistry(fake.url)))(
        lambda record, store: None
    )
    fake.asked.clear()
    spec = pipeline.spec({})
    for _ in range(3):
        (handler,) = again(spec).handlers
        assert handler.decode(data) == {"name": "Eva", "age": 7}
    assert fake.asked == ["GET /schemas/ids/1"]


@pytest.mark.extended
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_avro_is_loaded_by_a_pipeline(
    spark: SparkSession,
    cluster: Cluster,
    topic: Callable[..., str],
    produce: Callable[..., None],
    fake: Registry,
    tmp_path: Path,
) -> None:
    name = topic()
    serde = AvroSerde(SchemaRegistry(fake.url), USER)
    users = [serde.serialize(name, {"name": f"u{n}", "age": n}) for n in range(20)]
    produce(name, *((n % 2, None, user) for n, user in enumerate(users)), (0, None, b"{}"))
    pipeline = Pipeline(
        "avro",
        store=f"sqlite:///{tmp_path}/s.db",
        bootstrap_servers=cluster.bootstrap,
        checkpoint=tmp_path / "checkpoint",
        retries="none",
    )

    @pipeline.setup
    def tables(store: Any) -> None:
        store.run("CREATE TABLE IF NOT EXISTS users (name TEXT, age INTEGER)")

    @pipeline.handler(name, table="users", decode=AvroSerde(SchemaRegistry(fake.url)))
    def load(record: Any, store: Any) -> Any:
        return record.data

    last = pipeline.run("available_now", spark=spark)
    store = pipeline.open_store()
    assert store.query("SELECT count(*), sum(age) FROM users") == [(20, sum(range(20)))]
    assert last.failed == 1
    store.close()
