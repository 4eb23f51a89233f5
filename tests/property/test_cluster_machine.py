"""The plan of a cluster under anything: hosts, agents, runs, leaders late, twice, dead or silent.

The invariants are :meth:`cluster_world.World.check`; at the end all trouble ceases, and then all
jobs must end and all devices be free.
"""

from __future__ import annotations

from typing import Any

from cluster_world import Batches, Controller, World
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from edl.core.cluster.job_life import LifeResult, LifeState
from edl.core.cluster.records import ClusterRecord, Goal
from edl.core.records import JobState

POLICIES = ("max_min", "fifo_backfill", "tiresias", "elastic_tiresias", "edl", "jsa")
REQUESTS: tuple[dict[str, Any], ...] = (
    {"min": 1, "max": 4},
    {"min": 2, "max": 2},
    {"min": 1, "max": 8, "sizes": (1, 2, 4, 8)},
    {"min": 3, "max": 6, "np": 4},
    {"min": 1, "max": 3, "preemptible": False},
    {"min": 1, "max": 4, "min_run_s": 30.0, "cool_down_s": 10.0, "snooze_s": 10.0},
    {"min": 2, "max": 4, "labels": {"gpu": "new"}},
    {"min": 1, "max": 4, "batch": Batches()},
    {"min": 1, "max": 2, "retries": 0},
)
SETTINGS = ClusterRecord(
    interval_s=20.0,
    start_timeout_s=15.0,
    halt_timeout_s=25.0,
    lost_after_s=5.0,
    stuck_s=10.0,
    limit_s=40.0,
)
STEPS_OF_PROCESSES = ("read", "act", "agents read", "agents declare", "agents spawn", "report")


