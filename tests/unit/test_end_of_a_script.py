"""Where a training ends that trains no whole epochs: by steps, inside an epoch, or unevenly."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings

from edl.binding.loop import BatchSteps, asked_length
from edl.config import Config
from edl.errors import CheckpointError, JobFailed, JobTrained, NewcomerDiffers, UsageError
from edl.events import EpochLeftDetails
from edl.records import JobState
from edl.ring.loopback import LoopbackNetwork
from edl.step.batching import Batching
from edl.step.record import EpochLeft, ended_by_count, ended_by_script
from edl.step.source import Source
from edl.testing.counting import CountingBatchSource, CountingModel, source_of, train_step
from edl.testing.loopback import LoopbackJob, LoopbackWorker
from edl.worker.coordinator import JobOfOne
from edl.worker.shared_state import SharedState
from edl.worker.worker import Worker

SAMPLES, LIMIT = 24, 10  # of an epoch; steps of the job, in the midst of one


@dataclass
class Script:
    """A script that trains the counting model; ``way`` takes the batches, and trains some."""

    way: Callable[[Script, BatchSteps, LoopbackWorker], None]
    samples: int = SAMPLES
    shards: tuple[int, ...] = ()
    shared: bool = False
    counts: dict[int, list[int]] = field(default_factory=dict)  # of samples, by worker
    steps: dict[int, int] = field(default_factory=dict)  # made at the end, by worker

    def __call__(self, one: LoopbackWorker) -> None:
        worker = one.worker
        worker.attach_source(*source_of(self, 0, Batching(2)))
        one.model = model = CountingModel(self.samples)
        worker.attach_replica(model)
        steps = BatchSteps(
            worker, CountingBatchSource(worker, 0), lambda: "the batch was not trained"
        )
        self.way(self, steps, one)
        self.counts[worker.id] = model.count.tolist()
        self.steps[worker.id] = worker.step
        assert not model.wrong
        one.result = True

    def train(self, steps: BatchSteps, one: LoopbackWorker) -> None:
        """Make the update of the current batch."""
        feed = steps._feed
        assert isinstance(feed, CountingBatchSource)
        assert feed.batch is not None
        one.compute(0.1)
        train_step(one.worker, one.member, one.model, one.model.gradient(feed.batch))


def by_max_steps(script: Script, steps: BatchSteps, one: LoopbackWorker) -> None:
    for _ in steps.epochs(max_steps=LIMIT):
        while steps.begin():
            script.train(steps, one)


def forever(steps: BatchSteps) -> Iterator[int]:
    for _ in steps.epochs(10**6):
        while steps.begin():
            yield 0


def by_the_jobs_count(script: Script, steps: BatchSteps, one: LoopbackWorker) -> None:
    batches = forever(steps)
    while one.worker.step < LIMIT:
        next(batches)
        script.train(steps, one)


def with_a_batch_in_hand(script: Script, steps: BatchSteps, one: LoopbackWorker) -> None:
    for _ in forever(steps):
        if one.worker.step >= LIMIT:
            break
        script.train(steps, one)


def by_its_own_count(script: Script, steps: BatchSteps, one: LoopbackWorker) -> None:
    batches = forever(steps)
    for _ in range(LIMIT):
        next(batches)
        script.train(steps, one)


def by_its_own_count_with_a_batch_in_hand(
    script: Script, steps: BatchSteps, one: LoopbackWorker
) -> None:
    for number, _ in enumerate(forever(steps)):
        if number >= LIMIT:
            break
        script.train(steps, one)


def by_its_own_count_and_the_others_exchange(
    script: Script, steps: BatchSteps, one: LoopbackWorker
) -> None:
    batches = forever(steps)
    for _ in range(LIMIT):
        next(batches)
        script.train(steps, one)
        if one.worker.step == LIMIT and one.id == 2:
            one.worker.exchange([1.0])


def by_a_length_from_before(script: Script, steps: BatchSteps, one: LoopbackWorker) -> None:
    length = one.worker.loader.iterations_of_epoch
    for _ in steps.epochs(2):
        for _ in range(length):
            if not steps.begin():
                break
            script.train(steps, one)


def by_request(asks: Callable[[LoopbackWorker], bool]) -> Callable[..., None]:
    """Return a way that stops as the hooks of TensorFlow 1 do, where ``asks`` wants it."""

    def way(script: Script, steps: BatchSteps, one: LoopbackWorker) -> None:
        loader, batches = one.worker.loader, forever(steps)
        for _ in batches:
            script.train(steps, one)
            if loader.progress.stop:
                return
            if asks(one):
                loader.wants_to_stop = True
                next(batches)
                if loader.all_stop():
                    return
                script.train(steps, one)
                assert loader.progress.stop
                return

    return way


by_request_of_all = by_request(lambda one: one.worker.step >= LIMIT)
by_request_of_one = by_request(
    lambda one: one.worker.step >= LIMIT - 1 and one.worker.rank == one.worker.size - 1
)
EVEN = [by_max_steps, by_the_jobs_count, with_a_batch_in_hand, by_request_of_all, by_request_of_one]


def prove(job: LoopbackJob, script: Script) -> None:
    """All have ended after the same step, with the same samples, none of them twice an epoch."""
    assert job.memory.job.state is JobState.FINISHED, job.describe()
    assert not job.errors, job.describe()
    ended = [one.id for one in job.workers if one.result is not None and one.error is None]
    (steps,) = {script.steps[worker] for worker in ended}
    # Who asks may die before the others know: another one asks after its next step.
    assert LIMIT <= steps <= LIMIT + (script.way is by_request_of_one)
    (counts,) = {tuple(script.counts[worker]) for worker in ended}
    assert max(counts) - min(counts) <= 1


@pytest.mark.parametrize("way", EVEN)
def test_all_end_after_the_same_step_of_the_job_inside_an_epoch(
    way: Callable[[Script, BatchSteps, LoopbackWorker], None],
) -> None:
    """Newcomers, too, and with a death on the way."""
    script = Script(way)
    job = LoopbackJob(script, np=2, max_np=4, seed=5)
    job.after_step(2, lambda job: job.scale({"a": 3}))
    job.after_step(7, lambda job: job.kill(0))
    job.run()
    prove(job, script)
    assert len(script.steps) >= 2, job.describe()
    reason = job.memory.job.reason
    assert reason.startswith("trained 10 steps; "), reason
    assert f" of {SAMPLES} samples of " in reason
    assert not [each for each in job.memory.events if isinstance(each.details, EpochLeftDetails)]


@pytest.mark.parametrize("way", EVEN)
def test_a_death_at_each_point_of_the_end(
    way: Callable[[Script, BatchSteps, LoopbackWorker], None],
) -> None:
    """In `make test` it is each third point, another third for each worker."""
    whole = LoopbackJob(Script(way), np=3, seed=2)
    whole.run()
    part = 3 if settings.get_current_profile_name() == "ci" else 1
    for worker in range(3):
        last = whole.workers[worker].points
        for point in range(last - 14 + worker % part, last + 1, part):
            script = Script(way)
            job = LoopbackJob(script, np=3, seed=2)
            job.at(worker, point, lambda job, worker=worker: job.kill(worker))  # type: ignore[misc]
            job.run()
            prove(job, script)


def by_a_file_of_its_own(script: Script, steps: BatchSteps, one: LoopbackWorker) -> None:
    begun = 2 if one.worker.warming_up else 0  # the epochs that the file says, rewritten meanwhile
    for _ in steps.epochs(3 - begun, max_steps=100 - begun):
        while steps.begin():
            script.train(steps, one)


def test_a_newcomer_trains_as_long_as_the_job_does(caplog: pytest.LogCaptureFixture) -> None:
    """Whatever it asks for: a newcomer that ended at once would end the job of all."""
    script = Script(by_a_file_of_its_own)
    job = LoopbackJob(script, np=2, max_np=3, seed=1)
    job.after_step(8, lambda job: job.scale({"a": 3}))
    job.run()
    assert job.memory.job.state is JobState.FINISHED, job.describe()
    assert len(set(script.steps.values())) == 1, script.steps
    assert {tuple(each) for each in script.counts.values()} == {(3,) * SAMPLES}
    words = (
        "w2 trains as long as the job does: 3 epochs, at most 100 updates; its script asks for "
        "1 epoch, at most 98 updates. "
    )
    assert [each.startswith(words) for each in caplog.messages].count(True) == 1, caplog.messages


@pytest.mark.parametrize("joins", [0, 1])
def test_a_count_of_a_workers_own_ends_the_job_with_those_of_the_start(joins: int) -> None:
    """A newcomer has made fewer steps, and ends with them."""
    script = Script(by_its_own_count)
    job = LoopbackJob(script, np=2, max_np=3, seed=joins)
    if joins:
        job.after_step(3, lambda job: job.scale({"a": 3}))
    job.run()
    if not joins:
        prove(job, script)
        return
    prove_that_the_newcomer_ended_with_the_job(job, script)


def prove_that_the_newcomer_ended_with_the_job(job: LoopbackJob, script: Script) -> None:
    assert job.memory.job.state is JobState.FINISHED, job.describe()
    assert script.steps == {0: LIMIT, 1: LIMIT}
    [(worker, error)] = job.errors.items()
    assert (worker, type(error)) == (2, JobTrained)
    assert f"after step {LIMIT} w0, w1 ended the training while w2 " in str(error)


@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_who_ends_with_a_batch_in_hand_frees_the_others(seed: int) -> None:
    """They wait for its gradients, in a collective that it does not take part in."""
    script = Script(by_its_own_count_with_a_batch_in_hand)
    job = LoopbackJob(script, np=2, max_np=3, seed=seed)
    job.after_step(3, lambda job: job.scale({"a": 3}))
    job.run()
    prove_that_the_newcomer_ended_with_the_job(job, script)


def test_who_ends_while_others_exchange_numbers_frees_them() -> None:
    script = Script(by_its_own_count_and_the_others_exchange)
    job = LoopbackJob(script, np=2, max_np=3, seed=1)
    job.after_step(3, lambda job: job.scale({"a": 3}))
    job.run()
    prove_that_the_newcomer_ended_with_the_job(job, script)
    assert "w2 called edl.exchange() at" in str(job.errors[2])


def test_an_epoch_that_all_leave_too_early_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """Samples that were left out are counted, and warned of once."""
    script = Script(by_a_length_from_before)
    job = LoopbackJob(script, np=4, min_np=1, max_np=4, seed=1)
    job.after_step(0, lambda job: job.scale({"a": 2}))
    with caplog.at_level(logging.WARNING):
        job.run()
    told = [each for each in job.memory.events if isinstance(each.details, EpochLeftDetails)]
    assert len(told) == 2, job.describe()
    (counts,) = {tuple(each) for each in script.counts.values()}
    missed = [each.details.untrained for each in told]  # type: ignore[attr-defined]
    assert sum(missed) == 2 * SAMPLES - sum(counts)
    assert np.all(np.array(missed) > 0)
    warnings = [each for each in caplog.messages if "train by steps, loader.steps(n)" in each]
    assert len(warnings) == 1
    assert "; " in job.memory.job.reason
    assert f"of {SAMPLES} samples of epoch 1 are trained; " in job.memory.job.reason
    words = f"; {sum(missed)} samples of epochs that all workers left early are not trained"
    assert job.memory.job.reason.endswith(words)


def test_a_script_that_may_not_end_there_fails_the_job() -> None:
    """No worker is taken for finished."""

    def ends(script: Script, steps: BatchSteps, one: LoopbackWorker) -> None:
        by_the_jobs_count(script, steps, one)

        def refuse() -> None:
            raise UsageError("it may not end here")

        one.worker.finishing.check_end = refuse

    job = LoopbackJob(Script(ends), np=2, seed=1)
    job.run()
    assert job.memory.job.state is JobState.FAILED, job.describe()
    assert job.memory.job.reason == "it may not end here"
    assert all(isinstance(each, JobFailed) for each in job.errors.values()), job.errors


def test_a_newcomer_may_end_alone_after_it_has_joined() -> None:
    """Its script has stopped in an epoch that the job has behind it; the others train on."""

    def ends(script: Script, steps: BatchSteps, one: LoopbackWorker) -> None:
        def refuse() -> None:
            if one.id == 2:
                raise NewcomerDiffers("it has stopped in an epoch of the past")

        one.worker.finishing.check_end = refuse
        batches = forever(steps)
        while one.worker.step < (2 if one.id == 2 else 4) * LIMIT:
            next(batches)
            script.train(steps, one)

    job = LoopbackJob(Script(ends), np=2, max_np=3, seed=1)
    job.after_step(2, lambda one: one.scale({"a": 3}))
    job.run()
    assert job.memory.job.state is JobState.FINISHED, job.describe()
    assert isinstance(job.errors[2], NewcomerDiffers), job.describe()
    assert job.results == {0: True, 1: True, 2: True}, job.describe()
    assert [job.workers[n].worker.step for n in (0, 1, 2)] == [4 * LIMIT, 4 * LIMIT, 2 * LIMIT]


def job_of_one() -> Worker:
    """Return the worker of a job without a launcher, before its first step."""
    worker = Worker(Config(), LoopbackNetwork().ring(0), SharedState(), JobOfOne(Config()))
    worker.start()
    return worker


def train_a_batch(worker: Worker) -> None:
    worker.attach_source(Source(100, Batching(4), True, 7, 0))
    worker.begin()
    batch = worker.loader.sampler.form(worker.loader.ledger)
    assert batch is not None
    worker.loader.begin(batch)
    worker.loader.records()
    worker.loader.end()


def test_a_signal_ends_a_job_of_one_that_has_trained_once_its_checkpoint_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There is no launcher that would end a script that evaluates for an hour."""
    worker = job_of_one()
    train_a_batch(worker)
    asked: list[BaseException | None] = []

    def signalled(*_: object) -> str:
        try:
            worker.request_leave()
        except SystemExit as error:
            asked.append(error)
        else:
            asked.append(None)
        return ""

    monkeypatch.setattr(type(worker.checkpointing), "saves", property(lambda self: True))
    monkeypatch.setattr(worker.loader, "save_together", signalled)
    worker.finishing.finish()
    assert asked == [None], "it is writing its last checkpoint"
    with pytest.raises(SystemExit) as ended:
        worker.request_leave()
    assert ended.value.code == 143


