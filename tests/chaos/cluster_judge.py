"""Judge a live cluster while it is driven and killed, and at the end.

While it runs, five times a second: no device has processes of two runs; each process is on a device
that is assigned to its run; no run has two agents on a host; each acknowledged job is there; no
device is assigned twice; no token of a run is started twice; no more hosts are lent than may be.

At the end: each job has ended, or is halted, as its user has last asked; each sample of a counting
job was counted once an epoch; no run of a job has trained after its next run had begun; all devices
are free; when the hosts have left, no process is left, and no node of a process. Of borrowed hosts,
a last job has got all slots; then neither the cluster nor the engine has a lease.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Sequence
from itertools import pairwise
from pathlib import Path

from cluster_driver import Submission
from fleet_cluster import FleetCluster

from benchmarks.cluster.live import LiveCluster
from edl.cluster.host.processes import start_of
from edl.cluster.host_jobs import RunProcess
from edl.cluster.lifecycle import ClusterEvent, ClusterEventKind, LifeResult, LifeState, run_token
from edl.cluster.records import Goal
from edl.cluster.runs import RunReader
from edl.cluster.store import ClusterSnapshot, ClusterStore
from edl.cluster.view import JobView
from edl.errors import CoordinationError
from edl.zookeeper.access import Access
from edl.zookeeper.paths import JobPaths
from edl.zookeeper.reads import children
from edl.zookeeper.session import Session

LOOK_S = 0.2
GONE_S = 20.0  # for the nodes of a dead process to go
SAVED_S = 10.0  # a run that has trained for so long has saved a checkpoint after its first step


class Judge:
    """Looks at the cluster in a thread of its own; others add to ``submissions``."""

    def __init__(self, lab: LiveCluster, submissions: Sequence[Submission]) -> None:
        self._lab = lab
        self._submissions = submissions
        self.wrong: list[str] = []
        self.looks = [0, 0]  # at the processes, and at the records
        self._created: dict[str, tuple[str, float]] = {}  # token -> job, when it was created
        self._runs: dict[tuple[str, int], int] = {}  # name and order -> number of runs
        self._agents: dict[str, set[tuple[int, int]]] = {}  # by host: two pids seen together
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="judge")

    def __enter__(self) -> Judge:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60.0)

    def _run(self) -> None:
        while not self._stop.is_set():
            # A session that is away for long is replaced, as one of `edl list` would be.
            with (
                contextlib.suppress(CoordinationError),
                self._lab.store() as store,
                Session(self._lab.zookeeper, 10.0) as session,
            ):
                reader = RunReader(session)
                while not self._stop.wait(LOOK_S):
                    self._look_at_processes()
                    self._look_at_records(store, reader)
            self._look_at_processes()
            self._stop.wait(LOOK_S)

    def _say(self, sentence: str) -> None:
        if not any(one.endswith(sentence) for one in self.wrong):
            self.wrong.append(f"{time.strftime('%H:%M:%S')} {sentence}")

    # --- processes

    def _look_at_processes(self) -> None:
        """Check that a device has processes of one run only, and a run one agent on a host.

        Two workers of a run may share a device, while one takes the place of the other.
        """
        self.looks[0] += 1
        for host in list(self._lab.hosts):
            agents: dict[str, list[RunProcess]] = defaultdict(list)
            users: dict[str, list[RunProcess]] = defaultdict(list)
            for one in self._lab.processes(host):
                if one.is_agent:
                    agents[one.job].append(one)
                elif one.attempt_id and (device := _device(one.pid)):
                    users[device].append(one)
            self._compare_agents(host, agents.values())
            for device, (first, *others) in users.items():
                for other in others:
                    if first.of_run != other.of_run and _live_together(first, other):
                        self._say(f"host {host}, device {device}: {first} and {other}")

    def _compare_agents(self, host: str, agents: Iterable[Sequence[RunProcess]]) -> None:
        """Check that a job has one agent on a host.

        A process that an agent has just forked looks like it, until it executes its program. So two
        are wrong if they are seen together twice.
        """
        together = {(one[0].pid, other.pid) for one in agents for other in one[1:]}
        for pids in together & self._agents.get(host, set()):
            self._say(f"host {host}: the processes {pids} are agents of the same job")
        self._agents[host] = together

    # --- records

    def _look_at_records(self, store: ClusterStore, reader: RunReader) -> None:
        known = [one for one in self._submissions if not one.asking]
        known = [one for one in known if one.goal is not Goal.GONE and not one.is_replaced]
        before = _ticks()
        store.nodes.session.call("catch up", lambda client: client.sync_async("/"), repeat=True)
        now = store.snapshot()
        self._check_users(now, before)
        jobs = {job.name: job for job in now.jobs}
        for one in known:
            job = jobs.get(one.name)
            if one.asking or one.goal is Goal.GONE or one.is_replaced:
                continue  # meanwhile
            if job is None or one.order not in (None, job.order):
                self._say(f"the job of an acknowledged submission is not there: {one}; it is {job}")
            else:
                one.order = job.order
        self._check_devices(now)
        self._check_runs(now)
        self._check_leases(store)
        secrets, _ = store.jobs.secrets_and_measured([job.name for job in now.jobs], watch=False)
        for name, run in reader.read(secrets).items():
            created = self._created.setdefault(run.token, (name, run.job.created))
            if created != (name, run.job.created):
                self._say(f"run {run.token} was started twice: {created}, {run.job}")
        self.looks[1] += 1

    def _check_users(self, now: ClusterSnapshot, before: int) -> None:
        for host in now.hosts:
            for one in self._lab.processes(host.name):
                device = _device(one.pid) if one.attempt_id and one.started < before else ""
                entry = host.assigned.jobs.get(one.job)
                is_owner = entry is not None and entry.run == one.run
                if device and not (is_owner and int(device) in entry.devices) and _lives(one):
                    self._say(f"{one} is on device {device} of {host.name}: {host.assigned}")

    def _check_devices(self, now: ClusterSnapshot) -> None:
        for host in now.hosts:
            devices = [d for one in host.assigned.jobs.values() for d in one.devices]
            if len(set(devices)) != len(devices):
                self._say(f"a device of host {host.name} is assigned twice: {host.assigned}")
            if host.offer is not None and not set(devices) <= set(host.offer.numbers):
                self._say(f"host {host.name} has no such device: {host.assigned}")

    def _check_runs(self, now: ClusterSnapshot) -> None:
        """Check that the number of runs never falls, and that the token says it."""
        for job in now.jobs:
            before = self._runs.get((job.name, job.order), 0)
            self._runs[job.name, job.order] = job.life.runs
            if job.life.runs < before:
                self._say(f"job {job.name} had {before} runs: {job.life}")
            if job.life.runs and job.life.run != run_token(job.order, job.life.runs):
                self._say(f"job {job.name} has a wrong token: {job.life}")

    def _check_leases(self, store: ClusterStore) -> None:
        if isinstance(self._lab, FleetCluster):
            table, _ = store.leader.leases()
            going = {name: one for name, one in table.leases.items() if not one.is_over}
            if len(going) > len(self._lab.machines):
                self._say(f"{len(going)} hosts are borrowed or asked for: {going}")

    # --- the end

    def wait_for_the_end(self, within_s: float) -> None:
        """Wait until each job has ended or is halted, as its user wants, and all is free."""
        deadline_s = time.monotonic() + within_s
        rest: list[str] = []
        while time.monotonic() < deadline_s:
            assert not self.wrong, self.wrong
            with contextlib.suppress(CoordinationError), self._lab.store() as store:
                rest = self._not_over(store)
                if not rest:
                    return
            time.sleep(0.5)
        raise AssertionError(f"after {within_s:g} s without trouble: " + "; ".join(rest))

    def _not_over(self, store: ClusterStore) -> list[str]:
        now = store.snapshot()
        jobs = {job.name: job for job in now.jobs}
        found = []
        for one in self._submissions:
            job = jobs.get(one.name)
            if one.is_replaced or job is None or one.order not in (None, job.order):
                continue  # whether it may be gone, check_ends says
            ends = {Goal.HALT: (LifeState.HALTED, LifeState.ENDED)}.get(
                one.goal, (LifeState.ENDED,)
            )
            if job.life.state not in ends:
                found.append(f"job {one.name}, of which {one.goal} is wanted, is {job.life}")
        lent = isinstance(self._lab, FleetCluster)
        return found if lent else found + self._not_free(now)

    def _not_free(self, now: ClusterSnapshot) -> list[str]:
        """Return which hosts have something of a job, lack an offer, or were not given back."""
        lent = isinstance(self._lab, FleetCluster)
        found = []
        for host in now.hosts:
            if host.assigned.jobs:
                found.append(f"host {host.name} has {host.assigned} and reports {host.report}")
            if (host.offer is None) != lent or host.drained:
                found.append(f"host {host.name} offers {host.offer}, drained: {host.drained}")
            if living := self._lab.processes(host.name):
                found.append(f"host {host.name} has {living}")
        return found

    def wait_for_the_hosts(self, within_s: float) -> None:
        """Wait until all borrowed hosts are given back: no lease is left."""
        assert isinstance(self._lab, FleetCluster)
        deadline_s = time.monotonic() + within_s
        rest: list[str] = []
        while time.monotonic() < deadline_s:
            assert not self.wrong, self.wrong
            with contextlib.suppress(CoordinationError), self._lab.store() as store:
                table, _ = store.leader.leases()
                rest = self._not_free(store.snapshot()) + [
                    f"lease {name}: {one}" for name, one in table.leases.items()
                ]
                rest += [f"stray lease {name}" for name in table.strays]
                rest = rest or [f"lent: {one}" for one in self._lab.engine.leases()]
                if not rest:
                    return
            time.sleep(0.5)
        story = self._lab.engine.story()
        raise AssertionError(f"after {within_s:g} s without jobs: {'; '.join(rest)}\n{story}")

    def count_leases(self) -> int:
        with self._lab.store() as store:
            return store.leader.leases()[0].last

    def check_ends(self, frozen: Container[int]) -> dict[str, int]:
        counts: dict[str, int] = defaultdict(int)
        with self._lab.store() as store:
            jobs = {job.name: job for job in store.snapshot().jobs}
            events = [event for _, event in store.events.read()]
        for one in self._submissions:
            job = None if one.is_replaced else jobs.get(one.name)
            if one.goal is Goal.GONE and job is not None and job.order != one.order:
                job = None  # its name has another job
            self._check_end(one, job)
            if one.epochs:
                check_steps(one.directory, frozen)
            how = "replaced" if one.is_replaced else "removed"
            counts[how if job is None else str(job.life.result or job.life.state)] += 1
        for job in jobs.values():
            _check_story(job, events)
        assert not self.wrong, self.wrong
        return dict(counts)

    def _check_end(self, one: Submission, job: JobView | None) -> None:
        wanted = {
            Goal.RUN: (LifeResult.FINISHED,),
            Goal.HALT: (None, LifeResult.FINISHED),
            Goal.GONE: (LifeResult.DELETED, LifeResult.FINISHED),
        }[one.goal]
        if job is None:
            assert one.is_replaced or one.goal is Goal.GONE, f"{one} is not there"
        else:
            assert job.life.result in wanted, f"{one} has ended otherwise: {job.life}"
        if not one.epochs:
            return
        finished = one.is_replaced or (job is not None and job.life.result is LifeResult.FINISHED)
        reports = [json.loads(path.read_text()) for path in one.directory.glob("*.json")]
        assert reports or not finished, f"no worker of {one} has reported"
        for report in reports:
            assert report["wrong"] == [], f"{one}: {report}"
            assert report["counts"] == {str(one.epochs): one.samples}, f"{one}: {report}"
            for epoch in report["epochs"]:
                assert epoch["counts"] == {str(epoch["epoch"] + 1): one.samples}, f"{one}: {report}"

    def check_nothing_is_left(self) -> None:
        """After the hosts and controllers have ended: no process, and no node of one."""
        left = self._lab.left()
        assert not left, f"these processes are left: {[one.cmdline() for one in left]}"
        with self._lab.store() as store, Session(self._lab.zookeeper, 10.0) as session:
            secrets, _ = store.jobs.secrets_and_measured(
                [job.name for job in store.jobs.list()], watch=False
            )
            session.identify(*(Access(job, secret) for job, secret in secrets.items()))
            paths = [JobPaths(job) for job in secrets]
            parents = [p for one in paths for p in (one.members, one.hosts, one.election)]

            def nodes() -> dict[str, object]:
                listed = session.read_all("look what is left", [children(p) for p in parents])
                return {p: found for p, found in zip(parents, listed, strict=True) if found}

            _until(lambda: not nodes(), lambda: f"these nodes are left: {nodes()}", GONE_S)


def check_steps(directory: Path, frozen: Container[int]) -> None:
    """Check that no run of a job has trained beside the next one, and that each one continues.

    A run saves a checkpoint before its first step, and every other second, so that the next one
    does not begin before that, and later if the run has trained for a while.
    """
    steps: dict[str, list[tuple[int, int]]] = defaultdict(list)  # by run: when, which
    for path in directory.glob("*.steps"):
        pid, run, _ = path.name.split(".")
        if int(pid) in frozen:
            continue
        text = path.read_text()
        rows = [line.split() for line in text[: text.rfind("\n") + 1].splitlines()]
        steps[run] += [(int(row[0]), int(row[1])) for row in rows]
    runs = {run: sorted(rows) for run, rows in sorted(steps.items()) if rows}
    for (before, rows), (after, later) in pairwise(runs.items()):
        beside_s = (rows[-1][0] - later[0][0]) / 1e9
        assert beside_s < 0, f"{directory}: run {before} trained {beside_s:.3f} s beside {after}"
        lasted_s = (rows[-1][0] - rows[0][0]) / 1e9
        first, again = rows[0][1], later[0][1]
        story = f"{directory}: {before} began at {first} and trained {lasted_s:.1f} s"
        assert again >= first + (lasted_s > SAVED_S), f"{story}; {after} began at {again}"


def _check_story(job: JobView, events: Iterable[ClusterEvent]) -> None:
    story: list[ClusterEvent] | None = None
    for event in events:
        if event.job == job.name and event.kind is ClusterEventKind.SUBMITTED:
            story = []
        if event.job == job.name and story is not None and event.kind is ClusterEventKind.STATE:
            story.append(event)
    if story is None:
        return  # it was submitted so long ago that the event is gone
    state, starts = "queued", 0
    for event in story:
        before, _, rest = event.reason.partition(" -> ")
        assert before == state, f"job {job.name} was {state}, and then: {event}; {story}"
        state = rest.partition(":")[0]
        starts += state == "starting"
    assert state == job.life.state, f"job {job.name} is {job.life}; {story}"
    assert starts == job.life.runs, f"job {job.name} has started {starts} times: {job.life}"


def _device(pid: int) -> str:
    """Return the device of a worker's process, by its environment; empty if it has none."""
    with contextlib.suppress(OSError):
        for pair in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            if pair.startswith(b"EDL_DEVICE="):
                return os.fsdecode(pair.partition(b"=")[2])
    return ""


def _live_together(first: RunProcess, other: RunProcess) -> bool:
    """Return whether both, which were seen, were alive at one moment."""
    return _lives(other) and _lives(first)


def _lives(one: RunProcess) -> bool:
    return start_of(one.pid) == one.started


def _ticks() -> int:
    """Return the time since the machine came up, in clock ticks."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))


def _until(condition: Callable[[], object], say: Callable[[], str], timeout_s: float) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, say()
        time.sleep(0.1)
