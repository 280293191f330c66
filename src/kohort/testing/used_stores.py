"""The refusal of a store that an earlier run has used. Pure.

Topics are new in each harness: below older progress, all their records would count as done.
"""

from __future__ import annotations

from kohort.errors import UsageError


def used_store(owner: str, topic: str, partition: int, next_offset: int) -> UsageError:
    """The error for a store with progress.

    Args:
        owner: whose progress it is, such as "group billing".
        topic: of the partition that has progress.
        partition: its number.
        next_offset: what its progress says is the next offset.
    """
    return UsageError(
        f"the store has the progress of an earlier run of {owner} ({topic}-{partition} is done up "
        f"to offset {next_offset}), and the topics of this harness are new: their first records "
        "would count as done. Give each harness a fresh store"
    )
