"""A cluster in memory: machines, processes, ZooKeeper's nodes, small enough to be obviously right.

Only the plan is the real one (:func:`edl.cluster.plan.plan`). What may happen late, twice or
never is a method of its own, so that a test chooses when it happens. :meth:`World.check` has the
invariants; each method that changes anything ends with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from edl.cluster.lifecycle import JobLifecycle, LifeResult, LifeState
from edl.cluster.plan import ClusterPlan, plan
from edl.cluster.policies.registry import policy_named
from edl.cluster.records import (
    LACKS,
    AllocationRecord,
    ClusterRecord,
    Goal,
    HostAssignment,
    HostOffer,
    HostReport,
    JobReport,
    QueueRecord,
    Wanted,
)
from edl.cluster.state import ClusterPolicy
from edl.cluster.view import (
    Action,
    AgentView,
    ClusterView,
    CreateRun,
    HostView,
    JobMeasurements,
    JobView,
    PlaceRun,
    RunView,
)
from edl.policy.step_time import StepTimeSample
from edl.records import JobState
from edl.spec import Sizes

SETTINGS = ClusterRecord(start_timeout_s=60.0, halt_timeout_s=100.0)


@dataclass(frozen=True)
class Hints:
    steps: int | None = None
    duration_s: float | None = None
    samples_per_s: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Batches:
    min: int = 1
    max: int = 64
    set_by_policy: bool = True


@dataclass(frozen=True)
class Profile:
    sizes: int = 3
    each_s: float = 5.0
    within_s: float = 60.0


@dataclass(frozen=True)
class Request:
    min: int = 1
    max: int = 4
    np: int | None = None
    sizes: tuple[int, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    start_timeout_s: float = 0.0
    weight: float = 1.0
    queue: str = "default"
    after: tuple[str, ...] = ()
    after_failed: str = "end"
    secrets: tuple[str, ...] = ()
    retries: int = 3
    preemptible: bool | None = True
    min_run_s: float = 0.0
    cool_down_s: float = 0.0
    snooze_s: float = 0.0
    batch: Batches | None = None
    hints: Hints = field(default_factory=Hints)
    profile: Profile | None = None
    required_paths: Mapping[str, str] = field(default_factory=dict)

    @property
    def requested_np(self) -> int:
        return self.max if self.np is None else self.np

    @property
    def allowed_sizes(self) -> Sizes:
        return Sizes(self.min, self.max, self.sizes)


@dataclass
class Run:
    token: str
    devices: dict[str, tuple[int, ...]]
    version: int
    state: JobState = JobState.RUNNING
    reason: str = ""
    exit_code: int = 0
    trains: bool = False
    batch: int | None = None
    agents: dict[str, AgentView] = field(default_factory=dict)
    saves: bool = True

    def view(self) -> RunView:
        return RunView(
            self.token,
            self.state,
            self.reason,
            self.exit_code,
            self.trains,
            dict(self.devices),
            self.version,
            dict(self.agents),
            self.batch,
            saves=self.saves,
        )


@dataclass
class Submitted:
    order: int
    request: Request
    left: float
    wanted: Wanted = field(default_factory=Wanted)
    life: JobLifecycle = field(default_factory=JobLifecycle)
    life_version: int = 0
    run: Run | None = None
    measured: JobMeasurements = field(default_factory=JobMeasurements)
    tells_left: bool = False  # whether the job says how many samples are left
    tokens: list[str] = field(default_factory=list)  # of the runs that were ever created


@dataclass
class Agent:
    run: str
    read: tuple[tuple[int, ...], int] | None = None  # devices and their version, as it last read


@dataclass
class Machine:
    slots: int
    up: bool = True
    daemon: bool = True  # `edl host` lives
    offered: bool = True
    drained: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
    assigned: HostAssignment = field(default_factory=HostAssignment)
    version: int = -1
    report: HostReport | None = None
    read: tuple[HostAssignment, int] | None = None  # what `edl host` last read
    agents: dict[str, Agent] = field(default_factory=dict)
    workers: set[tuple[str, str, int]] = field(default_factory=set)  # job, run, device
    broken_for: set[str] = field(default_factory=set)  # jobs whose workers die at once here
    refuses: set[str] = field(default_factory=set)  # jobs whose agents cannot be started here
    denies: set[str] = field(default_factory=set)  # jobs whose agents refuse to run here
    failing: str = ""  # why each worker dies again and again, as agents say
    lacks: set[str] = field(default_factory=set)  # paths that are not here
    tenants: tuple[str, ...] = ()  # for whom `edl host` names a user

    def runs(self, job: str, run: str) -> list[int]:
        return sorted(device for j, r, device in self.workers if (j, r) == (job, run))


@dataclass
class Controller:
    term: int
    jobs: list[JobView] | None = None  # the first half of what it reads
    versions: dict[str, int] = field(default_factory=dict)
    plan: ClusterPlan | None = None
    orders: list[Action] = field(default_factory=list)


class World:
    def __init__(
        self,
        *slots: int,
        policy: str | ClusterPolicy = "max_min",
        settings: ClusterRecord = SETTINGS,
    ) -> None:
        self.now_s = 1000.0
        self.settings = settings
        self.policy = policy_named(policy) if isinstance(policy, str) else policy
        self.machines = {f"h{n}": Machine(count) for n, count in enumerate(slots)}
        self.jobs: dict[str, Submitted] = {}
        self.allocation = AllocationRecord()
        self.allocation_version = 0
        self.term = 1
        self.leader = Controller(self.term)
        self.submissions = 0
        self.writes = 0
        self.story: list[str] = []  # the changes of jobs' states
        self.reasons: Mapping[str, str] = {}
        self.next_s = 0.0
        self.secrets: set[str] = set()
        self.queues: dict[str, QueueRecord] = {}
        self.tenants: frozenset[str] = frozenset()

    # --- users

    def submit(self, name: str, left: float = 1000, **request: Any) -> Submitted:
        assert name not in self.jobs
        self.submissions += 1
        self.jobs[name] = Submitted(self.submissions, Request(**request), left)
        return self.jobs[name]

    def want(self, name: str, goal: Goal | None = None, priority: int | None = None) -> None:
        job = self.jobs[name]
        assert job.wanted.goal is not Goal.GONE, "clients refuse it"
        goal = job.wanted.goal if goal is None else goal
        priority = job.wanted.priority if priority is None else priority
        job.wanted = Wanted(goal, priority)

    def forget(self, name: str) -> None:
        job = self.jobs[name]
        assert job.life.state is LifeState.ENDED
        if job.run is None or job.run.state.over:
            del self.jobs[name]

    # --- `edl host`

    def host_reads(self, name: str) -> None:
        machine = self.machines[name]
        if machine.up and machine.daemon and machine.version >= 0:
            machine.read = machine.assigned, machine.version

    def host_acts(self, name: str) -> None:
        """End what is not assigned, or was told to end; keep an agent for each other job."""
        machine = self.machines[name]
        if not (machine.up and machine.daemon and machine.read):
            return
        entries = machine.read[0].jobs
        goes_on = {job: entry.run for job, entry in entries.items() if not entry.ends}
        machine.workers = {one for one in machine.workers if goes_on.get(one[0]) == one[1]}
        for job, agent in list(machine.agents.items()):
            if goes_on.get(job) != agent.run:
                self.agent_dies(name, job)
        for job, run in goes_on.items():
            refused = machine.refuses | machine.denies
            if job not in machine.agents and job not in refused and not self._lacks(name, job):
                machine.agents[job] = Agent(run)
                self._register(name, job)
        self.check()

    def host_reports(self, name: str) -> None:
        machine = self.machines[name]
        if not (machine.up and machine.daemon and machine.offered and machine.read):
            return
        found = {
            job: JobReport(entry.run, reason="the agent cannot be started: No space left on device")
            for job, entry in machine.read[0].jobs.items()
            if job in machine.refuses and not entry.ends
        }
        found |= {
            job: JobReport(entry.run, False, 2, (), "--slots is wrong", refused=True)
            for job, entry in machine.read[0].jobs.items()
            if job in machine.denies and not entry.ends
        }
        found |= {
            job: JobReport(entry.run, reason=f"{LACKS}{what}", refused=True)
            for job, entry in machine.read[0].jobs.items()
            if not entry.ends and (what := self._lacks(name, job))
        }
        for job in {*machine.agents, *(one[0] for one in machine.workers)}:
            agent = machine.agents.get(job)
            runs = {r for j, r, _ in machine.workers if j == job}
            run = agent.run if agent is not None else min(runs)
            workers = tuple(machine.runs(job, run))
            found[job] = JobReport(run, agent is not None, None, workers)
        machine.report = HostReport(machine.read[1], found)
        self.check()

    def _lacks(self, host: str, job: str) -> str:
        """Return which file of a job is not here; empty: all are."""
        needed = self.jobs[job].request.required_paths if job in self.jobs else {}
        return next(
            (what for path, what in needed.items() if path in self.machines[host].lacks), ""
        )

    def host_dies(self, name: str) -> None:
        """`edl host` is killed; its agents and their workers live on, and its offer a while."""
        machine = self.machines[name]
        machine.daemon, machine.read = False, None

    def host_returns(self, name: str) -> None:
        machine = self.machines[name]
        machine.up = machine.daemon = machine.offered = True

    def offer_ends(self, name: str) -> None:
        self.machines[name].offered = False

    def machine_dies(self, name: str) -> None:
        machine = self.machines[name]
        machine.up = machine.daemon = False
        machine.read = None
        machine.agents.clear()
        machine.workers.clear()
        self.check()

    def workers_crash(self, name: str, job: str) -> None:
        """From now on, let all workers of a job die at once on this host."""
        machine = self.machines[name]
        machine.broken_for.add(job)
        machine.workers = {one for one in machine.workers if one[0] != job}

    def workers_live(self, name: str, job: str) -> None:
        self.machines[name].broken_for.discard(job)

    def all_die(self, name: str, job: str) -> None:
        machine = self.machines[name]
        machine.refuses.add(job)
        machine.workers = {one for one in machine.workers if one[0] != job}
        self.agent_is_lost(name, job)

    def agents_start(self, name: str, job: str) -> None:
        self.machines[name].refuses.discard(job)

    # --- agents

    def agent_dies(self, host: str, job: str) -> None:
        self.machines[host].agents.pop(job, None)

    def record_ends(self, host: str, job: str) -> None:
        run = self.jobs[job].run if job in self.jobs else None
        if run is not None and job not in self.machines[host].agents:
            run.agents.pop(host, None)

    def agent_is_lost(self, host: str, job: str) -> None:
        self.agent_dies(host, job)
        self.record_ends(host, job)

    def agent_reads(self, host: str, job: str) -> None:
        """Read what the run may use here; exit if the run is over."""
        machine = self.machines[host]
        agent = machine.agents.get(job)
        if agent is None:
            return
        run = self.jobs[job].run if job in self.jobs else None
        if run is None or run.token != agent.run:
            agent.read = None  # not created yet; or another one: it would exit with "over"
        elif run.state.over:
            agent.read = (), run.version
        else:
            agent.read = run.devices.get(host, ()), run.version
        if host not in (run.agents if run is not None else {}):
            self._register(host, job)

    def agent_declares(self, host: str, job: str) -> None:
        """Write the devices that it has read, if they are still the newest; end other workers."""
        machine = self.machines[host]
        agent = machine.agents.get(job)
        run = self.jobs[job].run if job in self.jobs else None
        if agent is None or agent.read is None or run is None or run.token != agent.run:
            return
        devices, version = agent.read
        ended = {(job, agent.run, d) for d in machine.runs(job, agent.run) if d not in devices}
        machine.workers -= ended
        if version == run.version:
            busy = frozenset(machine.runs(job, agent.run))
            run.agents[host] = AgentView(frozenset(devices), busy)
        self.check()

    def agent_spawns(self, host: str, job: str) -> None:
        machine = self.machines[host]
        agent = machine.agents.get(job)
        run = self.jobs[job].run if job in self.jobs else None
        if agent is None or run is None or run.token != agent.run or agent.read is None:
            return
        declared = run.agents.get(host, AgentView()).devices & set(agent.read[0])
        if job not in machine.broken_for and not machine.failing:
            machine.workers |= {(job, agent.run, device) for device in declared}
        if host in run.agents:
            busy, why = frozenset(machine.runs(job, agent.run)), machine.failing
            failing = len(declared) if why else 0
            run.agents[host] = replace(run.agents[host], busy=busy, failing=failing, why=why)
        self.check()

    def _register(self, host: str, job: str) -> None:
        machine, agent = self.machines[host], self.machines[host].agents[job]
        run = self.jobs[job].run if job in self.jobs else None
        if run is not None and run.token == agent.run:
            busy = frozenset(machine.runs(job, agent.run))
            run.agents[host] = AgentView(frozenset(), busy)

    # --- runs

    def run_steps(self, job: str) -> None:
        """Train a step, if enough workers live; or end, if that was asked."""
        one = self.jobs[job]
        run = one.run
        if run is None or run.state.over:
            return
        if run.state is JobState.STOPPING:
            agents = [machine.agents.get(job) for machine in self.machines.values()]
            if any(agent is not None and agent.run == run.token for agent in agents):
                run.state = JobState.STOPPED  # by an agent
            return
        if self.workers(job) >= one.request.min:
            run.trains = True
            self._measures(job)
            one.left -= one.request.hints.samples_per_s.get(self.workers(job), self.workers(job))
            if one.left <= 0:
                run.state, run.reason = JobState.FINISHED, "it has trained to the end"

    def _measures(self, job: str) -> None:
        one, size = self.jobs[job], self.workers(job)
        steps = one.measured.steps
        if one.request.profile is not None and size not in {step.workers for step in steps}:
            new = StepTimeSample(size, 1, 8 / size, 8 / size)
            one.measured = replace(one.measured, steps=(*steps, new))

    def run_fails(self, job: str, reason: str = "ZeroDivisionError", code: int = 1) -> None:
        run = self.jobs[job].run
        if run is not None and not run.state.over:
            run.state, run.reason, run.exit_code = JobState.FAILED, reason, code

    def run_stops(self, job: str) -> None:
        run = self.jobs[job].run
        if run is not None and run.state is JobState.RUNNING:
            run.state = JobState.STOPPING

    def workers(self, job: str) -> int:
        run = self.jobs[job].run
        token = run.token if run is not None else ""
        return sum(len(machine.runs(job, token)) for machine in self.machines.values())

    # --- the controller

    def new_leader(self) -> Controller:
        """Let another controller lead; what the last one still does is refused."""
        self.term += 1
        self.leader = Controller(self.term)
        return self.leader

    def reads_jobs(self, controller: Controller) -> None:
        controller.jobs, controller.plan, controller.orders = [], None, []
        controller.versions = {"allocation": self.allocation_version}
        for name, one in self.jobs.items():
            controller.versions[f"job {name}"] = one.life_version
            run = one.run.view() if one.run is not None else None
            left = float(one.left) if one.tells_left else None
            controller.jobs.append(
                JobView(
                    name,
                    one.order,
                    one.request,
                    wanted=one.wanted,
                    life=one.life,
                    run=run,
                    measured=replace(one.measured, left=left),
                )
            )

    def view(self, controller: Controller) -> ClusterView:
        jobs = []
        for job in controller.jobs or ():
            run = self.jobs[job.name].run if job.name in self.jobs else None
            same = run is not None and job.run is not None and run.token == job.run.token
            agents = dict(run.agents) if run is not None and same else {}
            old = job.run
            jobs.append(replace(job, run=replace(old, agents=agents) if old is not None else None))
        hosts = []
        for name, machine in self.machines.items():
            controller.versions[f"host {name}"] = machine.version
            offer = HostOffer(machine.slots, labels=machine.labels, tenants=machine.tenants)
            hosts.append(
                HostView(
                    name,
                    offer if machine.offered else None,
                    machine.drained,
                    machine.assigned,
                    machine.version,
                    machine.report,
                )
            )
        records = self.settings, self.allocation, self.secrets, self.queues
        return ClusterView(jobs, hosts, *records, tenants=self.tenants)

    def plans(self, controller: Controller) -> ClusterPlan:
        view = self.view(controller)
        found = plan(view, self.policy, self.now_s)
        assert plan(view, self.policy, self.now_s) == found, "the same view gives the same plan"
        controller.plan = found
        return found

    def writes_plan(self, controller: Controller) -> bool:
        """Write the records in one transaction, under the fence; return whether it was accepted."""
        found, controller.plan = controller.plan, None
        if found is None or controller.term != self.term or not self._unchanged(controller, found):
            return False
        for name, life in found.lives.items():
            self.jobs[name].life, self.jobs[name].life_version = life, self._version()
        for name, assigned in found.assigned.items():
            self.machines[name].assigned = assigned
            self.machines[name].version += 1
        if found.allocation is not None:
            self.allocation, self.allocation_version = found.allocation, self._version()
        self.story += [f"{c.job}: {c.before} -> {c.after}: {c.reason}" for c in found.changes]
        self.reasons, self.next_s = found.reasons, found.next_s
        controller.orders = list(found.orders)
        self.check()
        return True

    def carries_out(self, controller: Controller, order: Action) -> None:
        job = self.jobs.get(order.job)
        if controller.term != self.term or job is None:
            return
        if isinstance(order, CreateRun):
            self._create(job, order)
        elif isinstance(order, PlaceRun):
            self._place(job, order)
        elif job.run is not None and job.run.token == order.run and not job.run.state.over:
            alive = order.checkpoint and self.workers(order.job)
            job.run.state = JobState.STOPPING if alive else JobState.STOPPED
            job.run.reason = order.reason
        self.check()

    def _create(self, job: Submitted, order: CreateRun) -> None:
        if job.run is not None and (job.run.token == order.run or not job.run.state.over):
            return
        assert order.run == job.life.run, "a run is written before it is created"
        assert order.run not in job.tokens, f"{order.run} is created twice"
        job.tokens.append(order.run)
        self._check_devices(order)
        job.run = Run(order.run, dict(order.devices), self._version(), batch=order.batch)

    def _place(self, job: Submitted, order: PlaceRun) -> None:
        run = job.run
        if run is None or run.token != order.run or run.version != order.version:
            return
        if run.state is JobState.RUNNING:
            self._check_devices(order)
            new = [
                host
                for host in order.devices
                if len(order.devices[host]) > len(run.devices.get(host, ()))
            ]
            if not set(new) <= set(run.agents):
                return  # the agent has died meanwhile: the client refuses it
            run.devices, run.version = dict(order.devices), self._version()
            run.batch = order.batch

    def _check_devices(self, order: CreateRun | PlaceRun) -> None:
        request = self.jobs[order.job].request
        size = sum(len(devices) for devices in order.devices.values())
        assert request.allowed_sizes.allows(size), f"{order.job} may not have {size} workers"
        for host, devices in order.devices.items():
            entry = self.machines[host].assigned.jobs.get(order.job)
            if devices:
                assert entry is not None
                assert (entry.run, entry.ends) == (order.run, 0)
                assert set(devices) <= set(entry.devices)

    def _unchanged(self, controller: Controller, found: ClusterPlan) -> bool:
        now = {f"job {name}": self.jobs[name].life_version for name in self.jobs}
        now |= {f"host {name}": machine.version for name, machine in self.machines.items()}
        now["allocation"] = self.allocation_version
        keys = [f"job {name}" for name in found.lives] + [f"host {name}" for name in found.assigned]
        keys += ["allocation"] if found.allocation is not None else []
        return all(now.get(key) == controller.versions.get(key) for key in keys)

    def _version(self) -> int:
        self.writes += 1
        return self.writes

    # --- everything goes its way

    def turn(self, controller: Controller | None = None) -> ClusterPlan:
        controller = controller or self.leader
        self.reads_jobs(controller)
        found = self.plans(controller)
        if self.writes_plan(controller):
            for order in found.orders:
                self.carries_out(controller, order)
        return found

    def hosts_work(self) -> None:
        for name in self.machines:
            self.host_works(name)

    def host_works(self, name: str, agents: bool = True, reports: bool = True) -> None:
        """Let one `edl host`, and the agents there, do what they have to."""
        self.host_reads(name)
        self.host_acts(name)
        for job in list(self.machines[name].agents) if agents else ():
            self.agent_reads(name, job)
            self.agent_declares(name, job)
            self.agent_spawns(name, job)
        if reports:
            self.host_reports(name)

    def round(self, seconds: float = 1.0) -> ClusterPlan:
        found = self.turn()
        self.hosts_work()
        for job in list(self.jobs):
            self.run_steps(job)
        self.now_s += seconds
        return found

    def rounds(self, count: int, seconds: float = 1.0) -> None:
        for _ in range(count):
            self.round(seconds)

    def until(self, wanted: Callable[[], bool], rounds: int = 100, seconds: float = 1.0) -> None:
        """Let all go its way until ``wanted``, for at most so many rounds."""
        for _ in range(rounds):
            if wanted():
                return
            self.round(seconds)
        assert wanted(), f"not within {rounds} rounds: {self}"

    # --- what can be asked

    def state(self, job: str) -> LifeState:
        return self.jobs[job].life.state

    def slots(self, job: str) -> int:
        return sum(len(devices) for devices in self.devices(job).values())

    def devices(self, job: str) -> dict[str, tuple[int, ...]]:
        run = self.jobs[job].life.run
        entries = {
            name: machine.assigned.jobs[job]
            for name, machine in self.machines.items()
            if job in machine.assigned.jobs and machine.assigned.jobs[job].run == run
        }
        return {name: entry.devices for name, entry in entries.items()}

    def entries(self) -> Iterator[tuple[str, str]]:
        for name, machine in self.machines.items():
            for job in machine.assigned.jobs:
                yield name, job

    def __str__(self) -> str:
        lines = [f"at {self.now_s:.0f} s", *self.story[-12:]]
        for name, one in self.jobs.items():
            run = f"{one.run.token} {one.run.state} {one.run.devices}" if one.run else "no run"
            lines.append(f"{name}: {one.life.state} ({self.reasons.get(name)}); {run}")
        for name, machine in self.machines.items():
            lines.append(f"{name}: {machine}")
        return "\n".join(lines)

    # --- what must be so

    def check(self) -> None:
        for name, machine in self.machines.items():
            self._check_host(name, machine)
        for name, job in self.jobs.items():
            self._check_job(name, job)

    def _check_host(self, name: str, machine: Machine) -> None:
        owners = Counter(d for entry in machine.assigned.jobs.values() for d in entry.devices)
        twice = [device for device, count in owners.items() if count > 1]
        assert not twice, f"device {twice} of {name} is assigned twice"
        assert sum(owners.values()) <= machine.slots, f"{name} has {machine.slots} slots"
        used: dict[int, tuple[str, str]] = {}
        for job, run, device in sorted(machine.workers):
            assert device not in used, f"{job} {run} and {used[device]} both run on {name}.{device}"
            used[device] = job, run
            entry = machine.assigned.jobs.get(job)
            owns = entry is not None and entry.run == run and device in entry.devices
            assert owns, f"{job} {run} has a process on {name}.{device}, which it has not got"

    def _check_job(self, name: str, job: Submitted) -> None:
        life = job.life
        if life.state is LifeState.ENDED:
            assert life.result is not None
            if life.result is LifeResult.FINISHED:
                assert job.left <= 0, f"{name} has not trained to the end"
            if life.result is LifeResult.DELETED:
                assert job.wanted.goal is Goal.GONE, f"{name} was not deleted"
            if life.result is LifeResult.FAILED:
                assert (
                    life.failures > job.request.retries
                    or life.exit_code in (2, 78, 127)
                    or job.request.after
                )
        if job.run is not None and not job.run.state.over and job.tokens:
            assert job.tokens[-1] == job.run.token
            assert len(set(job.tokens)) == len(job.tokens)


def running(*slots: int, policy: str = "max_min", **jobs: dict[str, object]) -> World:
    world = World(*slots, policy=policy)
    for name, request in jobs.items():
        world.submit(name, **request)
    world.until(lambda: all(world.state(name) is LifeState.RUNNING for name in jobs))
    return world
