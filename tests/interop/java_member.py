"""Apache Kafka's VerifiableConsumer as one member of a watched group (`tests.e2e.group_run`).

It reports events as JSON; here they become what every member says. It commits by itself, after
each batch that it was handed, before it asks for the next.
"""

from __future__ import annotations

import ctypes
import signal
import subprocess
import threading
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from tests.interop.java import events, java

JAVA = "java"
_PR_SET_PDEATHSIG = 1
KILL: Final = signal.SIGUSR2
"""Kills Java first: what it said of what it has committed is passed on, to the last line."""
STRATEGIES = {
    "range": "org.apache.kafka.clients.consumer.RangeAssignor",
    "roundrobin": "org.apache.kafka.clients.consumer.RoundRobinAssignor",
    "sticky": "org.apache.kafka.clients.consumer.StickyAssignor",
    "cooperative-sticky": "org.apache.kafka.clients.consumer.CooperativeStickyAssignor",
}


def run_java(me: Any, servers: str, group: str, topic: str, options: dict[str, Any]) -> None:
    """Run it until `me.stopping`, then end it in order."""
    with TemporaryDirectory() as directory:
        settings = Path(directory) / "consumer.properties"
        classic = options["protocol"] == "classic"
        lines = [f"client.id={me.name}", "max.poll.records=200"]
        if classic:
            lines.append(f"heartbeat.interval.ms={options['heartbeat_ms']}")
        settings.write_text("\n".join(lines))
        arguments = [
            "--bootstrap-server",
            servers,
            "--topic",
            topic,
            "--group-id",
            group,
            "--reset-policy",
            "earliest",
            "--command-config",
            str(settings),
            "--group-protocol",
            options["protocol"],
        ]
        if classic:
            arguments += [
                "--session-timeout",
                str(options["session_ms"]),
                "--assignment-strategy",
                STRATEGIES[options["strategy"]],
            ]
        process = subprocess.Popen(
            java("org.apache.kafka.tools.VerifiableConsumer", *arguments, heap="128m"),
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=_die_with_parent,
        )
        signal.signal(KILL, lambda number, frame: process.kill())
        threading.Thread(target=_end, args=(me, process), daemon=True).start()
        _Translator(me).run(process)
        if process.wait() == -signal.SIGKILL:
            signal.raise_signal(signal.SIGKILL)  # what was meant for both


def _die_with_parent() -> None:
    """A member that is killed takes its Java with it (Linux)."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _end(me: Any, process: subprocess.Popen[str]) -> None:
    me.stopping.wait()
    process.send_signal(signal.SIGTERM)


class _Translator:
    def __init__(self, me: Any) -> None:
        self.me = me
        self.owned: set[int] = set()

    def run(self, process: subprocess.Popen[str]) -> None:
        for event in events(process):
            handler = getattr(self, event["name"], None)
            if handler is not None:
                handler(event)

    def partitions_assigned(self, event: dict[str, Any]) -> None:
        self.owned |= {tp["partition"] for tp in event["partitions"]}
        self.me.owns(self.owned)

    def partitions_revoked(self, event: dict[str, Any]) -> None:
        gone = {tp["partition"] for tp in event["partitions"]}
        self.owned -= gone
        self.me.revoked(gone)
        self.me.owns(self.owned)

    def records_consumed(self, event: dict[str, Any]) -> None:
        for span in event["partitions"]:
            number, first, last = span["partition"], span["minOffset"], span["maxOffset"]
            if number not in self.me.next:  # it says nothing of where it begins
                self.me.assigned({number: first})
            if last - first + 1 != span["count"]:
                self.me.say("gap", number, last, first)
            self.me.records((number, offset) for offset in range(first, last + 1))

    def offsets_committed(self, event: dict[str, Any]) -> None:
        if event["success"]:
            self.me.committed({tp["partition"]: tp["offset"] for tp in event["offsets"]})
        else:
            self.me.refused(RuntimeError(str(event.get("error"))))
