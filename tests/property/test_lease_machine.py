"""Leases of hosts, whatever is late, comes twice, or never: leaders, the engine, hosts, people.

Only the decision is the real one. In each step one thing happens to a model of the rest. After each
step the promises hold; in the end all trouble ceases, and then the cluster has the hosts it needs.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from cluster_world import Request
from hypothesis import given
from hypothesis import strategies as st

from edl.cluster.leases import LeaseDecision, decide_leases, with_leases
from edl.cluster.records import (
    HostAssignment,
    HostLease,
    HostOffer,
    HostReport,
    JobAssignment,
    LeaseLimits,
    LeaseState,
    LeaseTable,
    Shape,
)
from edl.cluster.view import ClusterView, HostView, JobView

ASKED, RUNNING, ENDED, UNKNOWN = (LeaseState(n) for n in ("asked", "running", "ended", "unknown"))
LIMITS = LeaseLimits(Shape(2), max_hosts=3, idle_s=20.0, start_s=60.0, leave_s=30.0, stray_s=40.0)
MACHINES = ("n1", "n2", "n3", "n4")
NO_LEASE = ""


@dataclass
class Batch:
    """What the engine has of one lease; after its end, its `edl host` may live on."""

    state: LeaseState = ASKED
    machine: str = ""


@dataclass
class Machine:
    lease: str = NO_LEASE
    leaves: bool = False
    jobs: tuple[str, ...] = ()


@dataclass
class LeaseModel:
    chance: random.Random
    now_s: float = 1000.0
    table: LeaseTable = field(default_factory=LeaseTable)
    engine: dict[str, Batch] = field(default_factory=dict)
    machines: dict[str, Machine] = field(default_factory=dict)
    jobs: set[str] = field(default_factory=set)
    answer: Mapping[str, HostLease] | None = None  # perhaps an old one
    decision: LeaseDecision | None = None  # of the present leader, not carried out yet
    asked: set[str] = field(default_factory=set)
    hidden: set[str] = field(default_factory=set)  # leases whose state the engine does not tell

    def __post_init__(self) -> None:
        self.machines = {name: Machine() for name in MACHINES}

    @property
    def view(self) -> ClusterView:
        jobs = tuple(JobView(n, k + 1, Request(max=2)) for k, n in enumerate(sorted(self.jobs)))
        return ClusterView(jobs, tuple(self._host(name) for name in MACHINES))

    def _host(self, name: str) -> HostView:
        one = self.machines[name]
        offer = HostOffer(2, lease=one.lease, leaves=one.leaves) if one.lease else None
        assigned = HostAssignment({job: JobAssignment("r", (0,)) for job in one.jobs})
        return HostView(name, offer, assigned=assigned, report=HostReport())

    # --- leaders

    def engine_answers(self) -> None:
        self.answer = {
            name: HostLease(UNKNOWN, "", "no such word")
            if name in self.hidden
            else HostLease(one.state, one.machine if one.state is RUNNING else "")
            for name, one in self.engine.items()
        }

    def engine_hides_a_state(self) -> None:
        if self.engine:
            self.hidden.add(self.chance.choice(sorted(self.engine)))

    def engine_tells_all_states(self) -> None:
        self.hidden.clear()

    def engine_is_silent(self) -> None:
        self.answer = None

    def leader_decides(self) -> None:
        before = self.table
        self.decision = decide_leases(before, self.answer, self.view, LIMITS, self.now_s)
        if self.answer is None:
            assert self.decision == LeaseDecision(before), "silence decides nothing"
        assert set(self.decision.ask) <= self.decision.table.leases.keys(), "written ahead"
        for name, lease in (self.answer or {}).items():
            if lease.state is UNKNOWN and name in before.leases:
                assert self.decision.table.leases[name].state is before.leases[name].state
                assert name not in self.decision.ask
        alive = [one for one in self.decision.table.leases.values() if not one.is_over]
        assert len(alive) <= LIMITS.max_hosts
        assert self.decision.table.last >= before.last
        for order in self.decision.give_back:
            record = before.leases.get(order.lease) or self.decision.table.leases.get(order.lease)
            if record is not None and record.offered_s and not record.back_s:
                assert self.now_s - record.idle_s >= LIMITS.idle_s > 0, "only idle hosts"
        self.table = self.decision.table

    def leader_dies(self) -> None:
        """Lose what it was about to order; what it has written stays."""
        self.decision = None

    def orders_are_carried_out(self, most: int = 9) -> None:
        """All, or only the first ones; twice does no harm."""
        if self.decision is None:
            return
        for name in self.decision.ask[:most]:
            known = self.engine.get(name)
            if known is None or known.state is ENDED:
                self.engine[name] = Batch()
                self.asked.add(name)
        for order in self.decision.give_back[:most]:
            batch = self.engine.get(order.lease)
            if batch is None or batch.state is ENDED:
                continue
            if batch.state is RUNNING and order.within_s > 0:
                self._offering(order.lease, leaves=True)
            else:
                self._end(order.lease, kills=True)

    def part_of_the_orders(self) -> None:
        self.orders_are_carried_out(1)

    # --- the engine and its hosts

    def engine_starts(self) -> None:
        """Start a lease on a machine on which none runs; the `edl host` may come much later."""
        used = {one.machine for one in self.engine.values() if one.state is RUNNING}
        free = [name for name in MACHINES if name not in used]
        waiting = [name for name, one in self.engine.items() if one.state is ASKED]
        if free and waiting:
            name = self.chance.choice(waiting)
            self.engine[name] = Batch(RUNNING, self.chance.choice(free))

    def host_comes(self) -> None:
        """Let the `edl host` of a lease offer its machine, unless an older one lives there."""
        for name, one in self.engine.items():
            if one.state is RUNNING and self.machines[one.machine].lease == NO_LEASE:
                self.machines[one.machine].lease = name
                self.machines[one.machine].leaves = False
                return

    def host_leaves(self) -> None:
        for machine in self.machines.values():
            if machine.lease and machine.leaves:
                machine.jobs = ()
                name, machine.lease = machine.lease, NO_LEASE
                if name in self.engine:
                    self._end(name)
                return

    def host_is_lost(self) -> None:
        """Let an `edl host` die; what jobs have there stays assigned."""
        offering = [one for one in self.machines.values() if one.lease]
        if offering:
            machine = self.chance.choice(offering)
            name, machine.lease = machine.lease, NO_LEASE
            if name in self.engine:
                self._end(name)

    def engine_ends_a_lease(self) -> None:
        running = [name for name, one in self.engine.items() if one.state is RUNNING]
        if running:
            self._end(self.chance.choice(running), kills=self.chance.random() < 0.5)

    def engine_takes_a_machine_back(self) -> None:
        running = [name for name, one in self.engine.items() if one.state is RUNNING]
        if running:
            name = self.chance.choice(running)
            self._end(name, kills=self.chance.random() < 0.5)
            self.engine[name] = Batch()

    def engine_forgets(self) -> None:
        self.engine = {name: one for name, one in self.engine.items() if one.state is not ENDED}

    def somebody_submits_a_stray(self) -> None:
        self.engine.setdefault("l999", Batch())

    def survivors_end(self) -> None:
        for name, machine in self.machines.items():
            batch = self.engine.get(machine.lease)
            if machine.lease and batch != Batch(RUNNING, name):
                machine.lease, machine.jobs = NO_LEASE, ()

    def _end(self, name: str, kills: bool = False) -> None:
        self.engine[name] = replace(self.engine[name], state=ENDED)
        if kills:
            for machine in self.machines.values():
                if machine.lease == name:
                    machine.lease = NO_LEASE

    def _offering(self, lease: str, leaves: bool) -> None:
        for machine in self.machines.values():
            if machine.lease == lease:
                machine.leaves = leaves

    # --- jobs

    def job_comes(self) -> None:
        self.jobs.add(self.chance.choice("abcde"))

    def job_ends(self) -> None:
        if self.jobs:
            job = self.chance.choice(sorted(self.jobs))
            self.jobs.remove(job)
            for machine in self.machines.values():
                machine.jobs = tuple(one for one in machine.jobs if one != job)

    def job_gets_slots(self) -> None:
        for host in with_leases(self.view, self.table).hosts:
            machine = self.machines[host.name]
            if host.takes_slots and not machine.jobs and self.jobs:
                record = self.table.leases[machine.lease]
                assert not record.is_over
                assert not record.back_s, "a host that is given back gets no job"
                assert machine.lease in self.asked, "nobody has asked for it"
                machine.jobs = (self.chance.choice(sorted(self.jobs)),)
                return

    # --- time

    def time_passes(self) -> None:
        self.now_s += self.chance.choice((0.5, 3.0, 10.0, 30.0))

    def calm(self) -> None:
        for _ in range(60):
            self.now_s += 10.0
            self.survivors_end()
            self.engine_tells_all_states()
            self.engine_answers()
            self.leader_decides()
            self.orders_are_carried_out()
            for _ in MACHINES:
                self.host_leaves()
                self.engine_starts()
                self.host_comes()


STEPS = (
    *(3 * (LeaseModel.engine_answers, LeaseModel.leader_decides)),
    *(2 * (LeaseModel.orders_are_carried_out, LeaseModel.engine_starts, LeaseModel.host_comes)),
    *(2 * (LeaseModel.job_comes, LeaseModel.job_ends, LeaseModel.time_passes)),
    *(2 * (LeaseModel.job_gets_slots, LeaseModel.host_leaves)),
    LeaseModel.engine_is_silent,
    LeaseModel.engine_hides_a_state,
    LeaseModel.engine_tells_all_states,
    LeaseModel.leader_dies,
    LeaseModel.part_of_the_orders,
    LeaseModel.host_is_lost,
    LeaseModel.engine_ends_a_lease,
    LeaseModel.engine_takes_a_machine_back,
    LeaseModel.engine_forgets,
    LeaseModel.somebody_submits_a_stray,
    LeaseModel.survivors_end,
)


@given(st.integers(min_value=0, max_value=2**32))
def test_leases_whatever_is_late_twice_or_never(seed: int) -> None:
    model = LeaseModel(random.Random(seed))
    for _ in range(80):
        model.chance.choice(STEPS)(model)
    model.calm()
    needed = min(LIMITS.max_hosts, len(model.jobs))
    offering = [one for one in model.machines.values() if one.lease and not one.leaves]
    holding = sum(bool(one.jobs) for one in offering)
    assert len(offering) == max(needed, holding), (model.jobs, model.table, model.engine)
    assert len(model.table.leases) == len(offering)
    assert all(one.lease in model.table.leases for one in offering), "no stray is left"
    assert model.asked <= {f"l{n + 1}" for n in range(model.table.last)}
    model.jobs.clear()
    for machine in model.machines.values():
        machine.jobs = ()
    model.calm()
    assert not any(one.lease for one in model.machines.values())
    assert not model.table.leases
    assert all(one.state is ENDED for one in model.engine.values())
