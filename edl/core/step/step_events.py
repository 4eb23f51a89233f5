"""Define what :class:`edl.core.step.engine.StepEngine` is told, and what it instructs.

An *event* is what the script, the loader or a framework does (:data:`Event`, first part), or the
answer to an instruction (second part). An *instruction* (:data:`Instruction`) is what is to be done
next over the ring, or with the gradients of one optimizer.

An ``optimizer`` is the number of an optimizer in the script, from 0.
"""

from __future__ import annotations

from typing import NamedTuple

from edl.core.step.batch import Batch
from edl.core.step.step_record import StepRecords
from edl.core.step.step_state import StepEvent
from edl.core.step.weighting import Weights


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
