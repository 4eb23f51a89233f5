"""What a script tracks from the gradients of a step is the same on all, whoever missed the step.

The workers are edl's own, on a loopback ring. A worker whose ring broke before it had the update
has gradients of zero in its hands, and its script appends these to a history, which edl puts right
(:mod:`edl.binding.replica`).
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Any

import pytest
from scenarios import points

from edl.binding.loop import BatchSteps
from edl.binding.replica import TrackedCopies
from edl.records import JobState
from edl.ring.ring import Ring
from edl.testing.counting import Counting, CountingBatchSource, CountingModel, source_of, train_step
from edl.testing.loopback import LoopbackJob, LoopbackWorker
from edl.worker.progress import Receive


class Tracking(CountingModel):
    """The counting model and a history, which is shared as :class:`FrameworkReplica` does it."""

    def __init__(self, samples: int) -> None:
        super().__init__(samples)
        self.history: list[float] = []
        self._between = TrackedCopies()

    def state_dict(self) -> dict[str, Any]:
        return {"history": [*self.history]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.history = [*state["history"]]

    def end_batch(self, step: int, epoch: int) -> None:
        self._between.end_batch((step, epoch), {"history": self})

    def synchronise(self, ring: Ring, root: int, receive: Receive) -> None:
        sent = self.exchange(ring, root)
        mine = pickle.dumps((self.state_dict(), self._between.sent()))
        state, kept = pickle.loads(ring.broadcast(mine, root, "edl.state.tracked"))
        if receive is not Receive.NOTHING and ring.place.rank != root:
            self.restore(sent)
            self.load_state_dict(state)
            self._between.receive(kept if receive is Receive.STEP else {})


@dataclass(frozen=True)
class Script(Counting):
    """``exchanges``: how often workers exchange numbers between an update and the next batch."""

    samples: int = 16
    epochs: int = 1
    exchanges: int = 1

    def __call__(self, one: LoopbackWorker) -> None:
        worker, model = one.worker, Tracking(self.samples)
        worker.attach_source(*source_of(self, 0, self._batching))
        worker.attach_replica(model)
        one.model = model
        feed = CountingBatchSource(worker, 0)
        steps = BatchSteps(worker, feed, lambda: "the batch was not trained")
        for _ in steps.epochs(self.epochs):
            while steps.begin():
                assert feed.batch is not None
                one.compute(self.step_s)
                gradient = model.gradient(feed.batch)
                has_gradient = train_step(worker, one.member, model, gradient)
                if worker.warming_up:
                    continue
                model.history.append(float(has_gradient))
                for _ in range(self.exchanges):
                    answer = worker.exchange([float(worker.step)])
                    model.history.append(sum(row[0] for row in answer) / len(answer))
        one.result = worker.step, model

    def expected(self, steps: int) -> list[float]:
        """Return the history of a worker that has missed nothing."""
        each = ([1.0] + [float(step)] * self.exchanges for step in range(1, steps + 1))
        return [value for values in each for value in values]


@pytest.mark.parametrize("exchanges", [0, 2])
@pytest.mark.parametrize("what", ["kill", "cut"])
@pytest.mark.parametrize("worker", [0, 1, 2])
def test_a_history_of_gradients_is_the_same_on_all(worker: int, what: str, exchanges: int) -> None:
    script = Script(exchanges=exchanges)
    for point in points(1, 60 + 10 * exchanges, 1, worker):
        job = LoopbackJob(script, np=3, max_np=4)
        job.at(worker, point, lambda job: getattr(job, what)(worker))
        job.run()
        assert job.memory.job.state is JobState.FINISHED, (point, job.describe())
        for steps, model in job.results.values():
            assert model.history == script.expected(steps), (point, job.describe())
