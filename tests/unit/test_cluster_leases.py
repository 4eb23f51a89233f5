"""Which hosts a cluster borrows from an engine, and which it gives back: the rules of `leases`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from cluster_world import Request

from edl.cluster.candidates import find_active_jobs
from edl.cluster.leases import (
    LastOffer,
    LeaseDecision,
    ReleaseHost,
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

ASKED, RUNNING, ENDED, UNKNOWN = (LeaseState(n) for n in ("asked", "running", "ended", "unknown"))
HELD = HostLease(LeaseState.HELD, "", "launch failed requeued held")
LIMITS = LeaseLimits(Shape(2), max_hosts=3, idle_s=30.0, start_s=100.0)


@dataclass
class Loan:
    limits: LeaseLimits = LIMITS
    now_s: float = 1000.0
    table: LeaseTable = field(default_factory=LeaseTable)
    engine: dict[str, HostLease] = field(default_factory=dict)
    jobs: dict[str, JobView] = field(default_factory=dict)
    hosts: dict[str, HostView] = field(default_factory=dict)
    queues: dict[str, QueueRecord] = field(default_factory=dict)
    offers: dict[str, LastOffer] = field(default_factory=dict)

    def job(self, name: str, slots: int = 2, **request: object) -> None:
        order = len(self.jobs) + 1
        self.jobs[name] = JobView(name, order, Request(max=slots, **request))  # type: ignore[arg-type]

    def host(self, name: str, lease: str = "", *jobs: str, **offered: Any) -> None:
        assigned = HostAssignment({job: JobAssignment("r", (n,)) for n, job in enumerate(jobs)})
        offer = HostOffer(2, lease=lease, **offered)
        self.hosts[name] = HostView(name, offer, assigned=assigned, report=HostReport())

    def runs(self, lease: str, host: str, *jobs: str) -> None:
        self.engine[lease] = HostLease(RUNNING, host)
        self.host(host, lease, *jobs)

    @property
    def view(self) -> ClusterView:
        jobs, hosts = tuple(self.jobs.values()), tuple(self.hosts.values())
        settings = ClusterRecord(version="1.2")
        return ClusterView(jobs, hosts, settings, queues=self.queues)

    def decide(self, answers: bool = True) -> LeaseDecision:
        answer = self.engine if answers else None
        self.offers = own_offers(self.view, self.offers, self.now_s)
        view = with_offers(self.view, self.offers)
        found = decide_leases(self.table, answer, view, self.limits, self.now_s)
        self.table = found.table
        return found

    def turn(self, after_s: float = 0.0) -> LeaseDecision:
        self.now_s += after_s
        found = self.decide()
        self.engine |= {name: HostLease(ASKED) for name in found.ask}
        return found

    def lent(self, name: str) -> bool:
        hosts = with_leases(self.view, self.table).hosts
        return next(one for one in hosts if one.name == name).takes_slots


def with_host(*jobs: str) -> Loan:
    loan = Loan()
    for job in jobs or ("a",):
        loan.job(job)
    loan.turn()
    loan.runs("l1", "n1", *jobs)
    loan.turn()
    return loan


# --- asking


@pytest.mark.parametrize(("slots", "hosts"), [(1, 1), (2, 1), (3, 2), (5, 3), (6, 3)])
def test_hosts_are_asked_for_by_the_slots_that_jobs_ask_for(slots: int, hosts: int) -> None:
    loan = Loan()
    loan.job("a", slots)
    found = loan.turn()
    assert found.ask == tuple(f"l{n + 1}" for n in range(hosts))
    assert found.table.wanted == hosts
    [(news, _)] = found.news
    assert news.startswith(f"asks for {hosts} host")
    assert "a asks for" in news
    assert loan.turn().ask == ()


def test_with_a_limit_of_none_a_host_is_given_back_though_jobs_need_it() -> None:
    loan = with_host("a")
    loan.limits = replace(LIMITS, max_hosts=0, idle_s=0.0)
    assert loan.turn(1).give_back == (), "a job has slots there"
    loan.host("n1", "l1")
    found = loan.turn(1)
    assert (found.ask, [one.lease for one in found.give_back]) == ((), ["l1"])


def test_never_more_than_the_limit_and_never_fewer() -> None:
    loan = Loan(replace(LIMITS, min_hosts=1))
    assert len(loan.turn().ask) == 1
    for name in "abcd":
        loan.job(name, 2)
    assert len(loan.turn().ask) == 2
    assert len(loan.table.leases) == 3


def test_hosts_that_are_not_lent_are_counted_first() -> None:
    loan = Loan()
    loan.host("own")
    loan.job("a", 4)
    assert loan.turn().ask == ("l1",)


def test_hosts_without_the_labels_of_a_job_do_not_count_for_it() -> None:
    """A cluster of CPUs borrows GPUs."""
    loan = Loan(replace(LIMITS, shape=Shape(2, {"gpu": "h100", "disk": "fast"})))
    for name in ("cpu1", "cpu2"):
        loan.host(name)
    loan.host("gpu", labels={"gpu": "h100", "site": "here"})
    loan.job("a", 4, labels={"gpu": "h100"})
    loan.job("b", 2)
    assert loan.turn().ask == ("l1",), "b fits on the CPUs, half of a on the GPUs that are there"
    loan.job("c", 2, labels={"disk": "fast"})
    assert loan.turn().ask == ("l2",)
    loan.job("d", 2)
    assert loan.turn().ask == ()
    loan.job("e", 1)
    assert loan.turn().ask == ("l3",)


def test_slots_that_jobs_hold_for_which_no_host_is_asked_do_not_count() -> None:
    loan = Loan()
    loan.host("own", "", "cpu", "halting", labels={"cpu": "epyc"})
    loan.job("cpu", labels={"cpu": "epyc"})
    loan.job("halting", labels={"cpu": "epyc"})
    loan.jobs["halting"] = replace(loan.jobs["halting"], wanted=Wanted(goal=Goal.HALT))
    loan.job("a", 1)
    assert loan.turn().ask == (), "what is halted soon frees its slot"
    loan.job("b", 1)
    assert loan.turn().ask == ("l1",)


def test_the_jobs_of_a_queue_count_with_what_it_may_have() -> None:
    loan = Loan(replace(LIMITS, max_hosts=9))
    loan.queues = {"small": QueueRecord(most=5), "any": QueueRecord()}
    for name in "abc":
        loan.job(name, 4, min=2, queue="small")
    found = loan.turn()
    assert found.ask == ("l1", "l2"), "4 slots of a; of b's the queue may have 1, which is too few"
    assert found.news == (("asks for 2 hosts with 2 slots each: a asks for 4 slots", ""),)
    loan.job("d", 1, queue="small")
    loan.job("e", 8, queue="any")
    loan.job("f", 1, queue="has-no-record")
    assert loan.turn().table.wanted == 7


def test_a_queue_may_have_less_by_what_its_other_jobs_hold() -> None:
    loan = Loan()
    loan.queues = {"small": QueueRecord(most=2)}
    loan.host("own", "", "cpu", labels={"cpu": "epyc"})
    loan.job("cpu", labels={"cpu": "epyc"}, queue="small")
    loan.job("a", 4, queue="small")
    assert loan.turn().ask == (), "a may have the slot of its queue that is left there"


def test_jobs_that_may_not_be_preempted_count_within_the_quota_of_their_queue() -> None:
    loan = Loan(replace(LIMITS, max_hosts=9))
    loan.queues = {"small": QueueRecord(quota=3)}
    loan.job("a", 2, queue="small", preemptible=False)
    loan.job("b", 4, queue="small", preemptible=False)
    loan.job("c", 4, queue="small", preemptible=False)
    loan.job("d", 4, queue="no-quota", preemptible=False)
    assert loan.turn().table.wanted == 2, "2 slots of a, and the third of the quota for b"
    loan.job("e", 2, queue="small")
    assert loan.turn().table.wanted == 3, "e may borrow"


def test_a_job_that_may_not_be_preempted_counts_with_what_it_has() -> None:
    """It does not grow; hosts for more would only be idle."""
    for queues in ({}, {"default": QueueRecord(quota=8)}):
        loan = Loan()
        loan.queues = queues
        loan.job("a", 6, preemptible=False)
        assert loan.turn().table.wanted == 3
        loan.runs("l1", "n1")
        assigned = HostAssignment({"a": JobAssignment("r", (0, 1))})
        loan.hosts["n1"] = replace(loan.hosts["n1"], assigned=assigned)
        loan.jobs["a"] = replace(
            loan.jobs["a"], life=JobLifecycle(state=LifeState.RUNNING, run="r")
        )
        assert loan.turn().table.wanted == 1


def test_a_job_is_too_large_if_hosts_with_its_labels_are_too_few() -> None:
    loan = Loan(replace(LIMITS, shape=Shape(2, {"gpu": "h100"})))
    loan.host("own")
    loan.job("a", 8, min=8)
    assert len(loan.turn().ask) == 3
    loan = Loan(loan.limits)
    loan.host("own")
    loan.job("a", 8, min=8, labels={"gpu": "h100"})
    assert loan.turn().ask == ()


def test_nothing_is_asked_for_a_job_that_a_host_could_not_help() -> None:
    loan = Loan()
    loan.job("labels", labels={"gpu": "h100"})
    loan.job("large", 20, min=8)
    loan.job("later", after=("large",))
    loan.job("secret", secrets=("token",))
    assert loan.turn().ask == ()
    loan.limits = replace(LIMITS, shape=Shape(2, {"gpu": "h100"}))
    assert loan.turn().ask == ("l1",)


def lacking(loan: Loan, host: str = "n1") -> Loan:
    loan.job("b", required_paths={"/data/": "the job's data /data/"})
    reason = f"{LACKS}the job's data /data/"
    failure = HostFailure(loan.jobs["b"].order, reason, loan.now_s, False)
    assigned = replace(loan.hosts[host].assigned, failures={"b": failure})
    loan.hosts[host] = replace(loan.hosts[host], assigned=assigned)
    return loan


def test_nothing_is_asked_for_a_job_whose_files_a_borrowed_host_lacks() -> None:
    assert lacking(with_host("a")).turn().ask == ()


def with_lent_host() -> Loan:
    loan = Loan()
    loan.job("a")
    loan.turn()
    loan.runs("l1", "n1")
    del loan.jobs["a"]
    return lacking(loan)


def without_hosts_of(loan: Loan) -> Loan:
    loan.turn()
    assert loan.turn(30).give_back == (ReleaseHost("l1", 60.0),)
    loan.hosts.clear()
    loan.engine.clear()
    assert loan.turn(1).table.leases == {}
    return loan


def test_hosts_do_not_come_and_go_for_a_job_whose_files_they_lack() -> None:
    loan = with_lent_host()
    why = "asks for no host on behalf of jobs that need /data/ for an hour: n1 lacks it"
    assert loan.turn().news == ((why, "n1"),)
    without_hosts_of(loan)
    loan.job("c", required_paths={"/data/": "the job's data /data/"})
    loan.job("d", 1)
    assert loan.turn(60).table.wanted == 1, "only d, which needs no files"
    del loan.jobs["d"]
    assert loan.turn(3400).table.wanted == 0
    assert loan.turn(200).table.wanted == 2, "an hour is over"


def test_who_halts_and_resumes_a_job_has_hosts_asked_for_again() -> None:
    loan = without_hosts_of(with_lent_host())
    assert loan.turn(60).ask == ()
    job = loan.jobs["b"]
    loan.jobs["b"] = replace(job, wanted=Wanted(goal=Goal.HALT))
    loan.turn(1)
    loan.jobs["b"] = job
    assert loan.turn(1).ask == ("l2",)


def test_a_job_that_runs_asks_for_no_host_that_lacks_its_files() -> None:
    loan = with_lent_host()
    loan.jobs["b"] = replace(loan.jobs["b"], life=JobLifecycle(state=LifeState.RUNNING, run="r"))
    assert loan.turn().table.wanted == 0


def test_a_job_says_that_no_host_is_borrowed_for_it_and_why() -> None:
    loan = without_hosts_of(with_lent_host())
    loan.table = replace(loan.table, engine="slurm")
    reasons = plan(with_leases(loan.view, loan.table), MaxMin(), loan.now_s).reasons
    assert reasons["b"].endswith(
        "; n1, which slurm lent, lacked the job's data /data/; for an hour no other one is asked "
        "for on its behalf: once such hosts have it, do `edl halt b` and `edl resume b`"
    )


def test_a_job_that_rests_until_its_next_try_keeps_its_host() -> None:
    loan = Loan()
    loan.job("a")
    loan.jobs["a"] = replace(loan.jobs["a"], life=JobLifecycle(not_before_s=2000.0))
    assert loan.turn().ask == ("l1",)
    loan.jobs["a"] = replace(loan.jobs["a"], life=JobLifecycle(state=LifeState.HALTED))
    assert loan.turn().table.wanted == 0


def test_a_host_that_is_silent_for_a_moment_is_not_replaced() -> None:
    loan = Loan()
    loan.host("own")
    loan.job("a")
    loan.turn()
    offering = loan.hosts["own"]
    for after_s in (1, 9):  # each silence counts for itself
        loan.hosts["own"] = replace(offering, offer=None)
        assert loan.turn(after_s).ask == ()
        assert not loan.lent("own")
        loan.hosts["own"] = offering
        assert loan.turn(5).ask == ()
    loan.hosts["own"] = replace(offering, offer=None)
    loan.turn(1)
    assert loan.turn(9).ask == ()
    assert loan.turn(1).ask == ("l1",), "it is lost after 10 s"


def test_a_silent_host_that_is_drained_or_lent_counts_for_nothing() -> None:
    loan = Loan()
    loan.host("own")
    loan.job("a")
    loan.turn()
    loan.hosts["own"] = replace(loan.hosts["own"], offer=None, drained=True)
    assert loan.turn(1).ask == ("l1",)
    loan = Loan()
    loan.host("own")
    loan.turn()
    loan.host("own", "l7")
    loan.turn()
    loan.hosts["own"] = replace(loan.hosts["own"], offer=None)
    loan.job("a")
    assert loan.turn(1).ask == ("l1",)


# --- written ahead


def test_a_lease_is_written_before_it_is_asked_for_and_asked_for_again() -> None:
    loan = Loan()
    loan.job("a")
    assert loan.decide().ask == ("l1",)
    assert "l1" in loan.table.leases
    for _ in range(3):  # leaders that die before they ask, or whose question is lost
        loan.now_s += 5
        found = loan.decide()
        assert found.ask == ("l1",)
        assert found.table.last == 1


def test_a_lease_that_nobody_has_written_is_given_back_after_a_minute() -> None:
    loan = Loan()
    loan.engine["l7"] = HostLease(RUNNING, "n1")
    loan.host("n1", "l7")
    assert loan.turn().give_back == ()
    assert not loan.lent("n1"), "no job gets its slots"
    assert loan.turn(59).give_back == ()
    assert loan.turn(1).give_back == (ReleaseHost("l7", 60.0),)
    loan.host("n1", "l7", leaves=True)
    assert loan.turn(1).give_back == ()
    assert loan.turn(60).give_back == (ReleaseHost("l7", 0.0),)
    loan.engine["l7"] = HostLease(ENDED)
    assert loan.turn(1).table.strays == {}


def test_a_stray_that_waits_in_a_queue_ends_at_once() -> None:
    loan = Loan()
    loan.engine["l7"] = HostLease(ASKED)
    loan.turn()
    assert loan.turn(60).give_back == (ReleaseHost("l7", 0.0),)


# --- silence


def test_silence_of_the_engine_decides_nothing() -> None:
    loan = with_host("a")
    loan.jobs.clear()
    loan.host("n1", "l1")
    before = loan.table
    loan.now_s += 10_000
    assert loan.decide(answers=False) == LeaseDecision(before)
    assert loan.lent("n1")


def test_silence_of_a_host_gives_nothing_back() -> None:
    """Jobs that have slots of it may train on, though its `edl host` is away."""
    loan = with_host("a")
    loan.jobs.clear()
    loan.hosts["n1"] = replace(loan.hosts["n1"], offer=None)
    assert loan.turn(99).give_back == ()
    assert loan.table.leases["l1"].idle_s == 0


def test_a_lease_stays_as_it_was_while_the_engine_does_not_tell_its_state() -> None:
    loan = with_host("a")
    loan.engine["l1"] = HostLease(UNKNOWN, "n1", "no such word")
    found = loan.turn(100)
    assert (found.ask, found.give_back) == ((), ()), "it has not ended"
    assert found.news == (("l1 stays as it was: no such word", "n1"),)
    assert loan.lent("n1")
    assert loan.turn(100).news == (), "it is said once"
    loan.hosts["n1"] = replace(loan.hosts["n1"], offer=None)
    loan.turn(1)
    assert loan.turn(1000).give_back == (), "its silence is not held against it"
    loan.engine["l1"] = HostLease(RUNNING, "n1")
    loan.turn(1)
    assert loan.table.leases["l1"].state is RUNNING


def test_a_lease_that_was_not_lent_is_not_lent_while_its_state_is_not_told() -> None:
    loan = with_host("a")
    for state in (ASKED, ENDED):
        loan.engine["l1"] = HostLease(state)
        loan.turn(1)
        assert not loan.lent("n1")
        loan.engine["l1"] = HostLease(UNKNOWN, "n1")
        loan.turn(1)
        assert not loan.lent("n1"), f"it was {state}"
    del loan.hosts["n1"]
    assert "l1" in loan.turn(1).table.leases


def test_a_host_is_given_back_although_the_engine_does_not_tell_the_state() -> None:
    loan = with_host("a")
    loan.jobs.clear()
    loan.host("n1", "l1")
    loan.engine["l1"] = HostLease(UNKNOWN, "n1")
    loan.turn()
    assert loan.turn(30).give_back == (ReleaseHost("l1", 60.0),)
    assert loan.turn(60).give_back == (ReleaseHost("l1", 0.0),)


def test_a_lease_of_unknown_state_is_idle_from_when_its_last_job_leaves() -> None:
    loan = with_host("a")
    loan.engine["l1"] = HostLease(UNKNOWN, "n1")
    loan.host("n1", "l1")
    loan.turn(1000)
    loan.jobs.clear()
    assert loan.turn(29).give_back == ()
    loan.host("n1", "l1", "b")
    loan.job("b")
    loan.turn(1)
    assert loan.table.leases["l1"].idle_s == 0


# --- the end of a loan


def test_a_host_whose_lease_has_ended_gets_no_more_jobs_while_its_process_lives() -> None:
    loan = with_host("a")
    assert loan.lent("n1")
    loan.engine["l1"] = HostLease(ENDED, "", "node_fail")
    loan.turn(100)
    assert loan.table.leases["l1"].is_over
    assert not loan.lent("n1")
    assert loan.hosts["n1"].assigned.jobs, "what is assigned there stays so"
    loan.engine.clear()  # the engine has forgotten it
    loan.turn(100)
    assert not loan.lent("n1")
    loan.hosts["n1"] = replace(loan.hosts["n1"], offer=None)
    assert "l1" not in loan.turn(1).table.leases
    # A later lease on that machine brings an `edl host`, which looks first.
    loan.runs("l2", "n1")
    loan.turn(1)
    assert loan.lent("n1")


def test_a_lease_that_the_engine_begins_again_after_its_end_is_given_back() -> None:
    """Another one has its place by then; so has the limit."""
    loan = with_host("a")
    loan.engine["l1"] = HostLease(ENDED)
    assert loan.turn(100).ask == ("l2",)
    loan.engine["l1"] = HostLease(RUNNING, "n1")
    assert loan.turn(1).give_back == (ReleaseHost("l1", 60.0),)
    assert not loan.lent("n1")


def test_another_host_is_asked_for_in_place_of_one_whose_lease_has_ended() -> None:
    loan = with_host("a")
    loan.engine["l1"] = HostLease(ENDED)
    assert loan.turn(100).ask == ("l2",)


def test_a_host_that_the_engine_has_taken_back_is_lent_again_when_it_says_so() -> None:
    """Preempted and queued again: the same lease, at once or later, here or elsewhere."""
    loan = with_host("a")
    loan.engine["l1"] = HostLease(ASKED, "", "BeginTime")
    assert loan.turn(100).ask == (), "the engine lends one again by itself"
    assert not loan.lent("n1")
    loan.engine["l1"] = HostLease(RUNNING, "n2")
    loan.host("n2", "l1")
    loan.turn(1)
    assert loan.lent("n2")
    assert not loan.lent("n1"), "its process has only outlived the lease"


def test_the_first_offer_of_a_host_counts_before_the_engine_says_that_it_runs() -> None:
    loan = Loan()
    loan.job("a")
    loan.turn()
    loan.host("n1", "l1")
    assert loan.lent("n1")
    loan.turn(1)
    assert loan.lent("n1")


# --- giving back


def test_an_idle_host_is_given_back_after_a_time_and_told_once() -> None:
    loan = with_host("a")
    loan.jobs.clear()
    loan.host("n1", "l1")
    loan.turn()
    assert loan.turn(29).give_back == ()
    found = loan.turn(1)
    assert found.give_back == (ReleaseHost("l1", 60.0),)
    assert found.news == (("l1 is given back: idle for 30 s", "n1"),)
    assert not loan.lent("n1"), "no job gets its slots while it is told to leave"
    loan.host("n1", "l1", leaves=True)
    assert loan.turn(5).give_back == ()
    assert loan.turn(55).give_back == (ReleaseHost("l1", 0.0),)
    loan.engine["l1"] = HostLease(ENDED)
    del loan.hosts["n1"]
    found = loan.turn(1)
    assert found.table.leases == {}
    assert found.table.failures == 0
    assert found.news == (("l1 has been given back", "n1"),)


def test_an_idle_host_is_given_back_though_the_clock_was_set_back() -> None:
    loan = with_host("a")
    loan.jobs.clear()
    loan.host("n1", "l1")
    loan.turn()
    loan.table = replace(loan.table, not_before_s=loan.now_s + 300.0)
    loan.now_s -= 600.0  # of the next leader
    loan.turn()
    assert loan.table.not_before_s == loan.now_s + 300.0
    assert loan.turn(29).give_back == ()
    assert loan.turn(1).give_back == (ReleaseHost("l1", 60.0),)


def test_a_host_that_jobs_need_or_have_is_not_given_back() -> None:
    loan = with_host("a")
    assert loan.turn(1000).give_back == (), "a has slots there"
    loan.host("n1", "l1")
    loan.turn()
    assert loan.turn(1000).give_back == (), "a waits for slots"


def test_what_waits_in_a_queue_goes_first_and_then_what_is_idle_longest() -> None:
    loan = Loan()
    loan.job("a", 6)
    loan.turn()
    loan.runs("l1", "n1", "a")
    loan.turn(5)
    loan.runs("l2", "n2")
    loan.turn(5)
    loan.host("n1", "l1")
    loan.turn(5)
    loan.job("a", 2)
    assert loan.turn(100).give_back == (ReleaseHost("l3", 0.0), ReleaseHost("l2", 60.0))


def test_in_place_of_a_drained_host_another_one_is_asked_for() -> None:
    loan = with_host("a")
    loan.now_s += 100
    loan.hosts["n1"] = replace(loan.hosts["n1"], drained=True)
    found = loan.turn()
    assert (found.ask, found.give_back) == (("l2",), ()), "a has slots there"
    loan.runs("l2", "n2", "a")
    loan.host("n1", "l1")
    loan.hosts["n1"] = replace(loan.hosts["n1"], drained=True)
    found = loan.turn(1)
    assert (found.ask, found.give_back) == ((), (ReleaseHost("l1", 60.0),))
    assert found.news == (("l1 is given back: n1 is drained", "n1"),)


def test_an_engine_that_lends_a_drained_machine_is_asked_less_and_less_often() -> None:
    loan = Loan()
    loan.job("a")
    assert loan.turn().ask == ("l1",)
    for number, rest_s in ((1, 10), (2, 20), (3, 40)):
        name = f"l{number}"
        loan.runs(name, "n1")
        loan.hosts["n1"] = replace(loan.hosts["n1"], drained=True)
        found = loan.turn(1)
        assert found.give_back == (ReleaseHost(name, 60.0),)
        assert found.table.why == f"{name} came to nothing: n1 is drained"
        loan.engine[name] = HostLease(ENDED)
        del loan.hosts["n1"]
        assert loan.turn(rest_s - 1).ask == ()
        assert loan.turn(1).ask == (f"l{number + 1}",)


def test_a_host_whose_edl_has_another_format_is_refused_in_one_sentence() -> None:
    loan = Loan()
    loan.job("a")
    loan.turn()
    loan.engine["l1"] = HostLease(RUNNING, "n1")
    loan.host("n1", "l1", format=2, version="9.0")
    found = loan.turn(1)
    assert (found.ask, found.give_back) == ((), (ReleaseHost("l1", 60.0),))
    assert loan.table.why == (
        "l1 came to nothing: edl 9.0 on n1 writes records of format 2, and the cluster has format "
        "1; install edl 1.2 there"
    )
    loan.engine["l1"] = HostLease(ENDED)
    del loan.hosts["n1"]
    assert loan.turn(9).ask == ()
    assert loan.turn(1).ask == ("l2",)


def test_the_engine_is_told_which_machines_are_of_no_use() -> None:
    """It would lend the first one that is free again and again, and no other one."""
    loan = with_host("a")
    drained = loan.hosts["n1"] = replace(loan.hosts["n1"], drained=True)
    found = loan.turn(1)
    assert (found.ask, found.avoid) == (("l2",), ("n1",))
    loan.engine["l2"] = HostLease(ASKED, "", "Resources", ("n1",))
    assert loan.turn(1).ask == ()
    loan.hosts["n1"] = replace(drained, drained=False)
    found = loan.turn(1)
    assert (found.ask, found.avoid) == (("l2",), ()), "it waits, and may have n1 as well"
    loan.engine["l2"] = HostLease(RUNNING, "n2", "", ("n1",))
    assert loan.turn(1).ask == (), "it has a host"


def test_a_machine_on_which_a_host_outlives_its_lease_is_of_no_use() -> None:
    loan = with_host("a")
    loan.engine["l1"] = HostLease(ENDED, "n1", "node_fail")
    loan.turn(1)
    assert loan.turn(1).avoid == ("n1",)
    del loan.hosts["n1"]
    loan.turn(1)
    assert loan.turn(1).avoid == ()


# --- failures


def test_after_failures_the_next_lease_waits_longer_and_comes_alone() -> None:
    loan = Loan()
    loan.job("a", 6)
    assert loan.turn().ask == ("l1", "l2", "l3")
    loan.engine = {name: HostLease(ENDED, "", "failed: no such file") for name in loan.engine}
    [*_, (last, _)] = loan.turn(1).news
    why = "l3 came to nothing: failed: no such file"
    assert last == f"{why}; the next one waits 10 s", "together they are one failure"
    assert loan.turn(9).ask == ()
    assert loan.turn(1).ask == ("l4",)
    assert loan.table.why == why
    assert loan.turn(100).ask == (), "l4 has not come yet"
    loan.engine["l4"] = HostLease(ENDED)
    loan.turn(1)
    assert loan.turn(19).ask == ()
    assert loan.turn(1).ask == ("l5",)
    loan.engine["l5"] = HostLease(RUNNING, "n1")
    loan.host("n1", "l5", "a")
    assert loan.turn(1).ask == ("l6", "l7"), "one has come: it works again"
    assert (loan.table.failures, loan.table.why) == (0, "")


def test_leases_that_were_asked_for_together_fail_once_whenever_they_do() -> None:
    loan = Loan()
    loan.job("a", 6)
    loan.turn()
    for name in ("l1", "l2"):
        loan.engine[name] = HostLease(ENDED)
        loan.turn(5)
        assert loan.table.failures == 1
        assert loan.table.not_before_s == loan.now_s + 10
    assert loan.turn(10).ask == ("l4",)
    loan.engine["l3"] = HostLease(ENDED)
    loan.turn(1)
    assert loan.table.failures == 1, "it was asked for with the first one"
    loan.engine["l4"] = HostLease(ENDED)
    loan.turn(1)
    assert loan.table.failures == 2
    assert loan.table.not_before_s == loan.now_s + 20


def test_a_late_failure_counts_if_hosts_have_come_since() -> None:
    loan = Loan()
    loan.job("a", 4)
    loan.turn()
    loan.engine["l1"] = HostLease(ENDED)
    loan.turn(1)
    loan.turn(10)
    loan.runs("l3", "n1", "a")
    assert loan.turn(1).table.failures == 0
    loan.engine["l2"] = HostLease(ENDED)
    assert loan.turn(1).table.failures == 1


def test_a_host_that_was_told_to_leave_is_no_failure() -> None:
    """A preemption: it is asked for again at once."""
    loan = with_host("a")
    loan.host("n1", "l1", "a", leaves=True)
    loan.turn(1)
    del loan.hosts["n1"]
    loan.turn(1)
    loan.engine["l1"] = HostLease(ENDED, "", "completed")
    found = loan.turn(1)
    assert found.ask == ("l2",)
    assert found.table.failures == 0
    assert found.news[0] == ("l1 has ended: completed", "n1")


def test_a_host_that_ends_by_itself_at_once_is_a_failure() -> None:
    loan = with_host("a")
    del loan.hosts["n1"]
    loan.engine["l1"] = HostLease(ENDED, "", "failed: cannot allocate memory")
    found = loan.turn(59)
    assert found.ask == ()
    assert found.table.failures == 1


def test_a_host_that_does_not_come_is_given_back() -> None:
    loan = Loan()
    loan.job("a")
    loan.turn()
    loan.engine["l1"] = HostLease(RUNNING, "n1")
    loan.turn(1)
    assert loan.turn(99).give_back == ()
    found = loan.turn(1)
    assert found.give_back == (ReleaseHost("l1", 0.0),)
    assert "its host has offered nothing for 100 s" in found.table.why


def test_a_host_that_is_silent_for_long_is_given_back() -> None:
    """Its process has died, and the engine has not noticed."""
    loan = with_host("a")
    offer, loan.hosts["n1"] = loan.hosts["n1"], replace(loan.hosts["n1"], offer=None)
    loan.turn(1)
    assert loan.turn(99).give_back == ()
    loan.hosts["n1"] = offer
    loan.turn(1)
    loan.hosts["n1"] = replace(offer, offer=None)
    loan.turn(1)
    assert loan.turn(99).give_back == (), "it was back meanwhile"
    assert loan.turn(1).give_back == (ReleaseHost("l1", 0.0),)


@pytest.mark.parametrize("has_offered", [False, True])
def test_another_host_is_asked_for_in_place_of_a_lease_that_the_engine_holds(
    has_offered: bool,
) -> None:
    """Slurm holds a batch job whose start has failed until an administrator releases it."""
    loan = Loan()
    loan.job("a")
    loan.turn()
    if has_offered:
        loan.runs("l1", "n1")
        loan.turn(100)
        loan.hosts.clear()
    loan.engine["l1"] = HELD
    found = loan.turn(1)
    assert found.give_back == (ReleaseHost("l1", 0.0),)
    assert [what for what, _ in found.news] == [
        "l1 came to nothing: launch failed requeued held; the next one waits 10 s"
    ]
    assert loan.turn(1).give_back == (ReleaseHost("l1", 0.0),), "it is there yet"
    assert loan.table.leases["l1"].state is (RUNNING if has_offered else ASKED)
    loan.engine["l1"] = HostLease(ENDED, "", "cancelled")
    assert "l1" not in loan.turn(1).table.leases
    assert loan.turn(10).ask == ("l2",)


def test_a_lease_that_waits_for_hours_is_no_failure() -> None:
    loan = Loan()
    loan.job("a")
    loan.turn()
    found = loan.turn(100_000)
    assert (found.ask, found.give_back, found.table.failures) == ((), (), 0)


def test_the_records_are_read_as_they_were_written() -> None:
    table = LeaseTable("slurm", 3, {"l3": LeaseRecord(2, 1.0, RUNNING, "n1")}, {"l1": 5.0})
    assert LeaseTable.from_json(table.to_json()) == table
    assert isinstance(table.leases, Mapping)


def test_what_people_read() -> None:
    loan = with_host("a", "b")
    loan.engine["l2"] = HostLease(ASKED, "", "Priority")
    loan.turn(1)
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
