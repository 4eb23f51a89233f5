"""Decide which newcomers must leave a job because their states differ from the other workers'.

A newcomer receives the job's state. The state does not contain what a script keeps in functions,
closures and counters of its own: a schedule that is computed from the number of workers, or from a
counter that begins at 0, gives a newcomer another learning rate than the others have, and the
models drift apart. So the whole state is compared after a newcomer's first step, and later a group
of it after each step. If the workers that were there before agree with each other, each newcomer
that differs from them leaves (:func:`newcomers_that_leave`), and the others complete the step
without it. A worker counts as a newcomer for :data:`TRIAL_STEPS` (500) steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from edl.core.plural import names, verb
from edl.core.step.state_check import Digests, Rates, Split, different_rates, first_difference

TRIAL_STEPS = 500  # a worker counts as a newcomer so long; schedules may differ late
SCRIPT_CAUSE = (
    "No state carries what a script computes from hvd.size() or counts by itself, as in "
    "Adam(rate * hvd.size()): let the rate be a variable of the state, or set it in a callback of "
    "state.register_reset_callbacks. EDL_STATE_CHECK_STEPS=0 turns this check off"
)
CAUSE = (
    "No state carries what a script computes in functions, closures and counters of its own: use "
    "edl.step(), edl.track or edl.LRSchedule"
)


@dataclass(frozen=True)
class StateReport:
    """The report that each worker sends to the others about its state when states differ."""

    # the name of each tensor or value of the state that was compared -> its digest
    digests: Digests
    rates: Rates  # the worker's learning rates
    joined_after: int | None = None  # the step; None: no newcomer, or none any more (`on_trial`)
    inside: bool = False  # it joined inside an epoch, and may do so again at the start of one


def on_trial(joined_after: int | None, step: int) -> int | None:
    """Return `joined_after` while the worker counts as a newcomer, else None."""
    if joined_after is None or step - joined_after > TRIAL_STEPS:
        return None
    return joined_after


def newcomers_that_leave(found: Split, said: Mapping[int, StateReport]) -> tuple[int, ...]:
    """Return the ids of the newcomers that leave because their states differ from the others'."""
    old = [[w for w in group if said[w].joined_after is None] for group in found.groups]
    holding = [number for number, workers in enumerate(old) if workers]
    if len(holding) != 1:  # the older workers disagree, or there are none
        return ()
    others = (group for number, group in enumerate(found.groups) if number != holding[0])
    return tuple(sorted(worker for group in others for worker in group))


def why_they_leave(
    leaving: tuple[int, ...],
    step: int,
    said: Mapping[int, StateReport],
    cause: str = CAUSE,
    unit: str = "step",
    back: bool = False,
) -> str:
    """Return a message that says which newcomers leave, what differs first, and what to do."""
    first = leaving[0]
    staying = [worker for worker in said if worker not in leaving]
    steps = sorted({said[worker].joined_after or 0 for worker in leaving})
    when = " and ".join(map(str, steps))
    pair = {staying[0]: said[staying[0]], first: said[first]}  # one of each; at least one stays
    what = first_difference({worker: one.digests for worker, one in pair.items()})
    rates = {worker: one.rates for worker, one in pair.items()}
    clause, cure = different_rates(rates, [[first], [staying[0]]])
    what = clause or f"first in {what}"
    count = len(leaving)
    state = verb(count, "its state differs", "their states differ")
    return (
        f"{names(leaving)} joined after {unit} {when}, and after {unit} {step} {state} from that "
        f"of {names(staying)}: {what}. {cure or cause}. "
        f"{names(leaving)} {what_follows(count, back)}"
    )


def what_follows(leaving: int, back: bool) -> str:
    """Return the clause that says what becomes of `leaving` newcomers, and of the job."""
    if back:
        return (
            f"{verb(leaving, 'steps', 'step')} back; from now on newcomers join this job at the "
            "start of an epoch, where the counts of a script begin"
        )
    return f"{verb(leaving, 'ends', 'end')}, and the others train on"
