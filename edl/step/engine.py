"""Decide what becomes of each step of a worker: one machine that is told events.

A step is one update of the model: it begins with a batch, and ends when the update is in the model
and the ledger has moved. :class:`StepEngine` holds all that a step is: its batches, the step
records of all workers, the factors that gradients are multiplied by, the state of each optimizer,
the order in which the optimizers have had gradients reduced, and whether the ring is broken, the
step repaired or completed by other workers.

The machine does no I/O. Its one entry is :meth:`StepEngine.handle`: it takes an event, such as
``BatchStart(batch)`` or ``RingFault(error)``, and returns the next instruction, such as
``START_RECORD`` or ``Allreduce(optimizer, weights)``, or None. :mod:`edl.worker.loader_steps`
carries the instruction out and answers it with one more event, until the result is None::

    instruction = engine.handle(ReductionRequest(0))
    while instruction is not None:
        instruction = engine.handle(carry_out(instruction))

What comes next follows from what is wanted and from the state of the step: in a broken ring a
repair, without records the records, and so on. So a reduction goes on after a repair as it began,
and a ring that breaks in the midst of a repair is no case of its own.

Rules:

1. **All send the same.** Every worker sends the same collectives in a step, whether it begins the
   step or repeats it after a repair, so those that repeat a step complete it with those that begin
   it. After a repair the reductions of the open step are repeated in their order.
2. **An update is made once**, with the mean over the global batch, or not at all: the table of
   transitions (:mod:`edl.step.engine`) allows nothing else, for each optimizer.
3. **A step that others have completed changes nothing here**: their state, in which this worker's
   gradients are included, has come with the repair.

With several optimizers a step is what lies between two updates: the backward passes of one or more
optimizers, and then the updates of one or more. A backward pass that comes after an update begins
the next step, on the same batch (``PartStart``). In each pass every optimizer that has new
gradients has them reduced. See docs/adr/0012 and docs/adr/0017.

"As bits" means: bit i stands for the optimizer with number i.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from edl.errors import DataError, IllegalTransition, RingError, UsageError
from edl.step.record import StepRecords, Stop, counts, samples_for
from edl.step.weighting import Averaging, Share, Weights, weigh

# ------------------------------------------------------------
# Define `Batch`, the samples that one worker trains at once.


@dataclass(frozen=True)
class Batch:
    """The samples that one worker trains at once: a whole batch, or a microbatch of it."""

    position: int  # the epoch position of the first sample
    indices: npt.NDArray[np.int64]  # of the samples in the data set, of shape (samples,)
    # the optimizers (bit i for the one with number i) that have already made an update with these
    # samples on another worker; their next update leaves the samples out
    counted: int = 0
    follow: int = 0  # how many microbatches of the same batch follow this one
    repeats: bool = False  # another worker's samples, computed again to compare; count for nothing

    @property
    def samples(self) -> int:
        return len(self.indices)

    @property
    def items(self) -> list[Any]:
        """The items of which the loader makes the batch: the samples' indices in the data set."""
        items: list[Any] = self.indices.tolist()
        return items

    @property
    def keys(self) -> list[int]:
        """The numbers that identify the samples in the epoch, equal on all workers."""
        keys: list[int] = self.indices.tolist()
        return keys


# ------------------------------------------------------------
# Define the states of a step on one worker, and the events that lead from one to another.
#
# The machine describes one optimizer's part of one step: from the batch that is handed out until
# the ledger has moved. An `OptimizerStep` holds the present state; `step.after(event)` gives the
# next one. `TRANSITIONS` has all of them; docs/adr/0012 shows it as a picture. Rules that hold for
# any sequence of events that the table allows (tests/property/test_step_state_properties.py):
#
# 1. **Decided once.** A step is reduced (its gradients are averaged), superseded (other workers
#    have completed it) or dropped (no worker has samples) once. Nothing is sent after that, unless
#    `REOPEN` opens the step again, which never happens to a superseded one.
# 2. **Applied once**, and only when it is decided.
# 3. **A repaired step is one that has just begun.** After a repair it is in the same state as a
#    step whose batch was just handed out, so it sends the same collectives: survivors that repeat a
#    step meet others that begin it.
# 4. **Nothing is sent into a broken ring**: after a break a step sends only when the ring is
#    repaired; if other workers had completed the step, it is superseded and sends nothing.
# 5. **Nothing is forgotten on its way.** No batch is handed out while gradients of the one before
#    are being sent.
#
# The table does not say which event happens, or when: that is `engine`.


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


