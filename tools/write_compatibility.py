"""Write `docs/compatibility.md` from the broker's API modules and its configuration.

python tools/write_compatibility.py            write it
python tools/write_compatibility.py --check    fail when it is not up to date
"""

from __future__ import annotations

import ast
import itertools
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from kohort.broker.apis import APIS
from kohort.broker.base import config
from kohort.broker.base.request import Api
from kohort.broker.log import topic_config as topic_settings

TARGET = ROOT / "docs" / "compatibility.md"
DIFFERS = "Differs from Apache Kafka: "

INTRODUCTION = """\
# Compatibility

Written by `make compatibility` from the docstrings of `kohort/broker/apis/` and from the broker's
configuration; a test fails when it is not up to date.

Kohort's client uses the protocol of Apache Kafka 4.x; a test compares its message definitions with
Apache Kafka's. The embedded broker serves the clients below. [Left out](skipped.md) lists what it
does not have, with reasons. [Differences](differences.md) lists, field by field, where its answers
differ from Apache Kafka's.

## Clients that are tested

`tests/e2e/` runs each client against the embedded broker and in groups with the others. kcat has a
smoke test, which is skipped where kcat is not installed.

| client | version | assignors shared with ours |
|---|---|---|
| confluent-kafka | 2.16.1 (librdkafka 2.16.0) | range, roundrobin, cooperative-sticky |
| aiokafka | 0.14.0 | range, roundrobin, sticky |
| kafka-python | 3.0.12 | range, roundrobin, sticky, cooperative-sticky |

Each of them:

- produces with every codec, with and without idempotence; the other clients and Kohort read back
  the same keys, values, headers and timestamps, as records and as Arrow columns;
- consumes in a group of three while one member joins and one is killed, and another client resumes
  from its commits: no record is lost, no commit goes back, no committed record is read twice;
- shares a topic with a member of each other client, under every common assignor, without overlap or
  gap;
- writes records and offsets in transactions, and reads committed records of the others:
  `read_committed` readers never see records of an aborted transaction;
- manages topics, partitions, configurations, records, offsets and groups, with the same results as
  Kohort's;
- continues after the broker is killed (`kill -9`) and restarted: acknowledged records are there,
  once and in order.

Spark's own Kafka connector, in the JVM, is run by `make interop`
(`tests/interop/test_spark_connector.py`) on Spark 4.3.0 with Java's client 3.9.2. Maven Central
gave out no connector of 4.3 in November 2026, so connector (spark-sql-kafka-0-10 4.2.0), token
provider (4.0.0) and Spark are of three releases; the same release of all three has not been run. It
writes and reads batches and streams, with headers, in ranges by offset and by time, by pattern,
divided by minPartitions, read_committed, and over deleted records; `format("kohort")` reads the
same rows.

Findings about these clients (no change of the broker would help):

- aiokafka and kafka-python refuse to send a record without key and value; kafka-python also one
  with a null header value. Both read them.
- kafka-python 3.0.12: when a topic's metadata comes after the first join, it joins again; if a
  `poll` ends while that second join is under way, its answer is forgotten, no heartbeat is sent and
  the member never comes back. Give its first polls several seconds.
- librdkafka 2.16: when a broker that coordinates a group is killed and started again under
  transactions, the next `send_offsets_to_transaction` does not end, whatever its timeout: against
  the embedded broker and against Apache Kafka alike ([compat-findings.md](compat-findings.md)).
  Make a new producer: it takes over the transactional id.
- Apache Kafka 4.3, one node, killed with -9 between a transaction's PrepareCommit and its markers:
  once its coordinator wrote CompleteCommit after the start though the marker stood in none of the
  topic's partitions; a later commit of the same producer then committed the records, whose offsets
  were lost, a second time. Read off its own files when `tests/e2e/test_interop_transactions.py` had
  failed in `make interop`; some fifty runs of it on the embedded broker did not fail.
- kafka-python 3.0.12 leaves sockets unclosed whose connect was refused.
- kafka-python 3.0.12 compresses with snappy, lz4 and zstd only where `python-snappy`, `lz4` and
  `zstandard` are installed.
- kafka-python is run with `api_version` from (1, 0) to (4, 0); (0, 10, 2) sends a message format
  that ended with Kafka 4.0, and is refused (the broker's log says so, in one line).
"""


