"""A worker's script leaves its loop by an exception, and begins again: no sample is lost."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from scenarios import Scenario

from edl.core.records import JobState
from edl.core.step.batch import Batch
from edl.framework.steps import BatchSteps
from edl.testing.counting import (
    Counted,
    Counting,
    CountingBatchSource,
    CountingModel,
    source_of,
    train_step,
)
from edl.testing.loopback import LoopbackWorker
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
    """

    samples: int = 24
    reads: bool = False
    whole: bool = False

    def __call__(self, one: LoopbackWorker) -> None:
        worker = one.worker
        worker.attach_source(*source_of(self, self.prefetch_batches, self._batching))
        model = one.model = CountingModel(self.samples)
        worker.attach_replica(model)
        feed = DamagedSource(worker, self.prefetch_batches)
        steps = BatchSteps(worker, feed, lambda: "the batch was not trained")
        failed = False

        def epoch() -> None:
            nonlocal failed
            while steps.begin():
                assert feed.batch is not None
                one.compute(self.step_s)
                train_step(worker, one.member, model, model.gradient(feed.batch))
                if failed or (worker.id, worker.step) != (FAILS, AFTER):
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
        one.result = Counted(model, worker.step, {}, {})


@pytest.mark.parametrize("whole", [False, True], ids=["loop", "epochs"])
@pytest.mark.parametrize("reads", [False, True], ids=["script", "data"])
@pytest.mark.parametrize("prefetch", [0, 1])
@pytest.mark.parametrize("shards", [(), (7, 12, 5)], ids=["samples", "stream"])
def test_each_sample_counts(
    shards: tuple[int, ...], prefetch: int, reads: bool, whole: bool
) -> None:
    script = Again(prefetch_batches=prefetch, shards=shards, reads=reads, whole=whole)
    job = Scenario(1, script=script).run()
    assert job.memory.job.state is JobState.FINISHED, job.describe()
    assert len(job.results) == 3
    for result in job.results.values():
        assert np.unique(result.model.count).tolist() == [script.epochs]
