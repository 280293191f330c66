"""`kohort consume`: records of topics as lines, alone or as a member of a group.

Rules:
- A topic that does not exist is an error; reading never creates one.
- In a group a record counts as dealt with when its line has been written out: what a broken pipe
  or a kill swallows is read again by the next member.
- Ctrl-C ends the poll, commits what was written, and leaves the group; a second one ends at once.

Shell: signals, clock, whether the reader of a pipe is there.
"""

from __future__ import annotations

import select
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any

import click

from kohort.cli.common.completing import topics as complete_topics
from kohort.cli.common.connect import Client, client_options, existing_topics, open_admin
from kohort.cli.common.progress import Progress, progress
from kohort.cli.common.root import EXIT_PARTIAL
from kohort.errors import ConfigError, UsageError, WakeupError
from kohort.signals import handled

if TYPE_CHECKING:
    from kohort.cli.common.formats import Form
    from kohort.cli.common.positions import Start
    from kohort.cli.records.decoding import Accepts, Decoder
    from kohort.client.common.types import TopicPartition
    from kohort.client.consumer.consumer import Consumer
    from kohort.records import Record
    from kohort.serdes.basic import Part

POLL_S = 1.0
EXAMPLES = """\b
Examples:
  kohort consume greetings --from-beginning --max 1
  kohort consume orders --group billing --from-beginning --format value
  kohort consume orders --partition 2 --offset -10 --until-end
  kohort consume orders --offset @2026-01-31T06:00Z --until-end | jq .value
  kohort consume orders --offset @-1h --match-key '^ada$' --match-header source=web
  kohort consume orders --registry http://localhost:8081 --match-value '"amount": 0'
"""


@dataclass
class Bounds:
    """When to stop: after a number of records, at the end as it was, or after a silence."""

    most: int | None = None
    ends: dict[TopicPartition, int] | None = None
    silence_s: float | None = None


@dataclass
class Reading:
    """What has been read so far, and what a signal asked for."""

    count: int = 0
    signal: int = 0
    silent: bool = False
    assigned: bool = False
    committed: bool = True
    log: Callable[[str], None] = field(default=lambda text: click.echo(text, err=True))


@dataclass
class Writer:
    """Writes records as lines: decoded first, then chosen, then in their form."""

    out: IO[bytes]
    form: Form
    decode: Decoder | None
    accepts: Accepts | None
    progress: Progress

    def write(self, records: Sequence[Record]) -> int:
        """How many of the records were written."""
        self.progress.add(len(records))
        some = records if self.decode is None else list(map(self.decode, records))
        if self.accepts is not None:
            some = list(filter(self.accepts, some))
        self.out.write(b"".join(map(self.form, some)))
        self.out.flush()
        return len(some)


