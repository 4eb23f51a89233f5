"""Jobs on the loopback ring that something happens to, and what must hold at their end.

A test draws a :class:`Scenario` and calls :meth:`Scenario.run`. To replay one that has failed, copy
it from the output into an ``@example`` above the test, or::

    Scenario(seed=7, faults=(Fault(1, 40, "kill"),)).run()

``seed=0`` is the plain order; ``job.describe()`` says what has happened, ``job.passed`` each point.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from counting_judge import judge_finished, judge_stopped
from hypothesis import settings
from hypothesis import strategies as st

from edl.errors import JobFailed, WorkerEvicted
from edl.policy.stragglers import Stragglers
from edl.records import JobState
from edl.testing.counting import Counting, CountingModel
from edl.testing.loopback import LoopbackJob, LoopbackWorker

POINTS = 160  # of a worker's life; a step has some ten
BOUND_S = 400.0  # of virtual time: no job of these stands still longer
FAULTS = ("kill", "fail", "cut", "delay", "freeze", "expire")


def points(first: int, end: int, step: int = 1, turn: int = 0) -> range:
    """Where a worker is struck, or the seeds, in one job after the other.

    In `make test` it is each twelfth, and ``turn`` says which; in `make property` all of them.
    """
    part = 12 if settings.get_current_profile_name() == "ci" else 1
    return range(first + step * (turn % part), end, step * part)


T = TypeVar("T")


def sampled(cases: Sequence[T], part: int = 3) -> Sequence[T]:
    return cases[::part] if settings.get_current_profile_name() == "ci" else cases


class Script(Protocol):
    def __call__(self, one: LoopbackWorker) -> None: ...

    def prove(self, results: Any) -> None: ...


SHORT = Counting(samples=24)


@dataclass(frozen=True)
class Fault:
    """Something happens to a worker when it passes a point, if it ever does."""

    worker: int
    point: int
    what: str

    def __call__(self, job: LoopbackJob) -> None:
        getattr(job, self.what)(self.worker)


def struck_around(
    collective: str, make: Callable[[], LoopbackJob], worker: int, what: str
) -> Iterator[LoopbackJob]:
    plain = make()
    plain.run()
    there = [p.number for p in plain.passed if p.worker == worker and collective in p.name]
    for point in points(there[0] - 12, there[-1] + 14, turn=worker):
        job = make()
        job.at(worker, point, Fault(worker, point, what))
        job.run()
        yield job


@dataclass(frozen=True)
class Change:
    """What people want, once so many steps are complete: workers by host, a drain, a stop.

    ``replace``: what the leader of a job with stragglers wants.
    """

    step: int
    a: int = 0
    b: int = 0
    drain: int | None = None
    replace: int | None = None
    stop: bool = False
    zookeeper_s: float = 0.0  # nobody reaches it for so long

    def __call__(self, job: LoopbackJob) -> None:
        if self.stop:
            job.stop()
        elif self.zookeeper_s:
            job.disconnect(self.zookeeper_s)
        elif self.drain is not None:
            job.drain(self.drain)
        elif self.replace is not None:
            job.replace(self.replace)
        else:
            sizes = job.memory.job.sizes
            least, most = sizes.min_np, sizes.max_np
            a = min(self.a, most)
            b = min(max(self.b, least - a), most - a)
            job.scale({"a": a, "b": b})


@dataclass(frozen=True)
class Scenario:
    seed: int = 0
    np: int = 3
    min_np: int = 1
    max_np: int = 5
    script: Script = SHORT
    faults: tuple[Fault, ...] = ()
    changes: tuple[Change, ...] = ()
    restart_s: float = 0.0
    stragglers: Stragglers | None = None

    def run(self) -> LoopbackJob:
        logging.disable(logging.CRITICAL)  # each broken ring is a warning
        job = LoopbackJob(
            self.script,
            np=self.np,
            min_np=min(self.min_np, self.np),
            max_np=max(self.max_np, self.np),
            seed=self.seed,
            restart_s=self.restart_s,
            stragglers=self.stragglers,
            logical=getattr(self.script, "logical", 0),
        )
        for fault in self.faults:
            job.at(fault.worker, fault.point, fault)
        for change in self.changes:
            job.after_step(change.step, change)
        try:
            job.run()
            self._judge(job)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{job.describe()}") from error
        finally:
            logging.disable(logging.NOTSET)
        return job

    def _judge(self, job: LoopbackJob) -> None:
        state = job.memory.job.state
        assert state.over, f"nobody is left and the job is {state}"
        assert job.schedule.now_s() < BOUND_S
        numbers = [g.number for g in job.memory.generations]
        assert numbers == [*range(1, len(numbers) + 1)]
        for worker, error in job.errors.items():
            assert self._may_end(job, worker, error), f"w{worker} has ended with {error!r}"
        if state is JobState.FINISHED:
            judge_finished(self.script, job.results)
        elif state is JobState.FAILED:
            assert job.state_lost, "the job has failed, and somebody held its state"
            assert not job.results
        else:
            assert any(change.stop for change in self.changes)
            judge_stopped(self.script, _stopped(job))

    def _may_end(self, job: LoopbackJob, worker: int, error: Any) -> bool:
        """Who was frozen may find itself given up, so may a newcomer; all end when the job fails.

        Whoever was to leave and lost its ring on the way may find that the others are through.
        """
        frozen = {fault.worker for fault in self.faults if fault.what == "freeze"}
        newcomer = not job.workers[worker].holds_state
        if isinstance(error, WorkerEvicted):
            return worker in frozen or newcomer or job.state_lost
        seated = job.memory.generations[-1].worker_ids if job.memory.generations else ()
        return isinstance(error, JobFailed) and (job.state_lost or worker not in seated)


def _stopped(job: LoopbackJob) -> dict[int, CountingModel]:
    left = [one for one in job.workers if isinstance(one.error, SystemExit)]
    last = max((one.worker.step for one in left), default=0)
    return {one.id: one.model for one in left if one.worker.step == last and one.holds_state}


SEEDS = st.integers(0, 2**20)


def faults(*what: str, workers: int = 5, points: int = POINTS) -> st.SearchStrategy[Fault]:
    return st.builds(
        Fault, st.integers(0, workers), st.integers(1, points), st.sampled_from(what or FAULTS)
    )


def scales() -> st.SearchStrategy[Change]:
    return st.builds(Change, step=st.integers(0, 8), a=st.integers(0, 4), b=st.integers(0, 3))


def scripts(exchange_every: int = 0) -> st.SearchStrategy[Counting]:
    return st.builds(
        Counting,
        samples=st.sampled_from([24, 7, 3, 40]),
        batch_size=st.sampled_from([2, 1, 4]),
        prefetch_batches=st.integers(0, 1),
        exchange_every=st.just(exchange_every) if exchange_every else st.sampled_from([0, 2]),
        accumulated=st.sampled_from([1, 1, 2, 3, 9]),
        single=st.sampled_from([0, 0, 2]),
    )


def some(each: st.SearchStrategy[Any], least: int, most: int) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(each, min_size=least, max_size=most).map(tuple)
