"""What tests of users need: an embedded broker, faults, and the log of what it was asked.

Rules:
- A name is imported when it is first used: the pytest plugin is loaded with every test run.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kohort.broker.request_log import LoggedRequest
    from kohort.testing.cluster import Cluster
    from kohort.testing.faults import SetFault

__all__ = ["Cluster", "LoggedRequest", "SetFault"]

_HOMES = {
    "Cluster": "kohort.testing.cluster",
    "LoggedRequest": "kohort.broker.request_log",
    "SetFault": "kohort.testing.faults",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'kohort.testing' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(home), name)
    return value
