"""`kohort produce`: lines of text or JSON become records.

Rules:
- Standard input and files alike are read line by line, never as a whole; a line longer than a
  record may be is refused at once.
- An invalid line ends the command with its number; the records before it are stored, and their
  number is printed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import IO, TYPE_CHECKING, Any

import click

from kohort.cli.common.completing import topics as complete_topics
from kohort.cli.common.connect import Client, client_options, open_admin
from kohort.cli.common.progress import Progress, progress
from kohort.errors import BrokerError, ConfigError, ErrorCode, KohortError

if TYPE_CHECKING:
    from kohort.cli.common.formats import Outgoing
    from kohort.serdes.basic import Part

JSON_OVERHEAD = 8
"""A record in JSON may be so many times longer than its bytes: base64, escapes, field names."""

EXAMPLES = """\b
Examples:
  echo 'hello' | kohort produce greetings
  kohort produce orders orders.txt --key-separator : --compression zstd
  kohort consume orders --from-beginning --until-end | kohort produce copy --jsonl
  echo '{"amount": 5}' | kohort produce orders --registry http://localhost:8081
"""


class BadLine(KohortError):
    """A line of the input cannot be a record; names it, and how many before it were stored."""


@click.command(epilog=EXAMPLES)
@click.argument("topic", shell_complete=complete_topics)
@click.argument("file", type=click.File("rb"), default="-")
@click.option("-k", "--key", help="The key of every record.")
@click.option(
    "--key-separator", metavar="TEXT", help="The separator between key and value; \\t is a tab."
)
@click.option("--null", "null", metavar="TEXT", help="The text for a null key or value.")
@click.option(
    "-p", "--partition", type=click.IntRange(min=0), metavar="N", help="Write to this partition."
)
@click.option(
    "-H", "--header", "headers", multiple=True, metavar="NAME=VALUE", help="A header; repeatable."
)
@click.option("--jsonl", is_flag=True, help="Each line is a record in JSON, as consume prints it.")
@click.option(
    "--registry",
    metavar="URL",
    help="Encode JSON values with the latest schema of TOPIC-value in this schema registry.",
)
@click.option(
    "--encode",
    "parts",
    type=click.Choice(["value", "key"]),
    multiple=True,
    help="With --registry: the parts to encode; repeatable. [default: value]",
)
@click.option(
    "-z",
    "--compression",
    type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]),
    help="The compression codec.",
)
@client_options
def produce(
    topic: str,
    file: IO[bytes],
    key: str | None,
    key_separator: str | None,
    null: str | None,
    partition: int | None,
    headers: tuple[str, ...],
    jsonl: bool,
    registry: str | None,
    parts: tuple[Part, ...],
    compression: str | None,
    client: Client,
) -> None:
    """Write records from a file or standard input, one per line.

    The number of stored records is printed on standard error when the input has ended.
    """
    from kohort.cli.common.formats import merged, parse_header, read_json, read_line, separator_of
    from kohort.cli.records.decoding import encoder
    from kohort.client.common.config import ProducerConfig

    if jsonl and (key_separator or null is not None):
        raise click.UsageError("--jsonl carries keys and nulls itself; leave out the other option")
    if key is not None and key_separator:
        raise click.UsageError("choose --key or --key-separator")
    if key_separator == "":
        raise click.UsageError("--key-separator must not be empty")
    chosen = {} if compression is None else {"compression_type": compression}
    settings = client.for_role(ProducerConfig) | chosen
    config = ProducerConfig.from_mapping(settings)
    ours = tuple(parse_header(text) for text in headers)
    separator = None if key_separator is None else separator_of(key_separator)
    none = None if null is None else null.encode()
    fixed = None if key is None else key.encode()
    encode = encoder(registry, parts, topic)

    def read(line: bytes) -> Outgoing:
        record = read_json(line) if jsonl else read_line(line, separator, none)
        if fixed is not None:
            record = replace(record, key=fixed)
        return merged(record if encode is None else encode(record), ours, partition)

    most = config.max_request_size * (JSON_OVERHEAD if jsonl else 1)
    new = _is_new(client, topic)
    stored = _send(settings, topic, _records(file, most, read), progress(file.isatty()))
    made = (
        f" (the broker made the topic: `kohort topic describe {topic}`)" if new and stored else ""
    )
    click.echo(f"{_count(stored)} stored in {topic}{made}", err=True)


def _is_new(client: Client, topic: str) -> bool:
    """Asked first: an unreachable cluster is reported before a line of the input is read."""
    with open_admin(client.common()) as admin:
        return all(t.name != topic for t in admin.list_topics(include_internal=True))


def _records(
    file: IO[bytes], most: int, read: Callable[[bytes], Outgoing]
) -> Iterator[tuple[int, Outgoing]]:
    """(line number, record). Raises BadLine."""
    number = 0
    while line := file.readline(most + 1):
        number += 1
        if len(line) > most:
            raise BadLine(
                f"line {number} is longer than {most:,} bytes, the largest request "
                "(max_request_size); raise it with -X max_request_size=…, and max.message.bytes "
                "of the topic with it"
            )
        try:
            yield number, read(line.removesuffix(b"\n"))
        except ConfigError as error:
            raise BadLine(f"line {number}: {error}") from None


def _send(
    settings: dict[str, Any], topic: str, records: Iterator[tuple[int, Outgoing]], line: Progress
) -> int:
    """How many were stored. Raises KohortError that says so when not all were."""
    from kohort.client.producer.producer import Producer
    from kohort.errors import DeliveryFailedError

    sent, at = 0, 0
    producer = Producer(**settings)
    try:
        for number, r in records:
            at = number
            producer.send(topic, r.value, r.key, r.partition, r.timestamp_ms, r.headers)
            sent += 1
            line.add(1)
        producer.close()
    except DeliveryFailedError as error:
        raise KohortError(
            f"{sent - error.count:,} of {_count(sent)} stored: {error.first}"
        ) from error
    except KohortError as error:
        raise _explained(error, topic, at, sent - _lost(producer)) from error
    except BaseException:  # interrupted: the records read are stored and counted before we go
        click.echo(f"{_count(sent - _lost(producer))} stored in {topic}", err=True)
        raise
    finally:
        line.end()
    return sent


def _lost(producer: Any) -> int:
    """Store what was read so far; how many records could not be."""
    from kohort.errors import DeliveryFailedError

    try:
        producer.close()
    except DeliveryFailedError as error:
        return error.count
    return 0


def _explained(error: KohortError, topic: str, number: int, stored: int) -> KohortError:
    sentence = f"{_count(stored)} before it {'was' if stored == 1 else 'were'} stored"
    if not stored:
        sentence = "nothing was stored"
    if isinstance(error, BrokerError) and error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return BrokerError(
            error.code,
            f"topic {topic!r} does not exist, and this cluster makes none by itself; "
            f"`kohort topic create {topic}` makes it",
        )
    if isinstance(error, BadLine):
        return BadLine(f"{error}; {sentence}")
    return KohortError(f"line {number}: {error}; {sentence}")


def _count(number: int) -> str:
    return "1 record" if number == 1 else f"{number:,} records"
