"""A newcomer whose updates differ from the others' leaves, on a loopback ring: the job goes on.

The workers are edl's own; the judge is the counting model, so each sample counts once nonetheless.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any

import pytest
from counting_judge import judge_finished
from scenarios import struck_around

from edl.errors import DataError, NewcomerDiffers, StepsBack
from edl.events import Event, StateDiffersDetails
from edl.job.script import Arithmetic, ScriptOfJob
from edl.records import JobState
from edl.step.source import SUBSET, Source
from edl.testing.counting import Counting
from edl.testing.loopback import LoopbackJob, LoopbackWorker
from edl.worker.sampler import StreamReader

GROUPS = 50  # steps until all of a state was compared: a newcomer's is, after its first step


@dataclass(frozen=True)
class Differing(Counting):
    """A script that makes another first update on ``strays``, as with another learning rate.

    ``late``: so many steps later.
    """

    samples: int = 144
    epochs: int = 1
    strays: tuple[int, ...] = (2,)
    late: int = 0

    def cost_s(self, one: LoopbackWorker) -> float:
        worker = one.worker
        if worker.id in self.strays and not worker.warming_up:
            joined_after = worker.loader.progress.joined_after
            if worker.step == joined_after + self.late:
                one.model.w[7] += 1
                one.model.before[7] += 1  # the tally is of updates only
        return self.step_s


def of(script: Counting, np: int = 2, **more: Any) -> LoopbackJob:
    settings = {"max_np": 6, "state_check_steps": GROUPS, **more}
    return LoopbackJob(script, np=np, **settings)


def differing(job: LoopbackJob) -> list[Event]:
    return [e for e in job.memory.events if isinstance(e.details, StateDiffersDetails)]


def assert_goes_on(job: LoopbackJob, *departures: int) -> None:
    """All but those have trained to the end, each sample once."""
    assert job.memory.job.state is JobState.FINISHED, job.describe()
    assert job.errors.keys() == set(departures), job.describe()
    assert all(isinstance(error, NewcomerDiffers) for error in job.errors.values())
    script = job._script
    assert isinstance(script, Counting)
    judge_finished(script, job.results)


@pytest.mark.parametrize("np", [1, 2, 3])
@pytest.mark.parametrize("heals", [False, True])
@pytest.mark.parametrize("seed", [0, 3])
def test_it_leaves_before_its_second_update(np: int, heals: bool, seed: int) -> None:
    job = of(Differing(strays=(np,)), np=np, on_divergence="resync" if heals else "end", seed=seed)
    job.after_step(5, lambda job: job.scale({"a": np + 1}))
    job.run()
    assert_goes_on(job, np)
    [event] = differing(job)
    assert event.details == StateDiffersDetails((f"w{np}",))
    assert f"w{np} joined after step {event.step - 1}, and after step {event.step}" in event.reason
    assert isinstance(job.errors[np], StepsBack)
    assert len(job.results) == np == len(job.workers) - 2, "its replacement waits for an epoch"
    sizes = job.results[0].sizes
    assert [size for step, size in sorted(sizes.items()) if size > np] == [np + 1]


def test_of_several_newcomers_those_that_are_right_stay() -> None:
    job = of(Differing(strays=(3,)))
    job.after_step(5, lambda job: job.scale({"a": 5}))
    job.run()
    assert_goes_on(job, 3)
    assert job.results.keys() == {0, 1, 2, 4}


def test_a_replacement_that_differs_leaves_the_survivors() -> None:
    job = of(Differing(strays=(2,)))
    job.after_step(5, lambda job: job.kill(1))
    job.run()
    assert_goes_on(job, 2)
    assert job.results.keys() == {0}


def test_one_that_differs_some_steps_later_leaves_too() -> None:
    job = of(Differing(strays=(2,), late=4), state_check_steps=1)
    job.after_step(5, lambda job: job.scale({"a": 3}))
    job.run()
    assert_goes_on(job, 2)


def test_an_old_worker_that_differs_ends_the_job() -> None:
    job = of(Differing(strays=(0,)), state_check_steps=1)
    job.after_step(5, lambda job: job.scale({"a": 3}))
    job.run()
    assert job.memory.job.state is JobState.FAILED
    assert "the state of w0 differs from that of w1, w2" in job.memory.job.reason


def joining() -> LoopbackJob:
    job = of(Differing(samples=96))
    job.after_step(5, lambda job: job.scale({"a": 3}))
    return job


@pytest.mark.parametrize("fault", ["kill", "cut"])
@pytest.mark.parametrize("worker", [0, 1, 2])
def test_a_fault_at_each_point_of_it(worker: int, fault: str) -> None:
    """The state source, another one or the newcomer itself: those who are left count right."""
    for job in struck_around("edl.digests", joining, worker, fault):
        assert job.memory.job.state is JobState.FINISHED, job.describe()
        script = job._script
        assert isinstance(script, Counting)
        judge_finished(script, job.results)
        assert all(isinstance(error, NewcomerDiffers) for error in job.errors.values())


@dataclass(frozen=True)
class Lacking(Counting):
    """A script whose model on ``strays`` has not what the others have added to it in their loop."""

    samples: int = 144
    epochs: int = 1
    strays: tuple[int, ...] = (2,)

    def __call__(self, one: LoopbackWorker) -> None:
        lacks = one.worker.id in self.strays
        one.worker.describe_model(lambda: {"w": "(1,)"} if lacks else GROWN)
        super().__call__(one)


GROWN = {"w": "(1,)", "lora": "(2,)"}


USUAL = Arithmetic(4, "AVX2")


@dataclass(frozen=True)
class Computing(Lacking):
    """A script whose last worker computes by ``other``, and the job's first ones by ``USUAL``."""

    other: Arithmetic = USUAL

    def __call__(self, one: LoopbackWorker) -> None:
        is_stray = one.worker.id in self.strays
        one.worker.describe_arithmetic(lambda: self.other if is_stray else USUAL)
        super().__call__(one)


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        (Arithmetic(8, "AVX2"), "it computes with 8 threads and the job's workers with 4"),
        (Arithmetic(4, "AVX512"), r"other instructions \(AVX512\) than those of the job's .*AVX2"),
    ],
)
def test_one_that_computes_other_bits_costs_the_others_nothing(
    other: Arithmetic, sentence: str
) -> None:
    job = of(Computing(strays=(2,), other=other), np=2)
    job.memory.script = ScriptOfJob(GROWN, arithmetic=USUAL)
    job.after_step(5, lambda job: job.scale({"a": 3}))
    job.run()
    assert_goes_on(job, 2)
    assert re.search(sentence, str(job.errors[2]))


