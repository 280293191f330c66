"""Processes that publish their status to one topic and execute commands from another.

    app = App("billing", remote="kohort")            # writes kohort.status, reads kohort.commands
    pipeline = Pipeline("loader", store=..., remote="kohort")
    with Consumer(group_id="audit") as consumer, publish(consumer, "kohort"):
        ...

    with RemoteControl("kohort", {"bootstrap_servers": "localhost:9092"}) as control:
        for process in control.processes():
            print(process)
        control.send("billing", "pause")

Write access to PREFIX.commands is needed to send commands, read access to PREFIX.status to
monitor. The ACLs of the topics control both.
"""

from kohort.remote.agent import Agent
from kohort.remote.consumers import publish
from kohort.remote.control import RemoteControl
from kohort.remote.messages import Action, Command, ProcessStatus, Result
from kohort.remote.processes import Process, processes

__all__ = [
    "Action",
    "Agent",
    "Command",
    "Process",
    "ProcessStatus",
    "RemoteControl",
    "Result",
    "processes",
    "publish",
]
