"""The one place where it is decided what becomes of a step's gradients.

How they are weighted, whether the step is dropped, completed in another ring after a break, or
superseded because others had completed it, whether its update is made. The states of a step and
the ways between them are a table: :mod:`edl.core.step.step_state`. A framework only sends, waits
and applies, in one of two ways:

- It calls :meth:`StepReduction.complete` with a function that sends and waits.
- In a graph that TensorFlow runs, edl is called back: :meth:`~StepReduction.begin` before the
  gradients are sent, and :meth:`~StepReduction.end` when they have come back or failed, which says
  which branch of the graph follows. In ``Branch.AGAIN`` it is :meth:`~StepReduction.agree`
  and :meth:`~StepReduction.end`, until a ring holds.

Every way through a step sends the same collectives, whatever a worker has gone through: one that
repeats a step meets others that begin it.

With several optimizers a step is what lies between two updates: the backward passes of one or more
of them, and then the updates of one or more. A pass that comes after an update begins the next
step, on the same batch. Each pass reduces the gradients of each optimizer that it has computed some
of: a *round*. When the ring breaks, the survivors repeat all rounds of the open step, in their
order. See docs/adr/0017.
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
    Step,
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
    """Where a graph goes on that has done all that it was told to."""

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
    """What the optimizers of a script have reduced in the open step, in this order.

    Attributes:
        optimizers: the parts of all of them in it.
    """

    def __init__(self) -> None:
        self.optimizers: list[StepReduction] = []
        self._step = 0
        self._rounds: list[StepReduction] = []

    def add(self, step: int, reduced: StepReduction) -> None:
        """One more."""
        if self._step != step:
            self._step, self._rounds = step, []
        self._rounds.append(reduced)

    def repeat(self, step: int) -> None:
        """In another ring. Each adds itself again."""
        if self._step == step:
            rounds, self._rounds = self._rounds, []
            for each in rounds:
                each.repeat()


class StepReduction:
    """One optimizer's part of each step of ``worker``.

    The batch, its step record and the end of the step are the worker's; this decides what becomes
    of the gradients.

    Args:
        forget: called after a repair, when gradients were on their way in a ring that is gone.
        rounds: those of all optimizers of the script.

    Attributes:
        weights: what its gradients are multiplied by.
        cannot_repair: why this script cannot repair a ring inside of a step; empty if it can.
        number: which of the script's optimizers it is, from 0.
        repeat: reduces what was reduced in the open step once more.
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
        self._step = Step()
        self._changes = 0  # of the worker's steps that were seen
        self._error: RingBroken | None = None  # why the ring is to be repaired
        self.weights = StepWeights(worker, self.number)
        self.cannot_repair = ""

    # --- how far the step is

    @property
    def step(self) -> Step:
        """The step of the batch that was handed out last."""
        if self._changes != self._worker.loader.changes:
            self._catch_up()
        return self._step

    @property
    def done(self) -> bool:
        """There is nothing more to reduce in it."""
        return self.step.done

    @property
    def is_sending(self) -> bool:
        """Gradients are on their way. May be asked from any thread."""
        return self._step.state is StepState.SENDING

    # --- a framework that calls

    def complete(self, average: Callable[[Weights], Averages]) -> Averages | None:
        """Decide the step: gradients become the mean over the global batch, or count for nothing.

        Args:
            average: sends all gradients that are not on their way, calls :meth:`sending` with the
                first, and waits for them. It changes no local gradient, for it is called once more
                in the next ring when it raises RingBroken.

        Returns:
            What ``average`` has returned; None where nothing had to be sent.
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
        """A gradient is on its way."""
        if self.step.state is not StepState.SENDING:
            self._worker.loader.announce()
            self._on(StepEvent.SEND)
            failpoints.reached("gradient")

    # --- inside of the forward and backward passes

    @property
    def exchanges(self) -> bool:
        """Whether the workers may exchange messages in the open step: all are in its passes."""
        loader = self._worker.loader
        alone = self._worker.warming_up or self._worker.ring.alone
        return loader.open and not alone and self.step.state in EXCHANGING

    def exchange(self, payload: bytes, hold: Callable[[], None] = lambda: None) -> list[bytes]:
        """Return the payloads of all workers in rank order; see :attr:`exchanges`.

        A worker that dies meanwhile costs the others a repair, as it does while gradients are on
        their way: these are sent once more.

        Args:
            hold: called before the repair; no gradient is to be sent by another thread after it.
        """

        def repair(error: RingBroken, _since: float) -> None:
            hold()
            self._broke(error)
            self._repair()

        self._worker.loader.timer.wait()
        return self._worker.loader.exchange_in_step(payload, repair)

    # --- a framework that calls back

    def begin(self) -> bool:
        """Whether the graph is to send its gradients as they are; :meth:`sending` is next then."""
        weights = self._prospect()
        return weights is not None and weights.averaging is Averaging.PLAIN

    def end(self, received: Callable[[], None]) -> Branch:
        """The graph has done what it was told to.

        Args:
            received: raises RingBroken unless all gradients that were sent have come back.
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
        """There is more to reduce in this step, or the same in another ring."""
        if self.step.state not in REOPENED:
            return
        if self._worker.loader.step_input.completed_by_peers:
            self._complete_by_peers()
        else:
            self._on(StepEvent.REOPEN)

    # --- the end of a step

    def apply(self) -> bool:
        """The optimizer has its turn: whether it is to make the update."""
        applies = self.step.state is StepState.REDUCED
        self._on(StepEvent.APPLY)
        self._worker.loader.step_input.updates |= 1 << self.number
        return applies

    def end_step(self) -> None:
        """The update is made, or skipped: the ledger moves."""
        ended = self.step.after(StepEvent.END)
        self._worker.loader.end()
        self._step = ended

    def refuse(self) -> None:
        """The script uses edl wrongly: this step changes nothing."""
        self._on(StepEvent.REFUSE)
        self.weights.agreed = None

    def fail(self) -> None:
        """An error ends this worker."""
        self._on(StepEvent.FAIL)
        self.weights.agreed = None

    # --- decisions

    def _catch_up(self) -> None:
        """The worker may have begun another step meanwhile, or got one more batch for this one."""
        loader = self._worker.loader
        if self._changes == loader.changes:
            return
        self._changes = loader.changes
        if self._step.number != loader.begun:
            self._step = self._step.next(loader.begun)
            self.weights.agreed = self._error = None
        self.weights.weigh()

    def _prospect(self) -> Weights | None:
        """How gradients are weighted in the present ring; None when it is broken."""
        self._catch_up()
        try:
            return self.weights.agree()
        except RingBroken as error:
            self._broke(error)
            return None

    def agree(self) -> Weights:
        """How gradients are weighted in a ring that stands: a broken one is repaired first.

        When a worker dies, the survivors complete the step with the gradients that they hold. When
        others had completed it already, their state is in the model, and this worker must change
        nothing.
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
        """Some optimizer's gradients were on their way in a ring that is gone; these may be, too.

        The ring is repaired.
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
        if self._step.state in SUPERSEDED_FROM:
            self._on(StepEvent.SUPERSEDE)

    def _unsent(self) -> None:
        """Nothing was sent."""
        agreed = self.weights.agreed
        if agreed is not None and agreed.averaging is Averaging.LOCAL:
            self._on(StepEvent.KEEP)
        elif agreed is not None and agreed.averaging is Averaging.NONE:
            self._on(StepEvent.DROP)
        self._reached()

    def _averaged(self) -> None:
        """All that was sent has come back."""
        failpoints.reached("averaged")
        self._on(StepEvent.AVERAGE)
        self._reached()

    def _reached(self) -> None:
        if self.step.state in DECIDED and not self._worker.warming_up:
            self._worker.loader.timer.reduce()
            failpoints.reached("reduced")

    def _broke(self, error: RingBroken) -> None:
        self._on(StepEvent.BREAK)
        self.weights.agreed, self._error = None, error

    def _on(self, event: StepEvent) -> None:
        self._step = self.step.after(event)