def test_a_job_of_one_ends_with_the_same_words() -> None:
    worker = job_of_one()
    worker.finishing.script_ended()
    assert not worker.finished, "training has not begun"
    train_a_batch(worker)
    worker.finishing.script_ended()
    worker.finishing.script_ended()  # harmless twice
    event = worker._shared.next_event()
    assert event is not None
    assert (
        event.reason
        == "trained 1 steps; the script ended in epoch 0, with 4 of 100 samples of it trained"
    )


@pytest.mark.parametrize(
    ("leaves_its_loop", "is_told_to_leave"), [(True, False), (True, True), (False, False)]
)
def test_a_job_of_one_without_its_last_checkpoint_fails_when_its_script_has_ended(
    tmp_path: Path, leaves_its_loop: bool, is_told_to_leave: bool
) -> None:
    """So its process ends with 1, as with a launcher."""
    worker = job_of_one()
    worker.finishing.told_to_leave = is_told_to_leave
    worker.attach_replica(CountingModel(100))
    worker.checkpointing.attach(tmp_path / "saved", 1000.0, 1)
    train_a_batch(worker)
    (tmp_path / "saved").rename(tmp_path / "gone")
    (tmp_path / "saved").write_text("no directory")
    if leaves_its_loop:
        worker.finishing.finish(early=True)  # the script goes on: it may evaluate
    with pytest.raises(CheckpointError, match=r"the job trained 1 steps.*, but the checkpoint of"):
        worker.finishing.script_ended()
    worker.finishing.script_ended()  # said once


