"""A script of several fits on a loopback ring: who joins or dies around the end of a fit.

The workers are edl's own; the script does what Keras' `fit` does with them. The judge is the
counting model: each sample counts once in each epoch, over all fits, on all workers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import pytest

from edl.core.job.fits import DoneFit, FitIsDone, ScriptFits
from edl.core.job.signature import ScriptOfJob
from edl.core.records import JobState
from edl.framework.steps import Steps, end_batch
from edl.testing.counting import Counting, CountingModel, Feed, source_of, train_step
from edl.testing.loopback import LoopbackJob, LoopbackWorker


@dataclass(frozen=True)
class Result:
    model: CountingModel
    steps: int
    fits: tuple[DoneFit, ...]


@dataclass(frozen=True)
class Fitting(Counting):
    """A script that calls fit ``fits`` times, for an epoch each, and evaluates after each."""

    samples: int = 24
    fits: int = 4
    step_s: float = 0.6
    between_s: float = 2.0
    jobs: list[LoopbackJob] = field(default_factory=list, compare=False)  # that of this script

    def __call__(self, one: LoopbackWorker) -> None:
        worker = one.worker
        worker.attach_source(*source_of(self, 0, self._batching))
        one.model = CountingModel(self.samples)
        worker.attach_replica(one.model)
        feed = Feed(worker, 0)
        steps = Steps(worker, feed, lambda: "the batch was not trained")
        done: tuple[DoneFit, ...] = ()
        while len(done) < self.fits:
            worker.fits.begin(done)
            self._tell(one, done, len(done) + 1)
            try:
                if worker.warming_up:
                    self._train(one, steps, feed)
                steps.enter()
            except FitIsDone as error:
                done = (*done, error.done[len(done)])
                worker.fits.pass_over(done)
                continue
            assert worker.loader.progress.fits_done == len(done)
            if worker.loader.ledger.finished:
                worker.loader.next_epoch()
            feed.restart()
            self._train(one, steps, feed)
            end_batch(worker)
            ended = worker.exchange_bytes(f"end of fit {len(done)}".encode())
            assert {*ended} == {f"end of fit {len(done)}".encode()}, ended
            done = (*done, DoneFit(worker.loader.epoch + 1))
            worker.fits.end(done, worker.rank, worker.generation)
            self._tell(one, done, len(done))
            one.compute(self.between_s)
        if not worker.warming_up:
            one.result = Result(one.model, worker.step, done)
        worker.finishing.script_ended()

    def _train(self, one: LoopbackWorker, steps: Steps, feed: Feed) -> None:
        while steps.begin():
            assert feed.batch is not None
            one.compute(self.step_s)
            train_step(one.worker, one.member, one.model, one.model.gradient(feed.batch))

    def _tell(self, one: LoopbackWorker, done: tuple[DoneFit, ...], begun: int) -> None:
        """What newcomers would be told by a worker in the ring."""
        if not one.worker.warming_up:
            memory, said = self.jobs[0].memory, ScriptFits(done, begun)
            before = memory.script.fits
            if (len(done), begun) > (len(before.done), before.begun):
                memory.script = ScriptOfJob({}, said)


def of(np: int = 2, between_s: float = 2.0, **more: Any) -> LoopbackJob:
    script = Fitting(between_s=between_s)
    script.jobs.append(LoopbackJob(script, np=np, max_np=4, **more))
    return script.jobs[0]


def prove(job: LoopbackJob, *workers: int) -> None:
    assert job.memory.job.state is JobState.FINISHED, job.describe()
    assert {*workers} <= job.results.keys(), job.describe()
    assert not job.errors, job.describe()
    first = job.results[min(job.results)]
    for result in job.results.values():
        assert not result.model.wrong, job.describe()
        assert np.unique(result.model.count).tolist() == [4], job.describe()
        assert np.array_equal(result.model.w, first.model.w)
        assert result.steps == first.steps
        assert [fit.until for fit in result.fits] == [1, 2, 3, 4]


@cache
def steps_of_all() -> int:
    job = of()
    job.run()
    prove(job, 0, 1)
    return int(job.results[0].steps)


@pytest.mark.parametrize("between_s", [0.01, 2.0])
@pytest.mark.parametrize("step", range(1, 19))
def test_a_newcomer_joins_in_the_fit_that_it_is_ready_for(step: int, between_s: float) -> None:
    """It is asked for after each step: also just before a fit ends, while it is ready for that."""
    assert step < steps_of_all()
    job = of(between_s=between_s)
    job.after_step(step, lambda job: job.scale({"a": 3}))
    job.run()
    prove(job, 0, 1, *([2] if step <= 12 else []))  # later the job may be over before
    assert not any(generation.repairs for generation in job.memory.generations[1:])


@pytest.mark.parametrize("worker", [0, 1])
@pytest.mark.parametrize("step", range(3, 20))
def test_a_death_around_the_end_of_a_fit(worker: int, step: int) -> None:
    """The survivor may be in the fit before, or in the next one; the replacement in any."""
    job = of()
    job.after_step(step, lambda job: job.kill(worker))
    job.run()
    prove(job, 1 - worker)