# ------------------------------------------------------------
# Define what `StepEngine` is told, and what it instructs.
#
# An *event* is what the script, the loader or a framework does (`Event`, first part), or the answer
# to an instruction (second part). An *instruction* (`Instruction`) is what is to be done next over
# the ring, or with the gradients of one optimizer.
#
# An `optimizer` is the number of an optimizer in the script, from 0.


class RingPlace(NamedTuple):
    """The properties of a worker's ring on which its steps depend."""

    alone: bool  # the only worker of its ring
    warming_up: bool  # a newcomer that trains its warm-up batch
    batch_size: int  # the nominal batch, in samples, equal on all workers (`Source.batch_size`)


# --- what the script, the loader or a framework does


class BatchStart(NamedTuple):
    """The script gets a batch, or a microbatch of it, for a new step or the open one."""

    batch: Batch
    padding: bool  # the samples count for nothing
    place: RingPlace
    # the end of a stream's shard, beside padding: no samples, and positions that are done with this
    # step
    nothing: Batch | None = None
    pieces: int = 1  # microbatches into which each worker divides a batch


class PartStart(NamedTuple):
    """One more step begins on the batch in hand, for gradients are computed after an update."""

    place: RingPlace


class GradientAccumulation(NamedTuple):
    """The gradients of the batch are added to those of other batches: the step may have more."""


class LoopEnd(NamedTuple):
    """The script has left its loop; the records of an open step are exchanged all the same."""

    # it leaves only if all others do, too (`Stop.WANTED`); else it trains the step
    asks: bool = False


class RecordsRequest(NamedTuple):
    """The step records of all workers are wanted; a ring that breaks meanwhile stays broken."""


class WeightsRequest(NamedTuple):
    """The factors of an optimizer's gradients are wanted, for a graph that sends them itself."""

    optimizer: int
    repairs: bool  # a broken ring first; else it stays broken, and the optimizer has no factors


class ReductionRequest(NamedTuple):
    """The gradients of `optimizer` are to become the mean over the global batch."""

    optimizer: int


class GraphEnd(NamedTuple):
    """A graph that sends the gradients of `optimizer` itself has ended."""

    optimizer: int
    error: Exception | None = None  # the ring broke by it; repaired when factors are wanted again


class MessagesFailed(NamedTuple):
    """The ring broke by `error` in an exchange of messages inside the passes of `optimizer`."""

    optimizer: int
    error: Exception


class OptimizerEvent(NamedTuple):
    """An event of one optimizer's part of the step, which a framework tells."""

    optimizer: int
    event: StepEvent  # SEND, REOPEN, APPLY, END, REFUSE or FAIL


class StepEnd(NamedTuple):
    """The step is complete: here (`trained`), only on other workers, or in a warm-up."""

    trained: bool


class BatchEnd(NamedTuple):
    """The script is done with the batch in hand."""


class StepSkipped(NamedTuple):
    """The script has left its loop for good: the open step and its batches are dropped."""


class StepSuperseded(NamedTuple):
    """Other workers have completed the open step, and their state is in the model."""

    updates: int  # the optimizers, as bits, that have made their updates in it


class LeasesLost(NamedTuple):
    """The samples of the step's batches are leased to other workers now."""


# --- answers to an instruction


class RecordDone(NamedTuple):
    """This worker's step record is on its way."""


class RecordsArrival(NamedTuple):
    """The step records of all workers are here."""

    records: StepRecords


class RingFault(NamedTuple):
    """The instruction was not carried out, because the ring broke by `error`."""

    error: Exception