def summary(api: Api) -> tuple[str, str, str]:
    """Name with key, KIPs, and where it differs, from its module's docstring."""
    doc = import_module(api.module).__doc__ or ""
    paragraphs = [" ".join(p.split()) for p in doc.strip().split("\n\n")]
    name, _, kips = paragraphs[0].partition(".")
    title, _, versions = name.partition(", v")
    if versions != _range(api):
        raise SystemExit(f"{api.module} says v{versions} and serves v{_range(api)}")
    differs = [p.removeprefix(DIFFERS) for p in paragraphs if p.startswith(DIFFERS)]
    return title, kips.strip().rstrip("."), " ".join(differs)


def _range(api: Api) -> str:
    one = api.min_version == api.max_version
    return str(api.min_version) if one else f"{api.min_version}-{api.max_version}"


def apis() -> Iterator[str]:
    """A row an API, by key."""
    yield from ("", "## APIs that the broker serves", "")
    yield "All that it lists in ApiVersions; anything else is refused by closing the connection."
    yield from (
        "",
        "| API (key) | versions | KIPs | differs from Apache Kafka |",
        "|---|---|---|---|",
    )
    for _, api in sorted(APIS.items()):
        title, kips, differs = summary(api)
        yield f"| {title} | {_range(api)} | {kips} | {differs} |"


def defaults() -> Iterator[str]:
    """Broker settings whose note begins with Kafka's default."""
    yield from ("", "## Defaults that are not Kafka's", "")
    yield from ("| setting | ours | Kafka's, and why |", "|---|---|---|")
    tree = ast.parse(Path(config.__file__).read_text())
    body = next(
        n.body for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "BrokerConfig"
    )
    for field, note in itertools.pairwise(body):
        if not isinstance(field, ast.AnnAssign) or not isinstance(note, ast.Expr):
            continue
        if isinstance(note.value, ast.Constant) and str(note.value.value).startswith("Kafka: "):
            name = ast.unparse(field.target)
            text = " ".join(str(note.value.value).removeprefix("Kafka: ").split())
            yield f"| `{name.replace('_', '.')}` | {getattr(config.BrokerConfig, name)} | {text} |"


def ignored() -> Iterator[str]:
    """Topic configurations without effect."""
    yield from ("", "## Topic configurations", "")
    yield "Acted upon: " + ", ".join(f"`{name}`" for name in sorted(topic_settings.SETTINGS)) + "."
    yield ""
    names = ", ".join(f"`{name}`" for name in sorted(topic_settings.ACCEPTED_AND_IGNORED))
    yield f"Stored and shown, without effect: {names}. Any other name is refused."


def page() -> str:
    """The whole page."""
    groups = (
        "",
        "## Groups",
        "",
        "What differs beyond the table, with reasons: "
        "[adr/0003](adr/0003-generation-before-joins.md), "
        "[adr/0008](adr/0008-consumer-groups-never-share.md). "
        "What each request is answered in each state: [diagrams](diagrams/).",
    )
    return INTRODUCTION + "\n".join([*apis(), *defaults(), *ignored(), *groups, ""])


def stale() -> bool:
    """Whether the page is not what would be written now."""
    return not TARGET.exists() or TARGET.read_text() != page()


if __name__ == "__main__":
    if "--check" in sys.argv[1:]:
        sys.exit("docs/compatibility.md is not up to date: `make compatibility`" if stale() else 0)
    TARGET.write_text(page())
