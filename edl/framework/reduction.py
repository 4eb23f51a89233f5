"""Reduce the gradients of one optimizer in each step (:class:`StepReduction`).

To *reduce* a gradient is to average it over all workers by an allreduce. What becomes of a step is
decided by :mod:`edl.core.step.engine`: how gradients are weighted, whether the step is completed in
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

from collections.abc import Callable
from enum import IntEnum
from typing import Any, TypeVar

from edl import failpoints
from edl.core.step.step_events import (
    GraphEnd,
    MessagesFailed,
    OptimizerEvent,
    ReductionRequest,
    WeightsRequest,
)
from edl.core.step.step_state import DECIDED, EXCHANGING, OptimizerStep, StepEvent, StepState
from edl.core.step.weighting import Averaging, Share, Weights
from edl.errors import RingBroken
from edl.worker.step_driver import Reducer
from edl.worker.worker import Worker

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
