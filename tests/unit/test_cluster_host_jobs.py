"""What `edl host` starts, ends and reports, by what is assigned and what lives there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from edl.cluster.host_jobs import (
    REFUSED_AFTER,
    HostDecision,
    HostLimits,
    HostObservation,
    LastAgent,
    ProcessSignal,
    RunProcess,
    after_end,
    decide_host,
)
from edl.cluster.records import HostAssignment, HostOffer, JobAssignment, JobReport
from edl.cluster.view import HostView
from edl.errors import ALREADY_HERE_EXIT

LIMITS = HostLimits(by_itself_s=2.0, kill_after_s=10.0, stable_s=10.0, pause_s=1.0)
GOES_ON, ENDS = JobAssignment("r1", (0, 1)), JobAssignment("r1", (0, 1), ends=7)
AGENT = RunProcess(100, 50, "j", "r1", is_agent=True)
TEMPLATE = RunProcess(101, 51, "j", "r1")
WORKER = RunProcess(110, 60, "j", "r1", "x-0")
HELPER = RunProcess(104, 70, "j", "r1", "x-0")
OTHER = RunProcess(120, 61, "j", "r1", "x-1")
STRANGER = RunProcess(130, 40, "k", "r9", "y-0")


def decide(
    assigned: dict[str, JobAssignment], *found: RunProcess, now_s: float = 100.0, **more: Any
) -> HostDecision:
    seen = HostObservation(7, found, **more)
    return decide_host(HostAssignment(assigned), seen, now_s, LIMITS)


def signals(decision: HostDecision) -> list[tuple[int, bool]]:
    return [(one.process.pid, one.kill) for one in decision.signals]


class TestStarts:
    def test_a_run_without_an_agent_gets_one(self) -> None:
        found = decide({"j": GOES_ON, "i": GOES_ON})
        assert found.starts == ("i", "j")
        assert found.report.jobs == {}
        assert found.report.version == 7

    def test_one_agent_is_enough(self) -> None:
        assert decide({"j": GOES_ON}, AGENT).starts == ()

    def test_workers_whose_agent_died_get_another(self) -> None:
        found = decide({"j": GOES_ON}, WORKER)
        assert found.starts == ("j",)
        assert found.signals == ()

    def test_a_run_that_ends_gets_none(self) -> None:
        assert decide({"j": ENDS}).starts == ()

    def test_after_an_end_that_is_final_there_is_none(self) -> None:
        over = LastAgent("r1", 93, "it is over", is_final=True, ended_s=1.0)
        assert decide({"j": GOES_ON}, agents={"j": over}).starts == ()
        later = {"j": replace(GOES_ON, run="r2")}
        assert decide(later, agents={"j": over}).starts == ("j",)

    def test_the_pause_grows_while_agents_die_soon(self) -> None:
        last = after_end(None, LastAgent("r1", 1, ended_s=100.0), 0.5, LIMITS)
        assert decide({"j": GOES_ON}, agents={"j": last}).starts == ("j",), "once at once"
        pauses = []
        for _ in range(8):
            last = after_end(last, LastAgent("r1", 1, ended_s=100.0), 0.5, LIMITS)
            found = decide({"j": GOES_ON}, agents={"j": last})
            assert found.starts == ()
            assert found.next_s is not None
            pauses.append(found.next_s - 100.0)
            assert decide({"j": GOES_ON}, agents={"j": last}, now_s=found.next_s).starts == ("j",)
        assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]
        stable = after_end(last, LastAgent("r1", 1, ended_s=100.0), 10.0, LIMITS)
        assert decide({"j": GOES_ON}, agents={"j": stable}).starts == ("j",)
        for _ in range(9):  # until the session of an agent that was killed has ended
            last = after_end(last, LastAgent("r1", ALREADY_HERE_EXIT), 0.5, LIMITS)
        assert last.failures < REFUSED_AFTER
        other = after_end(last, LastAgent("r2", 1, ended_s=100.0), 0.5, LIMITS)
        assert other.failures == 1, "of another run"

    def test_one_that_has_left_is_replaced_only_if_the_leader_missed_it(self) -> None:
        left = {"j": LastAgent("r1", 91, has_left=True, ended_s=100.0)}
        found = decide({"j": GOES_ON}, agents=left)
        assert (found.starts, found.next_s) == ((), 100.5)
        assert decide({"j": GOES_ON}, agents=left, now_s=100.5).starts == ("j",)

    def test_what_stands_in_its_way_is_reported(self) -> None:
        found = decide({"j": GOES_ON}, obstacles={"j": "there is no data"})
        assert found.starts == ()
        assert found.report.jobs == {"j": JobReport("r1", reason="there is no data")}

    def test_a_host_that_leaves_starts_one_only_for_workers_that_live(self) -> None:
        assert decide({"j": GOES_ON}, leaves=True).starts == ()
        assert decide({"j": GOES_ON}, WORKER, leaves=True).starts == ("j",)
        assert decide({"j": GOES_ON}, WORKER, leaves=True, kills=True).starts == ()

    def test_no_agent_comes_before_strangers_are_gone(self) -> None:
        """They may use any device."""
        assert decide({"j": GOES_ON}, STRANGER).starts == ()
        ending = {"j": GOES_ON, "k": JobAssignment("r9", (2,), ends=3)}
        assert decide(ending, STRANGER).starts == ("j",), "its devices are still its own"


class TestEnds:
    def test_a_run_that_goes_on_is_left_alone(self) -> None:
        found = decide({"j": GOES_ON}, AGENT, TEMPLATE, WORKER, HELPER)
        assert found.signals == ()
        assert found.ending_s == {}
        assert found.next_s is None

    def test_a_run_that_ends_first_ends_by_itself(self) -> None:
        living = (AGENT, TEMPLATE, WORKER, HELPER, OTHER)
        first = decide({"j": ENDS}, *living)
        assert (signals(first), first.next_s) == ([], 102.0)
        second = decide({"j": ENDS}, *living, now_s=102.0, ending_s=first.ending_s)
        assert signals(second) == [(100, False)], "the agent lets its workers leave"
        assert second.signals[0].reason == "its run has ended"
        assert second.next_s == 112.0
        told = frozenset({AGENT.identity})
        again = decide({"j": ENDS}, *living, now_s=111.0, ending_s=first.ending_s, terminated=told)
        assert signals(again) == [], "a second SIGTERM would kill the workers"
        last = decide({"j": ENDS}, *living, now_s=112.0, ending_s=first.ending_s, terminated=told)
        assert signals(last) == [(100, True), (101, True), (110, True), (120, True), (104, True)], (
            "the agent first, which would start others"
        )

    def test_workers_without_an_agent_are_told_themselves(self) -> None:
        found = decide({"j": ENDS}, HELPER, WORKER, OTHER, now_s=102.0, ending_s={("j", "r1"): 100})
        assert signals(found) == [(110, False), (120, False)]

    def test_strangers_get_no_moment(self) -> None:
        assert signals(decide({}, STRANGER)) == [(130, False)]
        found = decide({}, STRANGER, now_s=110.0, ending_s={("k", "r9"): 100.0})
        assert found.signals == (
            ProcessSignal(STRANGER, True, "nobody has assigned it to this host"),
        )

    def test_an_earlier_run_is_a_stranger(self) -> None:
        later = {"j": replace(GOES_ON, run="r2")}
        assert signals(decide(later, AGENT, WORKER)) == [(100, False)]
        assert decide(later, AGENT).starts == ()

    def test_a_host_that_leaves_lets_agents_leave_without_limit(self) -> None:
        found = decide({"j": GOES_ON}, AGENT, WORKER, leaves=True)
        assert (signals(found), found.next_s) == ([], 105.0), "the leader moves the job"
        later = {"now_s": 105.0, "ending_s": found.ending_s, "leaves": True}
        assert signals(decide({"j": GOES_ON}, AGENT, WORKER, **later)) == [(100, False)]
        told = frozenset({AGENT.identity})
        later = decide(
            {"j": GOES_ON},
            *(AGENT, WORKER),
            now_s=9999.0,
            ending_s=found.ending_s,
            terminated=told,
            leaves=True,
        )
        assert later.signals == ()
        killed = decide({"j": GOES_ON}, AGENT, WORKER, leaves=True, kills=True)
        assert signals(killed) == [(100, True), (110, True)]


def test_a_host_that_leaves_takes_no_slots() -> None:
    assert HostView("a", offer=HostOffer(2)).takes_slots
    assert not HostView("a", offer=HostOffer(2, leaves=True)).takes_slots
    assert not HostView("a", offer=HostOffer(2), drained=True).takes_slots


class TestReport:
    def test_it_has_one_process_of_each_worker(self) -> None:
        found = decide({"j": GOES_ON}, AGENT, TEMPLATE, HELPER, WORKER, OTHER)
        assert found.report.jobs == {"j": JobReport("r1", True, None, (110, 120))}

    def test_a_helper_that_is_left_counts(self) -> None:
        found = decide({"j": ENDS}, HELPER)
        assert found.report.jobs == {"j": JobReport("r1", False, None, (104,))}

    def test_so_does_what_an_agent_has_left(self) -> None:
        assert decide({"j": ENDS}, TEMPLATE).report.jobs["j"].lives

    def test_the_last_agent_counts_for_its_run_only(self) -> None:
        last = {"j": LastAgent("r1", 91, "it has left")}
        found = decide({"j": GOES_ON}, agents=last)
        assert found.report.jobs == {"j": JobReport("r1", False, 91, (), "it has left")}
        found = decide({"j": GOES_ON}, AGENT, agents=last)
        assert found.report.jobs == {"j": JobReport("r1", True, 91)}
        assert decide({"j": replace(GOES_ON, run="r2")}, agents=last).report.jobs == {}

    def test_another_run_of_the_job_counts_as_life(self) -> None:
        found = decide({"j": replace(ENDS, run="r2")}, AGENT, WORKER)
        assert found.report.jobs == {"j": JobReport("r2", True, None, (110,))}

    def test_strangers_are_in_it(self) -> None:
        assert decide({}, STRANGER).report.jobs == {"k": JobReport("r9", False, None, (130,))}

    def test_the_leader_believes_it_only_about_a_version_that_ends_the_run(self) -> None:
        """The order: what is assigned, then the processes, then the report."""
        assigned = HostAssignment({"j": ENDS})
        for version, freed in ((6, False), (7, True), (8, True)):
            seen = HostObservation(version, ())
            report = decide_host(assigned, seen, 100.0, LIMITS).report
            host = HostView("a", assigned=assigned, version=8, report=report)
            assert host.reports_end("j") is freed
        seen = HostObservation(7, (HELPER,))
        report = decide_host(assigned, seen, 100.0, LIMITS).report
        assert not HostView("a", assigned=assigned, report=report).reports_end("j")
