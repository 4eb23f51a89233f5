"""Do what users do to a live cluster, and kill its parts, all by seed.

:func:`choices` draws what is done, when, and to which of those that there are; :class:`Driver` does
it. The same seed makes the same choices; what there is to choose from depends on the machine.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from fleet_cluster import SLOTS, Engine, FleetCluster
from paths import SCRIPTS
from restores import Restores

from benchmarks.cluster.live import LiveCluster, Supervised
from edl.client import Cluster
from edl.cluster.host_jobs import RunProcess
from edl.cluster.lifecycle import LifeResult, LifeState
from edl.cluster.manifest import JobManifest
from edl.cluster.records import Goal
from edl.cluster.store import ClusterStore
from edl.errors import CoordinationError, EdlError, UnknownJob, UsageError
from edl.spec import JobSettings
from edl.testing.zookeeper import Server

T = TypeVar("T")

STEP_LOG = Path(__file__).resolve().parent / "scripts" / "step_log.py"
COUNTING = SCRIPTS / "counting.py"
STANDIN = SCRIPTS.parent / "standin_worker.py"

VERBS = {
    "submit": 12.0,
    "halt": 5.0,
    "resume": 6.0,
    "delete": 3.0,
    "priority": 4.0,
    "drain": 2.0,
    "undrain": 4.0,
    "policy": 1.0,
}
KILLS = {
    "leading controller": 3.0,
    "controller": 1.0,
    "edl host": 4.0,
    "agent": 4.0,
    "worker": 5.0,
    "worker that leads": 3.0,
    "helper": 0.5,
    "host": 1.0,
    "ZooKeeper member": 1.5,
    "ZooKeeper": 0.5,
    "frozen edl host": 0.7,
    "frozen controller": 0.7,
    "frozen agent": 0.7,
    "frozen worker": 0.7,
    "frozen host": 1.0,
    "edl host that leaves": 1.0,
    "controller that resigns": 0.5,
}
# Where an engine lends the hosts: all jobs are halted for a while, so that hosts go and come again.
LULL = {"lull": 1.5}
POLICIES = ("fifo", "max_min", "elastic_tiresias", "edl")
MOST_JOBS = 7  # that have not ended
BATCH = 4
ANSWER_S = 120.0  # for ZooKeeper to answer a user who tries again and again
SETTINGS = JobSettings(session_timeout_s=3.0, max_restarts=1000, state_check_steps=1)
ENVIRONMENT = {"OMP_NUM_THREADS": "1"}
RETRIES = 1000  # kills of all workers at once are failures of a run


@dataclass(frozen=True)
class Choice:
    """One thing to do."""

    pause_s: float  # before it
    action: str  # a name in VERBS or KILLS
    pick: float  # which one of those that there are, from 0 to 1
    size: float  # how long, how large, of which kind, from 0 to 1


def choices(
    seed: int, mean_pause_s: float, more: Mapping[str, float] | None = None
) -> Iterator[Choice]:
    """Draw what is done, without end."""
    chance = random.Random(seed)
    weights = VERBS | KILLS | dict(more or {})
    while True:
        pause_s = chance.uniform(0.0, 2.0 * mean_pause_s)
        [action] = chance.choices(list(weights), list(weights.values()))
        yield Choice(pause_s, action, chance.random(), chance.random())


@dataclass
class Submission:
    """What a user knows of a job that was acknowledged."""

    name: str
    directory: Path  # its files; empty for a job of stand-ins, which write none
    epochs: int = 0
    samples: int = 0
    goal: Goal = Goal.RUN  # the last one that was acknowledged
    is_replaced: bool = False  # a later submission has its name, because it has ended
    asking: bool = False  # a user asks for something else at this moment
    order: int | None = None  # of submission, as the judge has seen it first


@dataclass
class Driver:
    """Does what was drawn, on one cluster."""

    lab: LiveCluster
    servers: Sequence[Server]
    store: ClusterStore  # in a session that only this driver uses
    throttle: Path  # as long as it exists the counting jobs are slow
    log: Path
    # Processes of jobs on hosts that fell silent. Meanwhile their jobs may have been started
    # elsewhere, which they hear some steps after they have woken up.
    frozen: set[int] = field(default_factory=set)
    counts: Counter[str] = field(default_factory=Counter)
    submissions: list[Submission] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._numbers = itertools.count(1)
        self._restores = Restores()
        self._up = dict.fromkeys(range(len(self.servers)), True)
        self._away: set[str] = set()  # hosts whose processes were all killed
        self._quiet: tuple[float, list[Submission]] | None = None  # until when, which are halted

    @property
    def engine(self) -> Engine | None:
        """The engine that lends the hosts; None: they come by themselves."""
        return self.lab.engine if isinstance(self.lab, FleetCluster) else None

    @property
    def more_choices(self) -> Mapping[str, float]:
        """What may be done besides VERBS and KILLS, by name, and how often."""
        return LULL | dict(self.engine.weights) if self.engine is not None else {}

    def do(self, choice: Choice) -> bool:
        """Do what was drawn; return whether there was anything to do it to."""
        if self._quiet is not None and time.monotonic() >= self._quiet[0]:
            self._end_lull()
        if choice.action in VERBS | LULL:
            done = getattr(self, f"_{choice.action}")(choice)
        else:
            done = self._strike(choice)
        if done:
            self.counts[choice.action] += 1
            self.note(f"{choice.action}: {done}")
        return bool(done)

    def note(self, what: str) -> None:
        with self.log.open("a") as file:
            file.write(f"{time.strftime('%H:%M:%S')} {what}\n")

    def calm(self) -> None:
        """End all trouble: everything lives, and no host is drained."""
        self._restores.finish()
        if self._quiet is not None:
            self._end_lull()
        if self.engine is not None:
            self.engine.calm()
        for host in self.lab.hosts:
            self._of_host("undrain", host)
        self.note("calm")

    # --- users

    def claim_all(self) -> Submission:
        slots = SLOTS * len(self.lab.hosts)
        one, name = Submission("all", Path()), "all"
        command = (sys.executable, str(STANDIN), "--steps", "20")
        manifest = JobManifest(name, command, slots, slots, cwd="/", settings=SETTINGS)
        manifest = replace(manifest, retries=RETRIES)
        self.acknowledged(lambda client: client.submit(manifest, key=name))
        self.submissions.append(one)
        return one

    def acknowledged(self, ask: Callable[[Cluster], T]) -> T:
        deadline_s = time.monotonic() + ANSWER_S
        while time.monotonic() < deadline_s:
            with contextlib.suppress(CoordinationError):
                return ask(self.lab.client())
        raise AssertionError(f"ZooKeeper did not answer a user for {ANSWER_S:g} s")

    def living(self) -> list[Submission]:
        """Return the submissions that are neither deleted nor replaced, of jobs that go on."""
        ended = {job.name for job in self._listed() if job.state is LifeState.ENDED}
        return [one for one in self._present() if one.name not in ended]

    def _present(self) -> list[Submission]:
        return [s for s in self.submissions if s.goal is not Goal.GONE and not s.is_replaced]

    def _listed(self) -> Sequence[Any]:
        return self.acknowledged(lambda client: client.list())

    def _submit(self, choice: Choice) -> str:
        jobs = {job.name: job for job in self._listed()}
        alive = [job for job in jobs.values() if job.state is not LifeState.ENDED]
        if len(alive) >= MOST_JOBS:
            return ""
        number = next(self._numbers)
        finished = {name for name, job in jobs.items() if job.result is LifeResult.FINISHED}
        ended = [one for one in self._present() if one.name in finished]
        former = _picked(ended, choice.pick) if ended and choice.size > 0.8 else None
        name = former.name if former else f"j{number}"
        one, manifest = self._job(name, number, choice)
        if former is not None:
            former.asking = True
        self.acknowledged(lambda client: client.submit(manifest, key=f"{name}-{number}"))
        if former is not None:
            former.is_replaced, former.asking = True, False
        self.submissions.append(one)
        kind = "counting" if one.epochs else "stand-ins"
        return f"{name}, {kind}, {manifest.min} to {manifest.max}{' again' if former else ''}"

    def _job(self, name: str, number: int, choice: Choice) -> tuple[Submission, JobManifest]:
        least, most = 1 + (choice.pick > 0.7), 1 + round(2 * choice.size)
        most = max(least, most)
        if choice.pick < 0.3:
            words = ("--steps", str(100 + int(600 * choice.size)), "--step-s", "0.05")
            one, command = Submission(name, Path()), (sys.executable, str(STANDIN), *words)
            checkpoint = ""
        else:
            directory = self.lab.directory / f"{name}-{number}"
            directory.mkdir()
            samples, epochs = 96, 4 + int(12 * choice.size)
            one = Submission(name, directory, epochs, samples)
            own = {"samples": samples, "epochs": epochs, "batch-size": BATCH, "out": directory}
            own |= {"checkpoint": directory / "saved", "every": 2.0}
            words = tuple(word for key, value in own.items() for word in (f"--{key}", str(value)))
            command = (sys.executable, str(STEP_LOG), str(directory), str(self.throttle))
            command = (*command, str(COUNTING), *words)
            checkpoint = str(directory / "saved") if choice.pick > 0.6 else ""
        settings = JobSettings(**{**vars(SETTINGS), "template": choice.size > 0.4})
        manifest = JobManifest(
            name, command, least, most, cwd="/", checkpoint=checkpoint, settings=settings,
            retries=RETRIES, env=ENVIRONMENT,
        )  # fmt: skip
        return one, manifest

    def _want(self, choice: Choice, verb: str, of: Sequence[Submission], goal: Goal | None) -> str:
        one = _picked(of, choice.pick)
        if one is None:
            return ""
        more = (int(4 * choice.size) - 2,) if goal is None else ()
        return self._want_of(one, verb, goal, *more)

    def _want_of(self, one: Submission, verb: str, goal: Goal | None, *more: int) -> str:
        one.asking = True
        try:
            self.acknowledged(lambda client: getattr(client, verb)(one.name, *more))
        except (UnknownJob, UsageError) as error:
            return f"{one.name} refused: {error}"
        else:
            one.goal = one.goal if goal is None else goal
            return " ".join([one.name, *map(str, more)])
        finally:
            one.asking = False

    def _halt(self, choice: Choice) -> str:
        running = [one for one in self.living() if one.goal is Goal.RUN]
        return self._want(choice, "halt", running, Goal.HALT)

    def _resume(self, choice: Choice) -> str:
        halted = [one for one in self.living() if one.goal is Goal.HALT]
        return self._want(choice, "resume", halted, Goal.RUN)

    def _delete(self, choice: Choice) -> str:
        return self._want(choice, "delete", self._present(), Goal.GONE)

    def _priority(self, choice: Choice) -> str:
        return self._want(choice, "priority", self.living(), None)

    def _drain(self, choice: Choice) -> str:
        return self._of_host("drain", _picked(sorted(self.lab.hosts), choice.pick))

    def _undrain(self, choice: Choice) -> str:
        return self._of_host("undrain", _picked(sorted(self.lab.hosts), choice.pick))

    def _of_host(self, verb: str, host: str | None) -> str:
        """Drain a host, or undo it; return what was done."""
        assert host is not None
        try:
            self.acknowledged(lambda client: getattr(client.hosts, verb)(host))
        except UsageError as error:  # it was never lent
            return f"{host} refused: {error}"
        return host

    def _lull(self, choice: Choice) -> str:
        running = [one for one in self.living() if one.goal is Goal.RUN]
        if self._quiet is not None or not running:
            return ""
        halted = [one for one in running if self._want_of(one, "halt", Goal.HALT)]
        away_s = 20.0 + 15.0 * choice.size
        self._quiet = time.monotonic() + away_s, halted
        return f"{', '.join(one.name for one in halted)}, for {away_s:.0f} s"

    def _end_lull(self) -> None:
        assert self._quiet is not None
        _, halted = self._quiet
        self._quiet = None
        for one in halted:
            if one.goal is Goal.HALT and not one.is_replaced:
                self._want_of(one, "resume", Goal.RUN)

    def _policy(self, choice: Choice) -> str:
        policy = _picked(POLICIES, choice.pick)
        assert policy is not None
        self.acknowledged(lambda client: client.policy.set(policy))
        return policy

    # --- kills

    def _strike(self, choice: Choice) -> str:
        if self.engine is not None and choice.action in self.engine.weights:
            one = choice
            return self.engine.strike(one.action, one.pick, one.size, self._restores.later)
        victims: Mapping[str, Callable[[Choice], str]] = {
            "leading controller": self._kill_leader,
            "controller": lambda one: self._kill_kept(one, self.lab.controllers),
            "edl host": lambda one: self._kill_kept(one, self._hosts()),
            "agent": lambda one: self._kill_process(one, self._agents()),
            "worker": lambda one: self._kill_process(one, self._workers()),
            "worker that leads": self._kill_worker_that_leads,
            "helper": lambda one: self._kill_process(one, self._helpers()),
            "host": self._kill_host,
            "ZooKeeper member": self._kill_member,
            "ZooKeeper": self._kill_zookeeper,
            "frozen edl host": lambda one: self._freeze(one, _pids(self._hosts())),
            "frozen controller": lambda one: self._freeze(one, _pids(self.lab.controllers)),
            "frozen agent": lambda one: self._freeze(one, [a.pid for a in self._agents()]),
            "frozen worker": lambda one: self._freeze(one, [w.pid for w in self._workers()]),
            "frozen host": self._freeze_host,
            "edl host that leaves": lambda one: self._end_kept(one, self._hosts()),
            "controller that resigns": lambda one: self._end_kept(one, self.lab.controllers),
        }
        try:
            return victims[choice.action](choice)
        except (EdlError, ProcessLookupError):  # ZooKeeper is away, or it has ended by itself
            return ""

    def _kill_leader(self, choice: Choice) -> str:
        pid = self.store.snapshot().leader.get("pid")
        return self._kill_kept(choice, [one for one in self.lab.controllers if one.pid == pid])

    def _kill_kept(self, choice: Choice, kept: Sequence[Supervised]) -> str:
        one = _picked(kept, choice.pick)
        pid = one.kill() if one is not None else None
        return f"{one.name}, process {pid}" if one is not None and pid else ""

    def _end_kept(self, choice: Choice, kept: Sequence[Supervised]) -> str:
        """Let something end by SIGTERM; it is started again when it has ended."""
        one = _picked(kept, choice.pick)
        pid = one.send(signal.SIGTERM) if one is not None else None
        return f"{one.name}, process {pid}" if one is not None and pid else ""

    def _kill_process(self, choice: Choice, processes: Sequence[RunProcess]) -> str:
        one = _picked(processes, choice.pick)
        if one is None:
            return ""
        os.kill(one.pid, signal.SIGKILL)
        return f"process {one.pid} of {one.job} {one.run}"

    def _kill_worker_that_leads(self, choice: Choice) -> str:
        job = _picked(sorted({one.job for one in self._workers()}), choice.pick)
        if job is None or self.store.jobs.secret(job) is None:
            return ""
        with self.lab.run_of(self.store, job) as run:
            now = run.snapshot()
        leader = now.leader.worker if now.leader is not None else None
        pids = {member.pid for member in now.members if member.id == leader}
        return self._kill_process(choice, [one for one in self._workers() if one.pid in pids])

    def _kill_host(self, choice: Choice) -> str:
        host = _picked(sorted(self.lab.hosts.keys() - self._away), choice.pick)
        if host is None:
            return ""
        self._away.add(host)
        self.lab.kill_host(host)
        away_s = 25.0 * choice.size

        def release() -> None:
            self.lab.hosts[host].release()
            self._away.discard(host)

        self._restores.later(away_s, release)
        return f"{host}, for {away_s:.0f} s"

    def _kill_member(self, choice: Choice) -> str:
        if not all(self._up.values()):
            return ""
        number = int(choice.pick * len(self.servers))
        self._kill_server(number, 3.0 * choice.size)
        return f"{number}, for {3.0 * choice.size:.0f} s"

    def _kill_zookeeper(self, choice: Choice) -> str:
        if not all(self._up.values()):
            return ""
        for number in self._up:
            self._kill_server(number, 10.0 * choice.size)
        return f"for {10.0 * choice.size:.0f} s"

    def _kill_server(self, number: int, away_s: float) -> None:
        server = self.servers[number]
        self._up[number] = False
        server.kill()

        def start() -> None:
            server.start(wait=False)
            self._up[number] = True

        self._restores.later(away_s, start)

    def _freeze(self, choice: Choice, pids: Sequence[int]) -> str:
        pid = _picked(pids, choice.pick)
        if pid is None:
            return ""
        os.kill(pid, signal.SIGSTOP)

        def thaw() -> None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

        self._restores.later(8.0 * choice.size, thaw)
        return f"process {pid}, for {8.0 * choice.size:.1f} s"

    def _freeze_host(self, choice: Choice) -> str:
        """Let a host fall silent, as when its network is cut, and come back with all it had."""
        host = _picked(sorted(self.lab.hosts.keys() - self._away), choice.pick)
        if host is None:
            return ""
        self._away.add(host)
        self.frozen |= {one.pid for one in self.lab.processes(host)}
        self.lab.signal_host(host, signal.SIGSTOP)
        away_s = 25.0 * choice.size

        def thaw() -> None:
            self.lab.signal_host(host, signal.SIGCONT)
            self._away.discard(host)

        self._restores.later(away_s, thaw)
        return f"{host}, for {away_s:.0f} s"

    def _hosts(self) -> list[Supervised]:
        hosts = [one for name, one in sorted(self.lab.hosts.items()) if name not in self._away]
        return hosts if self.engine is None else [one for one in hosts if one.pid is not None]

    def _processes(self) -> list[RunProcess]:
        return [one for host in sorted(self.lab.hosts) for one in self.lab.processes(host)]

    def _agents(self) -> list[RunProcess]:
        return [one for one in self._processes() if one.is_agent]

    def _workers(self) -> list[RunProcess]:
        found: dict[str, RunProcess] = {}
        for one in sorted(self._processes(), key=lambda one: (one.started, one.pid)):
            if one.attempt_id:
                found.setdefault(one.attempt_id, one)
        return list(found.values())

    def _helpers(self) -> list[RunProcess]:
        known = {one.pid for one in self._workers()}
        return [one for one in self._processes() if not one.is_agent and one.pid not in known]


def _pids(of: Sequence[Supervised]) -> list[int]:
    return [pid for one in of if (pid := one.pid) is not None]


def _picked(of: Sequence[T], pick: float) -> T | None:
    return of[min(int(pick * len(of)), len(of) - 1)] if of else None
