"""Workers at different points of the script part, on a loopback ring: the newcomer, not the job.

The script counts itself, as `for i, batch in enumerate(loader)` does, so a newcomer begins at 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from edl.core.records import JobState
from edl.errors import StepsBack
from edl.framework.steps import BatchSteps
from edl.testing.counting import (
    Counted,
    Counting,
    CountingBatchSource,
    CountingModel,
    source_of,
    train_step,
)
from edl.testing.loopback import LoopbackJob, LoopbackWorker


@dataclass(frozen=True)
class Logging(Counting):
    """A script that exchanges numbers each ``every`` batches of an epoch, as it counts itself.

    ``anew``: its count begins at 0 in each epoch. ``limit``: it leaves each epoch after so many.
    ``alone``: only rank 0 exchanges. ``rounds``: it ends after so many batches of its own.
    """

    samples: int = 48
    epochs: int = 4
    every: int = 5
    anew: bool = True
    limit: int = 0
    alone: bool = False
    rounds: int = 0

    def __call__(self, one: LoopbackWorker) -> None:
        worker = one.worker
        worker.attach_source(*source_of(self, self.prefetch_batches, self._batching))
        model = one.model = CountingModel(self.samples)
        worker.attach_replica(model)
        feed = CountingBatchSource(worker, self.prefetch_batches)
        steps = BatchSteps(worker, feed, lambda: "the batch was not trained")
        count = rounds = 0
        for _ in steps.epochs(self.epochs):
            count = 0 if self.anew else count
            while steps.begin():
                assert feed.batch is not None
                one.compute(self.step_s)
                train_step(worker, one.member, model, model.gradient(feed.batch))
                if not worker.warming_up:
                    rounds += 1
                if count % self.every == 0 and (worker.rank == 0 or not self.alone):
                    rows = worker.exchange([float(worker.step)] * 3)
                    assert len({tuple(row) for row in rows}) == 1, rows
                count += 1
                if self.rounds and rounds == self.rounds:
                    one.result = Counted(model, worker.step, {}, {})
                    return
                if self.limit and count == self.limit:
                    break
        one.result = Counted(model, worker.step, {}, {})


def run(script: Logging, np: int = 2, seed: int = 0, **more: int) -> LoopbackJob:
    job = LoopbackJob(script, np=np, max_np=6, seed=seed, **more)
    job.after_step(8, lambda job: job.scale({"a": np + 1}))
    job.run()
    return job


def generations_that_join(job: LoopbackJob) -> list[tuple[int, ...]]:
    return [one.joined for one in job.memory.generations[1:] if one.joined and one.previous]


@pytest.mark.parametrize("np", [1, 2, 3])
@pytest.mark.parametrize("seed", range(6))
def test_a_newcomer_steps_back_and_joins_at_the_next_epoch(np: int, seed: int) -> None:
    script = Logging(samples=24 * np)
    job = run(script, np, seed)
    assert job.memory.job.state is JobState.FINISHED, job.describe()
    script.prove(job.results)
    back = [w for w, error in job.errors.items() if isinstance(error, StepsBack)]
    assert job.errors.keys() == {*back}, job.describe()
    assert len(back) <= 1, "the second one joined at an epoch's start"
    assert len(job.results) == np + 1, job.describe()
    if back:
        assert "called edl." in str(job.errors[back[0]])
        assert job.memory.generations[-1].at_epochs
        assert generations_that_join(job)[-1] == (max(job.results),)
