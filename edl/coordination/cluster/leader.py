"""Elect the leading controller of a cluster, and read what it says of jobs and leases.

``writer`` writes what the leader decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edl.coordination.cluster.nodes import ClusterNodes
from edl.coordination.election import Election, candidate_of
from edl.coordination.nodes import record, record_or_none
from edl.coordination.paths import sequence
from edl.coordination.reads import children, get, ignore_changes
from edl.core.cluster.lease_records import LeaseTable
from edl.core.cluster.records import JobReasons


class ClusterLeader:
    """The leadership of one cluster: the election, and the records that its leader publishes."""

    def __init__(self, nodes: ClusterNodes) -> None:
        self._nodes = nodes
        self._paths = nodes.paths

    def election(self, candidate: str, about: Mapping[str, Any]) -> Election:
        """Return the election of the cluster's leader, in which a controller is the candidate."""
        self._nodes.check_session()
        return Election(
            self._nodes.session,
            self._paths.election,
            candidate,
            leader_path=self._paths.leader,
            record=about,
            missing=self._nodes.unknown,
        )

    def controllers(self) -> list[str]:
        """Return the names of the controllers that stand for election, the leader first."""
        self._nodes.check_administrator("see the controllers")
        names = self._nodes.read(children(self._paths.election))[0]
        if names is None:
            raise self._nodes.unknown()
        return [candidate_of(name) for name in sorted(names, key=sequence)]

    def reasons(self) -> JobReasons:
        """Return what the leader says of each job; before its first plan, the default."""
        path = self._paths.reasons
        # Only if it has changed: in a large cluster it is large.
        answer = self._nodes.read(get(path, ignore_changes))[0]
        found = record_or_none(JobReasons, path, answer)
        return JobReasons() if found is None else found

    def leases(self) -> tuple[LeaseTable, int]:
        """Read and return the record of the leases, and the version of its node."""
        path = self._paths.leases
        answer = self._nodes.read(get(path))[0]
        if answer is None:
            return LeaseTable(), -1
        return record(LeaseTable, (path, answer[0])), answer[1].version
