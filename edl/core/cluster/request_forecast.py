"""Say which slots a job would get if it were submitted now, and which jobs would lose some.

:func:`request_forecast` plans the same cluster twice, without the job and with it, by the function
with which the leader plans. So it knows what the leader would decide at once; what running jobs
need to give slots back, and jobs that end or come later, it does not know.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from edl.core.cluster.cluster_status import job_plans, with_new_decision, with_new_job
from edl.core.cluster.manifest import JobManifest
from edl.core.cluster.plan import plan
from edl.core.cluster.state import ClusterPolicy
from edl.core.cluster.view import ClusterView
from edl.core.record import Record

MOST_CHANGES = 20  # other jobs that are named


@dataclass(frozen=True)
class PlannedChange(Record):
    """A change of a job's slots that follows from the submission of another job."""

    job: Annotated[str, "its name"]
    without: Annotated[int, "slots that it is to have without the other job"]
    planned: Annotated[int, "slots that it is to have with the other job"]


@dataclass(frozen=True)
class RequestForecast(Record):
    """The slots that a job would get if it were submitted now, with the reason."""

    slots: Annotated[Mapping[str, int], "host -> slots that the job would get; empty: it waits"]
    reason: Annotated[str, "why, or why it waits and where in the queue"]
    changes: Annotated[
        tuple[PlannedChange, ...],
        "other jobs that would get more or fewer slots, at most 20 of them",
    ]
    changed: Annotated[int, "how many other jobs would get more or fewer slots"]
    problem: Annotated[str, "why the policy's decision cannot be used; empty: it can"]


def request_forecast(
    view: ClusterView, request: JobManifest, policy: ClusterPolicy, now_s: float
) -> RequestForecast:
    """Return the slots that a job would get if it were submitted now."""
    name, number = request.name, 1
    # another job than the one of its name
    while name in view.by_name:
        number += 1
        name = f"{request.name}-{number}"
    before = with_new_decision(view)
    after = with_new_job(before, name, request, request.priority, now_s)
    planned = plan(after, policy, now_s)
    without = {
        one.job: sum(one.planned.values()) for one in job_plans(before, plan(before, policy, now_s))
    }
    found = {one.job: one for one in job_plans(after, planned)}
    own = found.pop(name)
    changes = [
        PlannedChange(job, without.get(job, 0), sum(one.planned.values()))
        for job, one in found.items()
        if sum(one.planned.values()) != without.get(job, 0)
    ]
    return RequestForecast(
        slots=own.planned,
        reason=own.reason,
        changes=tuple(changes[:MOST_CHANGES]),
        changed=len(changes),
        problem=(planned.allocation or view.allocation).problem,
    )
