"""An invented cluster for tests of the dashboard: the records that a real one would have."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from edl.cluster.lifecycle import ClusterEvent, ClusterEventKind, JobLifecycle, LifeState
from edl.cluster.manifest import JobManifest
from edl.cluster.records import (
    AllocationRecord,
    ClusterRecord,
    HostAssignment,
    HostOffer,
    JobAssignment,
    JobReasons,
    LeaseTable,
    Wanted,
)
from edl.cluster.store import ClusterSnapshot
from edl.cluster.view import HostView, JobView
from edl.zookeeper.events import OnUnreadable, leave_out

NAME, SECRET = "lab", "c" * 32
NOW = 1_763_632_000.0
RUN = "lab-run"


def stored(name: str, order: int, state: LifeState = LifeState.QUEUED, **limits: Any) -> JobView:
    """Return a job as ZooKeeper has it; ``limits`` are values of its manifest."""
    manifest = JobManifest(name, ("python", "train.py"), 1, 4, **limits)
    slots = 2 if state is LifeState.RUNNING else 0
    life = JobLifecycle(
        state, slots=slots, since_s=NOW, submitted_s=NOW - 60.0, run=RUN if slots else ""
    )
    return JobView(name, order, manifest, NOW - 60.0, Wanted(), life)


def event(number: int, job: str, **values: Any) -> tuple[int, ClusterEvent]:
    given = {"kind": ClusterEventKind.SUBMITTED, "reason": f"job {job} was submitted"} | values
    return number, ClusterEvent(NOW - 50.0 + number, job=job, by="ann@a", **given)


class ShownCluster:
    """Stands for a :class:`ClusterStore`: reads come from what the test has put here."""

    def __init__(self) -> None:
        self.hosts: Mapping[str, Mapping[str, int]] = {"a": {"run": 2}}  # each offers 4 slots
        self.listed = [stored("run", 1, LifeState.RUNNING), stored("wait", 2)]
        self.logged: list[tuple[int, ClusterEvent | None]] = [
            event(0, "run"),
            event(1, "wait"),
            event(2, "run", kind=ClusterEventKind.SLOTS, reason="slots", slots={"a": 2}),
        ]
        self.controllers = ["one"]
        self.said = JobReasons(NOW + 1.0, {"wait": "place 1 of 1 in the queue: no slot is free"})
        self.error: Exception | None = None  # what each read raises
        self.reads = 0
        session = SimpleNamespace(hosts="here:1", connected=True)
        self.nodes = SimpleNamespace(session=session, uid=lambda: "5-0")
        self.paths = SimpleNamespace(name=NAME)
        self.leader = SimpleNamespace(
            reasons=lambda: self.said,
            leases=lambda: (LeaseTable(), 0),
            controllers=lambda: self.controllers,
        )
        self.tenants = SimpleNamespace(names=tuple)
        self.events = SimpleNamespace(read=self._read, read_known=self._read)

    def snapshot(self) -> ClusterSnapshot:
        self.reads += 1
        if self.error is not None:
            raise self.error
        hosts = []
        for host, jobs in self.hosts.items():
            given = {job: JobAssignment(RUN, tuple(range(n))) for job, n in jobs.items()}
            hosts.append(HostView(host, HostOffer(4), assigned=HostAssignment(given)))
        leader = {"controller": "one", "host": "a", "pid": 7, "address": "a", "version": "1"}
        return ClusterSnapshot(
            ClusterRecord(),
            AllocationRecord(),
            0,
            tuple(self.listed),
            tuple(hosts),
            {**leader, "term": 2},
        )

    def _read(
        self, after: int = -1, unreadable: OnUnreadable = leave_out
    ) -> list[tuple[int, ClusterEvent]]:
        for number, known in self.logged:
            if known is None and number > after:
                unreadable(number, "a kind of a newer edl")
        return [(n, one) for n, one in self.logged if n > after and one is not None]
