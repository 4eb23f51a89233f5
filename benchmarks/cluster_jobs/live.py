"""Play the jobs on the live cluster under one policy, and record which slots they have."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.cluster_jobs.counts import problem_of
from benchmarks.cluster_jobs.machines import CLIENT, Machines
from benchmarks.cluster_jobs.marks import StepMark, step_marks
from benchmarks.cluster_jobs.profiling import Profiles
from benchmarks.cluster_jobs.workload import HOSTS, SLOTS, WorkloadJob
from benchmarks.jobs import BenchmarkError
from edl.client import Cluster
from edl.cluster.client.client import job_manifest
from edl.cluster.client.connection import connected_cluster
from edl.cluster.lifecycle import LifeState
from edl.cluster.records import ControllerRecord
from edl.cluster.store import ClusterSnapshot, ClusterStore
from edl.cluster.submission import submit_job

LOOK_S = 0.1  # between two looks at the cluster
RESTART_S = 3.0  # after which a killed controller or `edl host` is started again
LIMIT_S = 900.0  # for all jobs of one policy
CONTROLLER, HOST, AGENT = "the leading controller", "`edl host`", "an agent"
KILLS = ((50.0, CONTROLLER), (85.0, HOST), (110.0, AGENT))


@dataclass(frozen=True)
class PolicyChoice:
    """A cluster policy with its parameters.

    Attributes:
        name: the name that the cluster knows it by.
        parameters: those that are not as registered.
    """

    name: str
    parameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class LiveJob:
    """What became of a job; times are in seconds since the first submission.

    Attributes:
        name: its name.
        submitted_s: when it was submitted.
        ended_s: when it ended.
        runs: how many runs it had.
        targets: when the policy's decision on its number of slots changed, and to what.
        slots: when its number of slots changed, and to what.
        rings: when its number of workers that train together changed, and to what.
        problem: what is wrong with its counts or its end; empty: nothing.
    """

    name: str
    submitted_s: float
    ended_s: float
    runs: int
    targets: tuple[tuple[float, int], ...]
    slots: tuple[tuple[float, int], ...]
    rings: tuple[tuple[float, int], ...]
    problem: str = ""

    @property
    def jct_s(self) -> float:
        """The job completion time in seconds."""
        return self.ended_s - self.submitted_s


@dataclass(frozen=True)
class LiveRun:
    """What became of all jobs under a policy.

    Attributes:
        policy: the policy.
        jobs: the jobs in the order of submission.
        kills: when something was killed, in seconds since the first submission, and what.
        marks: the steps of each job by its name, with times in seconds since 1970.
        begin_s: the first submission, in seconds since 1970.
    """

    policy: PolicyChoice
    jobs: tuple[LiveJob, ...]
    kills: tuple[tuple[float, str], ...]
    marks: Mapping[str, Sequence[StepMark]]
    begin_s: float


def play(
    machines: Machines,
    policy: PolicyChoice,
    jobs: Sequence[WorkloadJob],
    profiles: Profiles,
    say: Callable[[str], None],
    kills: Sequence[tuple[float, str]] = KILLS,
    cluster: str = "",
) -> LiveRun:
    """Play ``jobs`` under a policy, and kill parts of the cluster meanwhile.

    Args:
        machines: the hosts, on which nothing of a cluster runs.
        policy: the policy.
        jobs: the jobs in the order of their arrivals.
        profiles: the measured step times, which the jobs' manifests supply.
        say: shows what happens.
        kills: when to kill what, in seconds since the first submission.
        cluster: the name of the cluster; empty: that of the policy.

    Raises:
        BenchmarkError: the jobs do not end in time, or a process is left when all has ended.
    """
    stage = _Stage(machines, policy, cluster or policy.name.replace("_", "-"), say)
    with stage:
        return stage.play(jobs, profiles, kills)


class _Stage:
    """The cluster of one policy: two controllers, and `edl host` on each host."""

    def __init__(
        self, machines: Machines, policy: PolicyChoice, cluster: str, say: Callable[[str], None]
    ) -> None:
        self._machines, self._policy, self._cluster, self._say = machines, policy, cluster, say
        self._directory = machines.directory / cluster
        self._slots: dict[str, list[tuple[float, int]]] = {}
        self._targets: dict[str, list[tuple[float, int]]] = {}
        self._again: list[tuple[float, str]] = []  # when which process is started again
        self._killed: list[tuple[float, str]] = []
        self._begin_s = 0.0

    def __enter__(self) -> None:
        self._directory.mkdir()
        self._machines.use_root(self._cluster)
        for host in HOSTS:
            self._start_controller(host)
            self._machines.expect(self._name("controller", host), f"cluster {self._cluster} is")
        for host in HOSTS:
            self._start_host(host)
            self._machines.expect(self._name("host", host), f"offers {SLOTS} slots")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            return  # all processes are killed with their hosts
        for what in ("host", "controller"):
            for host in HOSTS:
                if self._machines.runs(name := self._name(what, host)):
                    self._machines.end(name)
        left = [one for host in HOSTS for one in self._machines.network.wait_until_empty(host)]
        for process in left:
            process.kill()
        if left:
            raise BenchmarkError(f"these processes were left: {left}")

    def _name(self, kind: str, host: str) -> str:
        return f"{self._cluster}/{kind}-{host}"

    def _start_controller(self, host: str) -> None:
        name = self._name("controller", host)
        self._machines.start_controller(name, host, self._cluster, self._policy.name)

    def _start_host(self, host: str) -> None:
        self._machines.start_host(self._name("host", host), host, self._cluster, SLOTS)

    def play(
        self, jobs: Sequence[WorkloadJob], profiles: Profiles, kills: Sequence[tuple[float, str]]
    ) -> LiveRun:
        secret = self._machines.secret_file.read_text()
        zookeeper = self._machines.zookeeper
        client = Cluster(self._cluster, zookeeper, secret=secret)
        client.policy.set(self._policy.name, self._policy.parameters)
        with connected_cluster(self._cluster, zookeeper, secret) as store:
            self._begin_s = time.time()
            coming, striking = list(jobs), list(kills)
            deadline_s = time.monotonic() + LIMIT_S
            while True:
                now_s = time.time() - self._begin_s
                while coming and coming[0].arrival_s <= now_s:
                    self._submit(store, coming.pop(0), profiles)
                snapshot = store.snapshot()
                self._record(snapshot, now_s)
                if striking and striking[0][0] <= now_s and self._strike(striking[0][1], snapshot):
                    striking.pop(0)
                self._restart(now_s)
                ended = [job for job in snapshot.jobs if job.life.state is LifeState.ENDED]
                if len(ended) == len(jobs):
                    if striking:
                        raise BenchmarkError(f"all jobs ended before these were killed: {striking}")
                    return self._run(jobs, snapshot)
                if time.monotonic() > deadline_s:
                    raise BenchmarkError(f"not all jobs ended in {LIMIT_S:g} s: {snapshot.jobs}")
                time.sleep(LOOK_S)

    def _submit(self, store: ClusterStore, job: WorkloadJob, profiles: Profiles) -> None:
        directory = self._directory / job.name
        (directory / "reports").mkdir(parents=True)
        manifest = job.manifest(directory, profiles.get(job.name))
        submit_job(store, job_manifest(manifest), job.name)
        self._say(f"{self._cluster}: {job.name} is submitted")

    def _record(self, snapshot: ClusterSnapshot, now_s: float) -> None:
        """Note the slots that jobs have and shall have, where their numbers have changed."""
        allocation = snapshot.allocation
        slots: Counter[str] = Counter()
        for host in snapshot.hosts:
            for name, entry in host.assigned.jobs.items():
                slots[name] += len(entry.devices)
        for job in snapshot.jobs:
            history = self._slots.setdefault(job.name, [(0.0, 0)])
            if history[-1][1] != slots[job.name]:
                history.append((now_s, slots[job.name]))
                self._say(f"{self._cluster}: {job.name} has {slots[job.name]} slots")
            wanted = sum(allocation.targets.get(job.name, {}).values())
            history = self._targets.setdefault(job.name, [(0.0, 0)])
            if history[-1][1] != wanted:
                at_s = allocation.changed_s.get(job.name, allocation.at_s)
                history.append((at_s - self._begin_s, wanted))

    def _strike(self, what: str, snapshot: ClusterSnapshot) -> bool:
        """Kill a part of the cluster, and note when it is to be started again.

        Return False if there is no such part now.
        """
        again_s = time.time() - self._begin_s + RESTART_S
        if what == CONTROLLER:
            leader = ControllerRecord.from_json(snapshot.leader)
            self._kill(self._name("controller", leader.host), again_s)
        elif what == HOST:
            self._kill(self._name("host", HOSTS[1]), again_s)
        else:
            agents = {**self._machines.agents(HOSTS[1]), **self._machines.agents(HOSTS[0])}
            if not agents:
                return False
            job = min(agents)
            agents[job].kill()  # `edl host` starts it again
            what = f"the agent of {job}"
        self._killed.append((time.time() - self._begin_s, what))
        self._say(f"{self._cluster}: {what} is killed")
        return True

    def _kill(self, name: str, again_s: float) -> None:
        self._machines.kill(name)
        self._again.append((again_s, name))

    def _restart(self, now_s: float) -> None:
        """Start again what was killed, when it is time."""
        for at_s, name in list(self._again):
            if at_s <= now_s:
                self._again.remove((at_s, name))
                kind, _, host = name.rpartition("/")[2].partition("-")
                (self._start_controller if kind == "controller" else self._start_host)(host)

    def _run(self, jobs: Sequence[WorkloadJob], snapshot: ClusterSnapshot) -> LiveRun:
        """Return what became of the jobs; all of them have ended."""
        self._keep_events()
        stored = {job.name: job for job in snapshot.jobs}
        begin_s = stored[jobs[0].name].submitted_s
        shift_s = self._begin_s - begin_s
        marks = {job.name: step_marks(self._directory / job.name) for job in jobs}
        found = []
        for job in jobs:
            life = stored[job.name].life
            ended = f"it {life.result}: {life.reason}" if life.result != "finished" else ""
            found.append(
                LiveJob(
                    name=job.name,
                    submitted_s=stored[job.name].submitted_s - begin_s,
                    ended_s=life.ended_s - begin_s,
                    runs=life.runs,
                    targets=_shifted(self._targets[job.name], shift_s),
                    slots=_shifted(self._slots[job.name], shift_s),
                    rings=rings_of(marks[job.name], begin_s),
                    problem=ended or problem_of(_reports(self._directory / job.name), job),
                )
            )
        kills = tuple((at_s + shift_s, what) for at_s, what in self._killed)
        return LiveRun(self._policy, tuple(found), kills, marks, begin_s)

    def _keep_events(self) -> None:
        text = self._machines.run(CLIENT, "events", "--cluster", self._cluster, "--json")
        (self._directory / "events.jsonl").write_text(text)


def _shifted(changes: Sequence[tuple[float, int]], shift_s: float) -> tuple[tuple[float, int], ...]:
    """Return changes of a number, each ``shift_s`` later."""
    return tuple((at_s + shift_s, number) for at_s, number in changes)


def rings_of(marks: Sequence[StepMark], begin_s: float) -> tuple[tuple[float, int], ...]:
    """Return when the number of workers that train together changed, and to what.

    Times are in seconds after ``begin_s``. The end counts as a change to 0.
    """
    found: list[tuple[float, int]] = []
    for mark in marks:
        if not found or found[-1][1] != mark.workers:
            found.append((mark.at_s - begin_s, mark.workers))
    if marks:
        found.append((marks[-1].at_s - begin_s, 0))
    return tuple(found)


def _reports(directory: Path) -> list[dict[str, Any]]:
    """Return what the workers of a job that trained to the end have reported."""
    return [json.loads(path.read_text()) for path in sorted(directory.glob("reports/*.json"))]
