"""Show a cluster, and what its leader would do now, without doing it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from edl.cluster.leases import lease_summary, with_leases
from edl.cluster.plan import plan
from edl.cluster.records import ControllerRecord, LeaseTable
from edl.cluster.runs import RunReader, cluster_view, job_view
from edl.cluster.status import (
    ClusterStatus,
    JobPlan,
    cluster_status,
    job_plans,
    with_new_decision,
    with_new_host,
)
from edl.cluster.store import ClusterSnapshot, ClusterStore
from edl.cluster.view import ClusterView, JobView, MeasuredThroughput, RunRecords
from edl.cluster_policies import load_policy, policy_of


def status_of_cluster(store: ClusterStore) -> ClusterStatus:
    leases, _ = store.leader.leases()
    return status_of_snapshot(store, store.observe(), leases, len(store.leader.controllers()))


def status_of_snapshot(
    store: ClusterStore, snapshot: ClusterSnapshot, leases: LeaseTable, controllers: int
) -> ClusterStatus:
    """Return the status of a cluster from records that were read; nothing is read."""
    view = cluster_view(snapshot, {})
    return cluster_status(
        store.paths.name,
        with_leases(view, leases) if leases.engine else view,
        ControllerRecord.from_json(snapshot.leader) if snapshot.leader else None,
        controllers,
        store.nodes.session.hosts,
        lease_summary(leases) if leases.engine else "",
    )


def plan_now(
    store: ClusterStore, policy: str | None = None, parameters: Mapping[str, object] | None = None
) -> tuple[JobPlan, ...]:
    view = read_view(store)
    rule = policy_of(view.settings)
    if policy is not None:
        rule = load_policy(policy, dict(parameters or {}))
    return job_plans(view, plan(with_new_decision(view), rule, time.time()))


def plan_with_host(
    store: ClusterStore, slots: int, labels: Mapping[str, str]
) -> tuple[JobPlan, ...]:
    view = with_new_host(read_view(store), slots, labels)
    return job_plans(view, plan(with_new_decision(view), policy_of(view.settings), time.time()))


def read_view(store: ClusterStore) -> ClusterView:
    snapshot = store.observe()
    names = [job.name for job in snapshot.jobs]
    runs, measured, unreadable = _runs_and_measured(store, names)
    return cluster_view(snapshot, runs, measured, unreadable)


def measured_view(store: ClusterStore, job: JobView) -> JobView:
    runs, measured, _ = _runs_and_measured(store, [job.name])
    return job_view(job, runs.get(job.name), measured.get(job.name, MeasuredThroughput()))


def _runs_and_measured(
    store: ClusterStore, names: Sequence[str]
) -> tuple[Mapping[str, RunRecords], Mapping[str, MeasuredThroughput], Mapping[str, str]]:
    session = store.nodes.session
    mine = session.access
    try:
        secrets, measured = store.jobs.secrets_and_measured(names, watch=False)
        reader = RunReader(session)
        return reader.read(secrets), measured, reader.unreadable
    finally:
        if mine is not None:
            session.identify(mine)  # what is written next belongs to the cluster again
