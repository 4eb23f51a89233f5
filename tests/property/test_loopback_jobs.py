"""Real workers on a loopback ring: whatever happens, in any order, each sample counts once.

The workers, their switching and the leader's decisions are edl's own; the judge is the counting
model. See `scenarios.py` for how to replay a failure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scenarios import SEEDS, SHORT, Change, Fault, Scenario, faults, points, scales, scripts, some

from edl.records import JobState
from edl.testing.counting import Counting
from edl.testing.loopback import LoopbackJob
from edl.testing.memory import LIMITS

EXCHANGING = Counting(24, exchange_every=1)
ACCUMULATING = {
    "at once": Counting(28, accumulated=3),
    "later": Counting(36, accumulated=3, single=2),
}
FEW = Counting(12, exchange_every=1)  # steps, some fifty points of a worker
MORE = settings(max_examples=2 * settings().max_examples)


@given(seed=SEEDS, np=st.integers(1, 5), script=scripts())
def test_nothing_happens(seed: int, np: int, script: Counting) -> None:
    job = Scenario(seed, np, script=script).run()
    assert job.memory.job.state is JobState.FINISHED
    assert len(job.memory.generations) == 1
    assert len(job.results) == np


@MORE
@given(seed=SEEDS, np=st.integers(1, 4), script=scripts(), changes=some(scales(), 1, 4))
def test_joins_and_leaves(
    seed: int, np: int, script: Counting, changes: tuple[Change, ...]
) -> None:
    """Nobody fails, and the ring is never smaller than the smallest that was asked for."""
    job = Scenario(seed, np, script=script, changes=changes).run()
    assert job.memory.job.state is JobState.FINISHED
    assert not any(g.repairs for g in job.memory.generations[1:])


@MORE
@given(seed=SEEDS, np=st.integers(2, 4), script=scripts(), faults=some(faults("kill"), 1, 2))
def test_a_crash_anywhere(seed: int, np: int, script: Counting, faults: tuple[Fault, ...]) -> None:
    Scenario(seed, np, script=script, faults=faults).run()


@pytest.mark.parametrize("worker", range(3))
def test_a_crash_at_each_point_of_the_start_and_of_a_step(worker: int) -> None:
    """The first exchange of the job's state included. Nobody else fails."""
    for point in points(1, 41, turn=worker):
        for seed in (0, 1):
            job = Scenario(seed, script=FEW, faults=(Fault(worker, point, "kill"),)).run()
            assert job.memory.job.state is JobState.FINISHED


@pytest.mark.parametrize("what", ["cut", "fail"])
@pytest.mark.parametrize("worker", range(3))
def test_a_broken_ring_at_each_point_costs_nobody(worker: int, what: str) -> None:
    """Some have the result of a collective and some have not; all go on together."""
    for point in points(1, 41, turn=worker):
        for seed in (0, 1):
            job = Scenario(seed, script=FEW, faults=(Fault(worker, point, what),)).run()
            assert job.memory.job.state is JobState.FINISHED
            assert len(job.results) == 3


@pytest.mark.parametrize("script", ACCUMULATING.values(), ids=ACCUMULATING)
@pytest.mark.parametrize("what", ["kill", "cut", "fail"])
@pytest.mark.parametrize("worker", range(3))
def test_a_fault_at_each_point_of_a_step_of_several_batches(
    worker: int, what: str, script: Counting
) -> None:
    """Also of the first one, in which all learn that gradients are accumulated."""
    for point in points(1, 61, turn=worker):
        job = Scenario(point % 2, script=script, faults=(Fault(worker, point, what),)).run()
        assert job.memory.job.state is JobState.FINISHED
        assert what == "kill" or len(job.results) == 3


