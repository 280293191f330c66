"""Try an installed Kohort from outside its source tree: what a user does in the first minute.

Standard library and Kohort only. Run it with `python -I`, so that it sees what is installed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

TIMEOUT_S = 60
DEMO_TIMEOUT_S = 900
KOHORT = str(Path(sysconfig.get_path("scripts")) / "kohort")


@contextmanager
def broker(folder: str) -> Iterator[str]:
    """`kohort broker run` in a process of its own; its address."""
    words = [KOHORT, "broker", "run", "--port", "0", "--data-dir", folder]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line.startswith("ready on "), f"the broker printed {line!r}"
        yield line.split()[2]
    finally:
        process.terminate()
        assert process.wait(TIMEOUT_S) == 0, "the broker did not end in peace"


def check_installation(kernel: str) -> None:
    """Kohort is in this environment, with the kernel that its wheel promises."""
    import kohort
    from kohort.records.implementation import KERNEL

    assert kohort.__file__, "kohort is a namespace, not a package"
    assert kohort.__file__.startswith(sys.prefix), kohort.__file__
    assert kernel == KERNEL, f"the {KERNEL} kernel is installed, {kernel} expected"
    assert (Path(kohort.__file__).parent / "py.typed").exists()


def produce_and_consume(servers: str) -> None:
    """A producer, and a group that reads and commits."""
    from kohort import Admin, Consumer, Producer, TopicPartition

    with Producer(bootstrap_servers=servers, compression_type="lz4") as producer:
        for number in range(100):
            producer.send("orders", b"%0500d" % number, key=b"k").result(TIMEOUT_S)  # lz4 packs it
    with Consumer(
        bootstrap_servers=servers, group_id="billing", auto_offset_reset="earliest"
    ) as consumer:
        consumer.subscribe(["orders"])
        values: list[bytes | None] = []
        for record in consumer:
            values.append(record.value)
            if len(values) == 100:
                break
    assert sorted(values, key=lambda v: int(v or b"")) == [b"%0500d" % n for n in range(100)]
    with Admin(bootstrap_servers=servers) as admin:
        assert admin.list_group_offsets("billing")[TopicPartition("orders", 0)].offset == 100


def run_an_app(servers: str) -> None:
    """A handler, a failure that goes to the dead-letter topic, a value decoded from JSON."""
    from kohort import App, Permanent, Producer

    with Producer(bootstrap_servers=servers) as producer:
        for amount in (-1, 5):
            producer.send("payments", b'{"amount": %d}' % amount).result(TIMEOUT_S)
    app = App("billing-app", bootstrap_servers=servers, retries="1s")
    billed: list[int] = []

    @app.handler("payments", order="partition", decode="json")
    def bill(record) -> None:
        if record.data["amount"] < 0:
            raise Permanent("negative_amount")
        billed.append(record.data["amount"])
        app.stop()

    app.run()
    assert billed == [5]


def use_the_command_line(servers: str) -> None:
    """`kohort produce`, `consume` and `group lag`, as in the README."""
    where = ["--bootstrap", servers]
    run([KOHORT, "produce", "words", *where], "hello\n")
    consume = [KOHORT, "consume", "words", "--group", "cli", "--from-beginning", "--max", "1"]
    assert "hello" in run([*consume, *where])
    assert "words" in run([KOHORT, "group", "lag", "cli", *where])


def miss_the_demo(servers: str) -> None:
    """Without kohort-demo, the commands that need it say in one line how to install it."""
    for words in (["demo", "flights"], ["simulate", "compare"]):
        done = subprocess.run([KOHORT, *words], stderr=subprocess.PIPE, text=True, check=False)
        assert done.returncode == 1, done
        assert done.stderr.count("\n") == 1, done.stderr
        assert done.stderr.endswith("install it with: pip install 'kohort[demo]'\n"), done.stderr


def compare_designs(servers: str) -> None:
    """`kohort simulate compare`, which is part of kohort-demo."""
    with tempfile.TemporaryDirectory() as folder:
        words = ["simulate", "compare", "--size", "10x20", "--no-plots", "--out", folder]
        assert "zookeeper" in run([KOHORT, *words])


def load_flights(servers: str) -> None:
    """`kohort demo flights` on some hundred flights; its exit code says that the books balance."""
    with tempfile.TemporaryDirectory() as folder:
        words = ["demo", "flights", "--limit", "300", "--retries", "1s", "--dir", folder]
        subprocess.run([KOHORT, *words], check=True, timeout=DEMO_TIMEOUT_S)


def run(words: list[str], text: str = "") -> str:
    """What a command prints. Raises CalledProcessError."""
    return subprocess.run(
        words, input=text, stdout=subprocess.PIPE, text=True, check=True, timeout=TIMEOUT_S
    ).stdout


def read_with_spark(servers: str) -> None:
    """`format("kohort")`, a batch and a stream."""
    from pyspark.sql import SparkSession

    # this environment is not activated: `python3` of the path is another one, without Kohort
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .getOrCreate()
    )
    try:
        reader = spark.read.format("kohort").option("kafka.bootstrap.servers", servers)
        assert reader.option("subscribe", "orders").load().count() == 100
    finally:
        spark.stop()


def main() -> None:
    """Run every check; the first that fails ends it with its traceback."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kernel", choices=["cython", "python"], default="cython")
    parser.add_argument("--spark", action="store_true", help="Spark is installed")
    parser.add_argument("--demo", action="store_true", help="kohort-demo is installed")
    options = parser.parse_args()
    check_installation(options.kernel)
    checks: list[Callable[[str], None]] = [produce_and_consume, run_an_app, use_the_command_line]
    if options.spark:
        checks.append(read_with_spark)
    checks.append(compare_designs if options.demo else miss_the_demo)
    if options.demo and options.spark:
        checks.append(load_flights)
    with tempfile.TemporaryDirectory() as folder, broker(folder) as servers:
        for check in checks:
            check(servers)
    names = ", ".join(check.__name__.replace("_", " ") for check in checks)
    print(f"CPython {sys.version.split()[0]}, {options.kernel} kernel: {names}: ok")


if __name__ == "__main__":
    main()