class RepairDone(NamedTuple):
    """The ring is repaired, and `place` is the new one; what was sent in the old one is lost."""

    place: RingPlace
    pieces: int = 1  # of each worker's batch in the open step, with those that the gone have left
    # microbatches with samples that this worker has yet to get; counted with logical workers only
    follow: int = 0
    left: bool = False  # all workers have left their loops in the open step, as others know


class AllreduceDone(NamedTuple):
    """All gradients of the reduction have come back as averages."""


class ResultPlaced(NamedTuple):
    """The result of the reduction is in its place."""


Event = (
    BatchStart
    | PartStart
    | GradientAccumulation
    | LoopEnd
    | RecordsRequest
    | WeightsRequest
    | ReductionRequest
    | GraphEnd
    | MessagesFailed
    | OptimizerEvent
    | StepEnd
    | BatchEnd
    | StepSkipped
    | StepSuperseded
    | LeasesLost
    | RecordDone
    | RecordsArrival
    | RingFault
    | RepairDone
    | AllreduceDone
    | ResultPlaced
)


# --- instructions


class StartRecord(NamedTuple):
    """Send this worker's record of the open step, without waiting. Answer: RecordDone."""


class WaitRecords(NamedTuple):
    """Wait for the step records of all workers. Answer: RecordsArrival, or RingFault."""


class ListDepartures(NamedTuple):
    """Exchange one more record, for some workers have left their loops; it says how they ended."""

    # An error of the worker follows, since the step cannot be completed; or else RecordDone.


class Raise(NamedTuple):
    """Raise `error`, by which the ring broke: what was wanted cannot be had. No answer."""

    error: Exception


class Repair(NamedTuple):
    """Build a ring of the survivors of the one that broke by `error`; drop what was sent in it."""

    # Answer: RepairDone; before it StepSuperseded or LeasesLost, if so.
    error: Exception


class Allreduce(NamedTuple):
    """Send gradients that are not sent yet, and wait for all: AllreduceDone, or RingFault."""

    optimizer: int
    weights: Weights
    again: bool  # reduced before in this step: the local gradients are sent again


class PlaceResult(NamedTuple):
    """Put the result of the reduction in its place, by the state of the optimizer's part."""

    # REDUCED: the averages, or the own gradients if nothing was sent. DROPPED or SUPERSEDED: there
    # is no result. Answer: ResultPlaced.
    optimizer: int
    again: bool  # reduced before in this step


Instruction = StartRecord | WaitRecords | ListDepartures | Raise | Repair | Allreduce | PlaceResult
GRADIENT_ACCUMULATION, RECORDS_REQUEST = GradientAccumulation(), RecordsRequest()
BATCH_END, RECORD_DONE = BatchEnd(), RecordDone()
ALLREDUCE_DONE, RESULT_PLACED = AllreduceDone(), ResultPlaced()
START_RECORD, WAIT_RECORDS, LIST_DEPARTURES = StartRecord(), WaitRecords(), ListDepartures()


# ------------------------------------------------------------
# Keep the batches of the open step on one worker: which are handed out, and which may follow.
#
# `StepBatches` is the part of `StepEngine` that is about samples. A step has one batch, or several
# if gradients are accumulated; a batch is handed out whole, or in pieces (microbatches), of which
# all workers have equally many.