@click.command(epilog=EXAMPLES)
@click.argument(
    "topics", nargs=-1, required=True, shell_complete=complete_topics, metavar="TOPIC..."
)
@click.option("-g", "--group", help="Read as a member of this group, and commit.")
@click.option(
    "--group-protocol",
    type=click.Choice(["classic", "consumer"]),
    help="Who assigns partitions: a member, or the broker (KIP-848). [default: classic]",
)
@click.option(
    "--from-beginning",
    is_flag=True,
    help="Start at the first record; with --group, where the group has no committed offset.",
)
@click.option(
    "--offset",
    metavar="WHERE",
    help="earliest, latest, N, -N (the last N), @TIME or @-2h. Not with a group.",
)
@click.option(
    "-p",
    "--partition",
    "partitions",
    type=click.IntRange(min=0),
    multiple=True,
    metavar="N",
    help="Only this partition; may be given again. Not with a group.",
)
@click.option(
    "-n",
    "--max",
    "most",
    type=click.IntRange(min=1),
    metavar="N",
    help="Stop after this many records.",
)
@click.option("-e", "--until-end", is_flag=True, help="Stop at the log end of the start time.")
@click.option(
    "--timeout", metavar="TIME", help="Stop when no record arrives for this long, such as 10s."
)
@click.option(
    "-f",
    "--format",
    "form",
    type=click.Choice(["jsonl", "value", "key-value", "full"]),
    default="jsonl",
    show_default=True,
    help="The output format of a record.",
)
@click.option("--key-separator", default="\t", metavar="TEXT", help="For key-value. [default: tab]")
@click.option("--match-key", metavar="REGEX", help="Only records whose key matches.")
@click.option("--match-value", metavar="REGEX", help="Only records whose value matches.")
@click.option(
    "--match-header",
    "match_headers",
    multiple=True,
    metavar="NAME[=REGEX]",
    help="Only records with this header; may be given again.",
)
@click.option(
    "--registry",
    metavar="URL",
    envvar="KOHORT_SCHEMA_REGISTRY",
    show_envvar=True,
    help="Decode Avro, JSON Schema and Protobuf with this schema registry.",
)
@click.option(
    "--decode",
    "parts",
    type=click.Choice(["value", "key"]),
    multiple=True,
    help="With --registry: the parts to decode; repeatable. [default: value]",
)
@client_options
def consume(
    topics: tuple[str, ...],
    group: str | None,
    group_protocol: str | None,
    from_beginning: bool,
    offset: str | None,
    partitions: tuple[int, ...],
    most: int | None,
    until_end: bool,
    timeout: str | None,
    form: str,
    key_separator: str,
    match_key: str | None,
    match_value: str | None,
    match_headers: tuple[str, ...],
    registry: str | None,
    parts: tuple[Part, ...],
    client: Client,
) -> int:
    """Read records, with or without a group, until a limit or Ctrl-C.

    Without --group it starts at the end and commits nothing. Exit code 4 if --timeout expires
    before --max. With --group, records that do not match are committed, too.
    """
    from kohort.cli.common.formats import form_of, separator_of
    from kohort.cli.common.positions import parse_start
    from kohort.cli.records.decoding import acceptance, decoder
    from kohort.client.common.config import ConsumerConfig
    from kohort.client.consumer.consumer import Consumer
    from kohort.config import parse_duration_ms

    if group and (offset or partitions):
        raise click.UsageError(
            "in a group the group decides who reads what from where; leave out --group, "
            "--offset or --partition"
        )
    if group_protocol and not group:
        raise click.UsageError("--group-protocol needs --group")
    if from_beginning and offset:
        raise click.UsageError("choose --from-beginning or --offset")
    if group_protocol:
        client = client.with_flags(group_protocol=group_protocol)
    start = parse_start(offset or ("earliest" if from_beginning else "latest"), _now_ms())
    silence_s = None if timeout is None else parse_duration_ms(timeout) / 1000
    chosen = _settings(client, ConsumerConfig, group, start)
    accepts = acceptance(match_key, match_value, match_headers)
    writer = Writer(
        sys.stdout.buffer,
        form_of(form, separator_of(key_separator)),
        decoder(registry, parts),
        accepts,
        progress(sys.stdout.isatty()),
    )
    found = _partitions(client, topics, partitions)
    reading, bounds = Reading(), Bounds(most, None, silence_s)
    with Consumer(**chosen) as consumer, signals(consumer, reading):
        with suppress(WakeupError):  # a signal: closing commits the records written
            if until_end:
                bounds.ends = consumer.end_offsets(found)
            if group:
                consumer.subscribe(topics, _listener(consumer, bounds, reading))
            else:
                _place(consumer, found, start, bounds)
                reading.assigned = True
            _read(consumer, bounds, reading, writer)
        reading.committed = consumer.close().committed
    return _exit_code(reading, bounds, group)


def _settings(client: Client, role: Any, group: str | None, start: Start) -> dict[str, Any]:
    defaults: dict[str, Any] = {"allow_auto_create_topics": False}
    if group:
        defaults |= {"group_id": group, "auto_offset_reset": start.reset_policy}
    else:
        # A missing offset is an error, instead of being replaced silently.
        defaults |= {"auto_offset_reset": "none", "enable_auto_commit": False}
    chosen = client.for_role(role, **defaults)
    if group is None and chosen.get("group_id") is not None:
        raise ConfigError("give the group as --group, not as a setting: it decides how to read")
    if str(chosen.get("enable_auto_commit", True)).lower() == "false" and group:
        raise ConfigError(
            "enable_auto_commit=false with --group would commit nothing; leave it out"
        )
    return chosen


def _partitions(
    client: Client, topics: Sequence[str], wanted: Sequence[int]
) -> list[TopicPartition]:
    """The partitions to read. Raises BrokerError for a topic or partition that does not exist."""
    from kohort.client.common.types import TopicPartition

    with open_admin(client.common()) as admin:
        described = existing_topics(admin, topics)
    chosen: list[TopicPartition] = []
    for topic in described:
        numbers = [p.partition for p in described[topic].partitions]
        for number in wanted:
            if number not in numbers:
                raise UsageError(
                    f"topic {topic} has no partition {number}; it has {len(numbers)}: "
                    f"0 to {len(numbers) - 1}"
                )
        chosen += [TopicPartition(topic, n) for n in numbers if not wanted or n in wanted]
    return chosen


