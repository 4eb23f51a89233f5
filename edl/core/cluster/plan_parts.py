"""Divide a large plan of a cluster into parts that may be written one after another.

ZooKeeper takes no transaction above 1 MB. The records of one part depend on each other: a job whose
devices change and all hosts where they change, and with these hosts all other jobs whose devices
change there. No record is in two parts, so each is written once, as the plan has made it. If only
some parts are written, the next plan goes on from there, as after any lost order.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from edl.core.cluster.plan import ClusterPlan
from edl.core.cluster.view import ClusterView


class PlanPart(NamedTuple):
    """Records of a plan that have to be written together.

    Attributes:
        jobs: the jobs whose lives are written, sorted.
        hosts: the hosts whose assignments are written, sorted.
    """

    jobs: tuple[str, ...]
    hosts: tuple[str, ...]


def plan_parts(view: ClusterView, found: ClusterPlan) -> list[PlanPart]:
    """Return the parts of the plan ``found``, which was made from ``view``; first those of a job.

    The policy's decision is in none of them. It may be written with the first part.
    """
    groups = _Groups()
    for job in found.lives:
        groups.add(("job", job))
    for host, after in found.assigned.items():
        groups.add(("host", host))
        before = view.host_named[host].assigned.jobs
        for job in {*before, *after.jobs}:
            if before.get(job) != after.jobs.get(job):
                groups.join(("host", host), ("job", job))
    parts = []
    for members in groups.all():
        jobs = [name for kind, name in members if kind == "job" and name in found.lives]
        hosts = [name for kind, name in members if kind == "host"]
        parts.append(PlanPart(tuple(sorted(jobs)), tuple(sorted(hosts))))
    return sorted(parts, key=lambda part: (bool(part.hosts), part))


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
        """Return the member that stands for the group of ``one``: one for each group."""
        root = one
        while self._parent[root] != root:
            root = self._parent[root]
        while self._parent[one] != root:  # the next search is short
            self._parent[one], one = root, self._parent[one]
        return root
