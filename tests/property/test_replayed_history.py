"""The history of a cluster under any order of events, read in any parts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from edl.cluster.history import JobHistoryState, SlotInterval, missed, replayed
from edl.cluster.lifecycle import ClusterEvent, ClusterEventKind, LifeResult, LifeState

TIMES = st.floats(1.0, 1000.0)
JOBS = st.sampled_from(["a", "b"])


def submissions() -> st.SearchStrategy[ClusterEvent]:
    return st.builds(
        lambda at_s, job: ClusterEvent(at_s, ClusterEventKind.SUBMITTED, "", job, by="ann@a"),
        TIMES,
        JOBS,
    )


def states() -> st.SearchStrategy[ClusterEvent]:
    return st.builds(
        lambda at_s, job, state: ClusterEvent(
            at_s,
            ClusterEventKind.STATE,
            "",
            job,
            state=state,
            result=LifeResult.FAILED if state is LifeState.ENDED else None,
        ),
        TIMES,
        JOBS,
        st.sampled_from(LifeState),
    )


def slots() -> st.SearchStrategy[ClusterEvent]:
    return st.builds(
        lambda at_s, job, found: ClusterEvent(at_s, ClusterEventKind.SLOTS, "", job, slots=found),
        TIMES,
        JOBS,
        st.dictionaries(st.sampled_from(["h0", "h1"]), st.integers(0, 3)),
    )


EVENTS = st.lists(st.one_of(submissions(), states(), slots()), max_size=30)


def history(
    events: Sequence[ClusterEvent],
) -> tuple[dict[int, JobHistoryState], list[SlotInterval]]:
    living: dict[str, JobHistoryState] = {}
    jobs: dict[int, JobHistoryState] = {}
    intervals: list[SlotInterval] = []
    for number, event in enumerate(events):
        found = replayed(living.get(event.job), number, event)
        intervals += found.intervals
        for job in found.jobs:
            jobs[job.history.submission] = job
            if job.is_over:
                living.pop(job.history.job, None)
            else:
                living[job.history.job] = job
    return jobs, intervals


@given(EVENTS)
def test_slot_seconds_are_those_of_the_intervals(events: list[ClusterEvent]) -> None:
    jobs, intervals = history(events)
    for job in list(jobs.values()):
        over = missed(job)
        intervals += over.intervals
        jobs[job.history.submission] = over.jobs[-1]
    sums: dict[int, float] = defaultdict(float)
    for one in intervals:
        assert one.end_s is not None
        assert one.begin_s < one.end_s
        assert one.slots > 0
        sums[one.submission] += one.slots * (one.end_s - one.begin_s)
    for submission, job in jobs.items():
        assert abs(job.history.slot_s - sums[submission]) < 1e-6
        assert job.open_intervals() == ()


@given(EVENTS)
def test_no_two_intervals_of_a_job_on_a_host_overlap(events: list[ClusterEvent]) -> None:
    ends: dict[tuple[int, str], float] = {}
    for one in history(events)[1]:
        key = one.submission, one.host
        assert one.end_s is not None
        assert one.begin_s >= ends.get(key, 0.0)
        ends[key] = one.end_s


@given(EVENTS)
def test_a_job_that_is_over_has_no_slots_and_stays_as_it_is(events: list[ClusterEvent]) -> None:
    jobs, _ = history(events)
    for job in jobs.values():
        assert not (job.is_over and job.hosts)
        assert job.is_over or job.history.state is not LifeState.ENDED
        assert JobHistoryState.from_json(job.to_json()) == job
    before, _ = history(events[:-1])
    over = {number: job for number, job in before.items() if job.is_over}
    assert over.items() <= jobs.items()
