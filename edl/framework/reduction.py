"""Decide what becomes of the gradients of each step (:class:`StepReduction`).

No other module decides about it. To *reduce* a gradient is to average it over all workers by an
allreduce. The decisions are: how the gradients are weighted; whether the step is dropped, completed
in another ring after a break, or superseded because other workers had completed it; whether the
optimizer makes its update. The states of a step and the transitions between them are a table in
:mod:`edl.core.step.step_state`. A framework only sends gradients, waits for their averages and
applies them, in one of two ways:

- PyTorch and Keras' eager code call :meth:`StepReduction.complete` with a function that sends and
  waits.
- A graph that TensorFlow runs calls edl back: :meth:`~StepReduction.begin` before the gradients are
  sent, and :meth:`~StepReduction.end` when they have come back or failed. ``end`` says which branch
  of the graph follows. In ``Branch.AGAIN`` the graph calls :meth:`~StepReduction.agree` and
  :meth:`~StepReduction.end`, until the gradients have come back in one ring.

Every worker sends the same collectives in a step, whether it begins the step or repeats it after a
repair. So workers that repeat a step can complete it together with workers that begin it.

With several optimizers a step is what lies between two updates: the backward passes of one or more
optimizers, and then the updates of one or more. A backward pass that comes after an update begins
the next step, on the same batch. In each pass every optimizer that has new gradients has them
reduced: this is one *round*. When the ring breaks, the survivors repeat all rounds of the open
step, in their order. See docs/adr/0017.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import TypeVar

from edl import failpoints
from edl.core.step.step_state import (
    DECIDED,
    EXCHANGING,
    REOPENED,
    SUPERSEDED_FROM,
    OptimizerStep,
    StepEvent,
    StepState,
)
from edl.core.step.weighting import Averaging, Weights
from edl.errors import RingBroken, RingError
from edl.framework.step_weights import StepWeights
from edl.worker.worker import Worker

Averages = TypeVar("Averages")

NOTHING = Weights(Averaging.NONE)


class Branch(IntEnum):
    """The branch that a TensorFlow graph takes after it has exchanged gradients, or kept them.

    ``SKIP``: make no update. ``APPLY``: update with the averages. ``AGAIN``: send this worker's own
    gradients, because they must be weighted, or because the ring broke. ``SHOW``: measure the
    averages for the gradient noise scale, then update with them.
    """

    SKIP = 0  # nothing is applied
    APPLY = 1
    AGAIN = 2  # first the local gradients are sent once more
    SHOW = 3  # they are measured, and applied


_BRANCHES = {
    StepState.HANDED_OUT: Branch.AGAIN,  # nothing was sent yet: it must be weighted
    StepState.BROKEN: Branch.AGAIN,
    StepState.REDUCED: Branch.APPLY,
}


class ReductionOrder:
    """The order in which the optimizers of a script had gradients reduced in the open step.

    One object is shared by all optimizers. After a repair of the ring, :meth:`repeat` does the
    reductions again.

    Attributes:
        optimizers: the :class:`StepReduction` of each optimizer of the script, by its number.
    """

    def __init__(self) -> None:
        self.optimizers: list[StepReduction] = []
        self._step = 0
        self._rounds: list[StepReduction] = []

    def add(self, step: int, reduced: StepReduction) -> None:
        """Record that an optimizer has had its gradients reduced in a step, after all earlier ones.

        Args:
            step: the number of the step on this worker, from 1. A number other than that of the
                call before drops the order that was recorded for the earlier step.
            reduced: the optimizer, by its part of the steps. One optimizer may be added repeatedly.
        """
        if self._step != step:
            self._step, self._rounds = step, []
        self._rounds.append(reduced)

    def repeat(self, step: int) -> None:
        """Repeat all reductions of the step with number ``step``, in their order, in a new ring.

        The call returns when the last one is done. Each reduction records itself again with
        :meth:`add`. Nothing happens if ``step`` is not the step that was recorded last.
        """
        if self._step == step:
            rounds, self._rounds = self._rounds, []
            for each in rounds:
                each.repeat()


class StepReduction:
    """One optimizer's part of each step of a worker: how its gradients are reduced and applied.

    In each step a framework calls :meth:`complete` (or :meth:`begin` and :meth:`end`), then
    :meth:`apply`, and at last :meth:`end_step`. The object lives as long as the optimizer.
    What all optimizers of a script share (the batch, the step record, the end of the step) is in
    ``worker``. All but :attr:`is_sending` is for the training thread, or a thread for which it
    waits.

    Args:
        worker: the worker that this process is.
        forget: a function that drops the gradients that were being sent in a broken ring; called
            after each repair.
        rounds: the order of reductions, shared by all optimizers of the script; None: this is the
            only optimizer.

    Attributes:
        weights: the factors that the gradients of the open step are multiplied by.
        cannot_repair: why this script cannot repair a ring inside a step, which the framework sets;
            empty if it can.
        number: the number of this optimizer in the script, from 0.
        repeat: a function without arguments that reduces this optimizer's gradients of the open
            step again, in a new ring. At first it is :meth:`reopen`; a framework may replace it.
    """

    def __init__(
        self,
        worker: Worker,
        forget: Callable[[], None] = lambda: None,
        rounds: ReductionOrder | None = None,
    ) -> None:
        self._worker = worker
        self._forget = forget
        self._rounds = rounds or ReductionOrder()
        self.number = len(self._rounds.optimizers)
        self._rounds.optimizers.append(self)
        worker.loader.progress.optimizers = self.number + 1
        self.repeat: Callable[[], None] = self.reopen
        self._step = OptimizerStep()
        self._changes = 0  # of the worker's steps that were seen
        self._error: RingBroken | None = None  # why the ring is to be repaired
        self.weights = StepWeights(worker, self.number)
        self.cannot_repair = ""

    # --- how far the step is

    @property
    def step(self) -> OptimizerStep:
        """The state of this optimizer's part of the step on the batch that was handed out last.

        If a batch was handed out since the last call, it is first taken into account: it begins a
        new step, or adds to the open one.
        """
        if self._changes != self._worker.loader.changes:
            self._catch_up()
        return self._step

    @property
    def done(self) -> bool:
        """Whether no gradient of this optimizer is left to reduce in the present step.

        So it is after the reduction, in a step that changes nothing, after the update, and after an
        error that ends this worker. It is False between two steps.
        """
        return self.step.done

    @property
    def is_sending(self) -> bool:
        """Whether gradients of this optimizer are on their way, sent and not yet back as averages.

        Any thread may read this.
        """
        return self._step.state is StepState.SENDING

    # --- a framework that calls

    def complete(self, average: Callable[[Weights], Averages]) -> Averages | None:
        """Turn this worker's gradients into the mean over the global batch, or drop them.

        All workers call this in each step. If the ring breaks, it is repaired, and the gradients
        are sent again, until the averages are there or it is known that none are needed.

        Args:
            average: a function of the weights of this step. It sends all gradients that are not
                being sent yet, calls :meth:`sending` with the first one, waits for all of them, and
                returns the averages. It must not change a local gradient, because it is called
                again in the next ring when it raises RingBroken.

        Returns:
            The averages that ``average`` has returned. None if nothing had to be sent. The state in
            :attr:`step` tells why: REDUCED, since this worker is alone and its own gradients are
            the mean; DROPPED, since no worker has samples; or SUPERSEDED, since other workers had
            completed the step.

        Raises:
            RingError: if the ring broke and this script cannot repair it inside a step, or if the
                workers are not in the same step.
            JobFailed, StateDiffers, NewcomerDiffers, WorkerEvicted: if the job or this worker
                cannot go on.
        """
        while True:
            weights = self.agree()
            averages = None
            if not weights.sends:
                self._unsent()
            else:
                try:
                    averages = average(weights)
                    self._averaged()
                except RingBroken as error:
                    self._broke(error)
                    continue
            self._rounds.add(self._step.number, self)
            return averages

    def sending(self) -> None:
        """Record that gradients of this step are being sent; call this with the first of them.

        The call also starts to send this worker's step record, unless it was sent before. It does
        not wait, and a second call in the step does nothing.
        """
        if self.step.state is not StepState.SENDING:
            self._worker.loader.announce()
            self._on(StepEvent.SEND)
            failpoints.reached("gradient")

    # --- inside of the forward and backward passes

    @property
    def exchanges(self) -> bool:
        """Whether :meth:`exchange` may be called: all workers are in the passes of one step.

        The passes are forward and backward. False while this worker warms up, is alone in its ring,
        or is between two steps, and after the gradients were reduced.
        """
        loader = self._worker.loader
        alone = self._worker.warming_up or self._worker.ring.alone
        return loader.open and not alone and self.step.state in EXCHANGING

    def exchange(self, payload: bytes, hold: Callable[[], None] = lambda: None) -> list[bytes]:
        """Send a message to all workers inside the open step; return all messages in rank order.

        All workers must call this at the same point of the same batch, where :attr:`exchanges` is
        true; each waits for all. If a worker dies meanwhile, the ring is repaired, all survivors
        get the same answer, and gradients that were being sent are sent again later.

        Args:
            payload: this worker's message, of any size.
            hold: called before a repair; it must keep other threads from sending gradients
                afterwards.

        Raises:
            RingError: if the ring broke and this script cannot repair it inside a step.
            JobFailed, WorkerEvicted: if the job or this worker cannot go on after a break.
        """

        def repair(error: RingBroken, _since: float) -> None:
            hold()
            self._broke(error)
            self._repair()

        self._worker.loader.timer.wait()
        return self._worker.loader.exchange_in_step(payload, repair)

    # --- a framework that calls back

    def begin(self) -> bool:
        """Return whether TensorFlow's graph shall send its gradients at once, and unchanged.

        That is the case if the batches of all workers are full, there are several workers, and the
        ring is intact: then the gradients are multiplied by no factor before or after the average.
        The call waits for the step records of all workers. If the result is True, the caller calls
        :meth:`sending` next. If it is False, the graph sends nothing, and calls :meth:`end`.

        Raises:
            RingError: if the workers are not in the same step.
            JobFailed, StateDiffers, NewcomerDiffers: if the job or this worker cannot go on.
        """
        weights = self._prospect()
        return weights is not None and weights.averaging is Averaging.PLAIN

    def end(self, received: Callable[[], None]) -> Branch:
        """Return the branch that TensorFlow's graph takes, after it has sent gradients or nothing.

        Args:
            received: a function that raises RingBroken unless all sent gradients have come back;
                called only if gradients were sent.

        Returns:
            APPLY if the gradients are the averages, or those of a lone worker. AGAIN if they must
            be sent with weights or in a new ring: call :meth:`agree` next, which repairs a broken
            ring. SKIP if no worker has samples, or other workers had completed the step. Never
            SHOW.
        """
        if self.step.state is StepState.SENDING:
            try:
                received()
                self._averaged()
            except RingBroken as error:
                self._broke(error)
        else:
            self._unsent()
        return _BRANCHES.get(self.step.state, Branch.SKIP)

    def reopen(self) -> None:
        """Open a reduced or dropped step again, for more gradients or to send the same ones again.

        Nothing happens in any other state of the step. If other workers have completed the step, it
        is marked as superseded and not opened.
        """
        if self.step.state not in REOPENED:
            return
        if self._worker.loader.step_input.completed_by_peers:
            self._complete_by_peers()
        else:
            self._on(StepEvent.REOPEN)

    # --- the end of a step

    def apply(self) -> bool:
        """Record that this optimizer comes to its update; return whether it shall make the update.

        Call this once in a step, after the reduction. True if the gradients are the averages. False
        if the step was dropped because no worker has samples, or if other workers had completed it;
        the optimizer counts as having come to its update in this case, too.
        """
        applies = self.step.state is StepState.REDUCED
        self._on(StepEvent.APPLY)
        self._worker.loader.step_input.updates |= 1 << self.number
        return applies

    def end_step(self) -> None:
        """End the step after its update was made or skipped, and mark its samples as done.

        Call this once for a step, in a script with one optimizer. (With several, the framework ends
        the worker's step itself.) The ledger has recorded the samples of all workers before the
        return.
        """
        ended = self.step.after(StepEvent.END)
        self._worker.loader.end()
        self._step = ended

    def refuse(self) -> None:
        """Mark the step as refused: nothing more is sent or updated in it.

        Called for an error that the script has made in its use of edl; the caller then raises that
        error. The script may catch it and go on with its next batch.
        """
        self._on(StepEvent.REFUSE)
        self.weights.agreed = None

    def fail(self) -> None:
        """Mark the step as ended by an error that ends this worker; the caller then raises it.

        No further step can begin.
        """
        self._on(StepEvent.FAIL)
        self.weights.agreed = None

    # --- decisions

    def _catch_up(self) -> None:
        """Compute the weights for the batches that the worker has handed out in the open step.

        If the last batch begins a new step, first begin that step for this optimizer. Nothing
        happens if no batch was handed out since the last call.
        """
        loader = self._worker.loader
        if self._changes == loader.changes:
            return
        self._changes = loader.changes
        if self._step.number != loader.begun:
            self._step = self._step.next(loader.begun)
            self.weights.agreed = self._error = None
        self.weights.weigh()

    def _prospect(self) -> Weights | None:
        """Wait for the step records in the present ring; return the weights that follow from them.

        None if the ring is broken, which is recorded; it is not repaired here.
        """
        self._catch_up()
        try:
            return self.weights.agree()
        except RingBroken as error:
            self._broke(error)
            return None

    def agree(self) -> Weights:
        """Return the weights of the gradients in an intact ring; repair a broken ring before.

        The call waits for the step records of all workers. When a worker dies, the survivors
        complete the step with the gradients that they hold. If other workers had completed it
        already, the repair has put their state into the model, and this worker must change nothing:
        the returned weights then say that it sends no gradients.

        Raises:
            RingError: if the ring broke and this script cannot repair it inside a step, or if the
                workers are not in the same step.
            JobFailed, StateDiffers, NewcomerDiffers, WorkerEvicted: if the job or this worker
                cannot go on.
        """
        while True:
            if self.step.state is StepState.BROKEN:
                self._repair()
            elif (
                self._worker.loader.step_input.completed_by_peers
            ):  # another optimizer has learnt it
                self._complete_by_peers()
            if self.step.state is StepState.SUPERSEDED:
                return NOTHING
            if (weights := self._prospect()) is not None:
                return weights

    def _repair(self) -> None:
        """Repair the ring, and mark this step's gradients to be sent again in the new ring.

        The ring is repaired before the return, and reductions of earlier rounds of the step are
        repeated. If other workers had completed the step, it is marked as superseded, and nothing
        is sent again.

        Raises:
            RingError: if the script cannot repair a ring inside a step (see ``cannot_repair``).
        """
        assert self._error is not None
        if self.cannot_repair:
            raise RingError(
                f"a step was interrupted, and {self.cannot_repair} ({self._error})"
            ) from self._error
        loader = self._worker.loader
        loader.recover(self._error)
        self._error = None
        self._forget()
        for each in self._rounds.optimizers:
            if each is not self:
                each.interrupted()
        self._on(StepEvent.SUPERSEDE if loader.step_input.completed_by_peers else StepEvent.REPAIR)
        # Without samples any more, if its leases were of a generation that is gone.
        self.weights.weigh(early=False)
        self._rounds.repeat(self._step.number)  # which may break again, and be superseded then
        self.reopen()

    def interrupted(self) -> None:
        """Mark this optimizer's gradients to be sent again in a new ring.

        The StepReduction of another optimizer of the script calls this after it has repaired the
        ring. Gradients that were being sent in the broken ring are lost. If other workers had
        completed the step, it is marked as superseded instead. The state stays the same if this
        optimizer has sent nothing in the open step.
        """
        self._forget()
        loader = self._worker.loader
        if self._step.number != loader.begun:
            return
        self._changes, superseded = loader.changes, loader.step_input.completed_by_peers
        if self._step.state is StepState.SENDING:
            self._on(StepEvent.BREAK)
            self._on(StepEvent.SUPERSEDE if superseded else StepEvent.REPAIR)
        elif superseded:
            self._complete_by_peers()
        self.weights.weigh(early=False)

    def _complete_by_peers(self) -> None:
        """Mark the step as completed by other workers, whose state is in the model now.

        The repair of the ring has brought that state. Nothing happens if this optimizer has made
        its update, or has not begun the step.
        """
        if self._step.state in SUPERSEDED_FROM:
            self._on(StepEvent.SUPERSEDE)

    def _unsent(self) -> None:
        """Decide what becomes of a step in which this worker sent no gradient.

        If the worker is alone, its local gradients are the mean. If no worker has samples, the step
        is dropped. The agreed weights say which of these holds; in any other case the state of the
        step stays as it is.
        """
        agreed = self.weights.agreed
        if agreed is not None and agreed.averaging is Averaging.LOCAL:
            self._on(StepEvent.KEEP)
        elif agreed is not None and agreed.averaging is Averaging.NONE:
            self._on(StepEvent.DROP)
        self._reached()

    def _averaged(self) -> None:
        """Mark the step as reduced: all gradients that were sent have come back as averages."""
        failpoints.reached("averaged")
        self._on(StepEvent.AVERAGE)
        self._reached()

    def _reached(self) -> None:
        """Stop the timer of this step's reduction if the gradients are averaged or not needed.

        The timer runs on if the ring broke. A newcomer that warms up has no timer to stop.
        """
        if self.step.state in DECIDED and not self._worker.warming_up:
            self._worker.loader.timer.reduce()
            failpoints.reached("reduced")

    def _broke(self, error: RingBroken) -> None:
        """Record that the ring broke with ``error``; :meth:`agree` repairs it later."""
        self._on(StepEvent.BREAK)
        self.weights.agreed, self._error = None, error

    def _on(self, event: StepEvent) -> None:
        """Take the step to the state that follows ``event`` in the table of transitions.

        Raises:
            IllegalTransition: the table does not allow the event in the present state.
        """
        self._step = self.step.after(event)
