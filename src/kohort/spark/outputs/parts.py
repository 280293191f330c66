"""The outputs of a query: what is written, and what is made of the micro-batch for it. Pure."""

# pyspark's types are incomplete, so strict checking would report nothing else.
# pyright: basic
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kohort.spark.outputs.merge_sql import TableOutput
from kohort.spark.outputs.topics import TopicOutput

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Select = Callable[["DataFrame"], "DataFrame"]


@dataclass(frozen=True)
class TablePart:
    """A table output, and what is made of the batch for it."""

    output: TableOutput
    select: Select | None


@dataclass(frozen=True)
class TopicPart:
    """A topic output, what is made of the batch for it, and how long a batch may take.

    Args:
        letters: it holds dead letters of rejected rows only, and nothing of the batch itself.
    """

    output: TopicOutput
    select: Select | None
    timeout_ms: int
    letters: bool = False
