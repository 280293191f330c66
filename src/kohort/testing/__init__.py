"""Tools for tests: an embedded broker with faults and a request log, virtual time, harnesses for
Apps and pipelines, and a checker for the history of groups.

Rules:
- A name is imported when it is first used: the pytest plugin is loaded with every test run.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kohort.broker.faults.request_log import LoggedRequest
    from kohort.testing.app_harness import AppHarness, Copy, crash_everywhere
    from kohort.testing.clock import VirtualClock
    from kohort.testing.cluster import Cluster
    from kohort.testing.faults import SetFault
    from kohort.testing.history import History, Report
    from kohort.testing.history_check import Kind, Violation
    from kohort.testing.journey import Attempt
    from kohort.testing.pipeline_engine import FailedRecord
    from kohort.testing.pipeline_harness import PipelineHarness

__all__ = [
    "AppHarness",
    "Attempt",
    "Cluster",
    "Copy",
    "FailedRecord",
    "History",
    "Kind",
    "LoggedRequest",
    "PipelineHarness",
    "Report",
    "SetFault",
    "Violation",
    "VirtualClock",
    "crash_everywhere",
]

_HOMES = {
    "AppHarness": "kohort.testing.app_harness",
    "Attempt": "kohort.testing.journey",
    "Copy": "kohort.testing.app_harness",
    "crash_everywhere": "kohort.testing.app_harness",
    "Cluster": "kohort.testing.cluster",
    "FailedRecord": "kohort.testing.pipeline_engine",
    "PipelineHarness": "kohort.testing.pipeline_harness",
    "History": "kohort.testing.history",
    "Kind": "kohort.testing.history_check",
    "LoggedRequest": "kohort.broker.faults.request_log",
    "Report": "kohort.testing.history",
    "SetFault": "kohort.testing.faults",
    "Violation": "kohort.testing.history_check",
    "VirtualClock": "kohort.testing.clock",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'kohort.testing' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(home), name)
    return value
