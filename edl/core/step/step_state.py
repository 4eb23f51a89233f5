"""Define the states of a step on one worker, and the events that lead from one to another.

The machine describes one optimizer's part of one step: from the batch that is handed out until the
ledger has moved. An :class:`OptimizerStep` holds the present state; ``step.after(event)`` gives the
next one. :data:`TRANSITIONS` has all of them; docs/adr/0012 shows it as a picture. Rules that hold
for any sequence of events that the table allows (tests/property/test_step_state_properties.py):

1. **Decided once.** A step is reduced (its gradients are averaged), superseded (other workers have
   completed it) or dropped (no worker has samples) once. Nothing is sent after that, unless
   ``REOPEN`` opens the step again, which never happens to a superseded one.
2. **Applied once**, and only when it is decided.
3. **A repaired step is one that has just begun.** After a repair it is in the same state as a step
   whose batch was just handed out, so it sends the same collectives: survivors that repeat a step
   meet others that begin it.
4. **Nothing is sent into a broken ring**: after a break a step sends only when the ring is
   repaired; if other workers had completed the step, it is superseded and sends nothing.
5. **Nothing is forgotten on its way.** No batch is handed out while gradients of the one before are
   being sent.

The table does not say which event happens, or when: that is :mod:`edl.core.step.engine`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from edl.core.step.weighting import Averaging, Weights
from edl.errors import IllegalTransition


class StepState(Enum):
    """The state of one optimizer's part of a step on one worker."""

    IDLE = "idle"  # the worker has no batch
    HANDED_OUT = "handed out"  # nothing of the step is sent in the present ring
    SENDING = "sending"  # gradients are being sent
    BROKEN = "broken"  # the ring is broken, and is repaired before anything is sent
    REDUCED = "reduced"  # the gradients are the mean over the global batch
    SUPERSEDED = "superseded"  # other workers completed the step, and the model has their state
    DROPPED = "dropped"  # no worker has samples: the step changes nothing
    APPLIED = "applied"  # the optimizer has made its update
    REFUSED = "refused"  # the script was told that it uses edl wrongly: this step changes nothing
    ENDED = "ended"  # an error ended this worker in the middle of the step


class StepEvent(Enum):
    """An event that takes a step from one `StepState` to another, by `TRANSITIONS`."""

    HAND_OUT = "hand out"  # the worker has begun the next step
    SEND = "send"  # the first gradient is being sent
    AVERAGE = "average"  # all averages are here
    KEEP = "keep"  # there is no other worker: the local gradients are the mean
    DROP = "drop"  # the records say that no worker has samples
    BREAK = "break"  # a collective failed
    REPAIR = "repair"  # the survivors have a ring, and complete the step in it
    SUPERSEDE = "supersede"  # the survivors have a ring, and some had completed the step
    REOPEN = "reopen"  # a backward pass adds to the gradients, or the ring broke in a later one
    APPLY = "apply"  # the optimizer makes the update, or nothing where there is none
    END = "end"  # the ledger has moved; without APPLY the script has skipped the update
    REFUSE = "refuse"
    FAIL = "fail"


_ANY = {StepEvent.REFUSE: StepState.REFUSED, StepEvent.FAIL: StepState.ENDED}
# The script may leave its loop before the update; then the next batch is handed out.
_LEFT = {StepEvent.HAND_OUT: StepState.HANDED_OUT}
_DECIDED = {StepEvent.APPLY: StepState.APPLIED, StepEvent.END: StepState.IDLE}
# With several optimizers, another one may learn that other workers completed the step.
_OPENED = {
    StepEvent.REOPEN: StepState.HANDED_OUT,
    StepEvent.SUPERSEDE: StepState.SUPERSEDED,
}

