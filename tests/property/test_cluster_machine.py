"""The plan of a cluster under anything: hosts, agents, runs, leaders late, twice, dead or silent.

The invariants are :meth:`cluster_world.World.check`; at the end all trouble ceases, and then all
jobs must end and all devices be free.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

from cluster_world import Batches, Profile, World
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from edl.cluster.lifecycle import LifeResult, LifeState
from edl.cluster.placing import place_slots
from edl.cluster.records import ClusterRecord, Goal, QueueRecord
from edl.cluster.state import Allocation, ClusterState

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
    {"min": 1, "max": 6, "profile": Profile(3, 4.0, 40.0), "cool_down_s": 5.0},
    {"min": 1, "max": 4, "required_paths": {"/data": "the job's data /data"}},
    {"min": 2, "max": 6, "queue": "prod"},
)
SETTINGS = ClusterRecord(
    interval_s=20.0,
    start_timeout_s=15.0,
    halt_timeout_s=25.0,
    lost_after_s=5.0,
    stuck_s=10.0,
    limit_s=40.0,
)
# What a host does in some rounds, in place of all that it has to.
AS_EVER, NOTHING, NO_AGENTS, NO_REPORT = "as ever", "nothing", "no agents", "no report"
LATE_AGENTS, LATE_HOST = "agents late", "host late"  # they act in the end, on what was first so
CONDUCTS = (AS_EVER, NOTHING, NO_AGENTS, NO_REPORT, LATE_AGENTS, LATE_HOST)
HAPPENS = {
    "user": "run run run halt gone -1 1 forget",
    "host": "host_acts host_reports host_dies offer_ends machine_dies" + 5 * " host_returns",
    "agent": "agent_reads agent_declares agent_spawns agent_dies record_ends agent_is_lost "
    "workers_crash workers_live workers_live all_die agents_start agents_start",
    "run": "run_steps run_fails run_stops",
    "drain": "on off off",
    "files": "lost found found",
    "queues": "prod none",
    "time": "1 3 6 20",
}
EVENTS = st.sampled_from(
    [(kind, one) for kind, words in HAPPENS.items() for one in words.split()]
).flatmap(lambda what: st.tuples(st.just(what[0]), st.just(what[1]), st.integers(0, 4)))


@dataclass(frozen=True)
class Arbitrary:
    """A policy that gives jobs any slots that the rules allow; other ones with each seed."""

    seed: int

    def __call__(self, cluster: ClusterState) -> Allocation:
        chance = Random(self.seed)
        sizes, left = dict(cluster.fixed), cluster.slots - sum(cluster.fixed.values())
        for job in chance.sample(list(cluster.jobs), len(cluster.jobs)):
            most = min(left, job.max_slots)
            if job.name not in sizes and most >= job.min_slots and chance.random() < 0.8:
                sizes[job.name] = chance.randint(job.min_slots, most)
                left -= sizes[job.name]
        reasons = {job.name: "by chance" for job in cluster.jobs}
        return Allocation(place_slots(sizes, cluster), reasons)


class ClusterMachine(RuleBasedStateMachine):
    """Controllers that lead and that believe so, machines with and without `edl host`, jobs.

    Most rules let rounds pass, so that much is under way when something happens.
    """

    @initialize(
        slots=st.lists(st.integers(2, 4), min_size=1, max_size=3),
        policy=st.sampled_from(POLICIES),
        new=st.booleans(),
        requests=st.lists(st.sampled_from(REQUESTS), min_size=1, max_size=3),
        rounds=st.sampled_from((0, 3, 6)),
        quota=st.none() | st.integers(0, 4),
        broken=st.booleans(),
    )
    def start(
        self,
        slots: list[int],
        policy: str,
        new: bool,
        requests: list[dict[str, Any]],
        rounds: int,
        quota: int | None,
        broken: bool,
    ) -> None:
        """Submit jobs to a new cluster, and let rounds pass.

        If it is ``broken``, the first host can start no agent of the first job.
        """
        self.world = World(*slots, policy=policy, settings=SETTINGS)
        if quota is not None:
            self.world.queues = {"prod": QueueRecord(quota), "default": QueueRecord(1, weight=2.0)}
        self.submitted: set[str] = set()
        if new:
            self.world.machines["h0"].labels = {"gpu": "new"}
        if broken:
            self.world.machines["h0"].refuses.add("j0")
        for request in requests:
            self.submit(request, left=200, after=9)
        self.world.rounds(rounds)

    def job(self, at: int) -> str:
        names = sorted(self.world.jobs)
        return names[at % len(names)]

    # --- events, and rounds in which hosts are late or do nothing

    @precondition(lambda self: len(self.world.jobs) < 5)
    @rule(request=st.sampled_from(REQUESTS), left=st.integers(1, 200), after=st.integers(0, 9))
    def submit(self, request: dict[str, Any], left: int, after: int) -> None:
        name = next(f"j{n}" for n in range(9) if f"j{n}" not in self.world.jobs)
        first = (self.job(after),) if after < 2 and self.world.jobs else ()
        self.world.submit(name, left, **request, after=first)
        self.submitted.add(name)

    @rule(
        events=st.lists(EVENTS, max_size=3),
        count=st.integers(1, 4),
        conducts=st.tuples(*[st.sampled_from(CONDUCTS)] * 3),
        seed=st.none() | st.integers(0, 99),
    )
    def goes_on(
        self,
        events: list[tuple[str, str, int]],
        count: int,
        conducts: tuple[str, ...],
        seed: int | None,
    ) -> None:
        world = self.world
        for kind, what, at in events:
            self.happens(kind, what, at)
        if seed is not None:
            world.policy = Arbitrary(seed)
        hosts = dict(zip(world.machines, conducts, strict=False))
        late = [host for host, conduct in hosts.items() if conduct == LATE_HOST]
        late_agents = [
            (host, job)
            for host, conduct in hosts.items()
            for job in world.machines[host].agents
            if conduct == LATE_AGENTS
        ]
        for host in late:
            world.host_reads(host)
        for host, job in late_agents:
            world.agent_reads(host, job)
        for _ in range(count):
            self.one_round(hosts)
        for host in late:
            world.host_acts(host)
            world.host_reports(host)
        for host, job in late_agents:
            world.agent_declares(host, job)
            world.agent_spawns(host, job)

    def one_round(self, hosts: dict[str, str]) -> None:
        world = self.world
        world.turn()
        for host, conduct in hosts.items():
            if conduct not in (NOTHING, LATE_HOST):
                agents = conduct not in (NO_AGENTS, LATE_AGENTS)
                world.host_works(host, agents, conduct != NO_REPORT)
        for job in world.jobs:
            world.run_steps(job)
        world.now_s += 1

    def happens(self, kind: str, what: str, at: int) -> None:
        """Let an event happen to a host, agent or job; ``at`` modulo their number says which."""
        world, pairs, names = self.world, self.with_agents(), sorted(self.world.jobs)
        host = sorted(world.machines)[at % len(world.machines)]
        if kind == "host":
            getattr(world, what)(host)
        elif kind == "drain":
            world.machines[host].drained = what == "on"
        elif kind == "files":
            world.machines[host].lacks = {"/data"} if what == "lost" else set()
        elif kind == "queues":
            quota = QueueRecord(at, most=None if at else 3)
            world.queues = {"prod": quota, "default": QueueRecord(1)} if what == "prod" else {}
        elif kind == "time":
            world.now_s += float(what)
        elif kind == "agent" and pairs:
            getattr(world, what)(*pairs[at % len(pairs)])
        elif kind == "run" and names:
            getattr(world, what)(names[at % len(names)])
        elif kind == "user" and names:
            self.user(names[at % len(names)], what)

    def user(self, name: str, what: str) -> None:
        job = self.world.jobs[name]
        if what == "forget":
            if job.life.state is LifeState.ENDED:
                self.world.forget(name)
                self.submitted &= set(self.world.jobs)
        elif job.wanted.goal is not Goal.GONE and job.life.state is not LifeState.ENDED:
            if what in list(Goal):
                self.world.want(name, Goal(what))
            else:
                self.world.want(name, priority=int(what))

    def with_agents(self) -> list[tuple[str, str]]:
        machines = self.world.machines.items()
        found = {(host, job) for host, one in machines for job in one.agents}
        found |= {(host, job) for host, one in machines for job, _, _ in one.workers}
        return sorted(pair for pair in found if pair[1] in self.world.jobs)

    # --- a controller's turn in pieces

    @rule(
        until=st.sampled_from(("reads", "plans", "writes", "writes", "late")),
        orders=st.integers(0, 3),
        twice=st.booleans(),
        again=st.booleans(),
    )
    def a_leader_dies(self, until: str, orders: int, twice: bool, again: bool) -> None:
        """Let a leader do a part of its turn, and another one lead, or it begins ``again``."""
        world, leader = self.world, self.world.leader
        world.reads_jobs(leader)
        if until != "reads":
            world.plans(leader)
        if until == "late":
            world.new_leader()
            world.turn()
        if until in ("writes", "late") and world.writes_plan(leader):
            assert leader is world.leader
            for order in leader.orders[:orders]:
                for _ in range(1 + twice):
                    world.carries_out(leader, order)
        if until == "late":
            for order in leader.orders:
                world.carries_out(leader, order)
        elif not again:
            world.new_leader()

    @rule(events=st.lists(EVENTS, max_size=3), orders=st.integers(0, 3))
    def something_happens_in_a_turn(self, events: list[tuple[str, str, int]], orders: int) -> None:
        world, leader = self.world, self.world.leader
        world.reads_jobs(leader)
        for kind, what, at in events[:1]:
            self.happens(kind, what, at)
        if all(job.name in world.jobs for job in leader.jobs or ()):
            world.plans(leader)
            for kind, what, at in events[1:]:
                self.happens(kind, what, at)
            if world.writes_plan(leader):
                for order in leader.orders[:orders]:
                    world.carries_out(leader, order)

    # --- what must be so

    @invariant()
    def all_is_right(self) -> None:
        self.world.check()
        assert self.submitted == set(self.world.jobs), "no job is lost"

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        world = self.world
        world.new_leader()
        world.policy = World(policy="max_min").policy
        world.queues = {}
        for name, machine in world.machines.items():
            machine.drained = False
            machine.broken_for.clear()
            machine.refuses.clear()
            machine.lacks.clear()
            world.host_returns(name)
        needed = [job.request.min for job in world.jobs.values() if not job.request.labels]
        slots = sum(machine.slots for machine in world.machines.values())
        if needed and max(needed) > slots:
            world.machines["more"] = type(world.machines["h0"])(max(needed))
        for job in world.jobs.values():
            job.left = min(job.left, 10)
            if job.wanted.goal is Goal.HALT and job.life.state is not LifeState.ENDED:
                job.wanted = job.wanted.__class__(Goal.RUN, 0)
        for _ in range(300):
            if self.is_over():
                break
            found = world.round()
            if not found.acts:  # nothing but what the plan says is waited for
                world.now_s = max(world.now_s, found.next_s)
        assert self.is_over(), str(world)

    def is_over(self) -> bool:
        world = self.world
        done = all(self.has_ended_or_waits(name) for name in world.jobs)
        return done and not list(world.entries())

    def has_ended_or_waits(self, name: str) -> bool:
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
MORE = 1 if settings.get_current_profile_name() == "ci" else 10
TestCluster.settings = settings(max_examples=MORE * settings().max_examples, stateful_step_count=60)