def test_how_much_of_an_epoch_is_trained_in_words() -> None:
    left = EpochLeft(3, 752, 960, is_over=False)
    assert str(left) == "epoch 3 was left with 752 of 960 samples trained; 208 were not"
    assert left.untrained == 208
    assert ended_by_count(left) == "; 752 of 960 samples of epoch 3 are trained"
    assert ended_by_script(left) == (
        "; the script ended in epoch 3, with 752 of 960 samples of it trained"
    )
    whole = EpochLeft(2, 960, 960, is_over=True)
    assert (ended_by_count(whole), whole.untrained) == ("", 0)
    assert ended_by_script(whole) == "; the script ended after epoch 2"
    stream = EpochLeft(0, 12, 0, is_over=False)
    assert str(stream) == "epoch 0 was left with 12 samples trained"
    assert stream.untrained == 0


@pytest.mark.parametrize(
    ("count", "steps", "words"),
    [
        (None, None, "does not say how long to train"),
        (None, 0, "the number of steps is 0; it must be a whole number, 1 or more"),
        (3, 2.5, "the number of steps is 2.5"),
        (3, True, "the number of steps is True"),
    ],
)
def test_a_length_that_cannot_be(count: int | None, steps: int | None, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        asked_length("loader.epochs()", count, steps)
    asked_length("loader.epochs()", 3, None)
    asked_length("loader.steps()", None, int(np.int64(4)))