@pytest.mark.parametrize("np", [1, 2])
def test_one_whose_model_lacks_something_costs_the_others_nothing(np: int) -> None:
    job = of(Lacking(strays=(np,)), np=np)
    job.memory.script = ScriptOfJob(GROWN)
    job.after_step(5, lambda job: job.scale({"a": np + 1}))
    job.run()
    assert_goes_on(job, np)
    assert "the job's model has lora, and this newcomer's has not" in str(job.errors[np])
    assert [each.number for each in job.memory.generations] == [1], "nobody has built a ring"


def test_one_with_another_edl_costs_the_others_nothing() -> None:
    job = of(Counting(samples=144, epochs=1), np=2)
    job.memory.script = ScriptOfJob(protocol=0)  # an older edl does not say
    job.after_step(5, lambda job: job.scale({"a": 3}))
    job.run()
    assert_goes_on(job, 2)
    assert "another version of edl" in str(job.errors[2])
    assert [each.number for each in job.memory.generations] == [1], "nobody has built a ring"


@dataclass(frozen=True)
class Redescribing(Counting, ABC):
    """A script whose description of its data differs on some workers: :meth:`described`."""

    samples: int = 144
    epochs: int = 1

    @abstractmethod
    def described(self, source: Source, worker: int) -> Source:
        """Return the description of worker number ``worker``."""

    def __call__(self, one: LoopbackWorker) -> None:
        worker, attach = one.worker, one.worker.attach_source

        def attach_source(source: Source, reader: StreamReader | None = None) -> None:
            attach(self.described(source, worker.id), reader)

        worker.attach_source = attach_source  # type: ignore[method-assign]
        super().__call__(one)


@dataclass(frozen=True)
class Reordering(Redescribing):
    """A script that orders the samples by a seed of its own on all workers but the first ones.

    ``first``: so many of them.
    """

    first: int = 2

    def described(self, source: Source, worker: int) -> Source:
        return replace(source, seed=100 + worker) if worker >= self.first else source


@dataclass(frozen=True)
class Choosing(Redescribing):
    """A script in which all workers but the first one train on another Subset."""

    def described(self, source: Source, worker: int) -> Source:
        return replace(source, fingerprint=f"{SUBSET} of {source.total} samples ({worker > 0})")


@dataclass(frozen=True)
class Copying(Redescribing):
    """A script whose host has not all of the data yet when worker 2 starts.

    ``change``: the fields that differ there.
    """

    change: tuple[tuple[str, Any], ...] = ()

    def described(self, source: Source, worker: int) -> Source:
        return replace(source, **dict(self.change)) if worker == 2 else source


@pytest.mark.parametrize("np", [1, 2])
def test_one_with_another_order_of_the_samples_is_not_replaced(np: int) -> None:
    """Another start of its script, with a seed from the clock, would have another one, too."""
    job = of(Reordering(first=np), np=np)
    job.after_step(5, lambda job: job.scale({"a": np + 1}))
    job.run()
    assert_goes_on(job, np)
    assert f"the seed of the data loader of w{np} is 10{np} and the job's 7" in str(job.errors[np])
    assert len(job.workers) == np + 1


@pytest.mark.parametrize("script", [Reordering(first=1), Choosing()])
def test_of_the_first_workers_those_with_the_order_and_samples_of_rank_0_go_on(
    script: Redescribing,
) -> None:
    job = of(script, np=3)
    job.run()
    assert_goes_on(job, 1, 2)


def test_one_that_chooses_other_samples_is_told_how_to_choose_them() -> None:
    job = of(Choosing(), np=2)
    job.run()
    assert "random_split() with a generator of a fixed seed" in str(job.errors[1])
    assert len(job.workers) == 2, "another start would choose yet others"


@pytest.mark.parametrize("change", [("fingerprint", "100 lines"), ("total", 100)])
def test_one_with_other_data_is_started_again(change: tuple[str, Any]) -> None:
    job = of(Copying(change=(change,)), min_np=2)
    job.after_step(5, lambda job: job.kill(1))
    job.run()
    assert job.memory.job.state is JobState.FINISHED, job.describe()
    assert {worker: type(error) for worker, error in job.errors.items()} == {2: DataError}
    judge_finished(Copying(), job.results)
    assert job.results.keys() == {0, 3}
