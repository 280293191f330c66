"""Record what this version of Kohort writes, for the upgrade tests of later versions.

Run it after `make release` has dated the changes, and commit the archive: `python
tools/record_release.py`. It needs Java and PostgreSQL. What is in the archive:
`tests/upgrade/release.py`; the date of the release, by which `--check` knows an old archive.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.pages import tool
from tests.patience import until
from tests.postgres import PostgresServer, program, unavailable
from tests.upgrade import release

import kohort
from kohort import Admin, Consumer, NewTopic, Producer, TopicPartition
from kohort.acl import Acl, Operation, Pattern, Permission, Resource
from kohort.errors import KafkaTimeoutError

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
SMALL = {"segment.bytes": "1048576", "index.interval.bytes": "256"}
STAMP_MS = 1_700_000_000_000
APPS = ("bills", "bills-pg")


def create(servers: str) -> None:
    """Topics, users, access control, quotas, settings."""
    with Admin(bootstrap_servers=servers) as admin:
        admin.create_topics(
            [
                NewTopic("codecs", 2),
                NewTopic("segments", 1, configs=SMALL),
                NewTopic("compacted", 1, configs={"cleanup.policy": "compact"}),
                NewTopic("transactions", 1),
                NewTopic("orders", 1),
                *(NewTopic(name, 1) for name in ("customers", "sales", "matches")),
            ]
        )
        for user in ("admin", "ada"):
            admin.upsert_user(user, f"{user}s-word")
        admin.alter_quotas({"user": "ada"}, {"producer_byte_rate": 1e6})


def restrict(servers: str) -> None:
    """Ada may read one topic."""
    allow = Acl(
        Resource.TOPIC,
        "codecs",
        Pattern.LITERAL,
        "User:ada",
        "*",
        Operation.READ,
        Permission.ALLOW,
    )
    with Admin(bootstrap_servers=servers, **release.login("admin", "admins-word")) as admin:
        admin.create_acls([allow])


def fill(servers: str) -> None:
    """Records of every kind; a transaction is committed, one aborted, one left open."""
    for codec in CODECS:
        with Producer(bootstrap_servers=servers, compression_type=codec) as producer:
            for number in range(20):
                value = None if number == 7 else f"{codec} {number} ".encode() * 4
                producer.send(
                    "codecs",
                    value,
                    b"%d" % number if number % 3 else None,
                    number % 2,
                    timestamp_ms=STAMP_MS + number,
                    headers=[("codec", codec.encode()), ("none", None)],
                )
    with Producer(bootstrap_servers=servers) as producer:
        for number in range(3):
            producer.send("segments", b"%d" % number * 700_000, timestamp_ms=STAMP_MS).result(60)
        for number in range(40):
            producer.send("compacted", b"%d" % number, b"k%d" % (number % 5))
        producer.send("compacted", None, b"k0")


def transact(servers: str, left: Any) -> None:
    """One transaction is committed, one aborted; `left` opens one that nobody ends."""
    with Producer(bootstrap_servers=servers, transactional_id="moves") as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.send("transactions", b"committed", b"a")
        producer.begin_transaction()
        producer.send("transactions", b"aborted", b"b").result(60)
        producer.abort_transaction()
    left.init_transactions()
    left.begin_transaction()
    left.send("transactions", b"open", b"c").result(60)


def read_in_groups(servers: str) -> None:
    """Groups of both protocols that have read a part; one keeps a static member."""
    for protocol in ("classic", "consumer"):
        with Consumer(
            bootstrap_servers=servers,
            group_id=protocol,
            group_protocol=protocol,
            group_instance_id="static-1",
            auto_offset_reset="earliest",
            max_poll_records=10,
        ) as consumer:
            consumer.subscribe(["codecs"])
            seen = 0
            while seen < 30:
                seen += len(consumer.poll(1))


def run_apps(servers: str, stores: dict[str, str]) -> None:
    """An order that is loaded, one that fails, one that waits for its retry."""
    with Producer(bootstrap_servers=servers) as producer:
        for name, amount in (("ada", 5), ("ada", 0), ("eve", 7)):
            order = json.dumps({"name": name, "amount": amount}).encode()
            producer.send("orders", order, timestamp_ms=STAMP_MS)
    with Admin(bootstrap_servers=servers) as admin:
        for group, store in stores.items():

            def done(group: str = group) -> bool:
                offsets = admin.list_group_offsets(group)
                at = offsets.get(TopicPartition("orders", 0))
                return at is not None and at.offset == 3

            with release.running(release.bills(group, servers, store, "ada")):
                until(done, f"the offsets of {group}")


def run_pipeline(servers: str, home: Path) -> None:
    """Handlers and a stateful step on Spark: loaded, failed, waiting."""
    from kohort.spark import load_pipeline, session

    rows = {
        "customers": [{"name": "ada"}],
        "sales": [{"customer": "ada", "amount": 5}, {"customer": "eve", "amount": 7}],
        "matches": [{"team": "reds", "goals": 2}, {"team": "reds", "goals": -1}],
    }
    file = release.write_pipeline(home, servers)
    pipeline = load_pipeline(file)
    spark = session("record a release", master="local[2]", profile="test")
    try:
        for topic, values in rows.items():
            with Producer(bootstrap_servers=servers) as producer:
                for value in values:
                    producer.send(topic, json.dumps(value).encode())
            pipeline.run("available_now", spark=spark)
    finally:
        spark.stop()
        file.unlink()


def keep_all(servers: str) -> None:
    """No topic may lose its records before a later release reads them."""
    with Admin(bootstrap_servers=servers) as admin:
        for topic in admin.list_topics():
            admin.alter_configs(topic.name, {"retention.ms": "-1"})


def expected(servers: str, day: str) -> dict[str, Any]:
    """What a reader of this version sees, and the day of the release."""
    with Admin(bootstrap_servers=servers) as admin:
        groups = {
            group: {
                f"{tp.topic}/{tp.partition}": at.offset
                for tp, at in admin.list_group_offsets(group).items()
            }
            for group in ("classic", "consumer", *APPS)
        }
        topics = {
            topic.name: topic.partition_count
            for topic in admin.list_topics()
            if not topic.name.startswith("__")
        }
    return {
        "version": kohort.__version__,
        "released": day,
        "topics": topics,
        "groups": groups,
        "records": {topic: release.everything(servers, topic) for topic in release.READ},
    }


def record(home: Path, postgres: PostgresServer, day: str) -> None:
    """Write everything into a directory."""
    database = postgres.new_database()
    stores: dict[str, str] = dict(zip(APPS, (f"sqlite:///{home}/bills.db", database), strict=True))
    with release.broker(home) as cluster:
        servers = cluster.bootstrap
        left = Producer(bootstrap_servers=servers, transactional_id="left")
        create(servers)
        fill(servers)
        transact(servers, left)
        read_in_groups(servers)
        run_apps(servers, stores)
        run_pipeline(servers, home)
        keep_all(servers)
        (home / "expected.json").write_text(json.dumps(expected(servers, day), indent=1))
        cluster.stop()
        with contextlib.suppress(KafkaTimeoutError):  # its broker is gone, on purpose
            left.close(0)
    with release.secured_broker(home) as cluster:
        restrict(cluster.bootstrap)
    dump = [program("pg_dump") or "", "--inserts", "--no-owner", "-d", database]
    text = subprocess.run(dump, check=True, capture_output=True, text=True).stdout
    (home / "bills.sql").write_text(text)


def main() -> int:
    """Record, pack."""
    prepare = tool("prepare_release")
    try:
        day = prepare.Release(kohort.__version__).day()
    except prepare.Refused as error:
        print(f"nothing was recorded: {error}")
        return 1
    if why := unavailable():
        print(f"nothing was recorded: {why}")
        return 1
    target = release.RELEASES / f"{kohort.__version__}.tar.gz"
    postgres = PostgresServer()
    home = Path(tempfile.mkdtemp(prefix="kohort-release-"))
    try:
        record(home, postgres, day)
        target.parent.mkdir(exist_ok=True)
        with tarfile.open(target, "w:gz") as archive:
            for path in sorted(home.iterdir()):
                archive.add(path, path.name)
    finally:
        postgres.remove()
        shutil.rmtree(home)
    print(f"==> {target} ({target.stat().st_size / 1e3:.0f} KB)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
