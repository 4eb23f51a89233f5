"""The states of scripts for Horovod Elastic are compared as they are saved, on a loopback ring.

The workers and the wrapper of the script's function are edl's own. The judge is a plain loop: with
the same weights on all workers the mean gradient does not depend on their number.
"""

from __future__ import annotations

import logging
import pickle
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

import numpy as np
import pytest
from scenarios import struck_around

from edl.binding import elastic
from edl.binding.elastic import Plain, State
from edl.binding.replica import ByteRange, of_array
from edl.errors import JobFailed, NewcomerDiffers, RingBroken, StateDiffers
from edl.events import StateDiffersDetails
from edl.records import JobState
from edl.ring.ring import Ring
from edl.testing.loopback import LoopbackJob, LoopbackWorker
from edl.worker.worker import Worker

BATCHES, PER_SAVE, RATE = 60, 3, 0.1
WORKERS: dict[int, Worker] = {}  # by thread: all workers are in this process


@pytest.fixture(autouse=True)
def in_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elastic, "current_worker", lambda: WORKERS[threading.get_ident()])
    monkeypatch.setattr(elastic, "let_state_follow", lambda _name: None)


class Weights(State):
    """A state of one array of weights, and the number of the batch."""

    batch: int

    def __init__(self) -> None:
        self.w = np.ones(40)
        super().__init__(batch=0)

    def learning_rates(self) -> dict[str, float]:
        return {}

    def _trained(self) -> dict[str, Any]:
        return {"w": self.w}

    @staticmethod
    def _size_of(value: Any) -> int | None:
        return value.nbytes if isinstance(value, np.ndarray) else None

    def _digested(self, parts: Iterable[ByteRange]) -> dict[str, int]:
        return {part.name: of_array(part.value, part.start, part.stop) or 0 for part in parts}

    def _parts(self) -> set[str]:
        return {"batch", "w"}

    def _values(self) -> dict[str, Any]:
        return {"batch": Plain(self.batch), "w": self.w}

    def _put(self, values: dict[str, Any]) -> None:
        self.batch, self.w = values["batch"].value, values["w"].copy()

    def _copied(self, values: dict[str, Any]) -> dict[str, Any]:
        return {**values, "w": values["w"].copy()}

    def _exchanged(self, ring: Ring, root: int, values: dict[str, Any] | None, keep: bool) -> Any:
        return pickle.loads(ring.broadcast(pickle.dumps(values), root, "edl.state"))


class CollectiveFailed(RuntimeError):
    """What a framework's collective raises when the ring breaks."""


def one_update(w: np.ndarray[Any, Any], mean: float) -> np.ndarray[Any, Any]:
    changed: np.ndarray[Any, Any] = w - RATE * (w - mean)
    return changed


@dataclass(frozen=True)
class Script:
    """``strays`` change a weight after their first update in the ring, and ``from_batch`` on.

    ``own``: each worker trains weights of its own. ``resets``: a callback of each new ring has a
    collective, which fails in the first ``fails`` rings of each worker, without a death.
    ``fails_at``: the number of a batch whose collective always fails.
    """

    strays: tuple[int, ...] = ()
    from_batch: int = 0
    own: bool = False
    resets: bool = False
    fails: int = 0
    fails_at: int = -1

    def __call__(self, one: LoopbackWorker) -> None:
        worker = WORKERS[threading.get_ident()] = one.worker
        state, strayed = Weights(), False

        def train(state: Weights) -> None:
            nonlocal strayed
            while state.batch < BATCHES:
                one.compute(0.1)
                if state.batch == self.fails_at and not worker.warming_up:
                    raise CollectiveFailed("it fails in each ring")
                sums = worker.ring.exchange(repr(float(state.w.sum())).encode())
                mean = sum(map(float, sums)) / len(sums) / len(state.w)
                state.w = one_update(state.w, mean + 1.0)
                worker.script.beat()
                strays = worker.id in self.strays and not strayed and state.batch >= self.from_batch
                if not worker.warming_up and (self.own or strays):
                    state.w[7] += 1.0 + worker.id
                    strayed = True
                state.batch += 1
                if state.batch % PER_SAVE == 0:
                    state.commit()

        if self.resets:
            state.register_reset_callbacks([partial(self.reset, worker, count(1))])
        elastic.run(train, (CollectiveFailed,), str, "Weights")(state)
        one.result = state.w

    def reset(self, worker: Worker, rings: Iterator[int]) -> None:
        """Take part in a collective of the next of the rings, which are numbered."""
        if next(rings) <= self.fails:
            raise CollectiveFailed("it fails in each ring")
        try:
            if not worker.ring.alone:
                worker.ring.broadcast(b"", 0, "edl.reset")
        except RingBroken as error:
            raise CollectiveFailed(str(error)) from error


def expected() -> np.ndarray[Any, Any]:
    w = np.ones(40)
    for _ in range(BATCHES):
        w = one_update(w, float(w.sum()) / len(w) + 1.0)
    return w


def assert_right(job: LoopbackJob, *departures: int) -> None:
    assert job.memory.job.state is JobState.FINISHED, job.describe()
    assert job.errors.keys() <= set(departures), job.describe()
    assert all(isinstance(error, NewcomerDiffers) for error in job.errors.values())
    assert job.results
    for w in job.results.values():
        np.testing.assert_allclose(w, expected(), rtol=1e-12)


