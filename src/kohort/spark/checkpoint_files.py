"""The files of a pipeline's checkpoint: in a local directory, or wherever Hadoop can write.

Shell: files.

Rules:
- A place with a scheme (`s3a://`, `hdfs://`, `file://`) is Hadoop's: Spark's own settings and jars
  decide how it is reached.
- With Spark Connect every place is the server's, and is read and written by queries.
- Names are paths below the root. A file that cannot be read raises the file system's error.
"""

# pyspark's types are incomplete, so strict checking would report nothing else.
# pyright: basic
from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from kohort.spark.sessions import is_connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL_CHECKPOINTS: Final = Path(".kohort/checkpoints")
"""Where a pipeline's checkpoint is by default, and its lock where the checkpoint is elsewhere."""


def is_url(place: str) -> bool:
    """Whether a place is Hadoop's to read, and not a path of this machine."""
    return "://" in place


class CheckpointFiles(Protocol):
    """Where the queries of a pipeline keep their checkpoints."""

    def location(self, name: str) -> str:
        """What Spark gets as `checkpointLocation`."""
        ...

    def read(self, name: str) -> str | None:
        """A file's text; None where there is no such file."""
        ...

    def write(self, name: str, text: str) -> None: ...
    def exists(self, name: str) -> bool: ...
    def remove(self, name: str) -> None:
        """Remove a directory with all that is in it."""
        ...


class LocalFiles:
    """A directory of this machine."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def location(self, name: str) -> str:
        """As `CheckpointFiles.location`."""
        return str(self._root.absolute() / name)

    def read(self, name: str) -> str | None:
        """As `CheckpointFiles.read`."""
        try:
            return (self._root / name).read_text()
        except FileNotFoundError:
            return None

    def write(self, name: str, text: str) -> None:
        """As `CheckpointFiles.write`."""
        path = self._root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def exists(self, name: str) -> bool:
        """As `CheckpointFiles.exists`."""
        return (self._root / name).exists()

    def remove(self, name: str) -> None:
        """As `CheckpointFiles.remove`."""
        shutil.rmtree(self._root / name)


class HadoopFiles:
    """A place that the session's Hadoop reaches."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        self._root = root.rstrip("/")
        self._jvm: Any = spark._jvm
        inner: Any = spark._jsc
        at = self._path("")
        self._files: Any = at.getFileSystem(inner.hadoopConfiguration())

    def location(self, name: str) -> str:
        """As `CheckpointFiles.location`."""
        return f"{self._root}/{name}"

    def read(self, name: str) -> str | None:
        """As `CheckpointFiles.read`."""
        if not self.exists(name):
            return None
        stream = self._files.open(self._path(name))
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def write(self, name: str, text: str) -> None:
        """As `CheckpointFiles.write`."""
        stream = self._files.create(self._path(name), True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()

    def exists(self, name: str) -> bool:
        """As `CheckpointFiles.exists`."""
        return bool(self._files.exists(self._path(name)))

    def remove(self, name: str) -> None:
        """As `CheckpointFiles.remove`."""
        self._files.delete(self._path(name), True)

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self._root}/{name}")


class ServerFiles:
    """A place of a Spark Connect server, which only queries reach.

    A note is a directory that one row of text fills, since a query writes no single file.
    """

    def __init__(self, spark: SparkSession, root: str) -> None:
        self._spark = spark
        self._root = root.rstrip("/")

    def location(self, name: str) -> str:
        """As `CheckpointFiles.location`. A relative path is relative to the server's."""
        return f"{self._root}/{name}"

    def read(self, name: str) -> str | None:
        """As `CheckpointFiles.read`."""
        return self._text(_note(name))

    def write(self, name: str, text: str) -> None:
        """As `CheckpointFiles.write`."""
        self._overwrite(_note(name), [(text,)])

    def exists(self, name: str) -> bool:
        """As `CheckpointFiles.exists`, of a checkpoint that a query has begun."""
        return self._text(f"{name}/metadata") is not None

    def remove(self, name: str) -> None:
        """As `CheckpointFiles.remove`; an empty directory stays."""
        self._overwrite(name, [])

    def _text(self, name: str) -> str | None:
        from pyspark.errors import AnalysisException

        try:
            rows = self._spark.read.text(self.location(name)).collect()
        except AnalysisException as error:
            if error.getCondition() != "PATH_NOT_FOUND":
                raise
            return None
        return "\n".join(row.value for row in rows)

    def _overwrite(self, name: str, rows: list[tuple[str]]) -> None:
        frame = self._spark.createDataFrame(rows, "value string").coalesce(1)
        frame.write.mode("overwrite").text(self.location(name))


def _note(name: str) -> str:
    return f"{name}.note"


def checkpoint_files(place: str, spark: SparkSession) -> CheckpointFiles:
    """The files at a place."""
    if is_connect(spark):
        return ServerFiles(spark, place)
    return HadoopFiles(spark, place) if is_url(place) else LocalFiles(Path(place))
