"""Start missing workers and wake frozen ones in a loopback job, as the agents of all hosts do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from edl.records import JobState, RequestKind
from edl.testing.memory import MemoryJob
from edl.testing.schedule import BackgroundTask, TaskScheduler

MAX_WORKERS = 24  # that a job may start in all


class HostedWorker(Protocol):
    """A worker of a loopback job (a job in one process), as the agent of its host sees it."""

    @property
    def id(self) -> int:
        """The id of the worker, an integer from 0."""

    @property
    def host(self) -> str:
        """The name of the host that the worker runs on."""

    @property
    def ended(self) -> bool:
        """Whether the process of the worker is gone."""


class HostedJob(Protocol):
    """A loopback job (a job in one process), as the agents of its hosts see it."""

    @property
    def schedule(self) -> TaskScheduler:
        """The scheduler that runs all threads of the job, and has its virtual time."""

    @property
    def memory(self) -> MemoryJob:
        """The records of the job, as ZooKeeper would hold them."""

    @property
    def workers(self) -> Sequence[HostedWorker]:
        """All workers that were started, in order of their ids, those that have ended included."""

    def start_worker(self, host: str) -> None:
        """Start one more worker of the job on the host called `host`, and return at once."""

    def kill(self, worker: int) -> None:
        """End the process of worker number `worker`, frozen or not, as by SIGKILL."""

    def thaw(self, worker: int) -> None:
        """Wake the worker with the id `worker`, as by SIGCONT; do nothing if it is not frozen."""


class Agents:
    """The agents of all hosts of a loopback job, one for each host."""

    def __init__(self, job: HostedJob, slots: int, restart_s: float) -> None:
        self._job = job
        self._slots = slots
        self._restart_s = restart_s
        self._restart_at = 0.0
        self._lacks = (-1, False)  # whether a worker was lacking after so many changes
        self.thaws: dict[int, float] = {}  # when each frozen worker is woken
        job.schedule.actors += [
            BackgroundTask("agents", self._may_start, self._start, self._starts_at, starts=True),
            BackgroundTask("thaw", self._may_wake, self._wake, self._wakes_at),
        ]
        self.come()

    def come(self) -> None:
        """Register an agent on each host that has an entry in the desired numbers of workers."""
        memory = self._job.memory
        memory.agents |= dict.fromkeys(memory.hosts, self._slots)

    def want_fewer(self, host: str) -> None:
        """Lower the desired number of workers on `host` by one, after the job refused a worker."""
        memory = self._job.memory
        # Another one on that host would have a state that differs from the others', too.
        memory.set_desired({**memory.hosts, host: memory.hosts[host] - 1})

    def note_end(self) -> None:
        """Record that a worker's process has ended: no host starts one for `restart_s`."""
        self._restart_at = self._job.schedule.now_s() + self._restart_s

    def _lacking(self) -> str | None:
        job, memory = self._job, self._job.memory
        current = memory.generation
        ended = memory.job.state is not JobState.RUNNING or (current and not current.members)
        if ended or memory.away or len(job.workers) >= MAX_WORKERS:
            return None
        for host, wanted in sorted(memory.hosts.items()):
            replaced = {
                request.worker
                for request in memory.requests.values()
                if request.kind == RequestKind.REPLACE
            }
            here = [
                one
                for one in job.workers
                if one.host == host and not one.ended and one.id not in replaced
            ]
            if sum(one.id not in memory.evicted for one in here) < wanted:
                return host
        return None

    def _may_start(self) -> bool:
        changes = self._job.memory.changes
        if self._lacks[0] != changes:
            self._lacks = changes, self._lacking() is not None
        return self._lacks[1] and self._job.schedule.now_s() >= self._restart_at

    def _start(self) -> None:
        host = self._lacking()
        assert host is not None
        self._job.start_worker(host)

    def _starts_at(self) -> float | None:
        self._may_start()
        return self._restart_at if self._lacks[1] else None

    def _frozen(self) -> list[tuple[float, int]]:
        if not (frozen := self._job.memory.frozen):
            return []
        over = self._job.memory.job.state.over
        return sorted((0.0 if over else self.thaws[worker], worker) for worker in frozen)

    def _may_wake(self) -> bool:
        if not self._job.memory.frozen:
            return False
        return self._frozen()[0][0] <= self._job.schedule.now_s()

    def _wake(self) -> None:
        """Wake the frozen worker whose time comes first; kill it if the job is over."""
        _, worker = self._frozen()[0]
        if self._job.memory.job.state.over:
            self._job.kill(worker)
        else:
            self._job.thaw(worker)

    def _wakes_at(self) -> float | None:
        return next((at for at, _ in self._frozen()), None)
