"""Whatever jobs come to whatever nodes: what every policy and the engine must keep.

The engine itself checks each decision (:func:`edl.cluster.state.violation`): no slot twice,
no job below its minimum or above its maximum.
"""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import pytest
from clusters import Steps, decide, just_submitted, nodes, result, sizes, submitted
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.published.pollux_policy import Pollux
from benchmarks.published.registry import POLICIES
from edl.cluster.policies.edl import EdlPolicy, curve, fair_wait_s
from edl.cluster.policies.simple import MaxMin
from edl.cluster.state import Allocation, ClusterJob, ClusterPolicy, QueuePolicy, slot_count
from edl.simulator.costs import Failures
from edl.simulator.results import Result
from edl.simulator.workload import SubmittedJob

MACHINES = st.lists(st.integers(1, 4), min_size=1, max_size=4)
EVERY = pytest.mark.parametrize("name", POLICIES)


def rule(name: str) -> ClusterPolicy:
    found = POLICIES[name][0]
    return replace(found, population=10, generations=4) if isinstance(found, Pollux) else found


@st.composite
def clusters(draw, most_jobs: int = 8, last_s: int = 500) -> tuple[list[int], list[SubmittedJob]]:
    """Slots of the nodes, and jobs that could each run there alone, submitted until ``last_s``."""
    machines = draw(MACHINES)
    jobs = []
    for number in range(draw(st.integers(1, most_jobs))):
        slots = draw(st.integers(1, sum(machines)))
        least = draw(st.integers(1, slots))
        jobs.append(
            submitted(
                f"j{number}",
                draw(st.integers(0, last_s)),
                draw(st.integers(1, 300)),
                slots,
                min_slots=least,
                max_slots=draw(st.integers(slots, 20)),
                weight=draw(st.sampled_from([1.0, 5.0])),
                preemptible=draw(st.booleans()),
            )
        )
    return machines, jobs


def in_use(done: Result) -> list[tuple[float, float, str, dict[str, int]]]:
    spans = []
    for job in done.jobs:
        untils = [*(moment.at_s for moment in job.history[1:]), job.end_s]
        spans += [
            (moment.at_s, until, job.name, dict(moment.placement))
            for moment, until in zip(job.history, untils, strict=True)
        ]
    return spans


@EVERY
@given(clusters(), st.sampled_from([0.0, 7.0, 60.0]), st.sampled_from([0.0, 0.3, 30.0]))
def test_slots_are_given_once_and_counted(name, cluster, interval_s, cost_s) -> None:
    machines, jobs = cluster
    done = result(rule(name), jobs, nodes(*machines), cost_s, interval_s=interval_s)
    spans = in_use(done)
    for at_s in sorted({start for start, _, _, _ in spans}):
        for number, slots in enumerate(machines):
            used = (of.get(f"n{number}", 0) for a, b, _, of in spans if a <= at_s < b - 1e-6)
            assert sum(used) <= slots
    for job in done.jobs:
        held = sum((b - a) * sum(of.values()) for a, b, owner, of in spans if owner == job.name)
        assert job.slot_s == pytest.approx(held, abs=1e-3)
        assert job.arrival_s <= job.start_s < job.end_s


@EVERY
@given(clusters(), st.sampled_from([0.0, 60.0]))
def test_work_is_conserved(name, cluster, interval_s) -> None:
    # Free resizes and perfect scaling: whatever the policy does, a job takes its own slot-seconds.
    machines, jobs = cluster
    done = result(rule(name), jobs, nodes(*machines), interval_s=interval_s)
    for job, ended in zip(jobs, done.jobs, strict=True):
        work = job.work.whole_s(1)
        assert ended.slot_s == pytest.approx(work, abs=1e-3)


@EVERY
@given(clusters(most_jobs=5), st.integers(0, 3))
def test_the_same_seed_gives_the_same_answer(name, cluster, seed) -> None:
    machines, jobs = cluster

    def figures() -> str:
        failures = Failures(400.0, 50.0, seed)
        done = result(rule(name), jobs, nodes(*machines), 5.0, failures=failures)
        return json.dumps(done.figures(history=True))

    assert figures() == figures()


@given(
    clusters(most_jobs=4, last_s=20_000),
    st.sampled_from([0.0, 7.0, 60.0]),
    st.integers(0, 3),
    st.sampled_from([0, 1_764_000_000, 1_764_000_000_123]),
)
def test_time_never_goes_back(cluster, interval_s, seed, clock) -> None:
    # Nodes fail while the cluster is idle, too; and a trace may have a computer's clock.
    machines, jobs = cluster
    jobs = [replace(job, arrival_s=job.arrival_s + clock) for job in jobs]
    failures = Failures(300.0, 60.0, seed)
    done = result(
        POLICIES["max_min"][0], jobs, nodes(*machines), interval_s=interval_s, failures=failures
    )
    for job in done.jobs:
        times = [job.arrival_s, *(moment.at_s for moment in job.history), job.end_s]
        assert times == sorted(times)
        assert job.end_s > job.start_s >= clock


@given(clusters())
def test_fifo_starts_jobs_in_the_order_of_submission(cluster) -> None:
    machines, jobs = cluster
    done = result(POLICIES["fifo"][0], jobs, nodes(*machines))
    starts = [job.start_s for job in sorted(done.jobs, key=lambda job: job.arrival_s)]
    assert starts == sorted(starts)


