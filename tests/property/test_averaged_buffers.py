"""At the end of an epoch all workers have the same BatchNorm averages, whoever dies or joins there.

The workers are edl's own, on a loopback ring; the average is a number that each moves by its own
batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from scenarios import points

from edl.binding.loop import BatchSteps
from edl.binding.replica import FrameworkReplica
from edl.job.state_share import WHOLE_STATE, StateShare
from edl.records import JobState
from edl.ring.ring import Ring
from edl.testing.counting import Counting, CountingBatchSource, CountingModel, source_of, train_step
from edl.testing.loopback import LoopbackJob, LoopbackWorker
from edl.worker.progress import Receive


class Averaging(CountingModel):
    """The counting model with an average, which newcomers get and a missed step does not change."""

    _averaged_after = -1
    average_buffers: Any = FrameworkReplica.average_buffers

    def __init__(self, samples: int) -> None:
        super().__init__(samples)
        self.running = np.zeros(1)

    def averages(self) -> list[Any]:
        return [self.running]

    def set_averages(self, means: Any) -> None:
        self.running = means[0]

    def capture(self, _share: StateShare = WHOLE_STATE) -> Any:
        return {**super().capture(), "running": self.running.copy()}

    def synchronise(self, ring: Ring, root: int, receive: Receive) -> None:
        own = self.running
        super().synchronise(ring, root, receive)
        if receive is Receive.STEP:
            self.running = own


@dataclass(frozen=True)
class Script(Counting):
    samples: int = 12
    epochs: int = 3

    def __call__(self, one: LoopbackWorker) -> None:
        worker, model = one.worker, Averaging(self.samples)
        worker.attach_source(*source_of(self, 0, self._batching))
        worker.attach_replica(model)
        one.model = model
        feed = CountingBatchSource(worker, 0)
        steps = BatchSteps(worker, feed, lambda: "the batch was not trained")
        seen = {}
        for epoch in steps.epochs(self.epochs):
            while steps.begin():
                assert feed.batch is not None
                one.compute(self.step_s)
                model.running = 0.5 * model.running + 1.0 + one.id
                train_step(worker, one.member, model, model.gradient(feed.batch))
            if not worker.warming_up:
                seen[epoch] = float(model.running[0])
                worker.exchange([seen[epoch]])  # as edl.mean(accuracy), right after it
        one.result = seen, model


@pytest.mark.parametrize("what", ["kill", "cut"])
@pytest.mark.parametrize("worker", [0, 1])
def test_averages_are_the_same_on_all_at_each_epochs_end(worker: int, what: str) -> None:
    script, differ = Script(), 0
    for point in points(1, 208, 1, worker):
        job = LoopbackJob(script, np=2, max_np=3)
        job.after_step(4, lambda job: job.scale({"a": 3}))
        job.at(worker, point, lambda job: getattr(job, what)(worker))
        job.run()
        assert job.memory.job.state is JobState.FINISHED, (point, job.describe())
        for epoch in range(script.epochs):
            values = {seen[epoch] for seen, _ in job.results.values() if epoch in seen}
            assert len(values) == 1, (point, epoch, job.results, job.describe())
        counts = [model.count for _, model in job.results.values()]
        assert all((count == script.epochs).all() for count in counts), (point, job.describe())
        differ += len(job.results) > 1
    assert differ
