"""A host of a cluster by hand: it obeys its assignment with real agents, and reports what lives."""

from __future__ import annotations

import subprocess
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import forked
from cli_shell import Running, Shell

from edl.cluster.nodes import open_cluster
from edl.cluster.records import HostOffer, HostReport, JobReport
from edl.cluster.store import ClusterStore, HostOwner, HostRegistration
from edl.errors import EdlError
from edl.host.process import EXIT_CODES, AgentEnd
from edl.host.template import TemplateError
from edl.zookeeper.access import Access, keep
from edl.zookeeper.session import Session

POLL_S = 0.05
GRACE_S = 10.0  # for an agent to end by itself


@dataclass
class HandHost:
    """What `edl host` does, for one test: no death of its own, no adoption."""

    shell: Shell
    access: Access
    name: str
    slots: int
    agents: dict[tuple[str, str], Running] = field(default_factory=dict)  # by job and run
    obeys: bool = True

    def __enter__(self) -> HandHost:
        self._session = Session(self.shell.environment["EDL_ZOOKEEPER"], 10.0)
        self._session.start()
        self.store = ClusterStore(open_cluster(self._session, self.access), by="a test")
        self._end = threading.Event()
        self._ended_s: dict[tuple[str, str], float] = {}
        if forked.WANTED:
            forked._base("")  # else it is the thread's child, and ends with the thread
        owner = HostOwner(self.name, "here", 1)
        self._registration = HostRegistration(self.store.nodes, self.name, owner)
        self._registration.register(HostOffer(self.slots), lambda _: False)
        self._thread = threading.Thread(target=self._obey, name=f"host {self.name}")
        self._thread.start()
        return self

    def size(self, job: str) -> int:
        """Return the number of workers in the ring of a job that trains; else 0."""
        try:
            status = self.shell.status(job)
        except EdlError:
            return 0
        active = [one for one in status["members"] if one["stage"] == "active"]
        whole = status["world_size"] == len(active) == len(status["members"])
        return len(active) if whole and status["state"] == "running" else 0

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join(30.0)
        self._session.close()
        for agent in self.agents.values():
            with suppress(subprocess.TimeoutExpired):
                agent.process.wait(GRACE_S)
            agent.process.kill()

    def _obey(self) -> None:
        while not self._end.wait(POLL_S):
            if self.obeys:
                self._turn()

    def _turn(self) -> None:
        assigned, version = self._registration.assigned()
        wanted = {(job, one.run): one for job, one in assigned.jobs.items() if not one.ends}
        for key, agent in [*self.agents.items()]:
            if agent.process.poll() == EXIT_CODES[AgentEnd.NO_SUCH_JOB]:
                del self.agents[key]  # the run is created after it was assigned: once more
        for job, run in wanted.keys() - self.agents.keys():
            with suppress(TemplateError):  # a busy machine: the next turn tries again
                self.agents[job, run] = self._start(job, run)
        for key in self.agents.keys() - wanted.keys():
            ended_s = self._ended_s.setdefault(key, time.monotonic())
            if time.monotonic() - ended_s > GRACE_S:  # it is over, and should know it
                self.agents[key].process.kill()
        reports = {}
        for (job, run), agent in self.agents.items():
            code = agent.process.poll()
            if code is None or (job, run) in wanted:
                reports[job] = JobReport(run, code is None, code)
        self._registration.report(HostReport(version, reports))

    def _start(self, job: str, run: str) -> Running:
        secret = self.store.jobs.secret(job)
        assert secret is not None
        environment = self.shell.environment
        keep(Path(environment["XDG_STATE_HOME"]) / "edl", job, secret)  # for the shell
        self.shell.environment = {**environment, "EDL_SECRET": secret}
        words = ("--job", job, "--run", run, "--host", self.name, "--slots", str(self.slots))
        try:
            return self.shell.start("agent", *words, "--json")
        finally:
            self.shell.environment = environment
