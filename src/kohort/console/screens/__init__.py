"""One function for each screen: the request in, what it shows out. They may ask the cluster.

Imports `kohort.console.views`, `kohort.sampling`, `kohort.retry`, `kohort.client`; no HTTP.
"""

from __future__ import annotations

from typing import Final

from kohort.console.screens import (
    actions,
    dead_letters,
    embedded,
    groups,
    offsets,
    pipelines,
    plan,
    processes,
    records,
    retries,
    stories,
    timeline,
    topics,
)
from kohort.console.screens.desk import Handler

SCREENS: Final[dict[tuple[str, str], Handler]] = {
    ("GET", "/groups"): groups.groups,
    ("GET", "/group"): groups.group,
    ("GET", "/group/timeline"): timeline.timeline,
    ("GET", "/group/offsets"): offsets.offsets,
    ("POST", "/group/offsets"): offsets.set_offsets,
    ("GET", "/group/plan"): plan.plan,
    ("GET", "/dlq"): dead_letters.topics,
    ("GET", "/dlq/topic"): dead_letters.topic,
    ("GET", "/dlq/record"): dead_letters.record,
    ("GET", "/dlq/redrive"): dead_letters.plan,
    ("POST", "/dlq/redrive"): dead_letters.start,
    ("GET", "/job"): actions.job_page,
    ("POST", "/job/pause"): actions.job_stop,
    ("GET", "/retries"): retries.all_retries,
    ("GET", "/retries/group"): retries.retries,
    ("GET", "/retries/record"): retries.record,
    ("POST", "/retries/record"): retries.act,
    ("GET", "/pipelines"): pipelines.pipelines,
    ("GET", "/pipeline"): pipelines.pipeline,
    ("GET", "/processes"): processes.processes,
    ("GET", "/process"): processes.process,
    ("POST", "/process"): processes.command,
    ("GET", "/topics"): topics.topics,
    ("GET", "/topic"): topics.topic,
    ("GET", "/record"): records.record,
    ("GET", "/cluster"): topics.cluster,
    ("GET", "/audit"): actions.audit,
    ("GET", "/broker"): embedded.broker,
    ("POST", "/broker/node"): embedded.change_node,
    ("GET", "/broker/fault"): embedded.fault,
    ("POST", "/broker/fault"): embedded.add_fault,
    ("POST", "/broker/fault/remove"): embedded.remove_fault,
    ("GET", "/broker/requests"): embedded.requests,
    ("GET", "/stories"): stories.stories,
    ("GET", "/story"): stories.story,
}
"""By method and path."""