TRANSITIONS: Mapping[StepState, Mapping[StepEvent, StepState]] = {
    StepState.IDLE: _ANY | _LEFT,
    StepState.HANDED_OUT: _ANY
    | _LEFT
    | {
        StepEvent.SEND: StepState.SENDING,
        StepEvent.AVERAGE: StepState.REDUCED,  # no worker has a gradient
        StepEvent.KEEP: StepState.REDUCED,
        StepEvent.DROP: StepState.DROPPED,
        StepEvent.BREAK: StepState.BROKEN,
        StepEvent.SUPERSEDE: StepState.SUPERSEDED,
    },
    StepState.SENDING: _ANY
    | {
        StepEvent.AVERAGE: StepState.REDUCED,
        StepEvent.BREAK: StepState.BROKEN,
    },
    StepState.BROKEN: _ANY
    | {
        StepEvent.REPAIR: StepState.HANDED_OUT,
        StepEvent.SUPERSEDE: StepState.SUPERSEDED,
    },
    StepState.REDUCED: _ANY | _LEFT | _DECIDED | _OPENED,
    StepState.SUPERSEDED: _ANY | _LEFT | _DECIDED,
    StepState.DROPPED: _ANY | _LEFT | _DECIDED | _OPENED,
    StepState.APPLIED: _ANY | _LEFT | {StepEvent.END: StepState.IDLE},
    StepState.REFUSED: _ANY | _LEFT,
    StepState.ENDED: {
        StepEvent.APPLY: StepState.ENDED,
        StepEvent.REFUSE: StepState.ENDED,
        StepEvent.FAIL: StepState.ENDED,
    },
}

DECIDED = frozenset({StepState.REDUCED, StepState.SUPERSEDED, StepState.DROPPED})
REOPENED = frozenset(state for state in StepState if StepEvent.REOPEN in TRANSITIONS[state])
SUPERSEDED_FROM = frozenset(
    state for state in StepState if StepEvent.SUPERSEDE in TRANSITIONS[state]
)
EXCHANGING = frozenset({StepState.HANDED_OUT, StepState.SENDING})  # forward and backward passes run
CHANGES_NOTHING = frozenset({StepState.SUPERSEDED, StepState.DROPPED})
DONE = DECIDED | {StepState.APPLIED, StepState.ENDED}  # there is nothing more to reduce


@dataclass(frozen=True)
class OptimizerStep:
    """One optimizer's part of one step on one worker: an immutable value of the state machine."""

    number: int = 0  # of the step, counted from 1 on this worker; 0: before the first one
    state: StepState = StepState.IDLE
    history: tuple[StepEvent, ...] = ()  # since the batch was handed out, the oldest first
    # No gradients are left to be averaged: the step is decided, applied or ended. It is a field and
    # not a property, for it is read once for each parameter.
    done: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "done", self.state in DONE)

    @property
    def is_decided(self) -> bool:
        """Whether the result of the step is known: no gradients are left to be exchanged."""
        return self.done and self.state is not StepState.ENDED

    @property
    def changes_nothing(self) -> bool:
        """Whether the state is `SUPERSEDED` or `DROPPED`, so the optimizer makes no update."""
        return self.state in CHANGES_NOTHING

    def next(self, number: int) -> OptimizerStep:
        """Return the next step, handed out, with this `number` and no history."""
        return replace(self.after(StepEvent.HAND_OUT), number=number, history=())

    def after(self, event: StepEvent) -> OptimizerStep:
        """Return this step in the state that `TRANSITIONS` has for `event`."""
        state = TRANSITIONS[self.state].get(event)
        if state is None:
            events = ", ".join(each.value for each in self.history) or "nothing yet"
            raise IllegalTransition(
                f"step {self.number} of this worker is {self.state.value}, which allows no event "
                f"{event.value!r}. What happened to it: {events}. Training ends here, for its "
                "result could be wrong; please report this line as a defect of edl"
            )
        return OptimizerStep(self.number, state, (*self.history, event))


class OptimizerPart:
    """One optimizer's part of the open step."""

    def __init__(self, number: int) -> None:
        self.number = number  # of the optimizer in the script, from 0
        self.step = OptimizerStep()
        # from the step records of all workers; None: they are not there yet, or of a broken ring
        self.agreed: Weights | None = None
        # Gradients may be sent before the records have come: not if this worker has no samples, is
        # alone or warms up, if others have completed the step, after a repair, with logical
        # workers.
        self.sends_early = False
        # `sent`: the factor for the gradients that this worker sends: its samples over the nominal
        # batch, or 1 if they are added up over batches; 0 without samples. `part`: then the factor
        # for those of the batch handed out last, before they are added to those before.
        self.sent = self.part = 0.0
        self.cannot_repair = ""  # why the script cannot repair a ring in a step; empty if it can

    def on(self, event: StepEvent) -> None:
        """Take this part to the state that follows `event`."""
        self.step = self.step.after(event)

    @property
    def local_scale(self) -> float:
        """The factor that turns a lone worker's gradients into the mean over its samples."""
        if self.agreed is None or self.agreed.averaging is not Averaging.LOCAL:
            return 1.0
        return self.agreed.received
