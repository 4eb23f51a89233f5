"""The policy of a cluster as an object for Python programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from edl.client.cluster.connection import OpenStore
from edl.client.cluster.plans import plan_now
from edl.cluster_policies import load_policy
from edl.core.cluster.cluster_status import JobPlan
from edl.core.cluster.records import ClusterRecord


class PolicyClient:
    """A client of the policy of one cluster: :attr:`edl.client.Cluster.policy`.

    Args:
        open_store: opens the records of the cluster.
    """

    def __init__(self, open_store: OpenStore) -> None:
        self._open = open_store

    def get(self) -> ClusterRecord:
        """Return the settings of the cluster: the policy, its parameters, and the time limits."""
        with self._open() as store:
            return store.settings.get()

    def set(
        self, policy: str, parameters: Mapping[str, object] = MappingProxyType({})
    ) -> ClusterRecord:
        """Let another policy give the cluster's slots to jobs from now on; return the new settings.

        The jobs go on running.

        Args:
            policy: the name of the policy.
            parameters: the policy's parameters by name, where they are not to have their defaults;
                they replace all that were set before.

        Raises:
            UsageError: there is no such policy, it has no such parameter, or a value is not
                allowed.
        """
        with self._open() as store:
            load_policy(policy, parameters)
            return store.settings.change(
                lambda now: replace(now, policy=policy, parameters=dict(parameters))
            )

    def plan(
        self, policy: str | None = None, parameters: Mapping[str, object] | None = None
    ) -> tuple[JobPlan, ...]:
        """Return which slots each job would get if the policy were asked now; change nothing.

        The result has the jobs that have not ended, in the order of submission.

        Args:
            policy: the name of another policy; None for that of the cluster.
            parameters: the other policy's parameters by name, where they are not to have their
                defaults; None: all have them.

        Raises:
            UsageError: there is no such policy, or it has no such parameter.
        """
        with self._open() as store:
            return plan_now(store, policy, parameters)
