"""Kill each part of a live cluster with -9, and measure how long it takes to be there again.

:func:`measure` does so; :data:`benchmarks.cluster.recovery_page.PARTS` says of each measurement
what is killed, and until what the time runs.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import psutil

from benchmarks.cluster.live import LiveCluster, until
from benchmarks.cluster.recovery_page import OUTAGE_S, PARTS, SLOTS, STEP_S
from benchmarks.jobs import ROOT, Steps, read_steps
from edl.client import Cluster
from edl.cluster.host_jobs import LIMITS, RunProcess
from edl.cluster.lifecycle import LifeState
from edl.cluster.manifest import JobManifest
from edl.cluster.records import HostReport
from edl.cluster.store import ClusterStore, HostOwner
from edl.errors import CoordinationError, EdlError, UnknownJob
from edl.job.snapshot import Snapshot
from edl.spec import JobSettings
from edl.testing.zookeeper import Server, ensemble
from edl.zookeeper.nodes import content, record
from edl.zookeeper.reads import get

T = TypeVar("T")
Say = Callable[[str], None]

TIMES = 10
HOSTS = ("a", "b")
WARM = 30  # steps of each worker of a job before the next kill
RESTS_S = 6.0  # as long at least: a worker that is killed within 5 s of its first step has failed
KNOWN_S = 1.0  # for a controller to ask the port of the one before it
LIMIT_S = 120.0
LOOK_S = 0.005
NEVER = {"nowhere": "yes"}  # the labels of jobs that are only submitted


class RecoveryLab:
    """The live cluster that is measured: three ZooKeeper servers, two controllers, two hosts.

    Args:
        lab: the cluster, without processes yet.
        servers: the servers of its ZooKeeper.
        say: shows a sentence to the user.
    """

    def __init__(self, lab: LiveCluster, servers: Sequence[Server], say: Say) -> None:
        self._lab, self._servers, self._say = lab, servers, say
        self._chance = random.Random(1)
        self._numbers = iter(range(1_000_000))
        self.found: dict[str, list[float]] = {name: [] for name in PARTS}

    def start(self) -> None:
        """Start controllers and hosts."""
        for _ in range(2):
            self._lab.start_controller()
        for host in HOSTS:
            self._lab.start_host(host, SLOTS)

    # --- what is killed

    def controllers(self, store: ClusterStore) -> None:
        """Kill the leading controller while another one waits, and then the only one there is."""
        self._until_candidates(store, 2)
        self._strike_leader(store, "submit", "plan")
        self._until_candidates(store, 2)
        leader = self._leader(store)
        for one in self._lab.controllers:
            if one is not leader:
                one.hold()
                one.kill()
        self._until_candidates(store, 1)
        self._strike_leader(store, "submit_alone", "plan_alone")
        for one in self._lab.controllers:
            one.release()

    def _strike_leader(self, store: ClusterStore, submitted: str, planned: str) -> None:
        """Kill the leading controller; add the times under the two names."""
        probe, began_s, took_s = self._submit_after(self._leader(store).kill)
        self.found[submitted].append(took_s)
        self.found[planned].append(self._until_planned(store, probe) - began_s)
        self._remove(probe)

    def members(self, store: ClusterStore) -> None:
        """Kill the member that leads ZooKeeper, and then one that does not."""
        for name, leads in (("submit_leader", True), ("submit_follower", False)):
            choices = [server for server in self._servers if server.leads is leads]
            server = self._chance.choice(choices)
            probe, _, took_s = self._submit_after(server.kill)
            self.found[name].append(took_s)
            server.start()
            self._until_planned(store, probe)
            self._remove(probe)

    def outage(self, store: ClusterStore, job: str) -> None:
        """Kill all members of ZooKeeper, and start them again after a while."""
        killed_s = time.monotonic()
        for server in self._servers:
            server.kill()
        time.sleep(OUTAGE_S)
        for server in self._servers:
            server.start(wait=False)
        for server in self._servers:
            server.wait_until_it_serves()
        probe, began_s, took_s = self._submit_after(lambda: None)
        self.found["lost_submit"].append(took_s)
        self.found["lost_plan"].append(self._until_planned(store, probe) - began_s)
        self._remove(probe)
        time.sleep(1.0)
        pauses = [_longest_pause(log, killed_s) for log in self._living_steps(job).values()]
        self.found["lost_steps"].append(max(pauses))

    def host(self, store: ClusterStore, job: str) -> None:
        """Kill the `edl host` of a host where a job runs; it finds the agent and the workers."""
        host = self._host_of(store, job)
        report, before = self._report(store, host)
        lives = _living(report)
        keeper = self._lab.hosts[host]
        killed, began_s = keeper.kill(), time.monotonic()

        def is_back() -> bool:
            now, zxid = self._report(store, host)
            owner_path = store.paths.host(host)
            answer = store.nodes.read(get(owner_path))[0]
            owner = HostOwner.from_json(content(owner_path, answer))
            is_new = zxid > before and owner.pid not in (killed, 0)
            [view] = [one for one in store.hosts.list() if one.name == host]
            return is_new and now.version == view.version and _living(now) == lives

        self.found["host"].append(_when(is_back, f"host {host}") - began_s)

    def agent(self, store: ClusterStore, job: str) -> None:
        """Kill the agent of a job, once it no longer counts as failed at its start."""
        host = self._host_of(store, job)
        agent = next(one.pid for one in self._processes(host, job) if one.is_agent)
        age_s = time.time() - psutil.Process(agent).create_time()
        time.sleep(max(0.0, LIMITS.stable_s + 0.5 - age_s))
        with self._lab.run_of(store, job) as run:
            before = {one.name: one for one in run.snapshot().hosts}[host]
            workers = self._workers(host, job)
            began_s = time.monotonic()
            os.kill(agent, signal.SIGKILL)

            def is_back() -> bool:
                now = {one.name: one for one in run.snapshot().hosts}.get(host)
                return now is not None and now.pid != agent and now.busy == before.busy

            self.found["agent"].append(_when(is_back, "another agent") - began_s)
        assert self._workers(host, job) == workers

    def worker(self, store: ClusterStore, job: str, leads: bool, forked: bool) -> None:
        """Kill a worker of a job of two."""
        with self._lab.run_of(store, job) as run:
            now: Snapshot = run.snapshot()
        assert now.leader is not None
        leader = now.leader.worker
        victim = next(m.pid for m in now.members if (m.id == leader) is leads)
        known = set(read_steps(self._steps_of(job)))
        began_s = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        name = ("leader" if leads else "worker") + ("_forked" if forked else "")
        self.found[name].append(self._first_step(job, known, size=2) - began_s)

    def machine(self, store: ClusterStore, job: str, number: int, of_ring: bool) -> None:
        """Kill all processes of a host, or let them fall silent.

        Args:
            store: the cluster.
            job: the job: one with workers on both hosts, or one that has all on one host.
            number: SIGKILL, or SIGSTOP for a host that falls silent.
            of_ring: whether the job has workers on both hosts.
        """
        hosts = [one.name for one in store.hosts.list() if job in one.assigned.jobs]
        assert len(hosts) == 1 + of_ring, f"job {job} is on {hosts}"
        host = hosts[-1]
        victims = {one.pid for one in self._processes(host, job)}
        known = set(read_steps(self._steps_of(job)))
        began_s = time.monotonic()
        if number == signal.SIGKILL:
            self._lab.kill_host(host)
        else:
            self._lab.signal_host(host, number)
        name = "machine" if number == signal.SIGKILL else "silent"
        if of_ring:
            took_s = self._survivors_step(job, victims, began_s) - began_s
            self.found[f"{name}_ring"].append(took_s)
        else:
            took_s = self._first_step(job, known, size=1) - began_s
            self.found[f"{name}_job"].append(took_s)
        self._lab.kill_host(host)
        self._lab.hosts[host].release()
        until(lambda: self._is_offered(store, host), f"host {host}", timeout_s=LIMIT_S)

    # --- jobs

    @contextlib.contextmanager
    def job(self, store: ClusterStore, workers: int, template: bool) -> Iterator[str]:
        """Keep a job with so many workers running for the time of a block; yield its name."""
        name = f"train-{next(self._numbers)}"
        directory = self._lab.directory / name
        self._steps_of(name).mkdir(parents=True)
        words = ("--steps-to", str(self._steps_of(name)), "--step-s", str(STEP_S))
        saves = ("--checkpoint", str(directory / "checkpoints"))
        command = (sys.executable, "-m", "benchmarks.cluster.waiting", *words, *saves)
        own = JobSettings(template=template)
        manifest = JobManifest(name, command, 1, workers, cwd=str(ROOT), settings=own, retries=1000)
        with self._lab.client() as client:
            client.submit(manifest)
        try:
            self._until_trains(store, name, workers, time.monotonic())
            if template:
                self._until_template(store, name)
            yield name
        finally:
            self._remove(name)
            until(lambda: not _assigned(store), "an end of the job", timeout_s=LIMIT_S)

    def settle(self, store: ClusterStore, job: str, workers: int) -> None:
        """Wait until a job trains with all its workers, and has done so for a while."""
        since_s = time.monotonic()
        self._until_trains(store, job, workers, since_s)
        time.sleep(max(0.0, since_s + RESTS_S - time.monotonic()))

    def _until_trains(self, store: ClusterStore, job: str, workers: int, after_s: float) -> None:
        """Wait until each of so many workers has trained for a while in the whole ring."""

        def warm() -> bool:
            logs = self._living_steps(job).values()
            sizes = [log.size[log.time_s > after_s] for log in logs]
            return sum(int(np.sum(size == workers)) >= WARM for size in sizes) == workers

        until(warm, f"{workers} workers of {job}", lambda: self._story(store, job), LIMIT_S)

    def _until_template(self, store: ClusterStore, job: str) -> None:
        """Wait until the template of a job's agent is ready to fork workers."""
        host = self._host_of(store, job)
        output = self._lab.state_of(host) / "jobs" / job / "logs" / "template.output"
        until(
            lambda: output.exists() and "ready, with" in output.read_text(),
            "template",
            timeout_s=LIMIT_S,
        )

    def _first_step(self, job: str, known: set[int], size: int) -> float:
        """Return when a new worker of a job has completed a step in a ring of at least ``size``."""

        def newest() -> float | None:
            logs = read_steps(self._steps_of(job), without=known).values()
            times = [log.time_s[log.size >= size] for log in logs]
            return min((float(one[0]) for one in times if len(one)), default=None)

        return _found(newest, f"a new worker of {job}")

    def _survivors_step(self, job: str, victims: set[int], after_s: float) -> float:
        """Return when all survivors of a job have completed a step in a smaller ring."""

        def trained() -> float | None:
            logs = [log for pid, log in self._living_steps(job).items() if pid not in victims]
            back = [log.time_s[(log.time_s > after_s) & (log.size <= len(logs))] for log in logs]
            return max(float(one[0]) for one in back) if back and all(map(len, back)) else None

        return _found(trained, f"steps of the survivors of {job}")

    def _steps_of(self, job: str) -> Path:
        return self._lab.directory / job / "steps"

    def _living_steps(self, job: str) -> dict[int, Steps]:
        """Return the step logs of the living workers of a job."""
        dead = [
            int(path.stem)
            for path in self._steps_of(job).glob("*.steps")
            if not psutil.pid_exists(int(path.stem))
        ]
        return read_steps(self._steps_of(job), without=dead)

    # --- what is so

    def _leader(self, store: ClusterStore) -> Any:
        """Return the controller that leads."""

        def leads() -> Any:
            pid = store.snapshot().leader.get("pid")
            return next((one for one in self._lab.controllers if one.pid == pid), None)

        return _found(leads, "a leader")

    def _until_candidates(self, store: ClusterStore, count: int) -> None:
        """Wait until so many controllers stand for election, and know each other."""
        _when(lambda: len(store.leader.controllers()) == count, f"{count} controllers")
        self._leader(store)
        time.sleep(KNOWN_S)

    def _submit_after(self, kill: Callable[[], object]) -> tuple[str, float, float]:
        """Kill something; return the name of a job that is submitted then, when, and how long.

        It takes until two clients have submitted a job: one that was connected before, and one that
        connects after the kill, as a command does.
        """
        names = [f"probe-{next(self._numbers)}" for _ in range(2)]
        with self._lab.client() as kept, ThreadPoolExecutor(2) as pool:
            began_s = time.monotonic()
            kill()
            clients = (kept, self._lab.client())
            ends_s = list(pool.map(_submit, clients, names))
        self._remove(names[1])
        return names[0], began_s, max(ends_s) - began_s

    def _until_planned(self, store: ClusterStore, job: str) -> float:
        """Wait until the leader has written its first record of a job; return when that was so."""
        return _when(lambda: store.jobs.get(job).life.submitted_s > 0, f"a plan with {job}")

    def _remove(self, job: str) -> None:
        """Delete a job, and remove its records."""
        client = self._lab.client()

        def is_gone() -> bool:
            try:
                client.delete(job)
                return client.show(job).job.state is LifeState.ENDED
            except UnknownJob:
                return True

        with client:
            _when(is_gone, f"an end of {job}", pause_s=0.1)
            with contextlib.suppress(UnknownJob):
                client.delete(job)

    def _report(self, store: ClusterStore, host: str) -> tuple[HostReport, int]:
        """Return the report of a host, and the number of the write that has written it."""
        path = store.paths.report(host)
        data, stat = store.nodes.read(get(path))[0]
        return record(HostReport, (path, data)), stat.mzxid

    def _host_of(self, store: ClusterStore, job: str) -> str:
        """Return the last host on which a job has devices."""
        hosts = [host.name for host in store.hosts.list() if job in host.assigned.jobs]
        return hosts[-1]

    def _is_offered(self, store: ClusterStore, host: str) -> bool:
        return any(one.name == host and one.takes_slots for one in store.hosts.list())

    def _processes(self, host: str, job: str) -> list[RunProcess]:
        return [one for one in self._lab.processes(host) if one.job == job]

    def _workers(self, host: str, job: str) -> set[str]:
        """Return the start attempts of the workers of a job that live on a host."""
        return {one.attempt_id for one in self._processes(host, job) if one.attempt_id}

    def _story(self, store: ClusterStore, job: str) -> str:
        """Return what may explain why a job does not train."""
        with contextlib.suppress(EdlError):
            events = [f"{event.kind} {event.reason}" for _, event in store.events.read()][-20:]
            return "\n".join([str(store.jobs.get(job).life), *events])
        return "ZooKeeper does not answer"


