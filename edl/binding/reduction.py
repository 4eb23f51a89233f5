"""Reduce the gradients of one optimizer in each step (:class:`StepReduction`).

To *reduce* a gradient is to average it over all workers by an allreduce. What becomes of a step is
decided by :mod:`edl.step.engine`: how gradients are weighted, whether the step is completed in
another ring after a break, dropped, or superseded because other workers had completed it. A
framework only sends gradients, waits for their averages and applies them, in one of two ways:

- PyTorch and Keras' eager code have the gradients reduced (:meth:`StepReduction.reduce`,
  :meth:`StepReduction.complete`): the engine calls them back to send and to wait.
- A graph that TensorFlow runs calls edl back: :meth:`StepReduction.begin` before the gradients are
  sent, and :meth:`~StepReduction.end` when they have come back or failed. ``end`` says which branch
  of the graph follows. In ``Branch.AGAIN`` the graph calls :meth:`~StepReduction.agree` and
  :meth:`~StepReduction.end`, until the gradients have come back in one ring.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from edl import failpoints
from edl.binding.process import current_worker
from edl.binding.replica import LENGTH_BYTES
from edl.errors import RingBroken, UsageError
from edl.step.engine import (
    DECIDED,
    EXCHANGING,
    GraphEnd,
    MessagesFailed,
    OptimizerEvent,
    OptimizerStep,
    ReductionRequest,
    StepEvent,
    StepState,
    WeightsRequest,
)
from edl.step.record import samples_for
from edl.step.weighting import Averaging, Share, Weights
from edl.worker.loader_steps import Reducer
from edl.worker.worker import Worker

# ------------------------------------------------------------
# Measure squared norms of gradients, from which the gradient noise scale is computed.
#
# Two norms are measured (`NoiseMeter`): of each worker's own gradient, and of the job's mean
# gradient. The noise scale, a number of samples, says how large a global batch is worth its cost.
# `progress` chooses the steps in which this is done. The scale is defined in `noise`.


Looked = Sequence[tuple[Any, int]]  # parts of gradients, flat, and how often each counts

# Of a large gradient one part is read and counted so often, another each time: the norms of all of
# it would take as long as several steps.
PARTS = 8
LARGE = 4096  # numbers


class NoiseMeter(ABC):
    """A meter of gradient norms on one worker, for a script with one optimizer."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._kept: tuple[int, int, Looked] | None = None  # step, samples; alone

    @property
    def wants(self) -> bool:
        """Whether to measure the open step, so its gradients must be given to `show`."""
        loader = self._worker.loader
        if not loader.open or self._worker.warming_up or loader.progress.optimizers > 1:
            return False  # the gradients of each optimizer have another noise scale
        return loader.progress.noise.is_due(loader.progress.step) or self._follows

    def show(self, own: Callable[[], Looked], mean: Callable[[], Looked]) -> None:
        """Measure the open step's gradients, after the allreduce and before they are changed."""
        loader = self._worker.loader
        if not loader.engine.batches.samples:
            self._kept = None
        elif self._worker.ring.alone:
            self._alone(own())
        else:
            factor = self._own_factor()
            unit = self._unit()
            noise = loader.progress.noise
            noise.measured(self._square(own()) * factor**2 / unit, self._square(mean()) / unit)
            self._kept = None  # not before: it says which part is looked at

    def _looked_at(self, size: int) -> tuple[slice, int]:
        """Return the slice of a flat gradient to read in this step, and how often it counts."""
        if size < LARGE:
            return slice(None), 1
        loader = self._worker.loader
        # A lone worker measures two steps together, and reads the same part in both.
        first = self._kept[0] if self._kept is not None and self._follows else loader.progress.step
        part = loader.progress.noise.turn(first) % PARTS
        return slice(size * part // PARTS, size * (part + 1) // PARTS), PARTS

    @property
    def _follows(self) -> bool:
        """Whether this lone worker has kept the gradients of the step right before the open one."""
        loader = self._worker.loader
        if self._kept is None or not loader.open:
            return False
        return self._kept[0] + 1 == loader.progress.step

    def _alone(self, own: Looked) -> None:
        """Measure a lone worker's gradients with those of the step before, or keep them."""
        loader, unit = self._worker.loader, self._unit()
        step, samples = loader.progress.step, loader.engine.batches.samples
        kept, follows = self._kept, self._follows
        self._kept = None
        if kept is None or not follows or kept[1] != samples:
            self._kept = (step, samples, self._copy(own, unit))
            return
        before = kept[2]
        squares = (self._square(before) + self._square(own) / unit) / 2
        mean = self._square_of_sum(before, own, unit) / 4
        loader.progress.noise.measured(squares, mean)

    def _own_factor(self) -> float:
        """Return the factor that makes this worker's gradients the mean over its own samples."""
        share = self._worker.loader.engine.batches.share(0)
        if not share.summed:
            return 1.0
        # They are sums over batches, each weighted with its samples over the nominal size, and by
        # the mean number of batches (`edl.step.weighting`).
        records = self._worker.loader.records()  # of all workers, which have arrived
        batches = float(records.column("batches").mean())
        batch_size = self._worker.loader.progress.source.batch_size
        mine = samples_for(records, 0)[self._worker.ring.place.rank]
        return batch_size * batches / float(mine)

    def _unit(self) -> float:
        return 1.0  # the square of the loss scale; a framework with loss scalers overrides this

    @abstractmethod
    def _square(self, gradients: Looked) -> float:
        """Return the sum of the squared norms of all parts, each as often as it counts."""

    def _square_of_sum(self, kept: Looked, own: Looked, unit: float) -> float:
        """Return the squared norm of the sum of two steps' gradients, kept + own / sqrt(unit)."""
        if [len(a) for a, _ in kept] != [len(b) for b, _ in own]:
            return 0.0
        factor = 1.0 / math.sqrt(unit)
        pairs = zip(kept, own, strict=True)
        return self._square([(a + factor * b, times) for (a, times), (b, _) in pairs])

    @staticmethod
    def _copy(gradients: Looked, unit: float) -> Looked:
        factor = 1.0 / math.sqrt(unit)
        return [(factor * numbers, times) for numbers, times in gradients]


# ------------------------------------------------------------
# Gather NumPy arrays of all workers between two steps, for `edl.gather` and `edl.sum`.
#
# `gather_arrays` does it. All workers get the same answer, even if one of them dies during the
# exchange (`exchange`).


Array = npt.NDArray[Any]


def gather_arrays(
    arrays: Mapping[str, Array],
    empty_fits: bool = False,  # arrays without elements may be of any type
    exchange: Callable[[bytes], list[bytes]] | None = None,  # None: that between two steps
) -> list[dict[str, Array]]:
    """Return the arrays of all workers, which all call this: a dict for each, in rank order."""
    forms = [[name, str(array.dtype), [*array.shape]] for name, array in sorted(arrays.items())]
    header = json.dumps(forms).encode()
    parts = [np.ascontiguousarray(array).tobytes() for _, array in sorted(arrays.items())]
    # The message: the length of the header, the header (JSON), the bytes of the arrays.
    payload = b"".join([len(header).to_bytes(LENGTH_BYTES, "little"), header, *parts])
    send = current_worker().exchange_bytes if exchange is None else exchange
    found = [_read(each) for each in send(payload)]
    if empty_fits:
        found = _with_fitting_types(found)
    kinds = [{name: str(array.dtype) for name, array in each.items()} for each in found]
    for rank, kind in enumerate(kinds):
        if kind != kinds[0]:
            raise UsageError(
                f"the worker of rank {rank} gathers {_told(kind)}, and that of rank 0 "
                f"{_told(kinds[0])}; all must give the same names and types"
            )
    return found


def check_rows(name: str, parts: list[Array]) -> None:
    """Check that the arrays of all workers can be concatenated along the first dimension."""
    shapes = [part.shape for part in parts]
    if len({shape[1:] for shape in shapes}) > 1 or len({len(shape) for shape in shapes}) > 1:
        raise UsageError(
            f"edl.gather{name and f' of {name}'}: the workers' shapes are "
            f"{', '.join(map(str, shapes))}; they may differ in the first dimension only"
        )


def check_same_shape(name: str, parts: list[Array]) -> None:
    """Check that the arrays of all workers can be added up: their shapes must be equal."""
    shapes = [part.shape for part in parts]
    if len({*shapes}) > 1:
        raise UsageError(
            f"edl.sum{name and f' of {name}'}: the workers' shapes are "
            f"{', '.join(map(str, shapes))}; they must be equal"
        )


def _read(payload: bytes) -> dict[str, Array]:
    """Return the arrays of one worker by name, from its message `payload`."""
    begin = LENGTH_BYTES + int.from_bytes(payload[:LENGTH_BYTES], "little")
    arrays = {}
    for name, kind, shape in json.loads(payload[LENGTH_BYTES:begin]):
        count = int(np.prod(shape, dtype=np.int64))
        array = np.frombuffer(payload, kind, count, begin).reshape(shape)
        arrays[name], begin = array.copy(), begin + array.nbytes  # which can be written to
    return arrays


def _with_fitting_types(found: list[dict[str, Array]]) -> list[dict[str, Array]]:
    """Return the arrays of all workers, with empty ones converted to the type of the others."""
    types: dict[str, Any] = {}
    for each in found:
        for name, array in each.items():
            if array.size:
                types.setdefault(name, array.dtype)
    return [
        {
            name: array if array.size else array.astype(types.get(name, array.dtype))
            for name, array in each.items()
        }
        for each in found
    ]


def _told(kind: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {each}".strip() for name, each in kind.items()) or "nothing"


Averages = TypeVar("Averages")
NOTHING = Weights(Averaging.NONE)


class Branch(IntEnum):
    """The branch that a TensorFlow graph takes after it has exchanged gradients, or kept them."""

    SKIP = 0  # nothing is applied
    APPLY = 1
    AGAIN = 2  # first the local gradients are sent, with weights or in a new ring
    SHOW = 3  # they are measured, and applied


_BRANCHES = {
    StepState.HANDED_OUT: Branch.AGAIN,  # nothing was sent yet: it must be weighted
    StepState.BROKEN: Branch.AGAIN,
    StepState.REDUCED: Branch.APPLY,
}


class StepReduction:
    """One optimizer's part of each step of a worker: how its gradients are reduced and applied."""

    # For the training thread, or one for which that waits; any thread may read `is_sending`.

    def __init__(self, worker: Worker, reducer: Reducer | None = None) -> None:
        self._worker = worker
        self._engine = worker.loader.engine
        self._driver = worker.loader.driver
        self.part = self._engine.add_optimizer()  # of the open step, with its gradients' factors
        self.number = self.part.number  # in the script, from 0
        self._driver.reducers.append(reducer or self)  # self: for `complete`, or a graph
        worker.loader.progress.optimizers = self.number + 1
        self._average: Callable[[Weights], Any] = lambda _: None
        self._averages: Any = None

    # --- how far the step is

    @property
    def step(self) -> OptimizerStep:
        """The state of this optimizer's part of the step on the batch that was handed out last."""
        return self.part.step

    @property
    def done(self) -> bool:
        """Whether no gradient of this optimizer is left to reduce in the present step."""
        return self.part.step.done

    @property
    def is_sending(self) -> bool:
        """Whether gradients of this optimizer are sent, and not yet back as averages."""
        return self.part.step.state is StepState.SENDING

    @property
    def share(self) -> Share:
        """How many samples and batches this worker has for this optimizer in the open step."""
        return self._engine.batches.share(self.number)  # 0 samples if others made the update

    # --- a framework that calls

    def reduce(self) -> None:
        """Turn this worker's gradients into the mean over the global batch, or drop them."""
        # `step` is then REDUCED (of a lone worker, too), DROPPED (no worker has samples), or
        # SUPERSEDED (others had completed it).
        self._driver.tell(ReductionRequest(self.number))

    def complete(self, average: Callable[[Weights], Averages]) -> Averages | None:
        """Reduce this worker's gradients by a function; see `reduce` for what it may raise."""
        # `average` must not change a local gradient: if the ring breaks, it is called in the next.
        self._average, self._averages = average, None
        self.reduce()
        averages: Averages | None = self._averages
        return averages

    def allreduce(self, weights: Weights, again: bool) -> None:
        """Call the function that was given to `complete`; see `Reducer`."""
        self._averages = self._average(weights)

    def place_result(self, again: bool) -> None:
        """Do nothing: `complete` returns the result; see `Reducer`."""

    def forget(self) -> None:
        """Do nothing: what was sent in a broken ring is not kept; see `Reducer`."""

    def sending(self) -> None:
        """Record that gradients of this step are being sent; call this with the first of them."""
        if self.part.step.state is not StepState.SENDING:
            self._driver.tell(OptimizerEvent(self.number, StepEvent.SEND))
            failpoints.reached("gradient")

    # --- inside of the forward and backward passes

    @property
    def exchanges(self) -> bool:
        """Whether `exchange` may be called: all workers are in the passes of one step."""
        alone = self._worker.warming_up or self._worker.ring.alone
        return self._engine.is_open and not alone and self.part.step.state in EXCHANGING

    def exchange(self, payload: bytes, hold: Callable[[], None] = lambda: None) -> list[bytes]:
        """Send a message to all workers inside the open step; return all messages in rank order."""
        # All must call this at the same point of the same batch, where `exchanges` is true.

        def repair(error: RingBroken, _since: float) -> None:
            hold()  # from now on no other thread may send gradients
            self._driver.tell(MessagesFailed(self.number, error))

        self._worker.loader.timer.wait()
        return self._worker.loader.exchange_in_step(payload, repair)

    # --- a framework that calls back

    def begin(self) -> bool:
        """Return whether TensorFlow's graph shall send its gradients at once, and unchanged."""
        self._driver.tell(WeightsRequest(self.number, repairs=False))
        agreed = self.part.agreed
        return agreed is not None and agreed.averaging is Averaging.PLAIN

    def end(self, received: Callable[[], None]) -> Branch:
        """Return the branch that TensorFlow's graph takes, after it has sent gradients or not."""
        broken: RingBroken | None = None
        if self.is_sending:
            try:
                received()  # raises RingBroken unless all have come back
                failpoints.reached("averaged")
            except RingBroken as error:
                broken = error
        self._driver.tell(GraphEnd(self.number, broken))
        if self.step.state in DECIDED:
            self._worker.loader.reduced()
        return _BRANCHES.get(self.step.state, Branch.SKIP)  # never SHOW

    def agree(self) -> Weights:
        """Return the weights of the gradients in an intact ring; repair a broken ring before."""
        self._driver.tell(WeightsRequest(self.number, repairs=True))
        # If others had completed the step, nothing is sent: the repair has loaded their state.
        return self.part.agreed or NOTHING

    def reopen(self) -> None:
        """Open a reduced or dropped step again, for more gradients or to send the same again."""
        self._driver.tell(OptimizerEvent(self.number, StepEvent.REOPEN))

    # --- the end of a step

    def apply(self) -> bool:
        """Record that this optimizer comes to its update; return whether it shall make one."""
        applies = self.step.state is StepState.REDUCED  # else dropped, or completed by others
        self._driver.tell(OptimizerEvent(self.number, StepEvent.APPLY))
        return applies

    def end_step(self) -> None:
        """End the step of a script with one optimizer, and mark its samples as done."""
        self._driver.tell(OptimizerEvent(self.number, StepEvent.END))
        self._worker.loader.end()

    def refuse(self) -> None:
        """Mark the step as refused: nothing more is sent in it; the script may begin the next."""
        self._driver.tell(OptimizerEvent(self.number, StepEvent.REFUSE))

    def fail(self) -> None:
        """Mark the step as ended by an error that ends this worker; the caller then raises it."""
        self._driver.tell(OptimizerEvent(self.number, StepEvent.FAIL))
