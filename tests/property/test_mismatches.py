"""Workers at different points of the script part, on a loopback ring: the newcomer, not the job.

The script counts itself, as `for i, batch in enumerate(loader)` does, so a newcomer begins at 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from edl.binding.loop import BatchSteps
from edl.errors import JobFailed, JobTrained, NewcomerDiffers, StepsBack
from edl.records import JobState
from edl.testing.counting import (
    Counted,
    Counting,
    CountingBatchSource,
    CountingModel,
    LoopbackReducer,
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
    at_end: bool = False  # it exchanges numbers at the end of each epoch, too
    in_step: bool = False  # it exchanges in the forward pass, too, as SyncBatchNorm does
    long: int = 0  # numbers more in each exchange, which is too long for a row then
    late: bool = False  # it accumulates gradients, so its records come at the end of a step

    def __call__(self, one: LoopbackWorker) -> None:
        worker = one.worker
        worker.attach_source(*source_of(self, self.prefetch_batches, self._batching))
        model = one.model = CountingModel(self.samples)
        worker.attach_replica(model)
        feed = CountingBatchSource(worker, self.prefetch_batches)
        steps = BatchSteps(worker, feed, lambda: "the batch was not trained")
        reducer = model.reducer = LoopbackReducer(worker, one.member, self.samples)
        worker.loader.engine.late = self.late
        count = rounds = 0
        for _ in steps.epochs(self.epochs):
            count = 0 if self.anew else count
            while steps.begin():
                assert feed.batch is not None
                one.compute(self.step_s)
                if self.in_step and reducer.reduction.exchanges:
                    reducer.reduction.exchange(b"moments")
                train_step(worker, one.member, model, model.gradient(feed.batch))
                if not worker.warming_up:
                    rounds += 1
                if (count + 1) % self.every == 0 and (worker.rank == 0 or not self.alone):
                    rows = worker.exchange(
                        [float(worker.step)] * (3 + self.long), apart=not self.anew
                    )
                    assert len({tuple(row) for row in rows}) == 1, rows
                count += 1
                if self.rounds and rounds == self.rounds:
                    one.result = Counted(model, worker.step, {}, {})
                    return
                if self.limit and count == self.limit:
                    break
            if self.at_end and not worker.warming_up:
                worker.exchange([1.0])
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
@pytest.mark.parametrize("more", [{}, {"in_step": True}, {"in_step": True, "late": True}], ids=str)
def test_a_newcomer_steps_back_and_joins_at_the_next_epoch(
    np: int, seed: int, more: dict[str, bool]
) -> None:
    script = Logging(samples=24 * np, **more)
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


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("more", [{}, {"in_step": True}, {"in_step": True, "late": True}], ids=str)
def test_a_count_that_is_never_set_back_costs_no_worker(seed: int, more: dict[str, bool]) -> None:
    """A newcomer steps back once; then each exchange is among those that call it."""
    script = Logging(anew=False, samples=44, every=7, epochs=6, **more)
    job = run(script, seed=seed)
    assert job.memory.job.state is JobState.FINISHED, job.describe()
    script.prove(job.results)
    assert {type(error) for error in job.errors.values()} <= {StepsBack}, job.describe()
    assert len(job.errors) <= 1, job.describe()
    assert len(job.results) == 3, job.describe()


@pytest.mark.parametrize("first", range(4))
@pytest.mark.parametrize("long", [0, 600])
def test_a_worker_dies_at_each_point_while_counts_differ(first: int, long: int) -> None:
    script = Logging(anew=False, samples=48, epochs=5, every=3, in_step=first % 2 > 0, long=long)
    for point in range(110 + first, 330, 7):
        job = LoopbackJob(script, np=2, max_np=6, seed=point % 5)
        job.after_step(3, lambda job: job.scale({"a": 3}))
        dies = point % 4  # the fourth worker is the newcomer that has come back
        job.at(dies, point, lambda job, dies=dies: job.kill(dies))
        job.run()
        assert job.memory.job.state is JobState.FINISHED, (point, job.describe())
        script.prove(job.results)
        assert {type(error) for error in job.errors.values()} <= {StepsBack}, job.describe()


@pytest.mark.parametrize("seed", range(8))
def test_a_newcomer_that_leaves_an_epoch_by_its_own_count_steps_back(seed: int) -> None:
    job = run(Logging(limit=9, every=100, epochs=5), seed=seed)
    assert job.memory.job.state is JobState.FINISHED, job.describe()
    assert {type(error) for error in job.errors.values()} <= {StepsBack}, job.describe()
    assert len(job.results) == 3, job.describe()


@pytest.mark.parametrize("seed", range(8))
def test_workers_of_the_first_ring_that_differ_end_the_job_with_a_sentence(seed: int) -> None:
    job = run(Logging(alone=True), seed=seed)
    assert job.memory.job.state is JobState.FAILED, job.describe()
    here = "tests/property/test_mismatches.py:"
    assert f"w0 called edl.exchange() at {here}" in job.memory.job.reason
    assert f"w1 went on to a batch of epoch 0 at {here}" in job.memory.job.reason
    assert all(isinstance(error, JobFailed) for error in job.errors.values())


@pytest.mark.parametrize("seed", range(8))
def test_a_job_whose_first_workers_have_ended_is_trained_to_its_end(seed: int) -> None:
    job = run(Logging(rounds=20, every=100), seed=seed)
    assert job.memory.job.state is JobState.FINISHED, job.describe()
    left = {w: error for w, error in job.errors.items() if not isinstance(error, SystemExit)}
    assert all(isinstance(error, JobTrained) for error in left.values()), job.describe()
    assert {0, 1} <= job.results.keys(), job.describe()
    for error in left.values():
        assert "the job has trained to its end with those that were there before" in str(error)


@pytest.mark.parametrize("seed", range(8))
def test_a_newcomer_that_ends_first_ends_alone(seed: int) -> None:
    class Shorter(Logging):
        def __call__(self, one: LoopbackWorker) -> None:
            Logging(rounds=3 if one.id == 2 else 0, every=100)(one)

    job = run(Shorter(), seed=seed)
    assert job.memory.job.state is JobState.FINISHED, job.describe()
    assert {type(error) for error in job.errors.values()} <= {NewcomerDiffers}, job.describe()
    for error in job.errors.values():
        assert "w2 ended the training" in str(error)


@pytest.mark.parametrize("seed", range(8))
def test_a_worker_leaves_at_once_while_a_newcomer_waits_for_the_epoch(seed: int) -> None:
    script = Logging(samples=96, epochs=3, every=5)
    job = LoopbackJob(script, np=3, max_np=6, seed=seed)
    job.after_step(8, lambda job: job.scale({"a": 4}))
    job.after_step(20, lambda job: job.drain(1))
    job.run()
    assert job.memory.job.state is JobState.FINISHED, job.describe()
    script.prove(job.results)
    for generation in job.memory.generations:
        if 1 in generation.left and job.memory.generations[-1].at_epochs:
            assert not (generation.joined and generation.previous and generation.at_epochs)


@pytest.mark.parametrize("seed", range(12))
def test_a_worker_dies_while_a_newcomer_waits_for_the_epoch(seed: int) -> None:
    script = Logging(samples=96, epochs=3, every=5)
    job = LoopbackJob(script, np=3, max_np=6, seed=seed)
    job.after_step(6, lambda job: job.scale({"a": 4}))
    job.after_step(14 + seed, lambda job: job.kill(seed % 3))
    job.run()
    assert job.memory.job.state is JobState.FINISHED, job.describe()
    script.prove(job.results)


@pytest.mark.parametrize("first", range(4))
def test_a_worker_dies_at_each_point_around_the_end_of_such_an_epoch(first: int) -> None:
    script = Logging(samples=48, epochs=3, every=7, at_end=True)
    waited = 0
    for point in range(90 + first, 250, 4):
        job = LoopbackJob(script, np=2, max_np=6, seed=point % 5)
        job.after_step(3, lambda job: job.scale({"a": 3}))
        job.at(point % 2, point, lambda job, dies=point % 2: job.kill(dies))
        job.run()
        assert job.memory.job.state is JobState.FINISHED, job.describe()
        script.prove(job.results)
        waited += job.memory.generations[-1].at_epochs
    assert waited > 10, "in most runs the newcomer steps back"
