"""The rules of :mod:`edl.step.engine`, for any events that the table allows."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edl.step.engine import DECIDED, TRANSITIONS, OptimizerStep, StepEvent, StepState

DECIDES = {StepEvent.AVERAGE, StepEvent.KEEP, StepEvent.DROP, StepEvent.SUPERSEDE}
UNDONE = {StepEvent.REFUSE, StepEvent.FAIL}


@st.composite
def lives(draw: st.DrawFn) -> list[OptimizerStep]:
    step = draw(
        st.sampled_from([OptimizerStep(), OptimizerStep().next(1).after(StepEvent.DROP)])
    ).next(2)
    life = [step]
    while len(life) < 40:
        legal = sorted(TRANSITIONS[step.state], key=lambda event: event.value)
        event = draw(st.sampled_from(legal))
        if event is StepEvent.HAND_OUT:
            break
        step = step.after(event)
        life.append(step)
    return life


@given(lives())
def test_decided_once_and_nothing_is_sent_after_that(life: list[OptimizerStep]) -> None:
    decided = completed_by_peers = False
    for step in life[1:]:
        event = step.history[-1]
        if event is StepEvent.REOPEN:
            assert decided
            assert not completed_by_peers, "what others have completed is not opened again"
            decided = False
        elif event is StepEvent.SUPERSEDE:  # it may be told by another optimizer
            assert not completed_by_peers
            decided = completed_by_peers = True
        elif event in DECIDES:
            assert not decided
            decided = True
        elif decided:
            assert event not in (StepEvent.SEND, StepEvent.BREAK, StepEvent.REPAIR)
        if step.state in DECIDED | {StepState.APPLIED}:
            assert decided


@given(lives())
def test_applied_once_and_only_when_decided(life: list[OptimizerStep]) -> None:
    history = life[-1].history
    turns = [at for at, step in enumerate(life) if step.state is StepState.APPLIED]
    assert len(turns) <= 1
    for at in turns:
        assert life[at - 1].state in DECIDED
    ends = [at for at, event in enumerate(history) if event is StepEvent.END]
    assert all(DECIDES & set(history[:at]) for at in ends)
    assert all(not UNDONE & set(history[:at]) for at in ends)


@given(lives())
def test_a_repaired_step_is_one_that_has_just_begun(life: list[OptimizerStep]) -> None:
    for step in life:
        if step.history and step.history[-1] is StepEvent.REPAIR:
            assert step.state is life[0].state is StepState.HANDED_OUT
            assert TRANSITIONS[step.state] == TRANSITIONS[life[0].state]


@given(lives())
def test_nothing_is_sent_into_a_broken_ring(life: list[OptimizerStep]) -> None:
    broken = False
    for event in life[-1].history:
        if event is StepEvent.SEND or event in DECIDES - {StepEvent.SUPERSEDE}:
            assert not broken
        if event is StepEvent.REPAIR:
            assert broken
        broken = (broken or event is StepEvent.BREAK) and event not in (
            StepEvent.REPAIR,
            StepEvent.SUPERSEDE,
        )


@given(lives())
def test_no_batch_is_handed_out_amid_gradients(life: list[OptimizerStep]) -> None:
    settles = {StepEvent.REPAIR, StepEvent.REFUSE} | DECIDES
    amid = False
    for step in life[1:]:
        event = step.history[-1]
        amid = (amid or event in (StepEvent.SEND, StepEvent.BREAK)) and event not in settles
        assert not (amid and StepEvent.HAND_OUT in TRANSITIONS[step.state])
