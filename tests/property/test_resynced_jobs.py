"""Workers whose states differ are resynced, on a loopback ring: the job goes on, and all end alike.

The workers are edl's own; the judge is the counting model, so each sample counts once nonetheless.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
from counting_judge import judge_finished
from scenarios import points

from edl.events import Event, StateDiffersDetails
from edl.records import JobState
from edl.testing.counting import Counting
from edl.testing.loopback import LoopbackJob, LoopbackWorker

GROUPS = 4  # of a state: as many steps until all of it was compared


@dataclass(frozen=True)
class Straying(Counting):
    """A script that changes the model of ``strays`` in step 5 as no update does."""

    epochs: int = 1
    strays: tuple[int, ...] = (1,)

    def cost_s(self, one: LoopbackWorker) -> float:
        worker = one.worker
        if worker.step == 5 and worker.id in self.strays and not worker.warming_up:
            one.model.w[7] += 1 + worker.id
            one.model.before[7] += 1 + worker.id  # the tally is of updates only
        return self.step_s


def of(script: Counting, np: int = 3, groups: int = GROUPS, **more: Any) -> LoopbackJob:
    return LoopbackJob(script, np=np, state_check_steps=groups, on_divergence="resync", **more)


def differing(job: LoopbackJob) -> list[Event]:
    return [e for e in job.memory.events if isinstance(e.details, StateDiffersDetails)]


@pytest.mark.parametrize("groups", [1, 2, 4, 7])
@pytest.mark.parametrize("seed", [0, 3])
def test_a_job_goes_on_with_the_state_of_the_majority(groups: int, seed: int) -> None:
    """Each sample is counted once, and all end with the same; within so many steps it is found."""
    script = Straying(samples=96)
    job = of(script, groups=groups, seed=seed)
    job.run()
    judge_finished(script, job.results)
    assert len(job.results) == 3
    [event] = differing(job)
    assert event.details == StateDiffersDetails(("w1",), resynced_from="w0")
    assert 5 < event.step <= 5 + groups + 1
    assert len(job.memory.generations) == 1


def test_a_part_whose_turn_does_not_come_is_healed_at_the_end() -> None:
    script = Straying(samples=48)
    job = of(script, groups=1000)
    job.run()
    judge_finished(script, job.results)
    assert [event.step for event in differing(job)] == [8]


def test_two_that_differ_from_each_other_end_the_job() -> None:
    job = of(Straying(samples=96), np=2)
    job.run()
    assert job.memory.job.state is JobState.FAILED
    assert "no majority agrees, so nobody is resynced" in job.memory.job.reason
    assert not job.results


def test_two_of_five_are_healed_by_the_three() -> None:
    script = Straying(samples=120, strays=(0, 3))
    job = of(script, np=5)
    job.run()
    judge_finished(script, job.results)
    assert [e.details for e in differing(job)] == [StateDiffersDetails(("w0", "w3"), "w1")]


def test_a_newcomer_gets_no_state_that_is_about_to_be_healed() -> None:
    """It enters after the step in which all have seen that w0 differs, who sends it the state."""
    script = Straying(samples=192, strays=(0,))
    job = of(script, groups=1, max_np=4)
    job.after_step(5, lambda job: job.scale({"a": 4}))
    job.run()
    judge_finished(script, job.results)
    [event] = differing(job)
    sizes = job.results[1].sizes
    assert (sizes[event.step], sizes[event.step + 1]) == (3, 4)
    assert job.memory.generations[-1].state_source == 0


FEW = Straying(samples=72)


@cache
def healing(worker: int) -> tuple[int, int]:
    """Return the first and the last point of ``worker`` around the step in which it is found."""
    job = of(FEW, np=4)
    job.run()
    there = [p.number for p in job.passed if p.worker == worker and "edl.digests" in p.name]
    return there[0] - 4, there[-1] + 12


@pytest.mark.parametrize("what", ["kill", "cut"])
@pytest.mark.parametrize("worker", [0, 1, 2])
def test_a_fault_at_each_point_of_a_healing(worker: int, what: str) -> None:
    """w1 differs, and gets the state of w0; whoever goes or breaks the ring, the others end alike.

    What nobody knows any more in the next ring is found again.
    """
    first, last = healing(worker)
    for point in points(first, last, turn=worker):
        job = of(FEW, np=4)
        job.at(worker, point, lambda job: getattr(job, what)(worker))
        job.run()
        assert job.memory.job.state is JobState.FINISHED, job.describe()
        judge_finished(FEW, job.results)