def of(script: Script, np: int = 2, **more: Any) -> LoopbackJob:
    return LoopbackJob(script, np=np, max_np=4, **{"state_check_steps": 500, **more})


@pytest.mark.parametrize("np", [1, 2])
@pytest.mark.parametrize("seed", [0, 3])
def test_a_newcomer_that_differs_leaves_and_the_others_go_back_to_its_join(
    np: int, seed: int
) -> None:
    job = of(Script(strays=(np,)), np=np, seed=seed)
    job.after_step(5, lambda job: job.scale({"a": np + 1}))
    job.run()
    assert_right(job, np)
    assert job.errors.keys() == {np}
    [event] = [e for e in job.memory.events if isinstance(e.details, StateDiffersDetails)]
    assert event.details == StateDiffersDetails((f"w{np}",))
    assert f"w{np} joined after save" in event.reason
    assert "differs from that of w0" in event.reason
    assert "hvd.size()" in event.reason


def test_one_that_is_right_stays() -> None:
    job = of(Script())
    job.after_step(5, lambda job: job.scale({"a": 3}))
    job.run()
    assert_right(job)
    assert len(job.results) == 3


def test_an_old_worker_that_differs_later_ends_the_job() -> None:
    job = of(Script(strays=(1,), from_batch=15), state_check_steps=5)
    job.run()
    assert job.memory.job.state is JobState.FAILED
    assert "the states of w0 and w1 differ after save" in job.memory.job.reason
    assert all(isinstance(error, StateDiffers) for error in job.errors.values())


def test_workers_that_train_each_on_their_own_are_not_compared(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        job = of(Script(own=True))
        job.after_step(5, lambda job: job.scale({"a": 3}))
        job.run()
    assert job.memory.job.state is JobState.FINISHED, job.describe()
    assert len(job.results) == 3
    assert sum("differ at the first commit, first in w" in text for text in caplog.messages) == 1


def test_the_check_can_be_turned_off() -> None:
    job = of(Script(strays=(2,)), state_check_steps=0)
    job.after_step(5, lambda job: job.scale({"a": 3}))
    job.run()
    assert job.memory.job.state is JobState.FINISHED, job.describe()
    assert len(job.results) == 3


def joining() -> LoopbackJob:
    job = of(Script(strays=(2,)))
    job.after_step(5, lambda job: job.scale({"a": 3}))
    return job


@pytest.mark.parametrize("fault", ["kill", "cut"])
@pytest.mark.parametrize("worker", [0, 1, 2])
def test_a_fault_at_each_point_of_it(worker: int, fault: str) -> None:
    """Also where the newcomer dies by itself, or the one that has sent it the state."""
    for job in struck_around("edl.digests", joining, worker, fault):
        assert_right(job, 2)


@pytest.mark.parametrize("worker", range(3))
def test_a_death_in_a_collective_of_a_reset_callback(worker: int) -> None:
    """One joins a job of two, and one of the three dies around the callbacks of the new ring."""

    def make() -> LoopbackJob:
        job = of(Script(resets=True))
        job.after_step(2, lambda job: job.scale({"a": 3}))
        return job

    for job in struck_around("edl.reset", make, worker, "kill"):
        assert_right(job)


ENDLESS = 10**6  # rings


@pytest.mark.parametrize(
    ("script", "save"),
    [(Script(resets=True, fails=ENDLESS), 3), (Script(fails_at=0), 0), (Script(fails_at=8), 2)],
    ids=["callback", "first batch", "later batch"],
)
def test_a_collective_that_fails_in_each_ring_ends_the_job(script: Script, save: int) -> None:
    """No worker dies, so no repair would ever help."""
    job = of(script)
    if script.resets:
        job.after_step(2, lambda job: job.scale({"a": 3}))
    job.run()
    assert job.memory.job.state is JobState.FAILED, job.describe()
    assert job.memory.job.reason == (
        f"the ring was repaired 10 times after step {save} and broke again each time, although no "
        "worker was lost: it fails in each ring; look for a collective of the script that fails in "
        "each ring, as in a reset callback"
    )
    assert job.errors
    assert all(isinstance(error, JobFailed) for error in job.errors.values()), job.errors
    assert len(job.memory.generations) <= 13, job.describe()


@pytest.mark.parametrize("fails", [1, 10])
def test_a_collective_that_fails_in_some_rings_is_repaired(fails: int) -> None:
    job = of(Script(resets=True, fails=fails))
    job.after_step(2, lambda job: job.scale({"a": 3}))
    job.run()
    assert_right(job)
    assert len(job.results) == 3


@pytest.mark.parametrize("worker", range(3))
def test_a_death_between_such_repairs_is_repaired(worker: int) -> None:
    """The repairs are counted anew: the dead worker may have been the one that broke the rings."""
    script = Script(resets=True, fails=11)  # one more than a job without a death survives

    def make() -> LoopbackJob:
        job = of(script)
        job.after_step(2, lambda job: job.scale({"a": 3}))
        return job

    failed = make()
    failed.run()
    assert failed.memory.job.state is JobState.FAILED, failed.describe()
    built = [p.number for p in failed.passed if p.worker == worker and p.name == "built"]

    def kill(job: LoopbackJob) -> None:
        job.scale({"a": 2})  # nobody takes its place, whose callback would fail as often again
        job.kill(worker)

    job = make()
    job.at(worker, built[10 if worker < 2 else 9], kill)
    job.run()
    assert_right(job)
    assert len(job.memory.generations) >= 13, job.describe()
