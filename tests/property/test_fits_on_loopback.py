"""A script of several fits on a loopback ring: who joins or dies around the end of a fit.

The workers are edl's own; the script does what Keras' `fit` does with them. The judge is the
counting model: each sample counts once in each epoch, over all fits, on all workers.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import pytest
from scenarios import points, sampled

from edl.binding.loop import BatchSteps, end_batch
from edl.job.script import DoneFit, FitIsDone, ScriptFits, ScriptOfJob
from edl.records import JobState
from edl.testing.counting import Counting, CountingBatchSource, CountingModel, source_of, train_step
from edl.testing.loopback import LoopbackJob, LoopbackWorker


@dataclass(frozen=True)
class Result:
    model: CountingModel
    steps: int
    fits: tuple[DoneFit, ...]


@dataclass(frozen=True)
class Fitting(Counting):
    """A script that calls fit ``fits`` times, for an epoch each, and evaluates after each.

    Attributes:
        strays: a worker whose state changes as no update does, after the last step of the second
            fit; None: nobody's does.
        evaluated: what the workers evaluate, by the fit before.
    """

    samples: int = 24
    fits: int = 4
    strays: int | None = None
    evaluated: dict[int, set[bytes]] = field(
        default_factory=lambda: defaultdict(set), compare=False
    )
    step_s: float = 0.6
    between_s: float = 2.0
    jobs: list[LoopbackJob] = field(default_factory=list, compare=False)  # that of this script

    def __call__(self, one: LoopbackWorker) -> None:
        worker = one.worker
        worker.attach_source(*source_of(self, 0, self._batching))
        one.model = CountingModel(self.samples)
        worker.attach_replica(one.model)
        feed = CountingBatchSource(worker, 0)
        steps = BatchSteps(worker, feed, lambda: "the batch was not trained")
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
            if worker.id == self.strays and len(done) == 1:
                one.model.w[7] += 1
                one.model.before[7] += 1  # the tally is of updates only
            end_batch(worker)
            ended = worker.exchange_bytes(f"end of fit {len(done)}".encode())
            assert {*ended} == {f"end of fit {len(done)}".encode()}, ended
            done = (*done, DoneFit(worker.loader.epoch + 1))
            worker.fits.compare_states()
            self.evaluated[len(done)].add(one.model.w.tobytes())
            worker.fits.end(done, "", worker.rank, worker.generation)
            self._tell(one, done, len(done))
            one.compute(self.between_s)
        if not worker.warming_up:
            one.result = Result(one.model, worker.step, done)
        worker.finishing.script_ended()

    def _train(self, one: LoopbackWorker, steps: BatchSteps, feed: CountingBatchSource) -> None:
        while steps.begin():
            assert feed.batch is not None
            one.compute(self.step_s)
            train_step(one.worker, one.member, one.model, one.model.gradient(feed.batch))

    def _tell(self, one: LoopbackWorker, done: tuple[DoneFit, ...], begun: int) -> None:
        """Record the fits of a worker in the ring for newcomers, as it would tell them."""
        if not one.worker.warming_up:
            memory, said = self.jobs[0].memory, ScriptFits(done, begun)
            before = memory.script.fits
            if (len(done), begun) > (len(before.done), before.begun):
                memory.script = ScriptOfJob({}, said)


def of(np: int = 2, between_s: float = 2.0, **more: Any) -> LoopbackJob:
    return of_script(Fitting(between_s=between_s), np, **more)


def of_script(script: Fitting, np: int, **more: Any) -> LoopbackJob:
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
@pytest.mark.parametrize("step", sampled(range(1, 19)))
def test_a_newcomer_joins_in_the_fit_that_it_is_ready_for(step: int, between_s: float) -> None:
    """It is asked for after each step: also just before a fit ends, while it is ready for that."""
    assert step < steps_of_all()
    job = of(between_s=between_s)
    job.after_step(step, lambda job: job.scale({"a": 3}))
    job.run()
    prove(job, 0, 1, *([2] if step <= 12 else []))  # later the job may be over before
    assert not any(generation.repairs for generation in job.memory.generations[1:])


@pytest.mark.parametrize("worker", [0, 1])
@pytest.mark.parametrize("step", sampled(range(3, 20)))
def test_a_death_around_the_end_of_a_fit(worker: int, step: int) -> None:
    """The survivor may be in the fit before, or in the next one; the replacement in any."""
    job = of()
    job.after_step(step, lambda job: job.kill(worker))
    job.run()
    prove(job, 1 - worker)


def straying() -> tuple[Fitting, LoopbackJob]:
    script = Fitting(strays=1)
    return script, of_script(script, 4, on_divergence="resync")


@cache
def comparing(worker: int) -> range:
    """Return the points of ``worker`` around its exchanges of digests, from before the first on."""
    _, job = straying()
    job.run()
    prove(job, 0, 1, 2, 3)
    there = [p.number for p in job.passed if p.worker == worker and "edl.digests" in p.name]
    return points(there[0] - 8, there[-1] + 16, turn=worker)


@pytest.mark.parametrize("what", ["kill", "cut"])
@pytest.mark.parametrize("worker", [0, 1, 2])
def test_all_evaluate_the_same_after_a_fit(worker: int, what: str) -> None:
    """w1 differs after the last step of a fit, and w1 or another goes, or the ring breaks, then."""
    for point in comparing(worker):
        script, job = straying()
        job.at(worker, point, lambda job: getattr(job, what)(worker))
        job.run()
        assert [*map(len, script.evaluated.values())] == [1] * script.fits, job.describe()
        prove(job, *({0, 1, 2, 3} - ({worker} if what == "kill" else set())))


def test_a_state_that_differs_after_a_fit_ends_the_job() -> None:
    script = Fitting(strays=1)
    job = of_script(script, 3)
    job.run()
    assert job.memory.job.state is JobState.FAILED
    assert "the state of w1 differs from that of w0, w2 after step" in job.memory.job.reason
    assert [*script.evaluated] == [1], "nobody evaluates what differs"


@pytest.mark.parametrize("step", sampled(range(1, 19)))
def test_workers_that_are_told_of_the_end_leave_in_each_fit(step: int) -> None:
    """As Ctrl-C while ZooKeeper is away: an agent tells the workers, and no leader."""
    job = of()

    def tell(job: LoopbackJob) -> None:
        job.memory.away = True
        assert job.memory.generation is not None
        for one in job.workers:
            one.shared.announce(job.memory.generation.as_end("Ctrl-C"))

    job.after_step(step, tell)
    job.run()
    assert not job.results, job.describe()
    assert {one.worker.step for one in job.workers} <= {step, step + 1}, job.describe()
    assert len({one.worker.step for one in job.workers}) == 1, job.describe()
