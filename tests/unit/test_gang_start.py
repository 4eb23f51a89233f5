"""A job that was created for several hosts: when its hosts are too few, and how it ends then."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from made import make_job, wanted

from edl.host.decide import AgentState, decide_agent
from edl.host.process import Process
from edl.host.supervision import noted, without_zookeeper
from edl.job.placement import has_too_few_places, why_too_few
from edl.job.run import JobEnd
from edl.job.snapshot import Snapshot
from edl.records import Generation, Host, Job, JobState, Member, RingMember, Stage

JOB = make_job(np=4, min_np=3, max_np=8)
NOW = 1000.0
LIMITS = AgentState.limits
LIMIT_S = LIMITS.hosts_limit_s


def agents(**slots: int) -> tuple[Host, ...]:
    return tuple(Host(name, n, "127.0.0.1") for name, n in slots.items())


def ready(*hosts: str) -> tuple[Member, ...]:
    return tuple(
        Member(n, host, n, "127.0.0.1", 1, 1, f"{host}-{n}", Stage.READY)
        for n, host in enumerate(hosts)
    )


def facts(job: Job = JOB, **changes: Any) -> Snapshot:
    now = Snapshot(job, **wanted({"a": 2, "b": 2}), hosts=agents(a=2))
    return replace(now, **changes)


RING = Generation(1, 1, (RingMember(0, "a", 0, "127.0.0.1", 1),), 0, (0,), (), "start")


@pytest.mark.parametrize(
    ("now", "few"),
    [
        (facts(), True),
        (facts(hosts=agents(a=2, b=2)), False),
        (facts(hosts=agents(a=2, b=1)), False),  # three are enough
        (facts(hosts=agents(a=2, b=0)), True),  # it is about to leave
        (facts(hosts=agents(a=2, c=2)), True),  # nothing is assigned to c
        (facts(hosts=agents(a=2), members=ready("b")), False),  # its agent has died, it has not
        (facts(hosts=agents(a=2), members=ready("b"), evicted={0: "frozen"}), True),
        (facts(make_job(np=4, min_np=1, max_np=4)), False),
        (facts(make_job(np=4, min_np=1, max_np=4, sizes=(4,))), True),
        (facts(generation=RING), False),  # it has begun
        (facts(replace(JOB, state=JobState.STOPPING)), False),
        (facts(**wanted({"a": 2, "b": 2}, by_slot=True)), False),  # a driver finds hosts
    ],
)
def test_what_the_hosts_that_are_there_can_do(now: Snapshot, few: bool) -> None:
    assert has_too_few_places(now) is few


@pytest.mark.parametrize(
    ("now", "says"),
    [
        (facts(members=ready("a", "a")), "2 of at least 3 workers came within 150 s: no agent of"),
        (facts(members=ready("a", "a")), "no agent of host b"),
        (facts(), "0 of at least 3 workers came within 150 s: no agent of host b"),
        (facts(hosts=()), "no agent of host a, b"),
        (facts(make_job(np=4, max_np=4, sizes=(4,))), "0 of at least 4 workers came"),
        (facts(hosts=agents(a=1, b=1)), "host a has 1 slot for 2 workers; host b has 1 slot for"),
        (facts(hosts=agents(a=1)), "no agent of host b; host a has 1 slot for 2 workers"),
    ],
)
def test_the_reason_names_what_is_missing(now: Snapshot, says: str) -> None:
    assert says in why_too_few(now, LIMIT_S)


def own(*processes: Process) -> AgentState:
    return AgentState("a", "a", processes, state_since=NOW)


def after(state: AgentState, now: Snapshot, at: float) -> tuple[AgentState, JobEnd | None]:
    state = noted(state, now, at)
    return state, decide_agent(now, state, at).outcome


def test_a_run_whose_host_never_comes_fails_before_its_first_step() -> None:
    """Whether this agent has workers or not, and however long its workers have been ready."""
    here = [Process(n, f"a-{n}", NOW, worker=n, ready=True) for n in (0, 1)]
    now = facts(members=ready("a", "a"))
    for state in (own(*here), own()):
        state, outcome = after(state, now, NOW)
        assert outcome is None
        state, outcome = after(state, now, NOW + LIMIT_S - 0.1)
        assert outcome is None
        _, outcome = after(state, now, NOW + LIMIT_S)
        assert outcome is not None
        assert (outcome.state, outcome.exit_code) == (JobState.FAILED, 1)
        assert outcome.reason == why_too_few(now, LIMIT_S)


@pytest.mark.parametrize(("start_s", "limit_s"), [(120.0, 150.0), (10.0, 15.0), (600.0, 630.0)])
def test_the_limit_is_below_that_of_the_workers(start_s: float, limit_s: float) -> None:
    assert replace(LIMITS, start_timeout_s=start_s).hosts_limit_s == limit_s < 2 * start_s


def test_a_host_that_comes_late_has_its_time_to_start_workers() -> None:
    state, _ = after(own(), facts(), NOW)
    state, outcome = after(state, facts(hosts=agents(a=2, b=2)), NOW + LIMIT_S)
    assert outcome is None
    state, outcome = after(state, facts(), NOW + LIMIT_S + 1)  # it is gone again
    assert outcome is None
    state, outcome = after(state, facts(), NOW + 2 * LIMIT_S)
    assert outcome is None
    assert after(state, facts(), NOW + 2 * LIMIT_S + 1)[1] is not None


def test_an_outage_of_zookeeper_is_no_absence_of_hosts() -> None:
    state, _ = after(own(), facts(), NOW)
    state, outcome = after(without_zookeeper(state), facts(), NOW + 10 * LIMIT_S)
    assert outcome is None


def test_a_job_that_lost_its_ring_waits_by_other_rules() -> None:
    state, _ = after(own(), facts(), NOW)
    assert after(state, facts(generation=RING, members=ready("a")), NOW + LIMIT_S)[1] is None
