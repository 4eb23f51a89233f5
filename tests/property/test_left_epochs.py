"""All workers leave an epoch before its end, with a batch in hand, and one of them dies meanwhile.

It is the loop of a script that trains some batches of each epoch::

    for epoch in loader.epochs(n):
        for number, batch in enumerate(loader):
            if number == limit:
                break
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from scenarios import Fault, Scenario, points

from edl.core.records import JobState
from edl.framework.steps import BatchSteps
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


@dataclass(frozen=True)
class Leaving(Counting):
    """A script that leaves each epoch with a batch in hand, after the step in which ``limit`` is.

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


@pytest.mark.parametrize(
    ("seed", "fault"), [(405335, Fault(1, 34, "fail")), (797927, Fault(1, 55, "kill"))]
)
def test_one_has_the_records_of_all_and_another_has_not(seed: int, fault: Fault) -> None:
    """The first goes on in the next epoch, and the other learns that all have left."""
    finish(Scenario(seed, script=Leaving(), faults=(fault,)))
