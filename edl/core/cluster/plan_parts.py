"""Divide a large plan of a cluster into parts that may be written one after another.

ZooKeeper takes no transaction above 1 MB. The records of one part depend on each other: a job whose
devices change and all hosts where they change, and with these hosts all other jobs whose devices
change there. No record is in two parts, so each is written once, as the plan has made it. If only
some parts are written, the next plan goes on from there, as after any lost order.

A part that is too large by itself is written with fewer of the paths that its hosts are asked for
(:func:`asking_less`), or not at all (:func:`without_parts`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from edl.core.cluster.path_questions import first_paths
from edl.core.cluster.plan import ClusterPlan
from edl.core.cluster.records import HostAssignment
from edl.core.cluster.view import ClusterView


class PlanPart(NamedTuple):
    """Records of a plan that have to be written together."""

    jobs: tuple[str, ...]  # the jobs whose lives are written, sorted
    hosts: tuple[str, ...]  # the hosts whose assignments are written, sorted


def plan_parts(view: ClusterView, found: ClusterPlan) -> list[PlanPart]:
    """Return the parts of the plan `found`, which was made from `view`; first those of a job."""
    groups = _Groups()
    for job in found.lives:
        groups.add(("job", job))
    for host, after in found.assigned.items():
        groups.add(("host", host))
        for job in _changed_jobs(view, host, after):
            groups.join(("host", host), ("job", job))
    parts = []
    for members in groups.all():
        jobs = [name for kind, name in members if kind == "job" and name in found.lives]
        hosts = [name for kind, name in members if kind == "host"]
        parts.append(PlanPart(tuple(sorted(jobs)), tuple(sorted(hosts))))
    return sorted(parts, key=lambda part: (bool(part.hosts), part))


def asking_less(found: ClusterPlan, part: PlanPart, most_bytes: int) -> ClusterPlan:
    """Return `found` with fewer paths asked of the hosts of `part`: the first in the queue."""
    shorter = {
        host: replace(after, paths=first_paths(after.paths, most_bytes))
        for host, after in found.assigned.items()
        if host in part.hosts
    }
    return replace(found, assigned={**found.assigned, **shorter})


def without_parts(
    view: ClusterView, found: ClusterPlan, left_out: Iterable[PlanPart]
) -> ClusterPlan:
    """Return the plan `found` without some of its parts, and without what follows from these."""
    hosts = {host for part in left_out for host in part.hosts}
    jobs = {job for part in left_out for job in part.jobs}
    for host in hosts:
        jobs |= _changed_jobs(view, host, found.assigned[host])
    return replace(
        found,
        lives={job: life for job, life in found.lives.items() if job not in jobs},
        assigned={host: one for host, one in found.assigned.items() if host not in hosts},
        # A run is told what to do only after the records say so.
        orders=tuple(order for order in found.orders if order.job not in jobs),
        changes=tuple(change for change in found.changes if change.job not in jobs),
    )


def _changed_jobs(view: ClusterView, host: str, after: HostAssignment) -> set[str]:
    before = view.host_named[host].assigned.jobs
    return {job for job in {*before, *after.jobs} if before.get(job) != after.jobs.get(job)}


_Member = tuple[str, str]


class _Groups:
    """Disjoint groups of members (union-find): joining two members makes their groups one."""

    def __init__(self) -> None:
        self._parent: dict[_Member, _Member] = {}

    def add(self, one: _Member) -> None:
        """Add a member in a group of its own; do nothing if it was added before."""
        self._parent.setdefault(one, one)

    def join(self, one: _Member, other: _Member) -> None:
        """Make the groups of two members one group; a member that is new is added first."""
        self.add(one)
        self.add(other)
        self._parent[self._root(one)] = self._root(other)

    def all(self) -> Iterable[list[_Member]]:
        """Return the groups, each as a list of its members in the order of their adding."""
        found: dict[_Member, list[_Member]] = {}
        for one in self._parent:
            found.setdefault(self._root(one), []).append(one)
        return found.values()

    def _root(self, one: _Member) -> _Member:
        root = one
        while self._parent[root] != root:
            root = self._parent[root]
        while self._parent[one] != root:  # the next search is short
            self._parent[one], one = root, self._parent[one]
        return root
