"""A worker's script leaves its loop by an exception, and begins again: no sample is lost."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from scenarios import Scenario, sampled

from edl.binding.loop import BatchSteps
from edl.records import JobState
from edl.step.engine import Batch
from edl.testing.counting import (
    Counted,
    Counting,
    CountingBatchSource,
    CountingModel,
    accumulated,
    source_of,
    train_step,
)
from edl.testing.loopback import LoopbackJob, LoopbackWorker
from edl.worker.worker import Worker

FAILS, AFTER = 1, 2  # the worker whose script fails, and the step after which it does


class DamagedSource(CountingBatchSource):
    """Batches of which one cannot be read at first: the next one where ``fails`` is set."""

    def __init__(self, worker: Worker, prefetch_batches: int) -> None:
        super().__init__(worker, prefetch_batches)
        self.fails = False

    def next(self, waits: bool = True) -> tuple[Batch, bool]:
        found = super().next(waits)
        if self.fails:
            self.fails = False
            raise OSError("a file is away for a moment")
        return found


@dataclass(frozen=True)
class Again(Counting):
    """A script that trains anew after an OSError.

    Attributes:
        reads: whether a batch cannot be read; False: something else fails between two steps.
        whole: whether it calls ``epochs`` again; False: it begins the loop over the epoch again.
        piece: which microbatch of the step cannot be read, from 0.
    """

    samples: int = 24
    reads: bool = False
    whole: bool = False
    piece: int = 0

    def __call__(self, one: LoopbackWorker) -> None:
        worker = one.worker
        worker.attach_source(*source_of(self, self.prefetch_batches, self._batching))
        model = one.model = CountingModel(self.samples)
        worker.attach_replica(model)
        feed = DamagedSource(worker, self.prefetch_batches)
        steps = BatchSteps(worker, feed, lambda: "the batch was not trained")
        failed = False
        rounds: dict[int, int] = {}  # batches and microbatches, by step

        def epoch() -> None:
            nonlocal failed
            while steps.begin():
                one.compute(self.step_s)
                rounds[worker.step] = rounds.get(worker.step, 0) + 1
                self.train(one, model, feed)
                now = worker.id, worker.step, rounds.get(worker.step, 0)
                if failed or now != (FAILS, AFTER, self.piece):
                    continue
                failed = feed.fails = True
                if not self.reads:
                    feed.fails = False
                    raise OSError("the log cannot be written")

        def train() -> None:
            for _ in steps.epochs(self.epochs):
                try:
                    epoch()
                except OSError:
                    if self.whole:
                        raise
                    epoch()

        try:
            train()
        except OSError:
            train()
        assert failed or worker.id != FAILS
        one.result = Counted(model, worker.step, {}, {}, rounds=rounds)

    @staticmethod
    def train(one: LoopbackWorker, model: CountingModel, feed: DamagedSource) -> None:
        assert feed.batch is not None
        gradient = model.gradient(feed.batch)
        if one.worker.loader.engine.batches.pieces_left:
            model.sum = accumulated(one.worker, model, gradient)
            one.worker.loader.accumulate()
        else:
            train_step(one.worker, one.member, model, gradient)


def run(script: Again) -> LoopbackJob:
    job = Scenario(1, script=script).run()
    assert job.memory.job.state is JobState.FINISHED, job.describe()
    assert len(job.results) == 3
    for result in job.results.values():
        assert np.unique(result.model.count).tolist() == [script.epochs]
    return job


@pytest.mark.parametrize("whole", [False, True], ids=["loop", "epochs"])
@pytest.mark.parametrize("reads", [False, True], ids=["script", "data"])
@pytest.mark.parametrize("prefetch", [0, 1])
@pytest.mark.parametrize("shards", [(), (7, 12, 5)], ids=["samples", "stream"])
def test_each_sample_counts(
    shards: tuple[int, ...], prefetch: int, reads: bool, whole: bool
) -> None:
    run(Again(prefetch_batches=prefetch, shards=shards, reads=reads, whole=whole))


WAYS = sampled([(a, p, w) for a in (0, 1, 5) for p in range(4) for w in (False, True)], 5)


@pytest.mark.parametrize(("prefetch", "piece", "whole"), WAYS)
@pytest.mark.parametrize(
    "script",
    [
        Again(96, batch_size=24, micro_batch=2, aligned=True),
        Again(94, batch_size=23, micro_batch=2, aligned=True),  # slices and pieces are uneven
        Again(96, batch_size=2, logical=12),
        Again(93, batch_size=8, micro_batch=2),
    ],
    ids=["aligned", "uneven", "logical", "own"],
)
def test_a_step_stays_whole_whose_microbatch_cannot_be_read(
    script: Again, prefetch: int, piece: int, whole: bool
) -> None:
    script = replace(script, prefetch_batches=prefetch, piece=piece, reads=True, whole=whole)
    job = run(script)
    of_all = script.batch_size * (script.logical or 3 - 2 * script.aligned)
    for result in job.results.values():
        assert result.steps == script.epochs * -(-script.samples // of_all)
        in_step = [result.rounds[step] for step in range(result.steps)]
        assert in_step[:3] == [4, 4, 4]