@pytest.mark.parametrize("name", ["fifo", "fifo_backfill", "priority"])
@given(clusters(), st.sampled_from([0.0, 0.3, 30.0]), st.booleans())
def test_looking_at_those_that_start_or_end_is_enough(name, cluster, cost_s, drop) -> None:
    machines, jobs = cluster
    asked = POLICIES[name][0]
    assert isinstance(asked, QueuePolicy)
    fast = result(asked, jobs, nodes(*machines), cost_s, drop=drop)
    # Behind a function it is any policy: the engine visits every job at every event.
    full = result(lambda state: asked(state), jobs, nodes(*machines), cost_s, drop=drop)
    times = sorted(
        at_s for done in (fast, full) for job in done.jobs for at_s in (job.arrival_s, job.end_s)
    )
    # The two add up times in different orders; what differs by rounding is two events, or one.
    if not any(0 < after - before < 1e-6 for before, after in pairwise(times)):
        assert fast.decisions == full.decisions
    for one, other in zip(fast.jobs, full.jobs, strict=True):
        assert (one.name, one.dropped) == (other.name, other.dropped)
        assert [moment.placement for moment in one.history] == [
            moment.placement for moment in other.history
        ]
        assert (one.start_s, one.end_s) == pytest.approx((other.start_s, other.end_s), abs=1e-5)
        assert one.slot_s == pytest.approx(other.slot_s, abs=1e-3)


def due_from(job: SubmittedJob, machines: list[int]) -> tuple[float, float]:
    """When ``job`` is due by edl's policy, and its deadline while none of its work is done."""
    slots, rule = sum(machines), EdlPolicy()
    speeds = curve(just_submitted(job), 0, max(machines), slots)
    patience = rule.patience, rule.wide_patience
    due_s = job.arrival_s + fair_wait_s(speeds.requested_s, job.min_slots, slots, *patience)
    rest_s = min(float(speeds.left_s[job.min_slots]), rule.rest_most_s)
    return due_s, due_s + rule.rest_weight * rest_s


@given(clusters())
def test_by_edl_a_job_that_is_due_waits_only_for_those_of_earlier_deadlines(cluster) -> None:
    # Once it is due one of those runs at all times, at least as fast as on its fewest slots. The
    # end of each turn, of which a job may need several, is seen at the next decision.
    machines, jobs = cluster
    jobs = [replace(job, preemptible=True) for job in jobs]
    rule, due_s, deadline_s = EdlPolicy(), {}, {}
    for job in jobs:
        due_s[job.name], deadline_s[job.name] = due_from(job, machines)
    done = result(rule, jobs, nodes(*machines), interval_s=7.0)
    for job, ended in zip(jobs, done.jobs, strict=True):
        last_s = deadline_s[job.name]
        before = [one for one in jobs if due_s[one.name] <= last_s and one is not job]
        works_s = [one.work.whole_s(one.min_slots) for one in before]
        turns = sum(1 + work_s // rule.quantum_s for work_s in works_s)
        assert ended.start_s <= due_s[job.name] + 7.0 + sum(works_s) + 7.0 * turns + 1e-6


@given(clusters(), st.integers(0, 300))
def test_by_edl_nobody_takes_the_slots_of_one_that_is_due(cluster, now_s) -> None:
    machines, jobs = cluster
    views = [just_submitted(one) for one in jobs]
    decision = decide(EdlPolicy(), views, nodes(*machines), now_s=now_s)
    accounts = {one.name: due_from(one, machines) for one in jobs}
    due = sorted(
        (view for view in views if accounts[view.name][0] <= now_s),
        key=lambda view: accounts[view.name][1],
    )
    left = sum(machines)
    for view in due:
        left -= view.min_slots
        if left < 0:
            break
        assert slot_count(decision.placements[view.name]) >= view.min_slots


@given(clusters(), MACHINES)
def test_another_node_takes_no_slot_from_a_job_by_max_min(cluster, more) -> None:
    machines, jobs = cluster
    views = [
        ClusterJob(one.name, one.arrival_s, 1, 1, one.max_slots, 1, (1, 1), Steps()) for one in jobs
    ]
    fewer, larger = (
        sizes(decide(MaxMin(), views, nodes(*machines, *others))) for others in ([], more)
    )
    assert all(larger[name] >= slots for name, slots in fewer.items())
    assert sum(larger.values()) == min(
        sum(machines) + sum(more), sum(view.max_slots for view in views)
    )


@EVERY
@given(clusters(), st.data())
def test_a_decision_is_a_function_of_what_it_is_given(name, cluster, data) -> None:
    machines, jobs = cluster
    decided = rule(name)
    attained = st.sampled_from([0.0, 57600.0])
    views = [replace(just_submitted(one), attained_slot_s=data.draw(attained)) for one in jobs]
    first: Allocation = decide(decided, views, nodes(*machines))
    again = decide(decided, views, nodes(*machines))
    assert first == again
    assert json.loads(json.dumps(first.state)) == first.state
    # Asked again with its own answer in force, it moves nobody. Pollux may find a better one.
    settled = decide(decided, views, nodes(*machines), first.placements, first.state)
    assert settled.placements == first.placements or name == "pollux"
    # Those that come later take no slot from those that may not be preempted.
    firm = [replace(view, preemptible=False) for view in views]
    kept = decide(decided, firm, nodes(*machines), first.placements, first.state)
    assert all(kept.placements[job] == slots for job, slots in first.placements.items())
    assert sum(map(slot_count, kept.placements.values())) <= sum(machines)