class StepBatches:
    """The batches of the open step on one worker, and the pieces that are yet to be handed out."""

    def __init__(self) -> None:
        # the batch or microbatch handed out last, until it is trained; else None
        self.newest: Batch | None = None
        # `weight`: the samples of the batch (or microbatch) handed out last, trained or not; 0 for
        # padding, before the first batch, and if it is abandoned or lost. `count`: the batches of
        # the step, padding too; microbatches of one count once. `pieces_left`: the microbatches of
        # the batch in hand yet to be handed out. `part`: 0 in the first step of a batch, 1 in the
        # second. `counted`: the optimizers, as bits, that have updated by the batch elsewhere.
        self.weight = self.count = self.pieces_left = self.part = self.counted = 0
        self.pieces = 1  # microbatches of each batch of the step, on each worker
        # `summed`: gradients are added up over the batches, each times its samples. `may_grow`: one
        # more batch, or microbatch, may be added to the step.
        self.summed = self.may_grow = False
        self._follow = 0  # how many of pieces_left have samples
        self._untrained: list[Batch] = []  # the batches of the step that are no padding
        self._trained = 0  # samples of the batch, if it was trained in a step before this one

    @property
    def samples(self) -> int:
        """The number of samples that this worker brings into the step, without padding batches."""
        return self._trained if self.part else sum(batch.samples for batch in self._untrained)

    @property
    def untrained(self) -> tuple[Batch, ...]:
        """This worker's batches of the open step, without padding, not yet in the model."""
        return tuple(self._untrained)

    @property
    def follow(self) -> int:
        """How many microbatches of the batch in hand follow on this worker, without padding."""
        return self._follow if self.pieces_left > 0 and self.newest is not None else 0

    @property
    def is_exhausted(self) -> bool:
        """Whether only padding is left of the microbatches of the batch in hand."""
        return self.pieces_left > 0 and self._follow == 0

    def share(self, optimizer: int) -> Share:
        """Return how many samples and batches this worker brings into the step for an optimizer."""
        samples = 0 if self.counted >> optimizer & 1 else self.samples
        return Share(samples, self.count, self.summed)

    # --- what changes them: the engine's calls only

    def begin(self, summed: bool) -> None:
        """Begin a step without batches; `summed` says whether its gradients are always sums."""
        self.summed = summed
        self.count, self._untrained, self.counted, self.pieces_left = 0, [], 0, 0

    def add(self, event: BatchStart) -> None:
        """Add the batch or microbatch that the script gets now."""
        batch = event.batch
        if self.pieces_left:
            self.pieces_left -= 1
        else:
            self.count, self.pieces = self.count + 1, event.pieces
            self.pieces_left = event.pieces - 1
        self._follow = 0 if event.padding and not batch.repeats else batch.follow
        if event.nothing is not None:
            self._untrained.append(event.nothing)
        if not event.padding:
            if self.samples and batch.counted != self.counted:
                raise DataError(
                    "a batch that a worker left behind in the midst of several optimizers' updates "
                    "cannot be accumulated with others; accumulate in all steps, or in none"
                )
            self.counted = batch.counted
            self._untrained.append(batch)
        self.may_grow, self.newest = False, batch
        self.weight = 0 if event.padding else batch.samples

    def begin_part(self) -> None:
        """Begin one more step on the batch in hand."""
        self.part += 1
        self.summed = self.may_grow = False

    def end_parts(self) -> None:
        """End the batch in hand: the next step is the first one of its batch."""
        self.part = 0

    def grow(self) -> None:
        """Let the step have more batches, or microbatches: gradients are added up."""
        self.summed = self.may_grow = True

    def add_pieces(self, pieces: int, follow: int) -> None:
        """Divide the batch in hand into more microbatches: workers that are gone left them."""
        self.pieces_left += pieces - self.pieces
        self.pieces, self._follow = pieces, follow
        self.grow()

    def train(self) -> None:
        """Note that the samples of the step are in the model, here or on other workers."""
        self._trained = self.samples
        self.newest, self._untrained = None, []

    def drop(self) -> None:
        """Drop all batches of the step, because the script has left its loop."""
        self.newest, self.weight, self._untrained, self.part = None, 0, [], 0

    def lose(self, weight_stays: bool) -> None:
        """Drop the samples of the batches, which are leased to other workers now."""
        self._untrained, self._follow = [], 0
        if not weight_stays:
            self.weight = 0


ALONE = Weights(Averaging.LOCAL)


class _Request(Enum):
    """The request that the engine carries out, until it is done."""

    NOTHING = auto()
    RECORDS = auto()  # those of all
    DISCARD = auto()  # those of all, which do not count
    LEAVE = auto()  # those of all, also after a repair
    ASK = auto()  # as LEAVE, but the step may go on
    WEIGHTS = auto()  # without a repair
    AGREE = auto()  # the weights in a whole ring
    REDUCE = auto()
    MEND = auto()  # a whole ring, and in it what was reduced before


_LEAVING = (_Request.LEAVE, _Request.ASK)