class ClusterMachine(RuleBasedStateMachine):
    """Controllers that lead and that believe so, machines with and without `edl host`, jobs."""

    @initialize(
        slots=st.lists(st.integers(1, 4), min_size=1, max_size=3),
        policy=st.sampled_from(POLICIES),
        new=st.booleans(),
    )
    def start(self, slots: list[int], policy: str, new: bool) -> None:
        self.world = World(*slots, policy=policy, settings=SETTINGS)
        self.former: list[Controller] = []  # they have not heard yet that another one leads
        self.submitted: set[str] = set()
        if new:
            self.world.machines["h0"].labels = {"gpu": "new"}

    def host(self, at: int) -> str:
        names = sorted(self.world.machines)
        return names[at % len(names)]

    def job(self, at: int) -> str | None:
        names = sorted(self.world.jobs)
        return names[at % len(names)] if names else None

    # --- users

    @precondition(lambda self: len(self.world.jobs) < 5)
    @rule(request=st.sampled_from(REQUESTS), left=st.integers(1, 60), after=st.integers(0, 9))
    def submit(self, request: dict[str, Any], left: int, after: int) -> None:
        name = next(f"j{n}" for n in range(9) if f"j{n}" not in self.world.jobs)
        first = (self.job(after),) if after < 2 and self.world.jobs else ()
        self.world.submit(name, left, **request, after=first)
        self.submitted.add(name)

    @rule(at=st.integers(0, 9), goal=st.sampled_from(Goal))
    def want(self, at: int, goal: Goal) -> None:
        name = self.job(at)
        if name is not None and self.is_changeable(name):
            self.world.want(name, goal)

    @rule(at=st.integers(0, 9), priority=st.integers(-1, 1))
    def prioritize(self, at: int, priority: int) -> None:
        name = self.job(at)
        if name is not None and self.is_changeable(name):
            self.world.want(name, priority=priority)

    def is_changeable(self, name: str) -> bool:
        """Return whether a client may still change what is wanted of a job."""
        job = self.world.jobs[name]
        return job.wanted.goal is not Goal.GONE and job.life.state is not LifeState.ENDED

    @rule(at=st.integers(0, 9))
    def forget(self, at: int) -> None:
        name = self.job(at)
        if name is not None and self.world.state(name) is LifeState.ENDED:
            self.world.forget(name)
            if name not in self.world.jobs:
                self.submitted.discard(name)

    @rule(at=st.integers(0, 9), drained=st.booleans())
    def drain(self, at: int, drained: bool) -> None:
        self.world.machines[self.host(at)].drained = drained

    # --- time, and turns in which nothing goes wrong

    @rule(seconds=st.sampled_from((0.0, 1.0, 3.0, 6.0, 20.0)))
    def time_passes(self, seconds: float) -> None:
        self.world.now_s += seconds

    @rule(count=st.integers(1, 8))
    def usual_rounds(self, count: int) -> None:
        self.world.rounds(count)

    @rule()
    def a_turn(self) -> None:
        self.world.turn()

    # --- a controller's turn in pieces

    @rule()
    def reads_jobs(self) -> None:
        self.world.reads_jobs(self.world.leader)

    @precondition(lambda self: self.world.leader.jobs is not None)
    @rule()
    def plans(self) -> None:
        self.world.plans(self.world.leader)

    @precondition(lambda self: self.world.leader.plan is not None)
    @rule(orders=st.integers(0, 3), twice=st.booleans())
    def writes(self, orders: int, twice: bool) -> None:
        """Write, and carry out some of the orders; the others are lost with the controller."""
        world, leader = self.world, self.world.leader
        if world.writes_plan(leader):
            for order in leader.orders[:orders]:
                world.carries_out(leader, order)
                if twice:
                    world.carries_out(leader, order)
            if orders < len(leader.orders):
                self.former.append(leader)
                world.new_leader()
            else:
                leader.orders = []

    @rule()
    def another_leads(self) -> None:
        self.former.append(self.world.leader)
        self.world.new_leader()

    @precondition(lambda self: self.former)
    @rule()
    def a_former_leader_goes_on(self) -> None:
        """Refuse what it writes and orders, for its term is over."""
        former = self.former.pop()
        self.world.writes_plan(former)
        for order in former.orders:
            self.world.carries_out(former, order)

    # --- hosts and agents, in pieces

    @rule(at=st.integers(0, 9), what=st.sampled_from(STEPS_OF_PROCESSES))
    def host_goes_on(self, at: int, what: str) -> None:
        host, world = self.host(at), self.world
        steps = {"read": world.host_reads, "act": world.host_acts, "report": world.host_reports}
        if what in steps:
            steps[what](host)
            return
        agents = {
            "agents read": world.agent_reads,
            "agents declare": world.agent_declares,
            "agents spawn": world.agent_spawns,
        }
        for job in list(world.machines[host].agents):
            agents[what](host, job)

    @rule(at=st.integers(0, 9))
    def host_dies(self, at: int) -> None:
        self.world.host_dies(self.host(at))

    @rule(at=st.integers(0, 9))
    def host_returns(self, at: int) -> None:
        self.world.host_returns(self.host(at))

    @rule(at=st.integers(0, 9))
    def offer_ends(self, at: int) -> None:
        self.world.offer_ends(self.host(at))

    @rule(at=st.integers(0, 9))
    def machine_dies(self, at: int) -> None:
        self.world.machine_dies(self.host(at))

    @rule(at=st.integers(0, 9), of=st.integers(0, 9))
    def agent_dies(self, at: int, of: int) -> None:
        host, job = self.host(at), self.job(of)
        if job is not None:
            self.world.agent_dies(host, job)

    @rule(at=st.integers(0, 9), of=st.integers(0, 9))
    def record_ends(self, at: int, of: int) -> None:
        host, job = self.host(at), self.job(of)
        if job is not None:
            self.world.record_ends(host, job)

    @rule(at=st.integers(0, 9), of=st.integers(0, 9))
    def workers_crash(self, at: int, of: int) -> None:
        """From now on, all workers of a job die at once on this host."""
        host, job = self.world.machines[self.host(at)], self.job(of)
        if job is not None:
            host.broken_for.add(job)
            host.workers = {one for one in host.workers if one[0] != job}

    @rule(at=st.integers(0, 9))
    def workers_crash_no_more(self, at: int) -> None:
        self.world.machines[self.host(at)].broken_for.clear()

    # --- runs

    @rule(at=st.integers(0, 9))
    def run_steps(self, at: int) -> None:
        name = self.job(at)
        if name is not None:
            self.world.run_steps(name)

    @rule(at=st.integers(0, 9))
    def run_fails(self, at: int) -> None:
        name = self.job(at)
        if name is not None:
            self.world.run_fails(name)

    @rule(at=st.integers(0, 9))
    def a_stranger_stops_a_run(self, at: int) -> None:
        name = self.job(at)
        run = self.world.jobs[name].run if name is not None else None
        if run is not None and not run.state.over:
            run.state = JobState.STOPPING

    # --- what must be so

    @invariant()
    def all_is_right(self) -> None:
        self.world.check()
        assert self.submitted == set(self.world.jobs), "no job is lost"

    def teardown(self) -> None:
        """When all trouble ceases, all jobs end, and no device stays with one."""
        if not hasattr(self, "world"):
            return
        world = self.world
        world.new_leader()
        for name, machine in world.machines.items():
            machine.drained = False
            machine.broken_for.clear()
            world.host_returns(name)
        needed = [job.request.min for job in world.jobs.values() if not job.request.labels]
        slots = sum(machine.slots for machine in world.machines.values())
        if needed and max(needed) > slots:
            world.machines["more"] = type(world.machines["h0"])(max(needed))
        for job in world.jobs.values():
            if job.wanted.goal is Goal.HALT and job.life.state is not LifeState.ENDED:
                job.wanted = job.wanted.__class__(Goal.RUN, 0)
        for at in range(500):
            if self.is_over():
                break
            world.round(seconds=1.0 if at % 10 else 10.0)
        assert self.is_over(), str(world)

    def is_over(self) -> bool:
        world = self.world
        done = all(self.has_ended_or_waits(name) for name in world.jobs)
        return done and not list(world.entries())

    def has_ended_or_waits(self, name: str) -> bool:
        """Whether a job has ended, or waits for what cannot be: a label, a job that has failed."""
        world, job = self.world, self.world.jobs[name]
        if job.life.state is LifeState.ENDED:
            return True
        if job.life.state is not LifeState.QUEUED:
            return False
        labelled = sum(m.slots for m in world.machines.values() if m.labels)
        if job.request.labels and labelled < job.request.min:
            return True
        firsts = [world.jobs.get(first) for first in job.request.after]
        return any(
            first is None
            or first.life.result in (LifeResult.FAILED, LifeResult.DELETED)
            or (first.order > job.order)
            or (first.life.state is LifeState.QUEUED and self.has_ended_or_waits_of(first))
            for first in firsts
        )

    def has_ended_or_waits_of(self, first: Any) -> bool:
        names = [name for name, job in self.world.jobs.items() if job is first]
        return bool(names) and self.has_ended_or_waits(names[0])


TestCluster = ClusterMachine.TestCase
TestCluster.settings = settings(stateful_step_count=60)
