"""Offsets in a file: `topic,partition,offset` a line, as `kafka-consumer-groups --from-file` reads.

Rules: a header line is passed over; a line that is no offset is refused with its number, before
anything is changed.

Shell: files.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kohort.errors import ConfigError

if TYPE_CHECKING:
    from kohort.client.common.types import TopicPartition

LINES_MAX: Final = 1_000_000
"""A file with more lines is no plan of a group."""


def read_offsets(path: Path) -> dict[TopicPartition, int]:
    """The offsets in a file. Raises ConfigError."""
    from kohort.client.common.types import TopicPartition

    offsets: dict[TopicPartition, int] = {}
    try:
        with path.open(encoding="utf-8", newline="") as file:
            for number, row in enumerate(csv.reader(file), 1):
                if not row or (number == 1 and row[-1].strip().lower() == "offset"):
                    continue
                fields = [field.strip() for field in row[-3:]]
                if len(fields) < 3 or not (fields[1].isdecimal() and fields[2].isdecimal()):
                    raise ConfigError(
                        f"{path}:{number}: {','.join(row)[:80]!r} is not TOPIC,PARTITION,OFFSET"
                    )
                offsets[TopicPartition(fields[0], int(fields[1]))] = int(fields[2])
                if number > LINES_MAX:
                    raise ConfigError(f"{path} has more than {LINES_MAX:,} lines")
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{path} cannot be read as offsets: {error}") from error
    if not offsets:
        raise ConfigError(f"{path} holds no offset; write TOPIC,PARTITION,OFFSET lines")
    return offsets


def write_offsets(path: Path, offsets: Mapping[TopicPartition, int]) -> None:
    """Write a file that `read_offsets` reads. Raises ConfigError."""
    try:
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerows((tp.topic, tp.partition, at) for tp, at in sorted(offsets.items()))
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from error
