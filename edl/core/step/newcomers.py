"""Which newcomers are to leave a job because what they compute differs from what the others do.

A newcomer gets the job's state. What its script has in functions, closures and counters of its own
no state carries: a schedule that is made of the number of workers, or of a count that begins at 0,
gives it another learning rate than the others have. All workers would then differ from each other
before long. So the whole state is compared after a newcomer's first step, and if the workers that
were there before agree with each other, a newcomer that differs from them is the one to leave. The
others complete the step that is under way without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from edl.core.plural import names, verb
from edl.core.step.state_check import Digests, Rates, Split, different_rate, first_difference

TRIAL_STEPS = 500  # how long a worker counts as a newcomer: a schedule may differ later only
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
class Said:
    """What a worker says of its state when states differ.

    Attributes:
        digests: of the parts of its state that were compared.
        rates: its learning rates.
        joined_after: the step after which it joined a job that trained; None: it was there from the
            beginning, or has trained for longer than :data:`TRIAL_STEPS` since.
    """

    digests: Digests
    rates: Rates
    joined_after: int | None = None


def on_trial(joined_after: int | None, step: int) -> int | None:
    """``joined_after`` of a worker that counts as a newcomer after ``step``; else None."""
    if joined_after is None or step - joined_after > TRIAL_STEPS:
        return None
    return joined_after


def who_leaves(found: Split, said: Mapping[int, Said]) -> tuple[int, ...]:
    """Decide which newcomers leave because their states differ.

    Returns:
        Those that differ from all who were there before, in ascending order. None, if these differ
        from each other, or if nobody was there before.
    """
    old = [[w for w in group if said[w].joined_after is None] for group in found.groups]
    holding = [number for number, workers in enumerate(old) if workers]
    if len(holding) != 1:
        return ()
    others = (group for number, group in enumerate(found.groups) if number != holding[0])
    return tuple(sorted(worker for group in others for worker in group))


def why_they_leave(
    leaving: tuple[int, ...],
    step: int,
    said: Mapping[int, Said],
    cause: str = CAUSE,
    unit: str = "step",
) -> str:
    """Say who leaves, what differs first, what probably causes it, and what to do: for people.

    Args:
        unit: what ``step`` counts.
    """
    first = leaving[0]
    staying = [worker for worker in said if worker not in leaving]
    steps = sorted({said[worker].joined_after or 0 for worker in leaving})
    when = " and ".join(map(str, steps))
    pair = {staying[0]: said[staying[0]], first: said[first]}
    what = first_difference({worker: one.digests for worker, one in pair.items()})
    if rate := different_rate({worker: one.rates for worker, one in pair.items()}):
        own, theirs = said[first].rates[rate], pair[staying[0]].rates[rate]
        what = f"the {rate} is {own:.6g} on w{first} and {theirs:.6g} on w{staying[0]}"
    else:
        what = f"first in {what}"
    count = len(leaving)
    state = verb(count, "its state differs", "their states differ")
    return (
        f"{names(leaving)} joined after {unit} {when}, and after {unit} {step} {state} from that "
        f"of {names(staying)}: {what}. "
        f"{cause}. {names(leaving)} {verb(count, 'ends', 'end')}, and the others train on"
    )
