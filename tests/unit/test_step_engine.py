"""What the step engine instructs, event by event, with no ring and no framework."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edl.errors import IllegalTransition, RingBroken, RingError, UsageError
from edl.step.engine import (
    ALLREDUCE_DONE,
    GRADIENT_ACCUMULATION,
    RECORD_DONE,
    RECORDS_REQUEST,
    RESULT_PLACED,
    START_RECORD,
    WAIT_RECORDS,
    Allreduce,
    Batch,
    BatchStart,
    Event,
    Instruction,
    LeasesLost,
    ListDepartures,
    LoopEnd,
    MessagesFailed,
    OptimizerEvent,
    PartStart,
    PlaceResult,
    Raise,
    RecordsArrival,
    ReductionRequest,
    Repair,
    RepairDone,
    RingFault,
    RingPlace,
    StartRecord,
    StepEnd,
    StepEngine,
    StepEvent,
    StepState,
    StepSuperseded,
    WaitRecords,
    WeightsRequest,
)
from edl.step.record import StepRecord, StepRecords, Stop
from edl.step.weighting import Averaging, Weights

SIZE = 4  # samples of a full batch
RING = RingPlace(alone=False, warming_up=False, batch_size=SIZE)
ALONE = RingPlace(alone=True, warming_up=False, batch_size=SIZE)
WARM_UP = RingPlace(alone=True, warming_up=True, batch_size=SIZE)
BROKEN = RingBroken(1, "a test says so")
PLAIN = Weights(Averaging.PLAIN, total=2 * SIZE)


def batch(samples: int = SIZE) -> Batch:
    return Batch(0, np.arange(samples))


def records(*samples: int, **fields: Any) -> RecordsArrival:
    """Return the records of workers that bring so many samples."""
    rows = [
        StepRecord(1, 7, worker, 0, each, 0, 0, 1, 0, **fields)
        for worker, each in enumerate(samples)
    ]
    return RecordsArrival(StepRecords.of(rows))


FULL = records(SIZE, SIZE)


def engine_of(optimizers: int = 1, place: RingPlace = RING) -> StepEngine:
    """Return the engine of a script with so many optimizers, which has its first batch."""
    engine = StepEngine()
    for _ in range(optimizers):
        engine.add_optimizer()
    engine.handle(BatchStart(batch(), False, place))
    return engine


def told(engine: StepEngine, *events: Event) -> list[Instruction | None]:
    return [engine.handle(event) for event in events]


def states(engine: StepEngine) -> list[StepState]:
    return [part.step.state for part in engine.parts]


def test_an_ordinary_step() -> None:
    engine = StepEngine()
    part = engine.add_optimizer()
    assert engine.handle(BatchStart(batch(), False, RING)) == START_RECORD
    assert engine.handle(RECORD_DONE) is None
    assert (part.sends_early, part.sent) == (True, 1.0)
    assert engine.handle(OptimizerEvent(0, StepEvent.SEND)) is None, "the record is on its way"
    assert told(engine, ReductionRequest(0), FULL, ALLREDUCE_DONE, RESULT_PLACED) == [
        WAIT_RECORDS,
        Allreduce(0, PLAIN, again=False),
        PlaceResult(0, again=False),
        None,
    ]
    assert states(engine) == [StepState.REDUCED]
    for event in (StepEvent.APPLY, StepEvent.END):
        assert engine.handle(OptimizerEvent(0, event)) is None
    assert (engine.updates, engine.batches.untrained) == (1, (engine.batches.newest,))
    engine.handle(StepEnd(trained=True))
    assert (engine.is_open, engine.updates, engine.batches.untrained) == (False, 0, ())
    assert engine.handle(BatchStart(batch(), False, RING)) == START_RECORD
    assert engine.number == 2


def test_a_record_of_summed_gradients_goes_with_the_first_of_them() -> None:
    engine = engine_of()
    assert told(engine, RECORD_DONE, GRADIENT_ACCUMULATION) == [None, WAIT_RECORDS]
    assert engine.handle(FULL) is None, "they do not count"
    assert engine.handle(BatchStart(batch(), False, RING)) is None
    assert (engine.batches.count, engine.batches.samples, engine.records) == (2, 2 * SIZE, None)
    assert told(engine, OptimizerEvent(0, StepEvent.SEND), RECORD_DONE) == [START_RECORD, None]
    both = records(2 * SIZE, 2 * SIZE, batches=2, late=1)
    of_four = replace(PLAIN, total=4 * SIZE)
    assert told(engine, ReductionRequest(0), both)[1] == Allreduce(0, of_four, again=False)
    engine.handle(ALLREDUCE_DONE)
    told(engine, RESULT_PLACED, OptimizerEvent(0, StepEvent.END), StepEnd(trained=True))
    assert engine.handle(BatchStart(batch(), False, RING)) is None, "late from now on"


def test_records_that_came_before_gradients_are_summed_are_sent_again() -> None:
    """The script has gathered in the forward pass of the first batch."""
    engine = engine_of()
    assert told(engine, RECORD_DONE, RECORDS_REQUEST, FULL) == [None, WAIT_RECORDS, None]
    assert told(engine, GRADIENT_ACCUMULATION, BatchStart(batch(), False, RING)) == [None, None]
    assert told(engine, RECORDS_REQUEST, RECORD_DONE) == [START_RECORD, WAIT_RECORDS]


def test_who_did_not_know_of_sums_sends_its_record_again() -> None:
    engine = engine_of()
    mixed = StepRecords.of([records(4, 4).records[0], records(4, 4, late=1).records[1]])
    assert told(engine, RECORDS_REQUEST, RecordsArrival(mixed), RECORD_DONE) == [
        WAIT_RECORDS,
        START_RECORD,
        WAIT_RECORDS,
    ]
    assert engine.late
    assert engine.handle(records(4, 4, late=1)) is None
    assert engine.records is not None


@pytest.mark.parametrize("place", [ALONE, WARM_UP], ids=["alone", "warms up"])
def test_the_gradients_of_a_lone_worker_are_the_mean(place: RingPlace) -> None:
    engine = engine_of(place=place)
    answers = (FULL,) if place is WARM_UP else (records(SIZE),)
    said = told(engine, ReductionRequest(0))
    assert said == ([PlaceResult(0, again=False)] if place is WARM_UP else [WAIT_RECORDS])
    if place is ALONE:
        assert told(engine, *answers) == [PlaceResult(0, again=False)]
    assert engine.handle(RESULT_PLACED) is None
    assert states(engine) == [StepState.REDUCED]


def test_a_step_without_samples_is_dropped() -> None:
    engine = StepEngine()
    engine.add_optimizer()
    engine.handle(BatchStart(batch(), True, RING))
    assert (engine.batches.weight, engine.batches.samples, engine.parts[0].sends_early) == (
        0,
        0,
        False,
    )
    assert told(engine, ReductionRequest(0), records(0, 0)) == [WAIT_RECORDS, PlaceResult(0, False)]
    assert states(engine) == [StepState.DROPPED]


# --- a ring that breaks


def break_at(engine: StepEngine, when: str) -> None:
    """Bring the reduction of optimizer 0 to a break ``when`` it waits."""
    assert engine.handle(ReductionRequest(0)) == WAIT_RECORDS
    if when == "for gradients":
        assert isinstance(engine.handle(FULL), Allreduce)
    assert engine.handle(RingFault(BROKEN)) == Repair(BROKEN)


@pytest.mark.parametrize("when", ["for records", "for gradients"])
def test_survivors_begin_the_step_anew(when: str) -> None:
    engine = engine_of()
    engine.handle(OptimizerEvent(0, StepEvent.SEND))
    break_at(engine, when)
    assert states(engine) == [StepState.BROKEN]
    assert told(engine, RepairDone(RING), RECORD_DONE, FULL, ALLREDUCE_DONE, RESULT_PLACED) == [
        START_RECORD,
        WAIT_RECORDS,
        Allreduce(0, PLAIN, again=False),
        PlaceResult(0, again=False),
        None,
    ]
    assert not engine.parts[0].sends_early


def test_the_last_survivor_keeps_its_own() -> None:
    engine = engine_of()
    break_at(engine, "for gradients")
    assert told(engine, RepairDone(ALONE), RECORD_DONE, records(SIZE)) == [
        START_RECORD,
        WAIT_RECORDS,
        PlaceResult(0, again=False),
    ]
    assert states(engine) == [StepState.REDUCED]


def test_a_ring_may_break_again_and_again() -> None:
    engine = engine_of()
    break_at(engine, "for records")
    for _ in range(3):
        assert engine.handle(RepairDone(RING)) == START_RECORD
        assert engine.handle(RECORD_DONE) == WAIT_RECORDS
        assert engine.handle(RingFault(BROKEN)) == Repair(BROKEN)


def test_what_others_have_completed_changes_nothing_here() -> None:
    engine = engine_of(2)
    break_at(engine, "for gradients")
    assert engine.handle(StepSuperseded(3)) is None
    assert told(engine, RepairDone(RING), RESULT_PLACED) == [PlaceResult(0, again=False), None]
    assert states(engine) == [StepState.SUPERSEDED, StepState.SUPERSEDED]
    assert (engine.updated, engine.batches.untrained) == (3, ())
    assert told(engine, ReductionRequest(1), RESULT_PLACED) == [PlaceResult(1, again=False), None]


def test_a_survivor_whose_leases_are_gone_goes_on_without_samples() -> None:
    engine = engine_of()
    break_at(engine, "for gradients")
    engine.handle(LeasesLost())
    engine.handle(RepairDone(RING))
    assert (engine.batches.samples, engine.batches.weight, engine.parts[0].sent) == (0, 0, 0.0)


def test_what_cannot_be_repaired_is_raised() -> None:
    engine = engine_of()
    engine.parts[0].cannot_repair = "this is a test"
    engine.handle(ReductionRequest(0))
    found = engine.handle(RingFault(BROKEN))
    assert isinstance(found, Raise)
    assert isinstance(found.error, RingError)
    assert str(found.error).startswith("a step was interrupted, and this is a test (")
    assert found.error.__cause__ is BROKEN


def test_records_alone_are_not_worth_a_repair() -> None:
    engine = engine_of()
    assert told(engine, RECORDS_REQUEST, RingFault(BROKEN)) == [WAIT_RECORDS, Raise(BROKEN)]
    assert states(engine) == [StepState.HANDED_OUT]


# --- several optimizers


def reduce_all(engine: StepEngine, *optimizers: int) -> None:
    for optimizer in optimizers:
        instruction = engine.handle(ReductionRequest(optimizer))
        while instruction is not None:
            instruction = engine.handle(answer(instruction))


def answer(instruction: Instruction) -> Event:
    """Return the answer to an instruction that a whole ring gives."""
    answers: dict[type, Event] = {
        StartRecord: RECORD_DONE,
        WaitRecords: FULL,
        Allreduce: ALLREDUCE_DONE,
        PlaceResult: RESULT_PLACED,
        Repair: RepairDone(RING),
    }
    return answers[type(instruction)]


def rounds(engine: StepEngine, instruction: Instruction | None) -> list[tuple[int, bool]]:
    """Return which optimizers are reduced next, and whether again, until nothing is left to do."""
    found = []
    while instruction is not None:
        if isinstance(instruction, Allreduce):
            found.append((instruction.optimizer, instruction.again))
        instruction = engine.handle(answer(instruction))
    return found


def test_all_reductions_of_the_step_are_repeated_in_their_order() -> None:
    engine = engine_of(3)
    reduce_all(engine, 1, 0)
    assert isinstance(engine.handle(ReductionRequest(2)), Allreduce), "the records are known"
    found = engine.handle(RingFault(BROKEN))
    assert rounds(engine, found) == [(1, True), (0, True), (2, False)]
    assert states(engine) == [StepState.REDUCED] * 3


def test_an_optimizer_is_repeated_as_often_as_it_was_reduced() -> None:
    engine = engine_of(2)
    reduce_all(engine, 0, 1)
    engine.handle(OptimizerEvent(0, StepEvent.REOPEN))
    engine.handle(ReductionRequest(0))
    found = engine.handle(RingFault(BROKEN))
    assert rounds(engine, found) == [(0, True), (1, True), (0, False)]


@pytest.mark.parametrize("breaks", [0, 1, 2])
def test_a_break_while_they_are_repeated_begins_with_the_first(breaks: int) -> None:
    engine = engine_of(3)
    reduce_all(engine, 0, 1)
    engine.handle(ReductionRequest(2))
    instruction = engine.handle(RingFault(BROKEN))
    seen = 0
    while not isinstance(instruction, Allreduce) or seen < breaks:
        seen += isinstance(instruction, Allreduce)
        assert instruction is not None
        instruction = engine.handle(answer(instruction))
    found = engine.handle(RingFault(BROKEN))
    assert rounds(engine, found) == [(0, True), (1, True), (2, False)]


def test_others_may_have_completed_what_is_repeated() -> None:
    engine = engine_of(2)
    reduce_all(engine, 0)
    engine.handle(ReductionRequest(1))
    instruction = engine.handle(RingFault(BROKEN))
    while not isinstance(instruction, Allreduce):
        assert instruction is not None
        instruction = engine.handle(answer(instruction))
    assert instruction == Allreduce(0, PLAIN, again=True)
    assert engine.handle(RingFault(BROKEN)) == Repair(BROKEN)
    engine.handle(StepSuperseded(0))
    assert told(engine, RepairDone(RING), RESULT_PLACED, RESULT_PLACED) == [
        PlaceResult(0, again=True),
        PlaceResult(1, again=False),
        None,
    ]
    assert states(engine) == [StepState.SUPERSEDED] * 2


def test_an_update_is_not_repeated() -> None:
    engine = engine_of(2)
    reduce_all(engine, 0)
    engine.handle(OptimizerEvent(0, StepEvent.APPLY))
    engine.handle(ReductionRequest(1))
    found = engine.handle(RingFault(BROKEN))
    assert rounds(engine, found) == [(1, False)]
    assert states(engine) == [StepState.APPLIED, StepState.REDUCED]


def test_the_next_step_of_a_batch_repeats_none_of_the_one_before() -> None:
    engine = engine_of(2)
    reduce_all(engine, 0)
    told(engine, OptimizerEvent(0, StepEvent.APPLY), StepEnd(trained=True))
    assert engine.is_between_parts
    assert engine.handle(PartStart(RING)) == START_RECORD
    assert (engine.batches.part, engine.batches.samples, engine.number) == (1, SIZE, 2)
    assert engine.handle(ReductionRequest(1)) == WAIT_RECORDS
    assert rounds(engine, engine.handle(RingFault(BROKEN))) == [(1, False)]


def test_several_batches_have_one_step() -> None:
    engine = engine_of(2)
    told(engine, GRADIENT_ACCUMULATION, FULL, BatchStart(batch(), False, RING))
    with pytest.raises(UsageError, match="with accumulated gradients, several optimizers"):
        engine.handle(PartStart(RING))


def test_an_exchange_in_a_pass_mends_the_ring() -> None:
    engine = engine_of()
    engine.handle(OptimizerEvent(0, StepEvent.SEND))
    assert told(engine, MessagesFailed(0, BROKEN), RepairDone(RING), RECORD_DONE) == [
        Repair(BROKEN),
        START_RECORD,
        None,
    ]
    assert states(engine) == [StepState.HANDED_OUT]


def test_another_exchange_learns_that_others_are_ahead() -> None:
    engine = engine_of()
    engine.handle(MessagesFailed(0, BROKEN))
    engine.handle(StepSuperseded(1))
    assert engine.handle(RepairDone(RING)) is None
    assert states(engine) == [StepState.SUPERSEDED]


# --- graphs


def test_a_graph_is_told_its_weights() -> None:
    engine = engine_of()
    assert told(engine, WeightsRequest(0, repairs=False), records(SIZE, 2)) == [WAIT_RECORDS, None]
    agreed = engine.parts[0].agreed
    assert agreed is not None
    assert agreed.averaging is Averaging.WEIGHTED


def test_a_graph_has_no_weights_in_a_broken_ring_before_it_wants_a_repair() -> None:
    engine = engine_of()
    assert told(engine, WeightsRequest(0, repairs=False), RingFault(BROKEN)) == [WAIT_RECORDS, None]
    assert (engine.parts[0].agreed, states(engine)) == (None, [StepState.BROKEN])
    assert told(engine, WeightsRequest(0, repairs=True), RepairDone(RING), RECORD_DONE, FULL) == [
        Repair(BROKEN),
        START_RECORD,
        WAIT_RECORDS,
        None,
    ]
    assert (engine.parts[0].agreed, states(engine)) == (PLAIN, [StepState.HANDED_OUT])


# --- a script that leaves


def test_who_leaves_its_loop_exchanges_the_records_of_the_step() -> None:
    engine = engine_of()
    assert told(engine, LoopEnd(), RingFault(BROKEN), RepairDone(RING), RECORD_DONE, FULL) == [
        WAIT_RECORDS,
        Repair(BROKEN),
        START_RECORD,
        WAIT_RECORDS,
        None,
    ]
    assert (engine.leaves, states(engine)) == (True, [StepState.HANDED_OUT])


def test_who_learns_that_all_have_left_needs_no_records() -> None:
    engine = engine_of()
    assert told(engine, LoopEnd(), RingFault(BROKEN), RepairDone(RING, left=True)) == [
        WAIT_RECORDS,
        Repair(BROKEN),
        None,
    ]
    engine = engine_of()
    told(engine, MessagesFailed(0, BROKEN))
    assert engine.handle(RepairDone(RING, left=True)) is None, "no record: none is awaited"


def test_the_others_ask_how_it_has_ended() -> None:
    engine = engine_of()
    left = StepRecords.of([records(4, 4).records[0], records(4, 4, stop=Stop.LEFT).records[1]])
    found = told(engine, ReductionRequest(0), RecordsArrival(left))
    assert [type(each) for each in found] == [WaitRecords, ListDepartures]


# --- what is no event of a step


@pytest.mark.parametrize(
    "event", [BatchStart(batch(), False, RING), ReductionRequest(0)], ids=["batch", "reduction"]
)
def test_nothing_happens_twice(event: Event) -> None:
    engine = engine_of()
    engine.handle(OptimizerEvent(0, StepEvent.SEND))
    if isinstance(event, BatchStart):
        engine.handle(StepEnd(trained=True))
        with pytest.raises(IllegalTransition, match="allows no event 'hand out'"):
            engine.handle(event)
        return
    reduce_all(engine, 0)
    with pytest.raises(IllegalTransition, match="allows no event 'end'"):
        told(engine, OptimizerEvent(0, StepEvent.END), OptimizerEvent(0, StepEvent.END))


def test_the_same_story_has_the_same_instructions() -> None:
    """The engine has no clock and no chance: a recorded story can be replayed."""

    def story(note: Callable[[Event], None]) -> list[Instruction | None]:
        engine = StepEngine()
        engine.add_optimizer()
        engine.add_optimizer()
        found: list[Instruction | None] = []
        events: list[Event] = [BatchStart(batch(), False, RING), RECORD_DONE]
        events += [ReductionRequest(0), FULL, ALLREDUCE_DONE, RESULT_PLACED, ReductionRequest(1)]
        events += [RingFault(BROKEN), RepairDone(RING), RECORD_DONE, FULL]
        events += [ALLREDUCE_DONE, RESULT_PLACED] * 2
        for event in events:
            note(event)
            found.append(engine.handle(event))
        return found

    kept: list[Event] = []
    first = story(kept.append)
    engine = StepEngine()
    engine.add_optimizer()
    engine.add_optimizer()
    assert told(engine, *kept) == first
    assert first[-1] is None


def piece(follow: int) -> Batch:
    return Batch(0, np.arange(SIZE), follow=follow)


def logical_engine(pieces: int) -> StepEngine:
    """Return the engine of a script with logical workers, whose last piece of the step is here."""
    engine = StepEngine()
    engine.late = engine.logical = True
    engine.add_optimizer()
    for left in reversed(range(pieces)):
        engine.handle(BatchStart(piece(left), False, RING, pieces=pieces))
        if left:
            engine.handle(GRADIENT_ACCUMULATION)
    return engine


def test_what_a_dead_worker_has_left_is_trained_in_the_open_step() -> None:
    engine = logical_engine(2)
    found = told(engine, ReductionRequest(0), RECORD_DONE, RingFault(BROKEN))
    assert found == [START_RECORD, WAIT_RECORDS, Repair(BROKEN)]
    assert engine.handle(RepairDone(RING, pieces=4, follow=1)) is None, "there is no result yet"
    assert (engine.batches.pieces_left, engine.batches.may_grow) == (2, True)
    assert (states(engine), engine.batches.is_exhausted) == ([StepState.HANDED_OUT], False)
    engine.handle(BatchStart(piece(0), False, RING))
    assert (engine.batches.pieces_left, engine.batches.is_exhausted) == (1, True)
    told(engine, GRADIENT_ACCUMULATION, BatchStart(batch(), True, RING))
    assert (engine.batches.pieces_left, engine.batches.samples) == (0, 3 * SIZE)
    rows = records(3 * SIZE, 3 * SIZE, late=1)
    found = told(engine, ReductionRequest(0), RECORD_DONE, rows)
    assert found[:2] == [START_RECORD, WAIT_RECORDS]
    assert isinstance(found[2], Allreduce)
    assert found[2].weights.total == 6 * SIZE
    assert told(engine, ALLREDUCE_DONE, RESULT_PLACED) == [PlaceResult(0, again=False), None]
    assert states(engine) == [StepState.REDUCED]


def test_a_script_that_leaves_its_loop_gets_no_more_pieces() -> None:
    engine = logical_engine(1)
    assert told(engine, LoopEnd(), RECORD_DONE, RingFault(BROKEN))[2] == Repair(BROKEN)
    assert engine.handle(RepairDone(RING, pieces=2, follow=1)) == START_RECORD
    assert engine.batches.pieces_left == 0


def test_what_others_have_completed_has_no_more_pieces() -> None:
    engine = logical_engine(1)
    told(engine, ReductionRequest(0), RECORD_DONE, RingFault(BROKEN), StepSuperseded(1))
    assert engine.handle(RepairDone(RING, pieces=2, follow=1)) == PlaceResult(0, again=False)
    assert (states(engine), engine.batches.pieces_left) == ([StepState.SUPERSEDED], 0)


def test_without_logical_workers_a_repair_adds_no_piece() -> None:
    engine = engine_of()
    told(engine, ReductionRequest(0), RingFault(BROKEN))
    assert engine.handle(RepairDone(RING, pieces=3, follow=2)) == START_RECORD
    assert engine.batches.pieces_left == 0
