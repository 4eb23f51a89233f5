"""Slow workers train a smaller part of each batch, and are replaced: each sample counts once.

Real workers on a loopback ring; the judge is the counting model, which sees a wrong weight of an
uneven batch at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scenarios import SEEDS, Change, Fault, Scenario, faults, sampled, scales, some

from edl.policy.stragglers import Stragglers
from edl.records import JobState
from edl.testing.counting import Counting
from edl.testing.loopback import LoopbackWorker

RULE = Stragglers(patience_steps=10)


@dataclass(frozen=True)
class Uneven(Counting):
    """The counting model where ``slow_worker`` takes ``factor`` times as long for each sample.

    ``until``: the step in which it is as fast as the others again. ``sizes``: its batches.
    """

    batch_size: int = 8
    epochs: int = 1
    slow_worker: int = 1
    factor: float = 4.0
    until: int = 10**9
    sizes: list[int] = field(default_factory=list)

    def cost_s(self, one: LoopbackWorker) -> float:
        worker = one.worker
        part = worker.loader.batch_weight / self.batch_size
        slow = worker.id == self.slow_worker and worker.step < self.until
        if worker.id == self.slow_worker and not worker.warming_up:
            self.sizes.append(worker.loader.batch_weight)
        return 0.1 * self.step_s + self.step_s * part * (self.factor if slow else 1.0)


def test_it_gets_what_it_trains_in_the_time_of_the_others() -> None:
    script = Uneven(samples=2000)
    job = Scenario(np=4, script=script, stragglers=RULE).run()
    assert job.memory.job.state is JobState.FINISHED
    assert script.sizes[:10] == [8] * 10
    assert set(script.sizes[40:-10]) <= {2, 3}
    assert set(script.sizes[-20:-10]) == {2}
    longer = Uneven(samples=2000)
    alone = Scenario(np=4, script=longer).run()
    assert alone.schedule.now_s() > 1.7 * job.schedule.now_s()


def test_one_that_is_as_fast_as_the_others_again_gets_a_whole_batch() -> None:
    script = Uneven(samples=4000, until=60)
    Scenario(np=4, script=script, stragglers=RULE).run()
    assert min(script.sizes[30:60]) == 2
    assert set(script.sizes[120:-10]) == {8}


def test_with_equal_workers_nothing_changes() -> None:
    script = Uneven(samples=1600, factor=1.0)
    Scenario(np=4, script=script, stragglers=RULE).run()
    assert set(script.sizes[:-5]) == {8}


@pytest.mark.parametrize("seed", sampled(range(6)))
def test_another_comes_in_the_switch_in_which_it_leaves(seed: int) -> None:
    script = Uneven(samples=2400)
    changes = (Change(30, replace=1),)
    job = Scenario(seed, np=3, script=script, changes=changes, stragglers=RULE).run()
    [_, switch] = job.memory.generations
    assert (switch.joined, switch.left, len(switch.members)) == ((3,), (1,), 3)
    assert sorted(job.results) == [0, 2, 3]


@given(
    seed=SEEDS,
    np=st.integers(2, 4),
    shards=st.sampled_from([(), (70, 30, 100), (200,)]),
    accumulated=st.sampled_from([1, 1, 2]),
    faults=some(faults("kill", "cut", "freeze", workers=4, points=500), 0, 2),
    changes=some(scales(), 0, 2),
    step=st.integers(5, 30),
)
def test_whatever_happens_meanwhile(
    seed: int,
    np: int,
    shards: tuple[int, ...],
    accumulated: int,
    faults: tuple[Fault, ...],
    changes: tuple[Change, ...],
    step: int,
) -> None:
    samples = sum(shards) or 240
    script = Uneven(samples=samples, shards=shards, accumulated=accumulated)
    changes = (*changes, Change(step, replace=1))
    Scenario(seed, np, script=script, faults=faults, changes=changes, stragglers=RULE).run()