def _place(
    consumer: Consumer, chosen: Sequence[TopicPartition], start: Start, bounds: Bounds
) -> None:
    """Assign, and seek to the start named on the command line."""
    consumer.assign(chosen)
    firsts = consumer.beginning_offsets(chosen)
    ends = bounds.ends or consumer.end_offsets(chosen)
    by_time: dict[TopicPartition, int | None] = {}
    if start.time_ms is not None:
        at = consumer.offsets_for_times(dict.fromkeys(chosen, start.time_ms))
        by_time = {tp: None if hit is None else hit.offset for tp, hit in at.items()}
    for tp in chosen:
        consumer.seek(tp, start.offset_in(str(tp), firsts[tp], ends[tp], by_time.get(tp)))
        if bounds.ends is not None:
            consumer.limit(tp, ends[tp])


def _listener(consumer: Consumer, bounds: Bounds, reading: Reading) -> Any:
    from kohort.client.common.listener import RebalanceListener

    class Limits(RebalanceListener):
        """The end offsets at the start, as bounds of the assigned partitions."""

        def on_partitions_assigned(self, partitions: Iterable[TopicPartition]) -> None:
            reading.assigned = True
            ends: Mapping[TopicPartition, int] = bounds.ends or {}
            for tp in partitions:
                if tp in ends:
                    consumer.limit(tp, ends[tp])

    return Limits()


def _read(consumer: Consumer, bounds: Bounds, reading: Reading, writer: Writer) -> None:
    try:
        _read_until(consumer, bounds, reading, writer)
    finally:
        writer.progress.end()


def _read_until(consumer: Consumer, bounds: Bounds, reading: Reading, writer: Writer) -> None:
    quiet_since = time.monotonic()
    while bounds.most is None or reading.count < bounds.most:
        if bounds.ends is not None and reading.assigned and _at_end(consumer, bounds.ends):
            return
        wait_s = POLL_S
        if bounds.silence_s is not None:
            wait_s = min(POLL_S, quiet_since + bounds.silence_s - time.monotonic())
            if wait_s <= 0:
                reading.silent = True
                return
        left = None if bounds.most is None else bounds.most - reading.count
        most = consumer.config.max_poll_records
        records = consumer.poll(wait_s, max_records=most if left is None else min(most, left))
        if not records:
            if _has_left(writer.out):
                raise BrokenPipeError
            continue
        reading.count += writer.write(records)
        quiet_since = time.monotonic()


def _has_left(out: IO[bytes]) -> bool:
    """Whether the reader of our output is gone, who would else be noticed with the next record."""
    poller = select.poll()
    try:
        poller.register(out, 0)
    except OSError:  # no file, in tests
        return False
    return any(events & select.POLLERR for _, events in poller.poll(0))


def _at_end(consumer: Consumer, ends: Mapping[TopicPartition, int]) -> bool:
    mine = [tp for tp in consumer.assignment() if tp in ends]
    return all(consumer.position(tp) >= ends[tp] for tp in mine)


def _exit_code(reading: Reading, bounds: Bounds, group: str | None) -> int:
    summary = f"read {reading.count:,} record{'' if reading.count == 1 else 's'}"
    lost = group is not None and reading.count > 0 and not reading.committed
    if lost:
        summary += f", not committed to group {group}: the last of them will be read again"
    elif group and reading.count:
        summary += f", committed to group {group}"
    if reading.signal:
        reading.log(f"interrupted: {summary}")
        return 128 + reading.signal
    if reading.silent and bounds.most is not None:
        reading.log(
            f"{summary}; {bounds.most:,} were asked for, no more came for {bounds.silence_s:g} s"
        )
        return EXIT_PARTIAL
    if lost:
        reading.log(summary)
    return EXIT_PARTIAL if lost else 0


def signals(consumer: Consumer, reading: Reading) -> AbstractContextManager[None]:
    """While inside, the first SIGINT or SIGTERM ends the poll; a second one interrupts."""

    def end(number: int) -> None:
        if reading.signal:
            raise KeyboardInterrupt
        reading.signal = number
        consumer.wakeup()

    return handled(end)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
