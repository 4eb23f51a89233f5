"""Carry out what the step engine instructs, over the ring and with the frameworks' gradients.

:class:`StepDriver` tells :class:`edl.core.step.engine.StepEngine` what happens, and carries out its
instructions one after the other until there is none left. There is no recursion: a ring that breaks
while a reduction is repeated is one more answer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, NoReturn, Protocol

from edl import failpoints
from edl.core.step.engine import StepEngine
from edl.core.step.step_events import (
    ALLREDUCE_DONE,
    RECORD_DONE,
    RESULT_PLACED,
    Allreduce,
    AllreduceDone,
    Event,
    ListDepartures,
    PlaceResult,
    Raise,
    RecordDone,
    RecordsArrival,
    Repair,
    RepairDone,
    ResultPlaced,
    RingFault,
    StartRecord,
    WaitRecords,
)
from edl.core.step.step_record import StepRecords
from edl.core.step.weighting import Weights
from edl.errors import RingBroken


class StepRing(Protocol):
    """The interface of what a step needs of the worker and its ring, all in the training thread."""

    def start_record(self) -> None:
        """Send this worker's record of the open step; do not wait, and raise nothing."""

    def wait_for_records(self) -> StepRecords:
        """Wait for the step records of all workers, and return them in rank order."""

    def list_departures(self) -> None:
        """Exchange one more record, by which all learn how workers have ended; raise JobFailed."""

    def repair(self, error: RingBroken) -> RepairDone:
        """Build a ring of the survivors, and return the engine's answer."""
        # It tells the engine if others had completed the step, or have this worker's leases.

    def reduced(self) -> None:
        """Note that the gradients of an optimizer are averaged, or that nothing is to be sent."""


class Reducer(Protocol):
    """The interface by which one optimizer's gradients are sent, awaited and put in their place."""

    def allreduce(self, weights: Weights, again: bool) -> None:
        """Send the gradients that are not sent yet, wait for all, and keep the averages."""
        # It changes no local gradient: if it raises RingBroken, it is called again in the next
        # ring.

    def place_result(self, again: bool) -> None:
        """Put the result of the reduction in its place, by the state of the optimizer's part."""

    def forget(self) -> None:
        """Drop the gradients that were being sent in a ring that is gone."""


class StepDriver:
    """The link between a worker's step engine, its ring and the reducers of its optimizers."""

    def __init__(self, engine: StepEngine, ring: StepRing) -> None:
        self.engine = engine
        self.reducers: list[Reducer] = []  # by the number of the optimizer
        self._ring = ring

    def tell(self, event: Event) -> None:
        """Tell the engine of `event`, and carry out its instructions until there is none left."""
        instruction = self.engine.handle(event)
        while instruction is not None:
            answer = self._CARRY_OUT[type(instruction)](self, instruction)
            instruction = self.engine.handle(answer)

    def _start_record(self, _: StartRecord) -> RecordDone:
        self._ring.start_record()
        return RECORD_DONE

    def _wait_for_records(self, _: WaitRecords) -> RecordsArrival | RingFault:
        try:
            return RecordsArrival(self._ring.wait_for_records())
        except RingBroken as error:
            return RingFault(error)

    def _list_departures(self, _: ListDepartures) -> RecordDone:
        self._ring.list_departures()
        return RECORD_DONE

    def _raise(self, instruction: Raise) -> NoReturn:
        raise instruction.error

    def _repair(self, instruction: Repair) -> RepairDone:
        assert isinstance(instruction.error, RingBroken)
        done = self._ring.repair(instruction.error)
        for each in self.reducers:
            each.forget()
        return done

    def _allreduce(self, instruction: Allreduce) -> AllreduceDone | RingFault:
        try:
            self.reducers[instruction.optimizer].allreduce(instruction.weights, instruction.again)
            failpoints.reached("averaged")  # where a test may break the ring
        except RingBroken as error:
            return RingFault(error)
        return ALLREDUCE_DONE

    def _place_result(self, instruction: PlaceResult) -> ResultPlaced:
        self._ring.reduced()
        self.reducers[instruction.optimizer].place_result(instruction.again)
        return RESULT_PLACED

    _CARRY_OUT: ClassVar[dict[type, Callable[[Any, Any], Event]]] = {
        StartRecord: _start_record,
        WaitRecords: _wait_for_records,
        ListDepartures: _list_departures,
        Raise: _raise,
        Repair: _repair,
        Allreduce: _allreduce,
        PlaceResult: _place_result,
    }
