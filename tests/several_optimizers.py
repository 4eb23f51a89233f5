"""Train counting models with several optimizers on a loopback ring.

Each optimizer has its own model, with one parameter for each sample, so each proves for itself
which samples were counted in its updates. As in the frameworks, edl's own
:class:`edl.binding.reduction.StepReduction` decides how the gradients of a step are weighted,
sent and applied.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Protocol

import numpy as np
from counting_judge import judge_noise

from edl.binding.loop import BatchSteps
from edl.job.state_share import WHOLE_STATE, StateShare
from edl.ring.ring import Ring
from edl.step.batching import Batching
from edl.step.state_check import WHOLE, StateGroup
from edl.testing.counting import (
    Counted,
    CountingBatchSource,
    CountingModel,
    Vector,
    source_of,
)
from edl.testing.loopback import LoopbackReducer
from edl.worker.progress import Receive

if TYPE_CHECKING:
    from edl.testing.loopback import LoopbackWorker

GAN = ("zero 0", "backward 0", "backward 0", "step 0", "zero 1", "backward 01", "step 1")
TOGETHER = ("zero 0", "zero 1", "backward 01", "step 0", "step 1")
BOTH_FIRST = ("zero 0", "zero 1", "backward 0", "backward 1", "step 1", "step 0")
THREE = (*TOGETHER, "zero 2", "backward 2", "step 2")
ONE = ("zero 0", "backward 0", "step 0")


class Models:
    """The counting models of all optimizers: the state that the workers share."""

    framework = "loopback"

    def __init__(self, count: int, samples: int) -> None:
        self.all = [CountingModel(samples) for _ in range(count)]

    def end_batch(self, step: int, epoch: int) -> None:
        """Do nothing: the models have no tracked objects that follow the end of a batch."""

    def average_buffers(self, step: int, exchange: Callable[[bytes], list[bytes]]) -> None:
        """Do nothing: the model has no buffers."""

    def synchronise(self, ring: Ring, root: int, receive: Receive) -> None:
        sent = [model.exchange(ring, root) for model in self.all]
        if receive is not Receive.NOTHING:
            self.restore(sent)

    def learning_rates(self) -> dict[str, float]:
        """Return no learning rates: those of the models are fixed at 1."""
        return {}

    def digests(self, group: StateGroup = WHOLE) -> dict[str, int]:
        return {
            f"{number}.{name}": digest
            for number, model in enumerate(self.all)
            for name, digest in model.digests(group).items()
        }

    def capture(self, _share: StateShare = WHOLE_STATE) -> object:
        return [model.capture() for model in self.all]

    def restore(self, state: object) -> None:
        assert isinstance(state, list)
        for model, its in zip(self.all, state, strict=True):
            model.restore(its)


class Optimizer(Protocol):
    """An optimizer of one model: plain SGD with lr 1, with edl's reduction around it."""

    def zero(self) -> None:
        """Set the gradient to none, before the backward passes of an update."""

    def compute(self, gradient: Vector) -> None:
        """Add ``gradient`` to the sum of gradients, as a backward pass does."""

    def finish(self) -> None:
        """Complete the reduction of the gradients, at the end of a backward pass."""

    def step(self) -> None:
        """Update the model with the mean gradient of all workers."""


class _Sgd(LoopbackReducer):
    """The :class:`Optimizer` that works on arrays in a loopback ring."""

    def __init__(self, one: LoopbackWorker, model: CountingModel) -> None:
        super().__init__(one.worker, one.member, len(model.w))
        self._model = model

    def zero(self) -> None:
        """Set the local and the mean gradient to none."""
        self.local = self.mean = None

    def compute(self, gradient: Vector) -> None:
        """Add ``gradient`` to the local sum, and send the sum if the step's weights allow it."""
        self._begin_anew()
        self.reduction.reopen()
        self.local = gradient if self.local is None else self.local + gradient
        self.send_early()

    def finish(self) -> None:
        """Complete the reduction of the step, and keep the mean gradient."""
        if not self.reduction.done:
            self.reduction.reduce()

    def step(self) -> None:
        """Complete the reduction if need be, and update the model with the mean gradient."""
        if not self.reduction.done:
            self._begin_anew()
        self.finish()
        if self.reduction.apply() and not self._worker.warming_up:
            assert self.mean is not None
            assert self.mean_in == self.reduction.step.number
            self._model.update(self.mean)

    def _begin_anew(self) -> None:
        """Begin the next part of a batch whose parts are trained one after the other."""
        if self._worker.loader.engine.is_between_parts:
            self._worker.loader.next_part()


