"""Decide what becomes of each step of a worker: one machine that is told events.

A step is one update of the model: it begins with a batch, and ends when the update is in the model
and the ledger has moved. :class:`StepEngine` holds all that a step is: its batches, the step
records of all workers, the factors that gradients are multiplied by, the state of each optimizer,
the order in which the optimizers have had gradients reduced, and whether the ring is broken, the
step repaired or completed by other workers.

The machine does no I/O. Its one entry is :meth:`StepEngine.handle`: it takes an event, such as
``BatchStart(batch)`` or ``RingFault(error)``, and returns the next instruction, such as
``START_RECORD`` or ``Allreduce(optimizer, weights)``, or None. :mod:`edl.worker.step_driver`
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
   transitions (:mod:`edl.core.step.step_state`) allows nothing else, for each optimizer.
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
from collections.abc import Callable
from enum import Enum, auto
from typing import Any, ClassVar, NamedTuple

from edl.core.step.step_batches import StepBatches
from edl.core.step.step_events import (
    LIST_DEPARTURES,
    START_RECORD,
    WAIT_RECORDS,
    Allreduce,
    AllreduceDone,
    BatchEnd,
    BatchStart,
    Event,
    GradientAccumulation,
    GraphEnd,
    Instruction,
    LeasesLost,
    LoopEnd,
    MessagesFailed,
    OptimizerEvent,
    PartStart,
    PlaceResult,
    Raise,
    RecordDone,
    RecordsArrival,
    RecordsRequest,
    ReductionRequest,
    Repair,
    RepairDone,
    ResultPlaced,
    RingFault,
    RingPlace,
    StepEnd,
    StepSkipped,
    StepSuperseded,
    WeightsRequest,
)
from edl.core.step.step_record import StepRecords, Stop, counts, samples_for
from edl.core.step.step_state import REOPENED, SUPERSEDED_FROM, OptimizerPart, StepEvent, StepState
from edl.core.step.weighting import Averaging, Share, Weights, weigh
from edl.errors import RingError, UsageError

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
        self._request = _Request.DISCARD if self.records is None else _Request.NOTHING
        self.records = None
        return self._next()

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
