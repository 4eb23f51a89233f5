"""Slots in use and the queue over time, worked out by hand."""

from __future__ import annotations

from clusters import nodes, result, submitted

from benchmarks.published.srtf import Srtf
from edl.simulator.results import JobResult, Result, SlotSpan, Usage, levels, spans

# 4 slots, free resizes: b takes them from a at 10 s (90 s of a remain), and c waits for one.
JOBS = [submitted("a", 0, 100, 4), submitted("b", 10, 50, 4), submitted("c", 60, 200, 1)]


def simulated() -> Result:
    return result(Srtf(), JOBS, nodes(4))


def test_the_spans_of_a_job() -> None:
    found = {job.name: spans(job) for job in simulated().jobs}
    assert found["a"] == [SlotSpan(0, 10, 4), SlotSpan(10, 60, 0), SlotSpan(60, 150, 4)]
    assert found["b"] == [SlotSpan(10, 60, 4)]
    assert found["c"] == [SlotSpan(60, 150, 0), SlotSpan(150, 350, 1)]


def test_slots_in_use_and_the_queue() -> None:
    assert levels(simulated()) == [
        Usage(0, 4, 0),
        Usage(10, 4, 1),  # from 60 s on it is c that waits
        Usage(150, 1, 0),
        Usage(350, 0, 0),
    ]


def test_a_job_that_was_turned_away_never_had_slots() -> None:
    gone = JobResult("gone", "", 5.0, 10.0, 10.0, 0.0, dropped=True)
    assert spans(gone) == [SlotSpan(5, 10, 0)]
    assert levels(Result((gone,), 1)) == [Usage(0, 0, 0), Usage(5, 0, 1), Usage(10, 0, 0)]