class _Reduction(NamedTuple):
    """A reduction that is to be made: of which optimizer, and whether it was made before."""

    optimizer: int
    again: bool


class StepEngine:
    """The steps of one worker on edl's loader, one after the other."""

    def __init__(self) -> None:
        self.number = 0  # how many steps this worker has begun, warm-ups included
        # each optimizer's part of the open step, by the optimizer's number
        self.parts: list[OptimizerPart] = []
        # `is_open`: a batch is handed out whose step is not complete; `in_hand`: until BatchEnd
        self.is_open = self.in_hand = False
        self.batches = StepBatches()  # the batches of the step on this worker
        self.updates = 0  # the optimizers, as bits, that have made their updates in the step
        self.completed_by_peers = False  # other workers have completed the step without this one
        self._theirs = 0  # the updates of the workers that have completed the step
        # `late`: records are sent at the end of a step, because gradients are accumulated.
        # `leaves`: the script has left its loop during the batch. `logical`: each microbatch is
        # that of a logical worker; then a repair completes no step without the samples of workers
        # that are gone: they are trained in the open step. Others set `late` and `logical`; all
        # else `handle`.
        self.late = self.leaves = self.logical = False
        self.records: StepRecords | None = None  # of all workers; None: they have not come
        self._sent = False  # this worker's record is on its way in the present ring
        self._place = RingPlace(alone=True, warming_up=False, batch_size=1)
        self._request = _Request.NOTHING
        self._optimizer = 0  # of the request
        self._error: Exception | None = None  # with which the ring broke, until it is repaired
        self._rounds: list[int] = []  # the optimizers reduced in the step, in their order
        self._todo: deque[_Reduction] = deque()
        self._is_begun = False  # the first of _todo has been instructed

    def add_optimizer(self) -> OptimizerPart:
        """Add one more optimizer of the script, also to an open step; return its part."""
        part = OptimizerPart(len(self.parts))
        self.parts.append(part)
        if self.is_open:
            part.step = part.step.next(self.number)
            self._weigh(part)
        return part

    # --- what others ask about the open step

    @property
    def is_between_parts(self) -> bool:
        """Whether gradients computed again on the batch in hand belong to a new step."""
        return self.in_hand and (self.updates > 0 or not self.is_open)

    @property
    def updated(self) -> int:
        """The optimizers, as bits, that have made their updates in the step, here or elsewhere."""
        return self._theirs if self.completed_by_peers else self.updates

    # --- events

    def handle(self, event: Event) -> Instruction | None:
        """Change the step by `event`; return the next instruction, or None if nothing is to do."""
        return self._HANDLERS[type(event)](self, event)

    def _batch_start(self, event: BatchStart) -> Instruction | None:
        first = not self.is_open
        if first:
            self.is_open = True
            self.batches.begin(summed=self.logical)
        self.batches.add(event)
        self.in_hand, self._place = True, event.place
        if first:
            return self._begin()
        self._weigh_all()
        return None

    def _part_start(self, event: PartStart) -> Instruction | None:
        if self.batches.count > 1:
            raise UsageError(
                "with accumulated gradients, several optimizers make their updates one after the "
                "other: call backward() for all of them before the first optimizer.step()"
            )
        self.batches.begin_part()
        self.is_open, self._place = True, event.place
        return self._begin()

    def _begin(self) -> Instruction | None:
        """Begin a step for all optimizers; its record goes out now, or with the last batch."""
        self.number += 1
        self.leaves = self._sent = False
        self.records = self._error = None
        self._rounds.clear()
        self._todo.clear()
        for part in self.parts:
            part.step, part.agreed = part.step.next(self.number), None
        self._weigh_all()
        self._request = _Request.NOTHING
        return None if self.late or self._place.warming_up else self._start_record()

    def _gradient_accumulation(self, _: GradientAccumulation) -> Instruction | None:
        early, self.late = not self.late, True
        self.batches.grow()
        self._weigh_all()
        if not early or self._place.warming_up:
            return None
        # All records went out with this batch: they do not count.
        if self.records is None:
            self._request = _Request.DISCARD
            return self._next()
        self.records, self._sent, self._request = None, False, _Request.NOTHING
        return None

    def _records_request(self, _: RecordsRequest) -> Instruction | None:
        self._request = _Request.RECORDS
        return self._next()

    def _loop_end(self, event: LoopEnd) -> Instruction | None:
        if self._place.warming_up or self.completed_by_peers:
            return None
        self.leaves = self.is_open and not event.asks
        leaving = _Request.ASK if event.asks else _Request.LEAVE
        self._request = leaving if self.is_open else _Request.NOTHING
        return self._next()

    def _weights_request(self, event: WeightsRequest) -> Instruction | None:
        self.parts[event.optimizer].agreed = None
        request = _Request.AGREE if event.repairs else _Request.WEIGHTS
        return self._begin_request(request, event.optimizer)

    def _reduction_request(self, event: ReductionRequest) -> Instruction | None:
        wanted = _Reduction(event.optimizer, again=False)
        return self._begin_request(_Request.REDUCE, event.optimizer, wanted)

    def _begin_request(
        self, request: _Request, optimizer: int, *todo: _Reduction
    ) -> Instruction | None:
        """Begin a request with the reductions `todo`; drop what is left of an earlier one."""
        self._request, self._optimizer = request, optimizer
        self._todo, self._is_begun = deque(todo), False
        return self._next()

    def _graph_end(self, event: GraphEnd) -> None:
        part = self.parts[event.optimizer]
        if event.error is not None:
            self._break(part, event.error)
        elif part.step.state is StepState.SENDING:
            part.on(StepEvent.AVERAGE)
        else:
            self._unsent(part)

    def _messages_failed(self, event: MessagesFailed) -> Instruction | None:
        self._break(self.parts[event.optimizer], event.error)
        return self._begin_request(_Request.MEND, event.optimizer)

    def _optimizer_event(self, told: OptimizerEvent) -> Instruction | None:
        part, event = self.parts[told.optimizer], told.event
        if event is StepEvent.SEND:
            return self._gradient_sent(part)
        if event is StepEvent.REOPEN:
            self._reopen(part)
            return None
        part.on(event)
        if event is StepEvent.APPLY:
            self.updates |= 1 << told.optimizer
        elif event is not StepEvent.END:
            part.agreed = None
        return None

    def _gradient_sent(self, part: OptimizerPart) -> Instruction | None:
        """Note a gradient on its way; with the first one goes the record, if it is not sent yet."""
        if part.step.state is StepState.SENDING:
            return None
        part.on(StepEvent.SEND)
        return None if self._sent or self.records is not None else self._start_record()

    def _step_end(self, event: StepEnd) -> None:
        if event.trained:
            self.batches.train()
        self.is_open, self.completed_by_peers, self.updates = False, False, 0

    def _batch_end(self, _: BatchEnd) -> None:
        self.batches.end_parts()
        self.in_hand = False

    def _step_skipped(self, _: StepSkipped) -> None:
        self.batches.drop()
        self.is_open = self.in_hand = False
        self.updates = 0

    def _step_superseded(self, event: StepSuperseded) -> None:
        self.completed_by_peers, self._theirs = True, event.updates
        self.batches.train()

    def _leases_lost(self, _: LeasesLost) -> None:
        self.batches.lose(weight_stays=self.completed_by_peers or self.batches.part > 0)
        self._weigh_all()

    # --- answers

    def _records_arrival(self, event: RecordsArrival) -> Instruction | None:
        if self._request is _Request.DISCARD:
            self._request, self._sent = _Request.NOTHING, False
            return None
        if self.is_open and not counts(event.records):  # some did not know that they accumulate
            self.late, self._sent = True, False
            return self._next()
        self.records = event.records
        if not self.leaves and bool((event.records.column("stop") == Stop.LEFT).any()):
            return LIST_DEPARTURES
        return self._next()

    def _ring_fault(self, event: RingFault) -> Instruction | None:
        request, self._sent, self.records = self._request, False, None
        if request is _Request.DISCARD:
            self._request = _Request.NOTHING
            return None
        if request is _Request.RECORDS:
            self._request = _Request.NOTHING
            return Raise(event.error)
        if request in _LEAVING:
            self._error = event.error
        else:
            at = self._todo[0].optimizer if self._todo else self._optimizer
            self._break(self.parts[at], event.error)
        if request is _Request.WEIGHTS:
            self._request = _Request.NOTHING
            return None
        return self._next()

    def _repair_done(self, event: RepairDone) -> Instruction | None:
        """Go on in a new ring, with the gradients that the workers still hold."""
        self._place, self._error, self.records, self._sent = event.place, None, None, False
        if self._request in _LEAVING and event.left:
            return self._done()
        goes_on = self.is_open and not (self.completed_by_peers or self.leaves)
        if self.logical and goes_on and event.pieces > self.batches.pieces:
            self._go_on(event)
            return None
        if self._request is not _Request.LEAVE:
            for part in self.parts:
                self._renew(part)
        if self.completed_by_peers:
            begun = [each for each in self._todo if self._is_begun and each.again][:1]
            asked = [each for each in self._todo if not each.again]
            self._todo = deque(begun + asked)
        else:
            self._todo.extendleft(_Reduction(each, again=True) for each in reversed(self._rounds))
        self._rounds.clear()
        self._is_begun = False
        needs_record = not (self.late or self.completed_by_peers or event.left)
        return self._start_record() if needs_record else self._next()

    def _go_on(self, event: RepairDone) -> None:
        """Go on with more microbatches of the open step, which workers that are gone have left."""
        # What was asked for has no result yet: it is asked for again after the last microbatch.
        self.batches.add_pieces(event.pieces, event.follow)
        self._request = _Request.NOTHING
        self._rounds.clear()
        self._todo.clear()
        for part in self.parts:
            self._renew(part)

    def _renew(self, part: OptimizerPart) -> None:
        """Take an optimizer's part back to its beginning, or to the end that others have made."""
        if part.step.state is StepState.SENDING:
            part.on(StepEvent.BREAK)
        if self.completed_by_peers:
            self._supersede(part)
        elif part.step.state is StepState.BROKEN:
            part.on(StepEvent.REPAIR)
        self._weigh(part)
        part.sends_early = False

    def _allreduce_done(self, _: AllreduceDone) -> Instruction | None:
        self.parts[self._todo[0].optimizer].on(StepEvent.AVERAGE)
        return PlaceResult(*self._todo[0])

    def _result_placed(self, _: ResultPlaced) -> Instruction | None:
        self._rounds.append(self._todo.popleft().optimizer)
        self._is_begun = False
        return self._next()

    # --- what comes next

    def _next(self) -> Instruction | None:
        """Return the next instruction for the request, by the state of the step; None: none."""
        request = self._request
        if request is _Request.NOTHING:
            return None
        if self._error is not None:
            return self._repair(self._error)
        if request in (_Request.AGREE, _Request.REDUCE, _Request.MEND):
            return (
                self._next_superseded() if self.completed_by_peers else self._next_in_whole_ring()
            )
        left = request in _LEAVING and self.completed_by_peers
        if not left and (instruction := self._next_for_records()) is not None:
            return instruction
        if request is _Request.WEIGHTS:
            self._agreed(self.parts[self._optimizer])
        return self._done()

    def _done(self) -> Instruction | None:
        self._request = _Request.NOTHING
        return None

    def _repair(self, error: Exception) -> Instruction:
        why = self.parts[self._optimizer].cannot_repair if self.parts else ""
        if not why or self._request in _LEAVING:
            return Repair(error)
        refused = RingError(f"a step was interrupted, and {why} ({error})")
        refused.__cause__ = error
        return Raise(refused)

    def _start_record(self) -> Instruction:
        self._sent = True
        return START_RECORD

    def _next_for_records(self) -> Instruction | None:
        """Return what brings the records of all workers; None: they are here, or not needed."""
        if self.records is not None or self._place.warming_up:
            return None
        return self._start_record() if self.is_open and not self._sent else WAIT_RECORDS

    def _next_superseded(self) -> Instruction | None:
        """Return what comes next in a step that others have completed."""
        for part in self.parts:
            self._supersede(part)
        return PlaceResult(*self._todo[0]) if self._todo else self._done()

    def _next_in_whole_ring(self) -> Instruction | None:
        """Return what comes next for a request that a broken ring does not end."""
        if self._todo:
            return self._next_round(*self._todo[0])
        part = self.parts[self._optimizer]
        if self._request is _Request.MEND:
            self._reopen(part)
        elif self._request is _Request.AGREE:
            if (instruction := self._next_for_records()) is not None:
                return instruction
            self._agreed(part)
        return self._done()

    def _next_round(self, optimizer: int, again: bool) -> Instruction | None:
        """Return what comes next to reduce the gradients of `optimizer`."""
        part = self.parts[optimizer]
        self._reopen(part)
        if (instruction := self._next_for_records()) is not None:
            return instruction
        if part.step.done:  # the optimizer has made its update
            self._todo.popleft()
            return self._next()
        weights = self._agreed(part)
        if weights.sends:
            self._is_begun = True
            return Allreduce(optimizer, weights, again)
        self._unsent(part)
        return PlaceResult(optimizer, again)

    # --- parts of these

    def _agreed(self, part: OptimizerPart) -> Weights:
        """Return the factors of an optimizer's gradients, which follow from the records."""
        if self._place.warming_up:
            part.agreed = ALONE
        else:
            records = self.records
            assert records is not None
            samples, batches = samples_for(records, part.number), records.column("batches")
            share = self.batches.share(part.number)
            part.agreed = weigh(samples, batches, share, self._place.batch_size)
        return part.agreed

    def _unsent(self, part: OptimizerPart) -> None:
        """Decide what becomes of a step in which this worker sent no gradient."""
        if part.agreed is not None and part.agreed.averaging is Averaging.LOCAL:
            part.on(StepEvent.KEEP)
        elif part.agreed is not None and part.agreed.averaging is Averaging.NONE:
            part.on(StepEvent.DROP)

    def _break(self, part: OptimizerPart, error: Exception) -> None:
        part.on(StepEvent.BREAK)
        part.agreed, self._error = None, error

    def _reopen(self, part: OptimizerPart) -> None:
        if part.step.state in REOPENED:
            part.on(StepEvent.SUPERSEDE if self.completed_by_peers else StepEvent.REOPEN)

    def _supersede(self, part: OptimizerPart) -> None:
        if part.step.state in SUPERSEDED_FROM:
            part.on(StepEvent.SUPERSEDE)

    def _weigh_all(self) -> None:
        for part in self.parts:
            self._weigh(part)

    def _weigh(self, part: OptimizerPart) -> None:
        """Compute an optimizer's factors anew, from the batches of the open step."""
        share, place = self.batches.share(part.number), self._place
        part.sent = share.send_weight(place.batch_size)
        last = Share(self.batches.weight if share.samples else 0)
        part.part = last.send_weight(place.batch_size)
        waits = place.warming_up or place.alone or self.completed_by_peers or self.logical
        part.sends_early = part.sent > 0 and not waits

    _HANDLERS: ClassVar[dict[type, Callable[[Any, Any], Instruction | None]]] = {
        BatchStart: _batch_start,
        PartStart: _part_start,
        GradientAccumulation: _gradient_accumulation,
        LoopEnd: _loop_end,
        RecordsRequest: _records_request,
        WeightsRequest: _weights_request,
        ReductionRequest: _reduction_request,
        GraphEnd: _graph_end,
        MessagesFailed: _messages_failed,
        OptimizerEvent: _optimizer_event,
        StepEnd: _step_end,
        BatchEnd: _batch_end,
        StepSkipped: _step_skipped,
        StepSuperseded: _step_superseded,
        LeasesLost: _leases_lost,
        RecordDone: lambda engine, _: engine._next(),
        RecordsArrival: _records_arrival,
        RingFault: _ring_fault,
        RepairDone: _repair_done,
        AllreduceDone: _allreduce_done,
        ResultPlaced: _result_placed,
    }
