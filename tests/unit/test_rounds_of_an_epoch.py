"""How long an epoch is said to be: as the job began, until a worker trains; then as it is now."""

from __future__ import annotations

from dataclasses import dataclass, field

from edl.binding.loop import BatchSteps
from edl.records import Generation, RingMember
from edl.step.batching import Batching
from edl.testing.counting import CountingBatchSource, CountingModel, source_of, train_step
from edl.testing.loopback import LoopbackJob, LoopbackWorker


def test_an_epoch_is_rounded_up_and_has_the_pieces_of_each_batch() -> None:
    assert Batching(4).iterations(20, 2) == 3
    assert Batching(4, 6).iterations(20, 5) == 4
    assert Batching(global_batch=5).iterations(20, 7) == 4
    assert Batching(4, micro_batch=1).iterations(20, 2) == 12


def test_each_generation_repeats_with_how_many_workers_the_job_began() -> None:
    def generation(number: int, size: int, began_with: int = 0) -> Generation:
        members = tuple(RingMember(n, "a", n, "", 0) for n in range(size))
        return Generation(number, 1, members, 0, (), (), "", began_with=began_with)

    first = generation(1, 2).after(None)
    assert first.began_with == 2
    assert generation(2, 5).after(first).began_with == 2
    assert generation(9, 0).after(first).began_with == 2
    assert generation(5, 3).after(generation(4, 4)).began_with == 4  # an older edl wrote it
    assert Generation.from_json(first.to_json()) == first


@dataclass
class Reading:
    """A script that keeps what an epoch's length is said to be before, in and after its warm-up."""

    samples: int = 48
    shards: tuple[int, ...] = ()
    shared: bool = False
    batching: Batching = field(default_factory=lambda: Batching(2))
    set_up: dict[int, int] = field(default_factory=dict)  # by worker
    warm_up: dict[int, int] = field(default_factory=dict)
    trained: dict[int, dict[int, int]] = field(default_factory=dict)  # by step, then by worker

    def __call__(self, one: LoopbackWorker) -> None:
        worker, loader = one.worker, one.worker.loader
        worker.attach_source(*source_of(self, 0, self.batching))
        self.set_up[worker.id] = loader.iterations_of_epoch
        model = CountingModel(self.samples)
        worker.attach_replica(model)
        feed = CountingBatchSource(worker, 0)
        steps = BatchSteps(worker, feed, lambda: "the batch was not trained")
        for _ in steps.epochs(4):
            while steps.begin():
                if worker.warming_up:
                    self.warm_up[worker.id] = loader.iterations_of_epoch
                assert feed.batch is not None
                one.compute(0.1)
                train_step(worker, one.member, model, model.gradient(feed.batch))
                if not worker.warming_up:
                    self.trained.setdefault(worker.step, {})[worker.id] = loader.iterations_of_epoch
        one.result = True


def test_newcomers_read_what_the_first_workers_read() -> None:
    """Newcomers read the same also when all first workers are gone.

    At each step all read the same, but in one that broke: a worker that completed it before the
    others did is still in the ring with the dead worker.
    """
    script = Reading()
    job = LoopbackJob(script, np=2, max_np=4, seed=3, restart_s=1.0)
    job.after_step(4, lambda job: job.scale({"a": 4}))
    job.after_step(20, lambda job: job.kill(0))
    job.after_step(24, lambda job: job.kill(1))
    job.run()
    assert len(script.set_up) >= 5, job.describe()
    assert {*script.set_up.values()} == {12}
    assert script.warm_up, job.describe()
    assert {*script.warm_up.values()} == {12}
    assert sum(len({*read.values()}) > 1 for read in script.trained.values()) <= 2
    assert {next(iter(read.values())) for read in script.trained.values()} >= {12, 6}


def test_a_job_that_chooses_its_batch_is_as_long_as_with_the_first_one() -> None:
    script = Reading(batching=Batching(batch_range=(4, 16)))
    job = LoopbackJob(script, np=2, max_np=3, seed=1)
    for worker in range(3):  # as a leader's policy does it, if it is one
        job.after_step(3 + worker, lambda job: [w.shared.request_batch(12) for w in job.workers])
    job.after_step(10, lambda job: job.scale({"a": 3}))
    job.run()
    assert script.set_up == dict.fromkeys(script.set_up, 12)
    assert len(script.set_up) == 3, job.describe()
    assert next(iter(script.trained[max(script.trained)].values())) == 4
