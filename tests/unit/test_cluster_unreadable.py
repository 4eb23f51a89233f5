"""A job that writes junk into the records of its own run holds up no other job."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from edl.cluster.candidates import _why_fixed
from edl.cluster.lifecycle import JobLifecycle, LifeState, run_token
from edl.cluster.manifest import JobManifest
from edl.cluster.plan import ClusterPlan, plan
from edl.cluster.policies.simple import Fifo
from edl.cluster.records import (
    AllocationRecord,
    ClusterRecord,
    HostAssignment,
    HostOffer,
    JobAssignment,
    Wanted,
)
from edl.cluster.runs import RunReader, cluster_view
from edl.cluster.store import ClusterSnapshot
from edl.cluster.view import CreateRun, HostView, JobView
from edl.errors import AccessDenied
from edl.records import Host, Job
from edl.zookeeper.paths import JobPaths
from edl.zookeeper.reads import Read, encode

WRONG = b'{"name":7,"hosts":7,"step":"x","np":"x"}'  # for each kind of record
WHY = "the records of its run cannot be read: the node status does not hold JSON"
NOW_S = 1000.0


def planned(
    state: LifeState, now_s: float = NOW_S, is_unread: bool = False, leaving: tuple[int, ...] = ()
) -> ClusterPlan:
    """Plan for the job `ann.x`, whose run cannot be read, and another one that waits.

    ``is_unread``: its session has no connection. ``leaving``: what it is to give back.
    """
    token = run_token(3, 1)
    life = JobLifecycle(state, since_s=990.0, run=token if state.has_run else "", runs=1)
    bad, good = (
        JobView(name, order, JobManifest(name, ("x",), 1, 2), 0.0, Wanted(), own)
        for name, order, own in (("ann.x", 3, life), ("bob.y", 4, JobLifecycle(since_s=990.0)))
    )
    entry = JobAssignment(token, (0, 1), leaving=leaving, changed_s=1.0)
    assigned = HostAssignment({"ann.x": entry} if state.has_run else {})
    hosts = (HostView("a", HostOffer(4, tuple(range(4))), assigned=assigned, version=0),)
    snapshot = ClusterSnapshot(ClusterRecord(), AllocationRecord(), 0, (bad, good), hosts, {})
    unreadable, unread = ({}, {"ann.x": WHY}) if is_unread else ({"ann.x": WHY}, {})
    return plan(cluster_view(snapshot, {}, {}, unreadable, unread), Fifo(), now_s)


@pytest.mark.parametrize("state", [LifeState.STARTING, LifeState.RUNNING])
def test_it_keeps_what_it_has_and_others_are_planned(state: LifeState) -> None:
    found = planned(state)
    assert found.reasons["ann.x"] == WHY
    assert [(type(one), one.job) for one in found.orders] == [(CreateRun, "bob.y")]
    assert found.assigned["a"].jobs["ann.x"].devices == (0, 1)
    assert found.assigned["a"].jobs["bob.y"].devices == (2, 3)
    assert "ann.x" not in {one.job for one in found.changes}


def test_one_that_waits_is_not_started_on_top_of_them() -> None:
    found = planned(LifeState.QUEUED)
    assert WHY in found.reasons["ann.x"]
    assert [(type(one), one.job) for one in found.orders] == [(CreateRun, "bob.y")]


def test_one_that_is_to_stop_is_ended_by_its_hosts() -> None:
    assert planned(LifeState.HALTING).assigned["a"].jobs["ann.x"].ends


@pytest.mark.parametrize("state", [one for one in LifeState if one.has_run])
@pytest.mark.parametrize("leaving", [(), (1,), (0, 1)])
def test_one_that_was_not_read_now_goes_on(state: LifeState, leaving: tuple[int, ...]) -> None:
    """Its session has no connection: it may be saving its checkpoint, or have begun to train."""
    late_s = NOW_S + (10.0 if state is LifeState.HALTING else 10_000.0)
    found = planned(state, late_s, is_unread=True, leaving=leaving)
    assert "ann.x" not in {one.job for one in found.changes}
    if "a" in found.assigned:  # else all stays as it is
        jobs = found.assigned["a"].jobs
        why = "nothing says that it no longer uses what it is to give back"
        assert jobs["ann.x"].devices == (0, 1), why
        assert not jobs["ann.x"].ends
    if not leaving:
        assert found.assigned["a"].jobs["bob.y"].devices == (2, 3)


def test_the_policy_does_not_move_one_that_was_not_read_now() -> None:
    life = JobLifecycle(LifeState.RUNNING, run=run_token(3, 1), runs=1)
    job = JobView("ann.x", 3, 0.0, JobManifest("ann.x", ("x",), 1, 2), Wanted(), life, 0)
    snapshot = ClusterSnapshot(ClusterRecord(), AllocationRecord(), 0, (job,), (), {})
    view = cluster_view(snapshot, {}, unread={"ann.x": WHY}).by_name["ann.x"]
    assert _why_fixed(view, 0.0) == f"keeps its slots: {WHY}"


def test_measurements_that_make_no_sense_are_its_own_trouble() -> None:
    life = JobLifecycle(LifeState.RUNNING, run=run_token(3, 1), runs=1)
    job = JobView("ann.x", 3, 0.0, JobManifest("ann.x", ("x",), 1, 2), Wanted(), life, 0)
    snapshot = ClusterSnapshot(ClusterRecord(), AllocationRecord(), 0, (job,), (), {})
    runs: Any = {"ann.x": SimpleNamespace(token="z" * 24)}
    view = cluster_view(snapshot, runs).by_name["ann.x"]
    assert view.unreadable.startswith("the records of its run make no sense: ")
    assert view.present_run is not None


class Nodes:
    """A session that reads nodes from a dict; those in ``closed`` are closed to everybody."""

    def __init__(self, data: dict[str, bytes], closed: set[str]) -> None:
        self.data, self.closed, self.requests = data, closed, 0

    def read_all(self, what: str, reads: list[Read]) -> list[Any]:
        self.requests += 1
        if any(read.path in self.closed for read in reads):
            raise AccessDenied("lab", f"cannot {what}")
        return [self._answer(read) for read in reads]

    def _answer(self, read: Read) -> Any:
        below = [path for path in self.data if path.startswith(f"{read.path}/")]
        if "children" in read.method:
            return [path.removeprefix(f"{read.path}/") for path in below]
        data = self.data.get(read.path)
        return None if data is None else (data, SimpleNamespace(version=0))


def run_of(name: str) -> dict[str, bytes]:
    p = JobPaths(name)
    spec = JobManifest(name, ("x",), 1, 2, cwd="/").job_spec("")
    records = {p.job: Job(name, spec).to_json(), p.assigned: {}, p.status: {}, p.learned: {}}
    own = {f"{p.run}/{'0' * 24}": {}, f"{p.hosts}/a": Host("a", 2, "here").to_json()}
    return {path: encode(value) for path, value in {**records, **own}.items()}


@pytest.mark.parametrize("node", ["job", "assigned", "status", "learned", "hosts/a"])
@pytest.mark.parametrize("junk", [b"\xff", b"[]", b"[" * 100_000, WRONG, None])
def test_its_records_are_left_out(node: str, junk: bytes | None, monkeypatch: Any) -> None:
    names = [f"bob.y{number}" for number in range(40)]
    data = {path: value for name in ["ann.x", *names] for path, value in run_of(name).items()}
    path = f"{JobPaths('ann.x').root}/{node}"
    assert path in data
    if junk is not None:
        data[path] = junk
    session: Any = Nodes(data, {path} if junk is None else set())
    reader = RunReader(session)
    monkeypatch.setattr(reader, "_open", sorted)
    found = reader.read(dict.fromkeys(["ann.x", *names], ""))
    assert found.keys() == set(names)
    why = "a node is closed" if junk is None else ""
    assert f"the records of its run cannot be read: {why}" in reader.unreadable["ann.x"]
    assert session.requests <= 14, "a closed node is found by halves"
    data.update(run_of("ann.x"))
    session.closed.clear()
    assert "ann.x" in reader.read(dict.fromkeys(["ann.x"], ""))
    assert not reader.unreadable
