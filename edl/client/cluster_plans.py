"""Show a cluster, and what its leader would do now, without doing it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

from edl.coordination.cluster_runs import RunReader, cluster_view
from edl.coordination.cluster_store import ClusterStore
from edl.core.cluster.cluster_status import (
    ClusterStatus,
    JobPlan,
    cluster_status,
    job_plans,
    with_new_decision,
    with_new_host,
)
from edl.core.cluster.plan import plan
from edl.core.cluster.policies import policy_of, with_parameters
from edl.core.cluster.records import ClusterRecord, ControllerRecord
from edl.core.cluster.view import ClusterView


def status_of_cluster(store: ClusterStore) -> ClusterStatus:
    """Return the status of a cluster: who leads, its hosts, the slots in use.

    Raises:
        UnknownCluster: the cluster does not exist.
        CoordinationError: ZooKeeper is away.
    """
    snapshot = store.snapshot()
    leader = ControllerRecord.from_json(snapshot.leader) if snapshot.leader else None
    return cluster_status(
        store.paths.name,
        cluster_view(snapshot, {}),
        leader,
        len(store.controllers()),
        store.nodes.session.hosts,
    )


def plan_now(
    store: ClusterStore, policy: str | None = None, parameters: Mapping[str, object] | None = None
) -> tuple[JobPlan, ...]:
    """Return what the leader of a cluster would do now if it asked the policy anew.

    Nothing is written.

    Args:
        store: the cluster.
        policy: the name of another policy; None for that of the cluster.
        parameters: the parameters of that other policy that are not as registered.

    Raises:
        UsageError: there is no such policy, or it has no such parameter.
        UnknownCluster: the cluster does not exist.
        CoordinationError: ZooKeeper is away.
    """
    view = read_view(store)
    rule = policy_of(view.settings)
    if policy is not None:
        rule = with_parameters(policy, dict(parameters or {}))
    return job_plans(view, plan(with_new_decision(view), rule, time.time()))


def plan_with_host(
    store: ClusterStore, slots: int, labels: Mapping[str, str]
) -> tuple[JobPlan, ...]:
    """Return what the leader of a cluster would do if there were one more host; write nothing.

    Args:
        store: the cluster.
        slots: the slots of that host, at least 1.
        labels: its labels.

    Raises:
        UnknownCluster: the cluster does not exist.
        CoordinationError: ZooKeeper is away.
    """
    view = with_new_host(read_view(store), slots, labels)
    return job_plans(view, plan(with_new_decision(view), policy_of(view.settings), time.time()))


def set_policy_of_cluster(
    store: ClusterStore, policy: str, parameters: Mapping[str, object]
) -> ClusterRecord:
    """Let a cluster decide by another policy, or by other parameters, while its jobs run.

    Args:
        store: the cluster.
        policy: the name of the policy.
        parameters: those of its parameters that are not to be as registered.

    Returns:
        How the cluster decides now.

    Raises:
        UsageError: there is no such policy, it has no such parameter, or a value is not allowed.
        UnknownCluster: the cluster does not exist.
        CoordinationError: ZooKeeper is away.
    """
    with_parameters(policy, parameters)
    return store.change_settings(
        lambda now: replace(now, policy=policy, parameters=dict(parameters))
    )


def read_view(store: ClusterStore) -> ClusterView:
    """Return all that a plan of a cluster is made of, as it is now.

    Raises:
        UnknownCluster: the cluster does not exist.
        CoordinationError: ZooKeeper is away.
    """
    snapshot = store.snapshot()
    session = store.nodes.session
    mine = session.access
    try:
        names = [job.name for job in snapshot.jobs]
        runs = RunReader(session).read(store.secrets(names))
        return cluster_view(snapshot, runs, store.measured(names))
    finally:
        if mine is not None:
            session.identify(mine)  # what is written next belongs to the cluster again
