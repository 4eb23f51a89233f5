"""Serve jobs from two queues by attained service, with preemption, as Tiresias does.

*Attained service* is the time for which a job has had slots, times their number. This is Tiresias
as in the artifact of Pollux (OSDI 2021): discretised least attained service (NSDI 2019), with the
promotion of jobs switched off. A job begins in the first queue. Once it has attained 16 slot-hours,
it goes to the end of the second queue, and stays there. Each queue is in the order in which jobs
entered it. The first queue is served before the second, and each job gets the slots that it
requested. A job that is too large for the slots that are left is overtaken. A job may starve in the
second queue. The policy knows nothing of the remaining work of jobs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from edl.core.cluster.ranked import Ranked, admit
from edl.core.cluster.state import Allocation, ClusterJob, ClusterState
from edl.core.settings import setting

HOUR_S = 3600.0


@dataclass(frozen=True)
class Tiresias:
    """The cluster policy `tiresias`: two queues by attained service, with preemption."""

    demotion_slot_hours: float = setting(
        16.0, "attained service at which a job goes to the second queue", least=0
    )

    def __call__(self, cluster: ClusterState) -> Allocation:
        by_name = {job.name: job for job in cluster.jobs}
        second = [name for name in cluster.state.get("second", ()) if name in by_name]
        before = set(second)
        limit_slot_s = self.demotion_slot_hours * HOUR_S
        second += [
            job.name
            for job in cluster.jobs
            if job.name not in before and job.attained_slot_s >= limit_slot_s
        ]
        demoted = set(second)
        ranking = [
            Ranked(job, self._why(job, 1)) for job in cluster.jobs if job.name not in demoted
        ]
        ranking += [Ranked(by_name[name], self._why(by_name[name], 2)) for name in second]
        return replace(admit(ranking, cluster), state={"second": second})

    def _why(self, job: ClusterJob, queue: int) -> str:
        attained = f"{job.attained_slot_s / HOUR_S:.2f} slot-hours attained"
        return f"queue {queue}, {attained}, {self.demotion_slot_hours:g} end the first"
