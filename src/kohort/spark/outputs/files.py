"""Files: a directory for each batch, and a manifest that decides which of them count.

Shell: Hadoop's file systems, through the driver's JVM; randomness (names of attempts).

    PATH/kohort_batch=7/part-....parquet      a committed batch
    PATH/_kohort/manifests/7.json             its manifest: query, checkpoint, files
    PATH/_kohort/attempts/8-3f2a.../          a batch that is being written

Rules:
- A batch is written into a directory of its attempt, where readers do not look. The manifest
  appears in one step, and only where there is none; then the directory is moved to its place.
- A driver killed after the manifest left a directory to move: the next batch, or the same one
  again, moves it. Attempts without a manifest are removed.
"""

# pyspark's types are incomplete, so strict checking would report nothing else.
# pyright: basic
from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from kohort.errors import ConfigError, StorageError
from kohort.spark.outputs.fence import Batch, Fence

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMATS: Final = ("parquet", "orc", "json", "csv", "avro", "text")
DIRECTORY: Final = "_kohort"
BATCH: Final = "kohort_batch"


@dataclass(frozen=True)
class FileOutput:
    """The files of one query; see `to_files` for the meaning of the arguments."""

    path: str
    format: str = "parquet"
    partition_by: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise ConfigError(
                f"files {self.path}: format {self.format!r}; choose one of {', '.join(FORMATS)}"
            )
        if not self.path:
            raise ConfigError("files: name the directory, as to_files('/data/flights')")

    @property
    def name(self) -> str:
        return f"the directory {self.path}"

    @property
    def remedy(self) -> str:
        return f"remove {self.path}/{DIRECTORY}"

    def fence(self, spark: SparkSession, batch: Batch) -> Fence | None:
        """See `CommitOutput`. Raises ConfigError where the directory is another query's."""
        manifests = Manifests(spark, self.path)
        last = manifests.last(batch.batch_id)
        if last is None:
            return None
        if last["query"] != batch.query:
            raise ConfigError(
                f"{batch}: {self.path} belongs to query {last['query']!r}; each query needs a "
                "directory of its own"
            )
        manifests.settle(last)
        return Fence(last["batch"], last["checkpoint"])

    def write(self, frame: DataFrame, batch: Batch) -> None:
        """See `CommitOutput`."""
        clash = {BATCH} & set(frame.columns)
        if clash:
            raise ConfigError(f"{batch}: the column {BATCH} is of the directories' names")
        manifests = Manifests(frame.sparkSession, self.path)
        attempt = f"{batch.batch_id}-{secrets.token_hex(6)}"
        place = manifests.attempt(attempt)
        writer = frame.write.format(self.format).options(**self.options).mode("errorifexists")
        (writer.partitionBy(*self.partition_by) if self.partition_by else writer).save(place)
        manifest = {
            "schema": 1,
            "query": batch.query,
            "checkpoint": batch.checkpoint,
            "batch": batch.batch_id,
            "attempt": attempt,
            "files": manifests.files(place),
        }
        manifests.commit(manifest)
        manifests.settle(manifest)


class Manifests:
    """The manifests of a directory, on the file system by which Spark reaches it."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        context: Any = spark.sparkContext
        jvm = context._jvm
        self._jvm = jvm.org.apache.hadoop.fs
        self._io = jvm.org.apache.hadoop.io.IOUtils
        self._bytes = jvm.java.io.ByteArrayOutputStream
        self._gateway = context._gateway
        self._root = path.rstrip("/")
        configuration = context._jsc.hadoopConfiguration()
        where = self._at()
        self._files = where.getFileSystem(configuration)
        self._context = self._jvm.FileContext.getFileContext(
            self._files.makeQualified(where).toUri(), configuration
        )

    def _at(self, *names: str) -> Any:
        return self._jvm.Path("/".join([self._root, *names]))

    def _manifest(self, batch_id: int) -> Any:
        return self._at(DIRECTORY, "manifests", f"{batch_id}.json")

    def attempt(self, name: str) -> str:
        """Where an attempt writes."""
        return str(self._at(DIRECTORY, "attempts", name).toString())

    def last(self, batch_id: int) -> dict[str, Any] | None:
        """The greatest manifest. Looked up by the next batch's id; a listing is the exception."""
        there = [n for n in (batch_id - 1, batch_id, batch_id + 1) if self._is_there(n)]
        if not there or there[-1] > batch_id:
            there = self._listed()
        return self._read(max(there)) if there else None

    def _is_there(self, batch_id: int) -> bool:
        return batch_id >= 0 and bool(self._files.exists(self._manifest(batch_id)))

    def _listed(self) -> list[int]:
        directory = self._at(DIRECTORY, "manifests")
        if not self._files.exists(directory):
            return []
        names = [str(s.getPath().getName()) for s in self._files.listStatus(directory)]
        stems = [n.removesuffix(".json") for n in names if n.endswith(".json")]
        return [int(stem) for stem in stems if stem.isdigit()]

    def _read(self, batch_id: int) -> dict[str, Any]:
        source, target = self._files.open(self._manifest(batch_id)), self._bytes()
        self._io.copyBytes(source, target, 4_096, True)
        return json.loads(target.toString("UTF-8"))

    def files(self, place: str) -> list[dict[str, Any]]:
        """The data files of an attempt."""
        listed = self._files.listFiles(self._jvm.Path(place), True)
        above = len(self._files.makeQualified(self._jvm.Path(place)).toString()) + 1
        found: list[dict[str, Any]] = []
        while listed.hasNext():
            status = listed.next()
            name = str(status.getPath().toString())[above:]
            if not name.rpartition("/")[2].startswith(("_", ".")):
                found.append({"name": name, "bytes": int(status.getLen())})
        return sorted(found, key=lambda one: one["name"])

    def commit(self, manifest: Mapping[str, Any]) -> None:
        """Make the manifest appear, whole. Raises py4j's error where there is one already."""
        final = self._manifest(manifest["batch"])
        draft = self._at(DIRECTORY, "manifests", f".{manifest['attempt']}")
        stream = self._files.create(draft, True)
        stream.write(bytearray(json.dumps(manifest).encode()))
        stream.close()
        options = self._gateway.new_array(self._jvm.Options.Rename, 1)
        options[0] = self._jvm.Options.Rename.NONE
        self._context.rename(draft, final, options)

    def settle(self, manifest: Mapping[str, Any]) -> None:
        """Move a committed batch to its place, unless it is there; remove all other attempts."""
        attempt = self._jvm.Path(self.attempt(manifest["attempt"]))
        place = self._at(f"{BATCH}={manifest['batch']}")
        if self._files.exists(attempt):
            if self._files.exists(place):  # a move that is not atomic was cut off
                self._move_each(manifest, attempt, place)
            else:
                self._move(attempt, place)
        self._files.delete(self._at(DIRECTORY, "attempts"), True)

    def _move_each(self, manifest: Mapping[str, Any], attempt: Any, place: Any) -> None:
        """Move what a cut-off move has left behind: each file is at one of the two, or at both."""
        for file in manifest["files"]:
            source, target = (self._jvm.Path(at, file["name"]) for at in (attempt, place))
            if self._files.exists(source):
                self._files.delete(target, False)
                self._files.mkdirs(target.getParent())
                self._move(source, target)

    def _move(self, source: Any, target: Any) -> None:
        """Raises StorageError where the file system refuses: nothing is deleted then."""
        if not self._files.rename(source, target):
            raise StorageError(
                f"{source.toString()} could not be moved to {target.toString()}: the file system "
                "refused it. Nothing was deleted; the next run moves it"
            )
