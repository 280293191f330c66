"""This console's finished and running actions: jobs and the audit."""

from __future__ import annotations

import json
from dataclasses import dataclass
from urllib.parse import urlencode

from kohort.console.screens.desk import Desk, NotThereError, PageRequest, Redirect, Screen, now_ms
from kohort.console.views.figures import clock


@dataclass(frozen=True, slots=True)
class JobView:
    """A job as it is now."""

    id: str
    kind: str
    target: str
    running: bool
    count: int
    per_s: float | None
    outcome: str
    again: str


def job_page(desk: Desk, request: PageRequest) -> Screen:
    """One job."""
    job = desk.jobs.get(request.needed("id"))
    if job is None:
        raise NotThereError("this console has no such job; the console may have restarted")
    seconds = max(0.001, (now_ms() - job.begun_ms) / 1000)
    running = not job.outcome
    view = JobView(
        job.id,
        job.kind,
        job.target,
        running,
        job.count,
        job.count / seconds if running else None,
        job.outcome,
        job.again,
    )
    return Screen("job.html", f"{job.kind} {job.id}", "dlq", view)


def job_stop(desk: Desk, request: PageRequest) -> Redirect:
    """Pause a job after its page at hand."""
    desk.actions_allowed()
    job = desk.jobs.get(request.needed("id"))
    if job is not None and job.stop is not None:
        job.stop()
        desk.audit.add(request.form["who"], f"pause {job.kind}", job.target, details={"id": job.id})
    return Redirect(f"/job?{urlencode({'id': request.needed('id')})}")


@dataclass(frozen=True, slots=True)
class AuditRow:
    """One action as it is shown."""

    at: str
    who: str
    action: str
    target: str
    outcome: str
    details: str


@dataclass(frozen=True, slots=True)
class AuditView:
    """The last actions, the newest first, and the jobs with what they do."""

    rows: list[AuditRow]
    jobs: list[tuple[str, str]]


def audit(desk: Desk, _: PageRequest) -> Screen:
    """What was done by this console."""
    rows = [
        AuditRow(clock(e.at_ms), e.who, e.action, e.target, e.outcome, json.dumps(e.details))
        for e in reversed(desk.audit.entries)
    ]
    jobs = [(job.id, job.outcome or "running") for job in desk.jobs.listed()]
    return Screen("audit.html", "Audit", "audit", AuditView(rows, jobs))