def measure(scratch: Path, say: Say, times: int = TIMES) -> dict[str, list[float]]:
    """Return the times in seconds of each part in :data:`PARTS`.

    Args:
        scratch: an existing directory.
        say: shows a sentence to the user.
        times: how often each part is killed.
    """
    directory = scratch / "recovery"
    directory.mkdir()
    with ensemble(directory, 3) as servers:
        hosts = ",".join(server.hosts for server in servers)
        with LiveCluster(directory, hosts) as cluster:
            lab = RecoveryLab(cluster, servers, say)
            lab.start()
            with cluster.store() as store:
                _measure(lab, store, times, say)
            cluster.end()
    return lab.found


def _measure(lab: RecoveryLab, store: ClusterStore, times: int, say: Say) -> None:
    """Kill each part so often."""

    def each(name: str, kill: Callable[[], None]) -> None:
        for number in range(times):
            kill()
            last = ", ".join(f"{k} {v[-1]:.2f} s" for k, v in lab.found.items() if v)
            say(f"recovery, {name} {number + 1}: {last}")

    each("controllers", lambda: lab.controllers(store))
    each("ZooKeeper's members", lambda: lab.members(store))
    for template in (False, True):
        with lab.job(store, 2, template) as job:
            for leads in (False, True):

                def worker(job: str = job, leads: bool = leads, forked: bool = template) -> None:
                    lab.settle(store, job, 2)
                    lab.worker(store, job, leads, forked)

                each("a worker", worker)
            if template:
                lab.settle(store, job, 2)
                each("host", lambda job=job: lab.host(store, job))
                each("agent", lambda job=job: lab.agent(store, job))
                each("all of ZooKeeper", lambda job=job: lab.outage(store, job))
    for workers in (2, 4):
        with lab.job(store, workers, template=False) as job:
            for number in (signal.SIGKILL, signal.SIGSTOP):

                def machine(job: str = job, number: int = number, workers: int = workers) -> None:
                    lab.settle(store, job, workers)
                    lab.machine(store, job, number, of_ring=workers > SLOTS)

                each("a host", machine)