@pytest.mark.parametrize("single", [0, 2])
def test_nobody_waits_for_leases_in_a_step_of_several_batches(single: int) -> None:
    """Else it would have padding, while there are samples that nobody has.

    Only the first such step may come as a surprise.
    """
    script = Counting(264, batch_size=2, accumulated=8, single=single)
    job = Scenario(np=2, script=script).run()
    least = sum(-(-samples // 32) for samples in (264 - 4 * single, 264))
    surprise = bool(single)
    assert {result.steps for result in job.results.values()} == {single + surprise + least}


@MORE
@given(seed=SEEDS, np=st.integers(2, 4), faults=some(faults("kill", "cut", "fail"), 1, 3))
def test_exchanges_between_steps(seed: int, np: int, faults: tuple[Fault, ...]) -> None:
    """Everybody is told the same, whoever had the answer when the ring broke."""
    Scenario(seed, np, script=EXCHANGING, faults=faults).run()


@MORE
@given(
    seed=SEEDS,
    np=st.integers(1, 3),
    changes=some(scales(), 1, 3),
    faults=some(faults("kill", "cut", "fail", "delay"), 1, 3),
)
def test_crashes_while_the_ring_changes(
    seed: int, np: int, changes: tuple[Change, ...], faults: tuple[Fault, ...]
) -> None:
    """In a switch, in the repair of another crash, as a newcomer, as the leader."""
    Scenario(seed, np, changes=changes, faults=faults).run()


@given(
    seed=SEEDS,
    faults=some(faults("kill", "fail", workers=3), 1, 3),
    restart_s=st.sampled_from([0.0, 5.0]),
)
@example(seed=0, faults=(Fault(2, 46, "kill"),), restart_s=5.0)
@example(seed=0, faults=(Fault(0, 35, "kill"), Fault(1, 55, "kill")), restart_s=0.0)
@example(seed=0, faults=(Fault(0, 35, "kill"), Fault(1, 67, "kill")), restart_s=0.0)
def test_below_min_np_it_pauses(seed: int, faults: tuple[Fault, ...], restart_s: float) -> None:
    """The step in which somebody died is completed; no other one before replacements are here."""
    script = Counting(24, epochs=3)
    scenario = Scenario(seed, 3, 3, 3, script, faults, restart_s=restart_s)
    job = scenario.run()
    sizes: dict[int, int] = {}
    for result in job.results.values():
        sizes |= {s: max(size, sizes.get(s, 0)) for s, size in result.sizes.items()}
    small = [step for step, size in sizes.items() if 0 < size < 3]
    repairs = [g for g in job.memory.generations[1:] if g.repairs]
    assert len(small) <= len(repairs)


def test_below_min_np_after_a_step_that_one_has_missed() -> None:
    """One survivor is in the next step then, the other between two: neither waits for the other."""
    missed, seeds = 0, points(1, 101)
    for seed in seeds:
        faults = (Fault(seed % 3, 30 + 7 * seed % 90, "kill"),)
        job = Scenario(seed, 3, 3, 3, Counting(24, epochs=3), faults).run()
        missed += any(0 in result.sizes.values() for result in job.results.values())
    assert missed * 20 >= len(seeds)


@given(
    seed=SEEDS,
    np=st.integers(1, 3),
    moved=st.integers(1, 3),
    step=st.integers(0, 5),
    faults=some(faults("kill", "cut", "fail"), 0, 2),
)
def test_a_migration(seed: int, np: int, moved: int, step: int, faults: tuple[Fault, ...]) -> None:
    """Workers move to another host; without faults the ring is never smaller meanwhile."""
    moved = min(moved, np)
    move = Change(step, a=np - moved, b=moved)
    job = Scenario(seed, np, max_np=np, changes=(move,), faults=faults, script=Counting(40)).run()
    if not faults:
        assert job.memory.job.state is JobState.FINISHED
        assert min(len(g.members) for g in job.memory.generations) >= np


@given(
    seed=SEEDS, np=st.integers(2, 4), faults=some(faults("freeze"), 1, 1), more=some(faults(), 0, 2)
)
def test_a_frozen_worker(
    seed: int, np: int, faults: tuple[Fault, ...], more: tuple[Fault, ...]
) -> None:
    """It is given up, and does no harm when it wakes."""
    Scenario(seed, np, faults=(*faults, *more)).run()


@given(
    seed=SEEDS,
    np=st.integers(1, 4),
    away_s=st.sampled_from([0.3, 3.0, 20.0]),
    step=st.integers(0, 6),
    faults=some(faults("expire", "kill"), 0, 3),
)
def test_zookeeper_is_away(
    seed: int, np: int, away_s: float, step: int, faults: tuple[Fault, ...]
) -> None:
    """The ring goes on meanwhile; what broke is repaired afterwards."""
    away = Change(step, zookeeper_s=away_s)
    job = Scenario(seed, np, changes=(away,), faults=faults).run()
    if not any(fault.what == "kill" for fault in faults):
        assert len(job.memory.generations) == 1


@given(
    seed=SEEDS,
    np=st.integers(1, 4),
    worker=st.integers(0, 4),
    step=st.integers(0, 6),
    changes=some(scales(), 0, 1),
)
def test_a_drain(seed: int, np: int, worker: int, step: int, changes: tuple[Change, ...]) -> None:
    job = Scenario(seed, np, changes=(Change(step, drain=worker), *changes)).run()
    assert job.memory.job.state is JobState.FINISHED


@given(
    seed=SEEDS,
    np=st.integers(1, 4),
    step=st.integers(1, 6),
    faults=some(faults("kill", "cut", "fail"), 0, 2),
)
def test_a_stop(seed: int, np: int, step: int, faults: tuple[Fault, ...]) -> None:
    """All leave after the same step, and none is counted twice."""
    Scenario(seed, np, changes=(Change(step, stop=True),), faults=faults).run()


@MORE
@given(
    seed=SEEDS,
    np=st.integers(1, 4),
    min_np=st.integers(1, 3),
    script=scripts(),
    changes=some(scales() | st.builds(Change, st.integers(0, 8), drain=st.integers(0, 5)), 0, 4),
    faults=some(faults(), 0, 5),
    restart_s=st.sampled_from([0.0, 0.5]),
)
def test_everything_at_once(
    seed: int,
    np: int,
    min_np: int,
    script: Counting,
    changes: tuple[Change, ...],
    faults: tuple[Fault, ...],
    restart_s: float,
) -> None:
    Scenario(seed, np, min_np, 5, script, faults, changes, restart_s).run()


@pytest.mark.parametrize("worker", range(3))
def test_who_comes_back_with_the_state_of_the_job_receives_no_bytes(worker: int) -> None:
    """A ring breaks, and nobody has missed a step: the next one begins without an exchange."""

    def exchanged(job: LoopbackJob) -> int:
        return sum(point.name.startswith("edl.state") for point in job.passed)

    whole = exchanged(Scenario(script=FEW).run())
    unchanged, places = 0, points(1, 41, turn=worker)
    for point in places:
        job = Scenario(script=FEW, faults=(Fault(worker, point, "cut"),)).run()
        repairs = job.memory.generations[1:]
        if repairs and not any(generation.joined for generation in repairs):
            unchanged += 1
            assert exchanged(job) == whole
    assert unchanged * 8 >= len(places)


def test_a_step_of_a_full_ring_that_a_survivor_missed() -> None:
    """Each of four workers has a sample, more than may be in a step; the survivor lost its ring."""
    deaths = Fault(2, 71, "kill"), Fault(4, 27, "expire"), Fault(3, 57, "kill")
    script = Counting(24, 2, 1, 0, 1, max_global_batch=2)
    job = Scenario(21095, 4, script=script, faults=deaths).run()
    assert 0 in job.results[0].sizes.values()
    assert job.results[0].largest == 4


@pytest.mark.parametrize("seed", [4, 8])
def test_newcomers_have_the_state_and_nobody_could_say_so(seed: int) -> None:
    """ZooKeeper is away when they switch; when it is back, the only old worker is dead."""
    short = Counting(12, batch_size=2, prefetch_batches=1)
    changes = (Change(3, b=2), Change(4, zookeeper_s=20.0))
    for point in points(40, 90, step=2, turn=1):
        Scenario(seed, 1, script=short, changes=changes, faults=(Fault(0, point, "kill"),)).run()


@dataclass(frozen=True)
class InThePlanAfter(Fault):
    """Kills w0 once generation 2 was replaced by another that has it as its only old member."""

    def __call__(self, job: LoopbackJob) -> None:
        planned = job.memory.generation
        if planned is not None and planned.number == 3 and planned.state_source == 0:
            job.kill(0)


@pytest.mark.parametrize("dies", [1, 2])
def test_a_newcomer_has_the_state_of_a_ring_that_was_replaced(dies: int) -> None:
    """The other newcomer dies in it before anybody says that it switched; then the old worker."""
    short = Counting(12, batch_size=2, prefetch_batches=1)
    waiting = tuple(InThePlanAfter(3 - dies, point, "kill") for point in range(17, 26))
    for seed in points(5000, 5100, turn=dies):
        faults = (Fault(dies, 17 + seed % 5, "kill"), *waiting)
        Scenario(seed, 1, script=short, changes=(Change(3, b=2),), faults=faults).run()


AWAY_S = LIMITS.report_s + 5.0


@dataclass(frozen=True)
class AwayBeforeAllReport(Fault):
    """Takes ZooKeeper away once the leader has read that a ring broke, and not yet from all."""

    def __call__(self, job: LoopbackJob) -> None:
        read = job.memory.reasons[-1:]
        if job.schedule.now_s() < AWAY_S and "did not report yet" in "".join(r for _, r in read):
            job.disconnect(AWAY_S)


def test_who_could_not_report_while_zookeeper_was_away_is_not_given_up() -> None:
    short = Counting(24, batch_size=2, prefetch_batches=1)
    evicted, outages, seeds = [], 0, points(1, 101)
    for seed in seeds:
        dies = Fault(2, 10 + seed % 40, "kill")
        away = tuple(AwayBeforeAllReport(w, p, "") for w in (0, 1) for p in range(10, 80))
        job = Scenario(seed, 3, script=short, faults=(dies, *away)).run()
        outages += job.schedule.now_s() > AWAY_S
        evicted += [reason for w, reason in job.memory.evicted.items() if w != dies.worker]
    assert outages * 5 >= len(seeds)
    assert not evicted


@pytest.mark.parametrize("script", [SHORT, EXCHANGING], ids=["steps", "exchanges"])
@pytest.mark.parametrize("worker", range(3))
def test_a_worker_whose_collectives_all_fail_ends_the_job(worker: int, script: Counting) -> None:
    """It stays alive, so no repair would ever help."""
    job = LoopbackJob(script, np=3, seed=worker, elastic_timeout_s=1.0)
    for point in range(60, 2000):
        job.at(worker, point, Fault(worker, point, "fail"))
    job.run()
    assert job.memory.job.state is JobState.FAILED, job.describe()
    said = "the ring was repaired [0-9]+ times after step [0-9]+ and broke again each time, "
    assert re.match(f"{said}although no worker was lost: ", job.memory.job.reason), job.describe()
    assert not job.results
