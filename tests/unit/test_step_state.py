"""The table of a step's states: exactly these transitions, and the document that shows them."""

from __future__ import annotations

from pathlib import Path

import pytest

from edl.errors import IllegalTransition
from edl.step.engine import (
    CHANGES_NOTHING,
    DECIDED,
    DONE,
    TRANSITIONS,
    OptimizerStep,
    StepEvent,
    StepState,
)

ADR = Path(__file__).parents[2] / "docs" / "adr" / "0012-one-place-decides-a-step.md"
IN_CODE = {(s, event): after for s, row in TRANSITIONS.items() for event, after in row.items()}
NEVER = [(s, e) for s in StepState for e in StepEvent if (s, e) not in IN_CODE]


def states(text: str) -> list[StepState]:
    if not text.startswith("any"):
        return [StepState(name) for name in text.split(", ")]
    excepted = states(text.removeprefix("any but ")) if text != "any" else []
    return [state for state in StepState if state not in excepted]


def documented() -> dict[tuple[StepState, StepEvent], StepState]:
    rows = [line.strip("| ").split(" | ") for line in ADR.read_text().splitlines()]
    table = rows[rows.index(["state", "event", "next state"]) + 2 :]
    return {
        (state, StepEvent(event)): StepState(after)
        for befores, events, after in table[: table.index([""])]
        for state in states(befores)
        for event in events.split(", ")
    }


def test_the_document_shows_the_table() -> None:
    assert documented() == IN_CODE


@pytest.mark.parametrize(("state", "event"), IN_CODE, ids=str)
def test_what_is_in_the_table_happens(state: StepState, event: StepEvent) -> None:
    before = OptimizerStep(7, state, (StepEvent.SEND,))
    assert before.after(event) == OptimizerStep(7, IN_CODE[state, event], (StepEvent.SEND, event))


@pytest.mark.parametrize(("state", "event"), NEVER, ids=str)
def test_what_is_not_in_the_table_raises(state: StepState, event: StepEvent) -> None:
    before = OptimizerStep(7, state, (StepEvent.SEND, StepEvent.BREAK))
    with pytest.raises(IllegalTransition) as raised:
        before.after(event)
    message = f"step 7 of this worker is {state.value}, which allows no event {event.value!r}. "
    assert str(raised.value).startswith(message + "What happened to it: send, break. ")


def test_a_history_is_that_of_one_step() -> None:
    first = OptimizerStep().next(1).after(StepEvent.KEEP).after(StepEvent.END)
    assert first.history == (StepEvent.KEEP, StepEvent.END)
    second = first.next(2)
    assert second == OptimizerStep(2, StepState.HANDED_OUT)
    with pytest.raises(IllegalTransition, match="What happened to it: nothing yet"):
        second.after(StepEvent.APPLY)


def test_no_batch_is_handed_out_amid_gradients() -> None:
    for state in (StepState.SENDING, StepState.BROKEN, StepState.ENDED):
        with pytest.raises(IllegalTransition, match="allows no event 'hand out'"):
            OptimizerStep(7, state).next(8)


def test_what_the_groups_of_states_have_in_common() -> None:
    for state in StepState:
        assert (state in DECIDED) == (TRANSITIONS[state].get(StepEvent.APPLY) is StepState.APPLIED)
        waits = StepEvent.SEND in TRANSITIONS[state] or StepEvent.AVERAGE in TRANSITIONS[state]
        assert not (waits and state in DONE)
    assert DECIDED < DONE
    assert CHANGES_NOTHING < DECIDED


def test_every_state_is_reached_from_idle() -> None:
    reached, waiting = {StepState.IDLE}, [StepState.IDLE]
    while waiting:
        for after in TRANSITIONS[waiting.pop()].values():
            if after not in reached:
                reached.add(after)
                waiting.append(after)
    assert reached == set(StepState)
