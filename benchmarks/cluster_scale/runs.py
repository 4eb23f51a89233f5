"""Stand-ins of the runs of jobs: they write what their agents and workers write, and train nothing.

A run's agents register on its hosts, take the devices that the cluster gives them, and give them
back. Its ring is written as soon as all its workers would be there. How far it has trained follows
from the clock.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from kazoo.client import TransactionRequest

from benchmarks.cluster_scale.hosts import RunKey, StandInHost
from benchmarks.cluster_scale.loop import Loop
from benchmarks.cluster_scale.workload import BATCH, StandInJob
from edl.cluster.store import ClusterStore
from edl.errors import CoordinationError, UnknownJob
from edl.policy.observation import SizeMeasurement
from edl.policy.scaling_profile import ScalingProfile
from edl.records import (
    Assigned,
    Generation,
    Host,
    Job,
    JobState,
    ProgressSample,
    RingMember,
    TrainingStatus,
)
from edl.step.batching import Batching
from edl.zookeeper.access import Access
from edl.zookeeper.nodes import content
from edl.zookeeper.reads import Issue, children, delete_node, encode, exists, get
from edl.zookeeper.session import Refused, Session
from edl.zookeeper.store import JobStore

AGENT_S = 0.2  # from the start of an agent to its record
START_S = 1.0  # from the last agent of a run to its first step, as with forked workers
SWITCH_S = 0.2  # from a change of devices to a step in the new ring
AGAIN_S = 0.05  # before a look that follows a write which was refused
SESSION_JOBS = 60  # jobs of a session; each has to be proved, and slows down its requests
NOISE = 0.03  # the standard deviation of a measured throughput, as a part of it
LOOPBACK = "127.0.0.1"


@dataclass
class Book:
    """What became of the jobs.

    Attributes:
        jobs: the jobs by name, which are put here before they are submitted.
        left: job -> how many samples it has still to train; a job that was halted goes on there.
        begun_s: job -> when it has first trained, by the monotonic clock.
        ended_s: job -> when it has trained to the end.
        ends: job -> how often it has trained to the end.
        runs: job -> how many of its runs have trained.
        resizes: job -> how often its ring has changed.
        users: host -> device -> the run that uses it.
        shared: devices that two runs have used at a time; there must be none.
        is_quiet: whether runs write no status.
        speed: by how much jobs train faster than they should; it ends a day soon.
    """

    jobs: dict[str, StandInJob] = field(default_factory=dict)
    left: dict[str, float] = field(default_factory=dict)
    begun_s: dict[str, float] = field(default_factory=dict)
    ended_s: dict[str, float] = field(default_factory=dict)
    ends: Counter[str] = field(default_factory=Counter)
    runs: Counter[str] = field(default_factory=Counter)
    resizes: Counter[str] = field(default_factory=Counter)
    users: dict[str, dict[int, RunKey]] = field(default_factory=dict)
    shared: list[str] = field(default_factory=list)
    is_quiet: bool = False
    speed: float = 1.0

    def use(self, host: str, devices: tuple[int, ...], run: RunKey) -> None:
        """Note that a run uses these devices of a host from now on, and no others there."""
        users = self.users.setdefault(host, {})
        for device in [device for device, user in users.items() if user == run]:
            del users[device]
        for device in devices:
            other = users.setdefault(device, run)
            if other != run:
                self.shared.append(f"device {device} of {host}: {other[0]} and {run[0]}")


class SessionPool:
    """The ZooKeeper sessions of the runs, each for so many jobs, one after another."""

    def __init__(self, zookeeper: str) -> None:
        self._zookeeper = zookeeper
        self._users: dict[Session, set[RunKey]] = {}
        self._proved: Counter[Session] = Counter()
        self._newest: Session | None = None

    def take(self, run: RunKey) -> Session:
        """Return the session for a run."""
        if self._newest is None or self._proved[self._newest] >= SESSION_JOBS:
            self._newest = Session(self._zookeeper, 30.0)
            self._newest.start()
            self._users[self._newest] = set()
        self._users[self._newest].add(run)
        self._proved[self._newest] += 1
        return self._newest

    def give_back(self, session: Session, run: RunKey) -> None:
        """Note that a run is over; the session is closed after its last one."""
        self._users[session].discard(run)
        if session is not self._newest and not self._users[session]:
            del self._users[session], self._proved[session]
            session.close()

    def close(self) -> None:
        """Close all sessions."""
        for session in self._users:
            session.close()


class StandInRuns:
    """The runs of all jobs of a cluster.

    Args:
        zookeeper: the ZooKeeper servers.
        store: the cluster, from which the secrets of jobs are read.
        book: what becomes of the jobs.
        loop: calls the runs when something has changed.
        seed: of the noise of measurements.
    """

    def __init__(
        self, zookeeper: str, store: ClusterStore, book: Book, loop: Loop, seed: int = 0
    ) -> None:
        self._store = store
        self._pool = SessionPool(zookeeper)
        self._runs: dict[RunKey, StandInRun] = {}
        self.book = book
        self.loop = loop
        self.chance = random.Random(seed)

    def start_agent(self, host: StandInHost, run: RunKey) -> None:
        """Begin the work of the agent of a run on a host."""
        if run not in self._runs:
            secret = self._store.jobs.secret(run[0])
            assert secret is not None, f"job {run[0]} was assigned without a secret"
            session = self._pool.take(run)
            self._runs[run] = StandInRun(self, session, run, Access(run[0], secret))
        self._runs[run].add_agent(host)

    def end_agent(self, host: StandInHost, run: RunKey) -> None:
        """End the agent of a run on a host, as SIGTERM does."""
        if run in self._runs:
            self._runs[run].end_agent(host, is_final=False)

    def forget(self, run: StandInRun) -> None:
        """Forget a run without agents."""
        if self._runs.pop(run.key, None) is not None:
            self._pool.give_back(run.session, run.key)

    def training(self) -> int:
        """Return how many runs train."""
        return sum(one.trains for one in list(self._runs.values()))

    def hasten(self, speed: float) -> None:
        """Let all jobs train faster from now on, by the factor ``speed``; the loop calls this."""
        runs = list(self._runs.values())
        for one in runs:
            one.count()
        self.book.speed = speed
        for one in runs:
            one.plan_end()

    def close(self) -> None:
        """Close the sessions of all runs."""
        self._pool.close()


class StandInRun:
    """One run of a job: its agents, its ring, and its progress."""

    def __init__(self, runs: StandInRuns, session: Session, key: RunKey, access: Access) -> None:
        self.key = key
        self.session = session
        self._runs, self._book, self._loop = runs, runs.book, runs.loop
        self._access = access
        self._job = self._book.jobs[key[0]]
        self._store = JobStore(session, key[0])
        self._store.nodes.belong_to(key[1])
        self._agents: dict[str, StandInHost] = {}
        self._registered: dict[str, tuple[int, ...]] = {}  # host -> devices in its agent's record
        self._assigned = Assigned()
        self._period_s = 0.0
        self._ring: Mapping[str, tuple[int, ...]] = {}
        self._number = 0  # of the generation
        self._since_s = 0.0  # when the ring began to train
        self._measured: dict[int, SizeMeasurement] = {}
        self._is_over = False
        session.identify(access)

    @property
    def trains(self) -> bool:
        """Whether it has a ring that trains."""
        return bool(self._ring) and not self._is_over

    # --- its agents

    def add_agent(self, host: StandInHost) -> None:
        """Let the run have an agent on a host."""
        self._agents[host.name] = host
        self._loop.after(AGENT_S, self._look)

    def end_agent(self, host: StandInHost, is_final: bool, has_left: bool = False) -> None:
        """End the agent on a host, with all workers there.

        Args:
            host: the host.
            is_final: whether the run needs no other agent there.
            has_left: whether it ended because the run has no devices there any more.
        """
        if self._agents.pop(host.name, None) is None:
            return
        if self._registered.pop(host.name, None) is not None:
            self._book.use(host.name, (), self.key)
            self._read(delete_node(self._store.paths.host(host.name)))
        host.agent_has_ended(self.key, is_final, has_left)
        if not self._agents:
            self.count()
            self._ring, self._is_over = {}, True
            self._runs.forget(self)

    def _wake(self) -> None:
        self._loop.wake(self.key, self._look)

    def _read(self, *issues: Issue) -> list[Any]:
        return self.session.read_all("read a run", issues)

    def _look(self) -> None:
        """Read the job's record and its devices; act on what has changed."""
        if self._is_over:
            return
        paths = self._store.paths
        if self._read(exists(paths.root, self._wake))[0] is None:
            return
        job, tokens, assigned = self._read(
            get(paths.job, self._wake),
            children(paths.run, self._wake),
            get(paths.assigned, self._wake),
        )
        if self.key[1] not in (tokens or ()):
            return  # the run is not created yet, or another one has taken its place
        record = Job.from_json(content(paths.job, job))
        self._period_s = record.spec.settings.status_period_s
        if record.state is not JobState.RUNNING:
            self._stop(record.state)
            return
        self._assigned = Assigned.from_json(content(paths.assigned, assigned))
        if not self._has_put(self._register):
            return
        self._loop.after(SWITCH_S if self._ring else START_S, self._switch)

    def _has_put(self, puts: Callable[[], None]) -> bool:
        """Return whether ``puts`` has written records of agents; look again if it could not.

        It cannot if the devices of the run were changed meanwhile, or if it is over.
        """
        try:
            puts()
        except UnknownJob:
            return False
        except CoordinationError:
            self._loop.after(AGAIN_S, self._look)
            return False
        return True

    def _register(self) -> None:
        """Write the records of the agents: new ones, and those that get more devices."""
        for name, host in list(self._agents.items()):
            wanted = self._assigned.devices_on(name) or ()
            known = self._registered.get(name)
            if known is None or set(wanted) - set(known):
                self._put(host, tuple(sorted(wanted)))

    def _put(self, host: StandInHost, devices: tuple[int, ...]) -> None:
        """Write the record of an agent; its workers use all of ``devices``."""
        self.session.identify(self._access)
        self._store.hosts.put(
            Host(host.name, host.slots, LOOPBACK, 1, devices=devices, busy=devices, machine="s")
        )
        self._book.use(host.name, devices, self.key)
        self._registered[host.name] = devices

    # --- its ring

    def _switch(self) -> None:
        """Train in the ring of the devices that are assigned now, if all of them can be used."""
        wanted = {host: own for host, own in self._assigned.devices.items() if own}
        there = {host: own for host, own in self._registered.items() if host in wanted}
        if self._is_over or not wanted or any(there.get(h) is None for h in wanted):
            return
        if any(set(own) - set(there[host]) for host, own in wanted.items()):
            return
        if wanted != self._ring:
            self.count()
            self._begin(wanted)
        self._has_put(partial(self._give_back, wanted))

    def _give_back(self, wanted: Mapping[str, tuple[int, ...]]) -> None:
        """Let each agent have only the devices that are ``wanted``; one without any leaves."""
        for name, host in list(self._agents.items()):
            if name not in self._registered:
                continue
            if not wanted.get(name):
                if self._registered[name]:
                    self.end_agent(host, is_final=False, has_left=True)
            elif self._registered[name] != wanted[name]:
                self._put(host, wanted[name])

    def _begin(self, ring: Mapping[str, tuple[int, ...]]) -> None:
        """Write the generation of a ring, what it has measured, and that it trains."""
        name = self.key[0]
        if not self._ring:
            self._book.runs[name] += 1
            self._book.begun_s.setdefault(name, time.monotonic())
        else:
            self._book.resizes[name] += 1
        self._ring, self._since_s = dict(ring), time.monotonic()
        self._number += 1
        self._book.left.setdefault(name, self._job.samples)
        workers, hosts = self._size
        rate = self._job.samples_per_s(workers, hosts)
        measured = rate * self._runs.chance.gauss(1.0, NOISE)
        self._measured[workers] = SizeMeasurement(measured, 50, float(BATCH), hosts)
        members = tuple(
            RingMember(number, host, device, LOOPBACK, 1 + number)
            for number, (host, device) in enumerate(
                (host, device) for host, own in sorted(ring.items()) for device in own
            )
        )
        generation = Generation(self._number, 1, members, -1, (), (), "its slots have changed")
        profile = ScalingProfile(
            np=workers,
            batching=Batching(batch_size=BATCH),
            by_batch=tuple(sorted(self._measured.items())),
        )
        paths = self._store.paths
        self._write(
            {
                paths.generation: generation.to_json(),
                paths.learned: profile.to_json(),
                paths.status: self._status(),
            }
        )
        self.plan_end()
        self._loop.after(self._period_s, partial(self._tell, self._number))

    @property
    def _size(self) -> tuple[int, int]:
        """Its workers and its hosts."""
        return sum(map(len, self._ring.values())), len(self._ring)

    @property
    def _rate(self) -> float:
        return self._job.samples_per_s(*self._size) * self._book.speed

    def count(self) -> None:
        """Add what the ring has trained since the last call to the job's progress."""
        now_s = time.monotonic()
        if self._ring:
            name = self.key[0]
            left = self._book.left.get(name, self._job.samples)
            self._book.left[name] = max(0.0, left - self._rate * (now_s - self._since_s))
        self._since_s = now_s

    def _status(self) -> dict[str, Any]:
        """Return its status as it is now."""
        workers, _ = self._size
        left = self._book.left.get(self.key[0], self._job.samples)
        done = self._job.samples - left
        step = 1 + int(done / (BATCH * workers))
        step_s = BATCH * workers / self._rate
        sample = ProgressSample(0, self._number, workers, 0, step, 1 + int(done), time.monotonic())
        return TrainingStatus(
            step=step,
            left=left,
            median_step_s=step_s,
            global_batch=BATCH * workers,
            noise_scale=20.0 * BATCH,
            samples_per_s=self._rate,
            progress_sample=sample,
            updated_at_s=time.time(),
        ).to_json()

    def _tell(self, number: int) -> None:
        """Write its status, again and again while the ring with that number trains."""
        if self._is_over or number != self._number:
            return
        if not self._book.is_quiet:
            self.count()
            self._write({self._store.paths.status: self._status()})
        self._loop.after(self._period_s, partial(self._tell, number))

    def _write(self, values: Mapping[str, dict[str, Any]]) -> None:
        def build(transaction: TransactionRequest) -> None:
            for path, value in values.items():
                transaction.set_data(path, encode(value))

        try:
            self.session.transact("write a run", build)
        except Refused:
            self._wake()  # the job was removed

    # --- its end

    def plan_end(self) -> None:
        """Let the job end when it will have trained all samples at the present speed."""
        if self.trains:
            left_s = self._book.left[self.key[0]] / self._rate
            self._loop.after(left_s, partial(self._end, self._number))

    def _end(self, number: int) -> None:
        """Let the job have finished, if the ring with that number has trained all samples."""
        if self._is_over or number != self._number or not self._ring:
            return
        self.count()
        name = self.key[0]
        left_s = self._book.left[name] / self._rate
        if left_s > 0.001:
            self._loop.after(left_s, partial(self._end, number))
            return
        try:
            has_finished = self._store.set_job_state(JobState.FINISHED, "trained to the end")
        except UnknownJob:
            has_finished = False  # it was deleted meanwhile
        if has_finished:
            self._book.ends[name] += 1
            self._book.ended_s[name] = time.monotonic()
            self._end_all()
        else:
            self._wake()

    def _stop(self, state: JobState) -> None:
        """End the run as its record says, which the cluster has written."""
        self.count()
        if state is JobState.STOPPING:
            why = "has saved a checkpoint"
            self._store.set_job_state(JobState.STOPPED, why, only_from=(JobState.STOPPING,))
        self._end_all()

    def _end_all(self) -> None:
        for host in list(self._agents.values()):
            self.end_agent(host, is_final=True)
