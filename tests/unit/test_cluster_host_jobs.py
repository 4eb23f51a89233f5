"""What `edl host` starts, ends and reports, by what is assigned and what lives there.

The texts of `scenarios/host-jobs`: jobs with their run (else r1), which `ends` or not; processes of
job j and run r1, and a stranger of job k; how the last agent of j ended, who was told, and the time
(else 100 s). Since when runs end by themselves is remembered from one turn to the next. What is
reported stands in brackets: the run, an agent, the exit code of the last one, the processes of the
workers, and why.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from scenario_texts import check, numbers, scenarios

from edl.cluster.host_jobs import (
    REFUSED_AFTER,
    HostDecision,
    HostLimits,
    HostObservation,
    LastAgent,
    RunProcess,
    after_end,
    decide_host,
)
from edl.cluster.records import HostAssignment, HostOffer, JobAssignment
from edl.cluster.view import HostView
from edl.errors import ALREADY_HERE_EXIT

LIMITS = HostLimits(by_itself_s=2.0, kill_after_s=10.0, stable_s=10.0, pause_s=1.0)
PROCESSES = {
    "agent": RunProcess(100, 50, "j", "r1", is_agent=True),
    "template": RunProcess(101, 51, "j", "r1"),
    "worker": RunProcess(110, 60, "j", "r1", "x-0"),
    "helper": RunProcess(104, 70, "j", "r1", "x-0"),
    "other": RunProcess(120, 61, "j", "r1", "x-1"),
    "stranger": RunProcess(130, 40, "k", "r9", "y-0"),
}


def decide(facts: dict[str, str], **more: Any) -> HostDecision:
    assigned = {}
    for one in filter(None, facts.get("assigned", "").split("; ")):
        job, run, ends = re.fullmatch(r"(\w)(?: (r\d))?(?: ends=(\d))?", one).groups()  # type: ignore[union-attr]
        assigned[job] = JobAssignment(run or "r1", (0, 1), ends=int(ends or 0))
    found = tuple(PROCESSES[name] for name in facts.get("here", "").split())
    if "last" in facts:
        words, _, reason = facts["last"].partition(": ")
        run, *fields = words.split()
        given = numbers(" ".join(one for one in fields if "=" in one))
        last = LastAgent(
            run, given.get("code"), reason,
            is_final="final" in fields, has_left="left" in fields, ended_s=given.get("ended", 0),
        )  # fmt: skip
        more["agents"] = {"j": last}
    if "obstacle" in facts:
        more["obstacles"] = {"j": facts["obstacle"]}
    told = frozenset(PROCESSES[name].identity for name in facts.get("told", "").split())
    seen = HostObservation(
        7, found, terminated=told, leaves="leaves" in facts, kills="kills" in facts, **more
    )
    return decide_host(HostAssignment(assigned), seen, float(facts.get("at", 100)), LIMITS)


def in_words(decision: HostDecision) -> list[str]:
    assert decision.report.version == 7
    parts = [f"start {' '.join(decision.starts)}"] if decision.starts else []
    parts += [f"next at {decision.next_s:g} s"] if decision.next_s is not None else []
    for job, one in decision.report.jobs.items():
        about = [one.run, "agent" if one.agent else "no agent"]
        about += [f"code {one.exit_code}"] if one.exit_code is not None else []
        about += [f"workers {' '.join(map(str, one.processes))}"] if one.processes else []
        parts.append(f"[{job}: {', '.join(about)}{f': {one.reason}' if one.reason else ''}]")
    lines = ["; ".join(parts) or "nothing"]
    for signal in decision.signals:
        name = "SIGKILL" if signal.kill else "SIGTERM"
        lines.append(f"{name} {signal.process.pid}: {signal.reason}")
    return lines


def answers() -> Callable[[dict[str, str]], list[str]]:
    """Return what decides turn by turn, and remembers since when runs end by themselves."""
    ending_s: dict[tuple[str, str], float] = {}

    def answer(facts: dict[str, str]) -> list[str]:
        decision = decide(facts, ending_s=dict(ending_s))
        ending_s.clear()
        ending_s.update(decision.ending_s)
        return in_words(decision)

    return answer


@pytest.mark.parametrize("lines", scenarios("host-jobs"))
def test_decide_host(lines: list[str]) -> None:
    check(lines, answers())


def test_the_pause_grows_while_agents_die_soon() -> None:
    def starts(last: LastAgent, now_s: float = 100.0) -> tuple[bool, float | None]:
        found = decide({"assigned": "j", "at": str(now_s)}, agents={"j": last})
        return found.starts == ("j",), found.next_s

    last = after_end(None, LastAgent("r1", 1, ended_s=100.0), 0.5, LIMITS)
    assert starts(last)[0], "once at once"
    pauses = []
    for _ in range(8):
        last = after_end(last, LastAgent("r1", 1, ended_s=100.0), 0.5, LIMITS)
        begins, next_s = starts(last)
        assert not begins
        assert next_s is not None
        pauses.append(next_s - 100.0)
        assert starts(last, next_s)[0]
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]
    stable = after_end(last, LastAgent("r1", 1, ended_s=100.0), 10.0, LIMITS)
    assert starts(stable)[0]
    for _ in range(9):  # until the session of an agent that was killed has ended
        last = after_end(last, LastAgent("r1", ALREADY_HERE_EXIT), 0.5, LIMITS)
    assert last.failures < REFUSED_AFTER
    other = after_end(last, LastAgent("r2", 1, ended_s=100.0), 0.5, LIMITS)
    assert other.failures == 1, "of another run"


def test_a_host_that_leaves_takes_no_slots() -> None:
    assert HostView("a", offer=HostOffer(2)).takes_slots
    assert not HostView("a", offer=HostOffer(2, leaves=True)).takes_slots
    assert not HostView("a", offer=HostOffer(2), drained=True).takes_slots


def test_the_leader_believes_a_report_only_about_a_version_that_ends_the_run() -> None:
    """The order: what is assigned, then the processes, then the report."""
    assigned = HostAssignment({"j": JobAssignment("r1", (0, 1), ends=7)})
    report = decide({"assigned": "j ends=7"}).report
    for version, freed in ((6, False), (7, True), (8, True)):
        seen = replace(report, version=version)
        host = HostView("a", assigned=assigned, version=8, report=seen)
        assert host.reports_end("j") is freed
    report = decide({"assigned": "j ends=7", "here": "helper"}).report
    assert not HostView("a", assigned=assigned, report=report).reports_end("j")
