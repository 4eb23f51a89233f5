"""Which hosts a cluster borrows from an engine, and which it gives back: the rules of `leases`.

They are the texts of `scenarios/leases`. A line of a story is what happens; after `turn`, so many
seconds later, stands the whole decision, and below it what is told of it. A line that begins with
`=` says what holds then.

    limits max_hosts=9 min_hosts=1 idle_s=0 labels=gpu:h100   else 3 hosts of 2 slots, idle 30 s
    queue small most=5
    job a 4 min=2 queue=small labels=gpu:h100      asks for 4 slots at most
    a is halting; a is running; a rests; a is gone
    host n1 of l1 with a b, leaves=1      what `edl host` offers, of a lease, with slots of jobs
    n1 is drained; n1 is silent; n1 is back; n1 is gone; n1 lacks the files of b
    engine l1 running n1: why; engine l1 gone       what the engine says of a lease
    lent n1 with a; borrowed a b          the two above; all that is needed for n1 to have its jobs
    turn 30; written 5; silence 5         written: nobody asks the engine; silence: it says nothing
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from cluster_world import Request
from scenario_texts import scenarios

from edl.cluster.candidates import find_active_jobs
from edl.cluster.leases import (
    LastOffer,
    LeaseDecision,
    decide_leases,
    lease_summary,
    own_offers,
    with_leases,
    with_offers,
)
from edl.cluster.lifecycle import JobLifecycle, LifeState
from edl.cluster.plan import plan
from edl.cluster.policies.simple import MaxMin
from edl.cluster.records import (
    LACKS,
    ClusterRecord,
    Goal,
    HostAssignment,
    HostFailure,
    HostLease,
    HostOffer,
    HostReport,
    JobAssignment,
    LeaseLimits,
    LeaseRecord,
    LeaseState,
    LeaseTable,
    QueueRecord,
    Shape,
    Wanted,
    left_borrowed,
)
from edl.cluster.view import ClusterView, DeviceTable, HostView, JobView

LIMITS = LeaseLimits(Shape(2), max_hosts=3, idle_s=30.0, start_s=100.0)
BEGIN_S = 1000.0
LIVES = {"running": LifeState.RUNNING, "halted": LifeState.HALTED}


def fields_of(words: str) -> dict[str, Any]:
    """Return the values of ``min=2 labels=gpu:h100``."""
    found: dict[str, Any] = {}
    for name, value in re.findall(r"(\w+)=(\S+)", words):
        if name == "labels":
            found[name] = dict([value.split(":")])
        elif name == "required_paths":
            found[name] = {value: f"the job's data {value}"}
        elif name in ("after", "secrets"):
            found[name] = (value,)
        else:
            found[name] = int(value) if value.isdigit() else value if value != "no" else False
    return found


@dataclass
class Loan:
    limits: LeaseLimits = LIMITS
    now_s: float = BEGIN_S
    table: LeaseTable = field(default_factory=LeaseTable)
    engine: dict[str, HostLease] = field(default_factory=dict)
    jobs: dict[str, JobView] = field(default_factory=dict)
    hosts: dict[str, HostView] = field(default_factory=dict)
    queues: dict[str, QueueRecord] = field(default_factory=dict)
    offers: dict[str, LastOffer] = field(default_factory=dict)
    silent: dict[str, HostView] = field(default_factory=dict)

    def happens(self, line: str) -> list[str]:
        """Carry out a line of a story, and return the decision, if it is a turn, in words."""
        word, _, rest = line.partition(" ")
        if word in ("turn", "written", "silence"):
            return in_words(self.turn(float(rest or 0), word))
        if rest.startswith(("is ", "rests", "lacks")):
            self._change(word, rest)
        elif word == "limits":
            changes = fields_of(rest)
            if "labels" in changes:
                changes["shape"] = Shape(2, self.limits.shape.labels | changes.pop("labels"))
            self.limits = replace(self.limits, **changes)
        elif word == "queue":
            self.queues[rest.split()[0]] = QueueRecord(**fields_of(rest))
        elif word == "job":
            name, slots, *_ = rest.split()
            request: Any = Request(max=int(slots), **fields_of(rest))
            self.jobs[name] = JobView(name, len(self.jobs) + 1, request)
        elif word == "engine" and rest.endswith(" gone"):
            del self.engine[rest.split()[0]]
        elif word == "engine":
            found = re.fullmatch(r"(\w+) (\w+)(?: (n\d))?(?: but (n\d))?(?:: (.*))?", rest)
            assert found is not None, line
            name, state, host, avoid, why = (each or "" for each in found.groups())
            told = (avoid,) if avoid else None
            self.engine[name] = HostLease(LeaseState(state), host, why, told)
        elif word in ("host", "lent"):
            self._host(word == "lent", rest)
        else:
            assert word == "borrowed"
            for name in rest.split():
                self.happens(f"job {name} 2")
            for each in ("turn", f"lent n1 of l1 with {rest}", "turn"):
                self.happens(each)
        return []

    def _host(self, is_lent: bool, words: str) -> None:
        found = re.match(r"(\w+)(?: of (\w+))?(?: with ([^,]*))?", words)
        assert found is not None
        name, lease, jobs = found.groups()
        assigned = {}
        for first, words_of_job in enumerate((jobs or "").split()):
            job, _, count = words_of_job.partition(":")
            assigned[job] = JobAssignment("r", tuple(range(first, first + int(count or 1))))
        offer = HostOffer(2, lease=lease or "", **fields_of(words))
        assignment = HostAssignment(assigned)
        self.hosts[name] = HostView(name, offer, assigned=assignment, report=HostReport())
        if is_lent:
            self.engine[lease] = HostLease(LeaseState.RUNNING, name)

    def _change(self, name: str, words: str) -> None:
        what = words.removeprefix("is ")
        if name in self.jobs:
            job = self.jobs[name]
            if what == "gone":
                del self.jobs[name]
            elif what == "rests":
                self.jobs[name] = replace(job, life=JobLifecycle(not_before_s=2 * BEGIN_S))
            elif what in LIVES:
                self.jobs[name] = replace(job, life=JobLifecycle(state=LIVES[what], run="r"))
            else:
                goal = {"halting": Goal.HALT, "resumed": Goal.RUN}[what]
                self.jobs[name] = replace(job, wanted=Wanted(goal=goal))
            return
        host = self.hosts[name]
        if what == "gone":
            del self.hosts[name]
        elif what == "silent":
            self.silent[name] = host
            self.hosts[name] = replace(host, offer=None)
        elif what == "back":
            self.hosts[name] = self.silent[name]
        elif what.endswith("drained"):
            self.hosts[name] = replace(host, drained=not what.startswith("not"))
        else:
            job = what.removeprefix("lacks the files of ")
            reason = f"{LACKS}the job's data /data/"
            failure = HostFailure(self.jobs[job].order, reason, self.now_s, False)
            assigned = replace(host.assigned, failures={job: failure})
            self.hosts[name] = replace(host, assigned=assigned)

    @property
    def view(self) -> ClusterView:
        jobs, hosts = tuple(self.jobs.values()), tuple(self.hosts.values())
        return ClusterView(jobs, hosts, ClusterRecord(version="1.2"), queues=self.queues)

    def turn(self, after_s: float, how: str) -> LeaseDecision:
        self.now_s += after_s
        self.offers = own_offers(self.view, self.offers, self.now_s)
        view = with_offers(self.view, self.offers)
        answer = None if how == "silence" else self.engine
        found = decide_leases(self.table, answer, view, self.limits, self.now_s)
        self.table = found.table
        if how == "turn":
            self.engine |= {name: HostLease(LeaseState.ASKED) for name in found.ask}
        return found

    def holds(self, name: str) -> Any:
        lease = self.table.leases.get(name.split()[0])
        if name.endswith("lent"):
            hosts = with_leases(self.view, self.table).hosts
            return next(one for one in hosts if one.name == name.split()[0]).takes_slots
        if name.endswith("jobs"):
            return " ".join(self.hosts[name.split()[0]].assigned.jobs) or "none"
        if name == "rest_s":
            return max(0.0, self.table.not_before_s - self.now_s)
        if name == "leases":
            return " ".join(self.table.leases) or "none"
        if name == "strays":
            return " ".join(self.table.strays) or "none"
        if lease is not None:
            return str(getattr(lease, name.split()[1]))
        return getattr(self.table, name)


def in_words(decision: LeaseDecision) -> list[str]:
    parts = [f"ask {' '.join(decision.ask)}"] if decision.ask else []
    parts += [f"avoid {' '.join(decision.avoid)}"] if decision.avoid else []
    parts += [
        f"give back {one.lease} {f'within {one.within_s:g} s' if one.within_s else 'now'}"
        for one in decision.give_back
    ]
    news = [f"{what} [{host}]" if host else what for what, host in decision.news]
    return ["; ".join(parts) or "nothing", *news]


@pytest.mark.parametrize("lines", scenarios("leases"))
def test_decide_leases(lines: list[str]) -> None:
    loan = Loan()
    at = 0
    while at < len(lines):
        text, *decision = lines[at].strip().split(" => ")
        at += 1
        if text.startswith("= "):
            for one in text[2:].split("; "):
                name, _, value = one.partition(":")
                assert str(loan.holds(name)) == value.strip(), text
            continue
        while at < len(lines) and lines[at].startswith("     "):
            decision.append(lines[at].strip())
            at += 1
        assert loan.happens(text) == decision, text


def test_a_job_says_that_no_host_is_borrowed_for_it_and_why() -> None:
    loan = Loan()
    for line in (
        *("job a 2", "turn", "lent n1 of l1", "a is gone", "job b 2 required_paths=/data/"),
        *("n1 lacks the files of b", "turn", "turn 30", "n1 is gone", "engine l1 gone", "turn 1"),
    ):
        loan.happens(line)
    loan.table = replace(loan.table, engine="slurm")
    reasons = plan(with_leases(loan.view, loan.table), MaxMin(), loan.now_s).reasons
    assert reasons["b"].endswith(
        "; n1, which slurm lent, lacked the job's data /data/; for an hour no other one is asked "
        "for on its behalf: once such hosts have it, do `edl halt b` and `edl resume b`"
    )


def test_an_idle_host_is_given_back_though_the_clock_was_set_back() -> None:
    loan = Loan()
    for line in ("borrowed a", "a is gone", "host n1 of l1", "turn"):
        loan.happens(line)
    loan.table = replace(loan.table, not_before_s=loan.now_s + 300.0)
    loan.now_s -= 600.0  # of the next leader
    loan.happens("turn")
    assert loan.table.not_before_s == loan.now_s + 300.0
    assert loan.happens("turn 29") == ["nothing"]
    assert loan.happens("turn 1")[0] == "give back l1 within 60 s"


def test_the_records_are_read_as_they_were_written() -> None:
    record = LeaseRecord(2, 1.0, LeaseState.RUNNING, "n1")
    table = LeaseTable("slurm", 3, {"l3": record}, {"l1": 5.0})
    assert LeaseTable.from_json(table.to_json()) == table
    assert isinstance(table.leases, Mapping)


def test_what_people_read() -> None:
    loan = Loan()
    for line in ("borrowed a b", "engine l2 asked: Priority", "turn 1"):
        loan.happens(line)
    sentence = "slurm lends 1 host and is asked for 1 more (Priority)"
    assert lease_summary(replace(loan.table, engine="slurm")) == sentence
    loan.table = replace(loan.table, engine="slurm", why="l3 came to nothing: failed")
    assert lease_summary(loan.table) == f"{sentence}; l3 came to nothing: failed"
    view = with_leases(ClusterView(loan.view.jobs, ()), loan.table)
    [*_, (_, why)] = find_active_jobs(view, DeviceTable((), loan.now_s))[1].items()
    assert why == f"waits: it needs 1 slot, and the cluster has 0; {lease_summary(loan.table)}"


def test_whoever_ends_the_last_controller_is_told_what_stays_borrowed() -> None:
    leases = {"l1": LeaseRecord(2, 0.0, host="n1")}
    assert left_borrowed(LeaseTable("slurm", leases=leases)) == (
        "slurm still lends 1 host (n1), and jobs train on; nobody gives it back until a controller "
        "runs again"
    )
    leases |= {"l2": LeaseRecord(2, 0.0)}
    assert left_borrowed(LeaseTable("slurm", leases=leases)).startswith(
        "slurm still lends 2 hosts (n1), and"
    )
    assert "gives them back" in left_borrowed(LeaseTable("slurm", leases=leases))
    leases = {"l3": LeaseRecord(2, 0.0), "l4": LeaseRecord(2, 0.0, back_s=1.0)}
    assert left_borrowed(LeaseTable("ray", leases=leases)).startswith("ray still lends 1 host, and")
    del leases["l3"]
    assert left_borrowed(LeaseTable("ray", leases=leases)) == ""
