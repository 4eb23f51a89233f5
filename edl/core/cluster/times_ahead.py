"""Move times of a cluster's records that lie ahead of the leader's clock to the present.

The times are ZooKeeper's, by the clock of the leader that wrote them. If that clock is set back
between two terms, the next leader reads times that are yet to come: a host that fell silent then
would not be lost, a job would not stop or be tried again, until the clock has made up for all of
the jump. So a plan takes each such time as its own, and writes it: what waits begins to wait anew.
Times that only people read stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from edl.core.cluster.job_life import MOST_BACK_OFF_S, HostLimit, JobLife, LifeState
from edl.core.cluster.lease_records import LeaseRecord, LeaseTable
from edl.core.cluster.records import AllocationRecord, HostAssignment, JobAssignment


def life_by(now_s: float, life: JobLife, limit_s: float) -> JobLife:
    """Return the record of a job's life without times that lie ahead; `life` if it has none."""
    try_s, until_s = now_s + MOST_BACK_OFF_S, now_s + limit_s  # the latest times
    is_right = (
        max(life.since_s, life.counted_s) <= now_s
        and life.not_before_s <= try_s
        and all(one.until_s <= until_s for one in life.limits.values())
    )
    if is_right or life.state is LifeState.ENDED:
        return life
    return replace(
        life,
        since_s=min(life.since_s, now_s),
        counted_s=min(life.counted_s, now_s),
        not_before_s=min(life.not_before_s, try_s),
        limits={
            host: HostLimit(one.most, min(one.until_s, until_s))
            for host, one in life.limits.items()
        },
    )


def assignment_by(now_s: float, assigned: HostAssignment) -> HostAssignment:
    """Return what is assigned to a host, without times that lie ahead of `now_s`."""

    def right(entry: JobAssignment) -> JobAssignment:
        if max(entry.changed_s, entry.idle_s) <= now_s:
            return entry
        changed_s, idle_s = min(entry.changed_s, now_s), min(entry.idle_s, now_s)
        return replace(entry, changed_s=changed_s, idle_s=idle_s)

    jobs = {job: right(entry) for job, entry in assigned.jobs.items()}
    failures = {k: replace(v, at_s=min(v.at_s, now_s)) for k, v in assigned.failures.items()}
    silent_s = min(assigned.silent_s, now_s)
    return replace(assigned, jobs=jobs, silent_s=silent_s, failures=failures)


def allocation_by(now_s: float, allocation: AllocationRecord) -> AllocationRecord:
    """Return the policy's last decision, without changes of targets that lie ahead of `now_s`."""
    return replace(allocation, changed_s=_right(now_s, allocation.changed_s))


def leases_by(now_s: float, table: LeaseTable, rest_s: float) -> LeaseTable:
    """Return the record of the leases without times that lie ahead."""

    def right(lease: LeaseRecord) -> LeaseRecord:
        return replace(
            lease,
            silent_s=min(lease.silent_s, now_s),
            offered_s=min(lease.offered_s, now_s),
            idle_s=min(lease.idle_s, now_s),
            back_s=min(lease.back_s, now_s),
        )

    return replace(
        table,
        leases={name: right(one) for name, one in table.leases.items()},
        strays=_right(now_s, table.strays),
        not_before_s=min(table.not_before_s, now_s + rest_s),
    )


def _right(now_s: float, times: Mapping[str, float]) -> Mapping[str, float]:
    return {name: min(at_s, now_s) for name, at_s in times.items()}