def _submit(client: Cluster, name: str) -> float:
    """Submit a job that never starts, again and again until that is acknowledged; return when."""
    manifest = JobManifest(name, ("true",), 1, 1, cwd="/", labels=NEVER)
    deadline_s = time.monotonic() + LIMIT_S
    while True:
        try:
            client.submit(manifest, key=name)
            return time.monotonic()
        except CoordinationError:
            assert time.monotonic() < deadline_s, f"{name} cannot be submitted"


def _found(look: Callable[[], T | None], what: str, pause_s: float = LOOK_S) -> T:
    """Return what ``look`` returns as soon as it is not None; ZooKeeper may be away meanwhile."""
    deadline_s = time.monotonic() + LIMIT_S
    while True:
        with contextlib.suppress(CoordinationError):
            found = look()
            if found is not None:
                return found
        assert time.monotonic() < deadline_s, f"no {what} in {LIMIT_S:g} s"
        time.sleep(pause_s)


def _when(condition: Callable[[], bool], what: str, pause_s: float = LOOK_S) -> float:
    """Wait for a condition; return when it was so, on the monotonic clock."""
    return _found(lambda: time.monotonic() if condition() else None, what, pause_s)


def _living(report: HostReport) -> dict[str, tuple[bool, tuple[int, ...]]]:
    """Return whether the agent lives, and which workers do, by job, as a host reports it."""
    return {job: (one.agent, one.processes) for job, one in report.jobs.items()}


def _assigned(store: ClusterStore) -> bool:
    return any(host.assigned.jobs for host in store.hosts.list())


def _longest_pause(log: Steps, after_s: float) -> float:
    """Return the longest time between two steps of a worker, from its last one before a time on."""
    first = max(0, int(np.searchsorted(log.time_s, after_s)) - 1)
    return float(np.diff(log.time_s[first:]).max())