@dataclass(frozen=True)
class CountingSeveral:
    """A training script with several optimizers; call it with a worker of a loopback job."""

    turns: tuple[tuple[str, ...], ...] = (GAN,)  # what is done with a batch, each in its turn
    samples: int = 24
    epochs: int = 2
    batch_size: int = 2
    exchange_every: int = 0  # steps; 0: never
    by_index: bool = False  # a worker chooses the turn by the job's count of batches, not its own
    step_s: float = 0.1  # virtual seconds
    shards: tuple[int, ...] = ()
    shared: bool = False
    micro_batch: int = 0

    @property
    def optimizers(self) -> int:
        """The number of optimizers that the turns name."""
        return 1 + max(
            int(number) for turn in self.turns for do in turn for number in do.split()[1]
        )

    def __call__(self, one: LoopbackWorker) -> None:
        """Train on the worker ``one``; leave a :class:`CountedSeveral` as its ``result``."""
        worker = one.worker
        batching = Batching(self.batch_size, micro_batch=self.micro_batch)
        worker.attach_source(*source_of(self, 0, batching))
        models = Models(self.optimizers, self.samples)
        worker.attach_replica(models)
        one.model = models.all[0]
        optimizers, end_step = self.wrap(one, models)
        feed = CountingBatchSource(worker, 0)
        steps = BatchSteps(worker, feed, lambda: "the batch was not trained", end_step)
        exchanged: dict[int, list[list[float]]] = {}
        for _ in steps.epochs(self.epochs):
            for number in count():
                if not steps.begin():
                    break
                one.compute(self.step_s)
                assert feed.batch is not None
                own = worker.loader.progress.update_order.batch if self.by_index else number
                turn = self.turns[own % len(self.turns)]
                gradient = models.all[0].gradient(feed.batch)
                for do in turn:
                    self._do(do, turn, optimizers, gradient)
                due = self.exchange_every and worker.step % self.exchange_every == 0
                if due and not worker.warming_up:
                    values = worker.exchange([worker.id, worker.step])
                    exchanged[worker.step] = values
        noise = worker.loader.progress.noise.scale
        counted = Counted(models.all[0], worker.step, exchanged, {}, noise)
        one.result = CountedSeveral(models.all, counted)

    def wrap(
        self, one: LoopbackWorker, models: Models
    ) -> tuple[Sequence[Optimizer], Callable[[], None]]:
        """Return an optimizer for each model, and what ends an open step."""
        worker = one.worker
        optimizers = [_Sgd(one, model) for model in models.all]

        def end_step() -> None:
            decided = any(each.reduction.step.is_decided for each in optimizers)
            if worker.loader.open and (worker.loader.engine.updates or decided):
                worker.loader.end()

        worker.loader.before_exchange = end_step
        return optimizers, end_step

    @staticmethod
    def _do(
        do: str, turn: tuple[str, ...], optimizers: Sequence[Optimizer], gradient: Vector
    ) -> None:
        """Carry out one operation of a turn, such as "backward 01"."""
        verb, numbers = do.split()
        chosen = [optimizers[int(number)] for number in numbers]
        if verb == "zero":
            for each in chosen:
                each.zero()
        elif verb == "backward":
            for each, number in zip(chosen, numbers, strict=True):
                each.compute(gradient / _passes(turn, number))
            for each in chosen:
                each.finish()
        else:
            for each in chosen:
                each.step()

    def prove(self, results: Mapping[int, CountedSeveral]) -> None:
        """Each optimizer counted each sample once an epoch, or less often; all workers alike."""
        assert results, "nobody trained to the end"
        first = next(iter(results.values()))
        for worker, result in results.items():
            assert result.counted.steps == first.counted.steps, f"w{worker} made other steps"
            judge_noise(worker, result.counted.noise, first.counted.noise)
            for number, model in enumerate(result.models):
                what = f"optimizer {number} of w{worker}"
                assert not model.wrong, f"{what}: {model.wrong}"
                assert np.array_equal(model.w, first.models[number].w), f"{what} has another w"
                times = np.unique(model.count).tolist()
                if all(f"step {number}" in turn for turn in self.turns):
                    assert times == [self.epochs], f"{what} counted samples {times} times"
                else:
                    assert max(times) <= self.epochs, f"{what} counted samples {times} times"
            for step, rows in result.counted.exchanged.items():
                assert first.counted.exchanged.get(step, rows) == rows


def _passes(turn: tuple[str, ...], number: str) -> int:
    """Return how many backward passes give an update its gradient; those after it do not count."""
    before = turn[: turn.index(f"step {number}")] if f"step {number}" in turn else turn
    return max(1, sum(do.startswith("backward") and number in do for do in before))


@dataclass(frozen=True)
class CountedSeveral:
    """The result of one worker that has trained with several optimizers to the end."""

    models: list[CountingModel]
    counted: Counted
