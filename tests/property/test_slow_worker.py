"""A worker that computes far longer than the others is named, once a ring; nobody else is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scenarios import Change, Scenario

from edl.events import Event, EventKind, SlowWorkerDetails
from edl.step.record import OF_STEPS, slow
from edl.testing.counting import Counting
from edl.testing.loopback import LoopbackJob, LoopbackWorker

STEPS = 3 * OF_STEPS


@dataclass(frozen=True)
class Uneven(Counting):
    """The counting model on hosts of which one is ``factor`` times slower than the others."""

    slow_worker: int = 1
    factor: float = 1.0
    rarely: bool = False  # it is slow in one step of ten: it evaluates, say

    def cost_s(self, one: LoopbackWorker) -> float:
        due = not self.rarely or one.worker.step % 10 == 0
        is_slow = due and one.worker.id == self.slow_worker
        return self.step_s * (self.factor if is_slow else 1.0)


def named(job: LoopbackJob) -> list[Event]:
    return [event for event in job.memory.events if event.kind is EventKind.SLOW_WORKER]


def test_it_is_named_once_in_each_ring() -> None:
    script = Uneven(samples=6 * STEPS, epochs=1, factor=5.0)
    job = Scenario(np=3, script=script, changes=(Change(OF_STEPS + 20, a=2),)).run()
    first, second = named(job)
    assert isinstance(first.details, SlowWorkerDetails)
    assert first.reason == (
        "the others wait for w1 in each step: w1 computes 500 ms in a step, the others 100 ms"
    )
    assert (first.details.worker, first.details.compute_s, first.details.others_s) == (
        "w1",
        0.5,
        0.1,
    )
    assert (first.generation, first.step) == (1, OF_STEPS)
    assert (second.generation, second.step > first.step) == (2, True)


def test_who_is_slow_now_and_then_or_a_little_is_not_named() -> None:
    for uneven in ({"factor": 1.9}, {"factor": 50.0, "rarely": True}):
        script = Uneven(samples=6 * STEPS, epochs=1, **uneven)
        assert not named(Scenario(np=3, script=script).run()), uneven


def test_what_is_noise_is_not_slow() -> None:
    assert slow([3, 5], np.array([[1000, 8000]] * 4)) is None, "8 ms beside 1 ms"
    found = slow([3, 5], np.array([[10_000, 30_000]] * 4))
    assert found is not None
    assert str(found) == "w5 computes 30 ms in a step, the others 10 ms"
