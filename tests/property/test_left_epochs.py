"""All workers leave an epoch before its end, with a batch in hand, and one of them dies meanwhile.

It is the loop of a script that trains some batches of each epoch::

    for epoch in loader.epochs(n):
        for number, batch in enumerate(loader):
            if number == limit:
                break
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from scenarios import Fault, Scenario, points

from edl.binding.loop import BatchSteps
from edl.records import JobState, RingFailure
from edl.testing.counting import (
    Counted,
    Counting,
    CountingBatchSource,
    CountingModel,
    accumulated,
    source_of,
    train_step,
)
from edl.testing.loopback import LoopbackWorker
from edl.testing.memory import MemoryCoordinator


@dataclass(frozen=True)
class Leaving(Counting):
    """A script that leaves each epoch with a batch in hand, after the step in which ``limit`` is.

    It counts itself that each sample is trained once in an epoch at most, and that the samples are
    those of the steps that were made in it.

    Attributes:
        limit: the number of samples, of all workers, after which it leaves.
    """

    samples: int = 24
    epochs: int = 3
    limit: int = 2

    def __call__(self, one: LoopbackWorker) -> None:
        worker = one.worker
        worker.attach_source(*source_of(self, self.prefetch_batches, self._batching))
        model = one.model = CountingModel(self.samples)
        worker.attach_replica(model)
        feed = CountingBatchSource(worker, self.prefetch_batches)
        steps = BatchSteps(worker, feed, lambda: "the batch was not trained")
        for _ in steps.epochs(self.epochs):
            before, trained = model.count.copy(), worker.loader.progress.trained
            while steps.begin():
                assert feed.batch is not None
                one.compute(self.step_s)
                if worker.loader.ledger.done >= self.limit and not worker.warming_up:
                    break
                gradient = model.gradient(feed.batch)
                if worker.loader.engine.batches.pieces_left:
                    model.sum = accumulated(worker, model, gradient)
                    worker.loader.accumulate()
                else:
                    train_step(worker, one.member, model, gradient)
            model.sum = None
            if not worker.warming_up:
                grown = model.count - before
                assert grown.max() <= 1, (worker.id, worker.loader.epoch, grown)
                assert grown.sum() == worker.loader.progress.trained - trained, (worker.id, grown)
        one.result = Counted(model, worker.step, {}, {})

    def prove(self, results: Any) -> None:
        first = next(iter(results.values()))
        for worker, result in results.items():
            assert not result.model.wrong, (worker, result.model.wrong)
            assert np.array_equal(result.model.w, first.model.w), worker
            assert result.steps == first.steps
            assert result.model.count.max() <= self.epochs


def finish(scenario: Scenario) -> None:
    job = scenario.run()
    assert job.memory.job.state is JobState.FINISHED, job.describe()


@pytest.mark.parametrize(
    ("what", "script"),
    [("kill", Leaving()), ("fail", Leaving()), ("kill", Leaving(logical=4))],
    ids=["kill", "fail", "kill-logical"],
)
@pytest.mark.parametrize("worker", range(3))
def test_a_death_meanwhile(worker: int, what: str, script: Leaving) -> None:
    for point in points(20, 80, turn=4 * worker + (what == "fail")):
        finish(Scenario(97 * point + worker, script=script, faults=(Fault(worker, point, what),)))


@pytest.mark.parametrize("what", ["fail", "kill"])
def test_one_has_the_records_of_all_and_another_has_not(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first goes on in the next epoch, and the other learns that all have left."""
    reports: list[RingFailure] = []
    write = MemoryCoordinator.report_broken

    def report(self: MemoryCoordinator, failure: RingFailure) -> None:
        reports.append(failure)
        write(self, failure)

    monkeypatch.setattr(MemoryCoordinator, "report_broken", report)
    for seed in range(1, 9):
        for point in range(34, 60):
            reports.clear()
            finish(Scenario(seed, script=Leaving(), faults=(Fault(1, point, what),)))
            if one_is_a_leave_ahead(reports):
                return
    pytest.fail("no ring broke while some workers had left the epoch and others had not")


def one_is_a_leave_ahead(reports: Sequence[RingFailure]) -> bool:
    """Return whether two workers have reported the same ring, one with a leave more."""
    leaves: dict[int, set[int]] = {}
    for report in reports:
        leaves.setdefault(report.generation, set()).add(report.leaves)
    assert all(max(each) - min(each) <= 1 for each in leaves.values())
    return any(len(each) > 1 for each in leaves.values())
