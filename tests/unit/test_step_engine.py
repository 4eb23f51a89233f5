"""What the step engine instructs, event by event, with no ring and no framework.

The stories are the texts of `scenarios/step`: each line is an event, after `=>` the instruction
that follows (none: nothing is to be done), and a line that begins with `=` says what the engine
holds then. The events:

    optimizers 2, logical, late, cannot repair     first of all, if it is not one that can repair
    batch; batch alone; batch warming up; batch padding; piece 1 of 2 (of its batch, from 1)
    record sent; records 4 4(late=1); averaged; placed; repaired; repaired alone pieces=2 follow=1
    reduce 0; weights 0; weights 0 repairs; records wanted; accumulate; next part; loop ends
    break; messages fail; others completed 3 (optimizers, as bits); leases lost; step ends
    send 0; apply 0; end 0; reopen 0
    ...                                        carry out what comes next, until nothing is left

A batch has 4 samples; the others' is as long. An allreduce has equal factors and 8 samples in all,
where the text says nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scenario_texts import numbers, scenarios

from edl.errors import EdlError, RingBroken
from edl.step import engine as step
from edl.step.engine import OptimizerEvent, RingPlace, StepEngine, StepEvent
from edl.step.record import StepRecord, StepRecords
from edl.step.weighting import Averaging, Weights

SIZE = 4  # samples of a full batch
PLACES = {
    name: RingPlace(alone=bool(name), warming_up=name == "warming up", batch_size=SIZE)
    for name in ("", "alone", "warming up")
}
BROKEN = RingBroken(1, "a test says so")
PLAIN = Weights(Averaging.PLAIN, total=2 * SIZE)
EVENTS: dict[str, step.Event] = {
    "record sent": step.RECORD_DONE,
    "averaged": step.ALLREDUCE_DONE,
    "placed": step.RESULT_PLACED,
    "records wanted": step.RECORDS_REQUEST,
    "accumulate": step.GRADIENT_ACCUMULATION,
    "next part": step.PartStart(PLACES[""]),
    "loop ends": step.LoopEnd(),
    "break": step.RingFault(BROKEN),
    "messages fail": step.MessagesFailed(0, BROKEN),
    "leases lost": step.LeasesLost(),
    "step ends": step.StepEnd(trained=True),
}


def batch_of(words: str) -> step.BatchStart:
    place = PLACES[words.removesuffix("padding").strip()]
    return step.BatchStart(step.Batch(0, np.arange(SIZE)), "padding" in words, place)


def piece_of(words: str) -> step.BatchStart:
    number, pieces = map(int, words.split(" of "))
    batch = step.Batch(0, np.arange(SIZE), follow=pieces - number)
    return step.BatchStart(batch, False, PLACES[""], pieces=pieces)


def records_of(words: str) -> step.RecordsArrival:
    """Return the records of workers that bring so many samples."""
    rows = []
    for worker, (samples, fields) in enumerate(re.findall(r"(\d+)(?:\((.*?)\))?", words)):
        row = StepRecord(1, 7, worker, 0, int(samples), 0, 0, 1, 0)
        rows.append(replace(row, **numbers(fields)))
    return step.RecordsArrival(StepRecords.of(rows))


def repair_of(words: str) -> step.RepairDone:
    alone, *fields = words.split() if words.startswith("alone") else ("", *words.split())
    return step.RepairDone(PLACES[alone], **numbers(" ".join(fields)))


def weights_of(words: str) -> step.WeightsRequest:
    return step.WeightsRequest(int(words[0]), repairs="repairs" in words)


MADE: dict[str, Callable[[str], step.Event]] = {
    "batch": batch_of,
    "piece": piece_of,
    "records": records_of,
    "repaired": repair_of,
    "weights": weights_of,
    "reduce": lambda optimizer: step.ReductionRequest(int(optimizer)),
    "others completed": lambda updates: step.StepSuperseded(int(updates)),
    **{
        each.value: lambda optimizer, each=each: OptimizerEvent(int(optimizer), each)
        for each in (StepEvent.SEND, StepEvent.APPLY, StepEvent.END, StepEvent.REOPEN)
    },
}


def event_of(text: str) -> step.Event:
    if text in EVENTS:
        return EVENTS[text]
    found = re.fullmatch(rf"({'|'.join(MADE)}) ?(.*)", text)
    assert found is not None, text
    return MADE[found[1]](found[2])


def in_words(instruction: step.Instruction | None) -> str:
    match instruction:
        case None:
            return ""
        case step.StartRecord():
            return "send the record"
        case step.WaitRecords():
            return "await the records"
        case step.ListDepartures():
            return "list who has left"
        case step.Repair(error):
            assert error is BROKEN
            return "repair"
        case step.Raise(error):
            assert BROKEN in (error, error.__cause__)
            return f"raise {type(error).__name__}: {error}"
        case step.Allreduce(optimizer, weights, again):
            of = "" if weights == PLAIN else f" of {weights.total} samples"
            if weights.averaging is not Averaging.PLAIN:
                of += f", {weights.averaging.name.lower()}"
            return f"allreduce {optimizer}{of}{' again' if again else ''}"
        case step.PlaceResult(optimizer, again):
            return f"place {optimizer}{' again' if again else ''}"


# What a whole ring answers.
ANSWERS: dict[type, str] = {
    step.StartRecord: "record sent",
    step.WaitRecords: "records 4 4",
    step.Allreduce: "averaged",
    step.PlaceResult: "placed",
    step.Repair: "repaired",
}


class Story:
    def __init__(self) -> None:
        self.engine, self.events = StepEngine(), list[step.Event]()
        self.instructions = list[step.Instruction | None]()

    def tell(self, text: str) -> str:
        """Tell the engine an event, and return the instruction, or the error, in words."""
        if text == "...":
            return self.carry_on()
        self.events.append(event_of(text))
        try:
            self.instructions.append(self.engine.handle(self.events[-1]))
        except EdlError as error:
            del self.events[-1]
            return f"{type(error).__name__}: {error}"
        return in_words(self.instructions[-1])

    def carry_on(self) -> str:
        """Carry out what comes next until nothing is left, and return the reductions."""
        found = []
        while (next_one := self.instructions[-1]) is not None:
            if isinstance(next_one, step.Allreduce):
                found.append(in_words(next_one))
            self.tell(ANSWERS[type(next_one)])
        return ", ".join(found)

    def holds(self, name: str) -> Any:
        engine, part, batches = self.engine, self.engine.parts[0], self.engine.batches
        return {
            "states": lambda: ", ".join(one.step.state.value for one in engine.parts),
            "sends early": lambda: part.sends_early,
            "factor sent": lambda: part.sent,
            "weights": lambda: part.agreed and part.agreed.averaging.name.lower(),
            "records": lambda: engine.records is not None,
            "untrained": lambda: len(batches.untrained),
            "pieces left": lambda: batches.pieces_left,
        }.get(name, lambda: getattr(batches if hasattr(batches, name) else engine, name))()


@pytest.mark.parametrize("lines", scenarios("step"))
def test_a_story(lines: list[str]) -> None:
    """And that the engine has no clock and no chance: a recorded story can be replayed."""
    found = re.match("  optimizers .*", lines[0])
    setting, lines = (found[0], lines[1:]) if found else ("", lines)
    optimizers = int(re.findall(r"optimizers (\d)", setting or "optimizers 1")[0])
    story, again = Story(), StepEngine()
    for engine in (story.engine, again):
        engine.late, engine.logical = "late" in setting, "logical" in setting
        for _ in range(optimizers):
            engine.add_optimizer()
        engine.parts[0].cannot_repair = "this is a test" if "cannot repair" in setting else ""
    for line in lines:
        if line.startswith("  = "):
            for one in line[4:].split("; "):
                name, _, value = one.partition(": ")
                assert str(story.holds(name)) == value, line
        else:
            text, _, expected = line.strip().partition(" => ")
            assert story.tell(text) == expected, line
    replayed = [in_words(again.handle(event)) for event in story.events]
    assert replayed == [in_words(each) for each in story.instructions]
