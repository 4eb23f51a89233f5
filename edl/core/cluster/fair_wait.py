"""Decide which jobs of policy ``edl`` are due: they have waited long enough, and have a turn.

:func:`next_wait` moves the account of one job from one decision to the next:

1. A job that has not had a turn is *due* once it has been there for its fair wait, with slots or
   without (:func:`fair_wait_s`).
2. A due job has a turn: it comes before all jobs that are not due, until it has had slots for a
   quantum of time. If what is left of it then takes no longer than another quantum, its turn lasts
   to its end.
3. After a turn, it is due again once it has been without slots for its fair wait.

A short job ends within its turn. A long one has the slots that it would have anyway, gives them to
shorter jobs when these come in a burst, and never waits for more than its fair wait in between,
unless more jobs are due than fit. :func:`first_in_turn` says who comes first then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

LEAST_S = 1e-6  # a shorter rest of a wait or a turn is none: times are sums of floats


class JobWait(NamedTuple):
    """The account of one job: its wait until it is due, or its turn.

    Attributes:
        left_s: the seconds that are left of its fair wait; if it is due, of its turn.
        due_s: since when it is due, on the clock of the decisions; None: it is not.
        served: whether it has had a turn.
    """

    left_s: float
    due_s: float | None = None
    served: bool = False


class JobDeadline(NamedTuple):
    """A job that is due.

    Attributes:
        name: the name of the job.
        least: the fewest slots that it may have.
        deadline_s: the time by which due jobs are ordered.
    """

    name: str
    least: int
    deadline_s: float


def fair_wait_s(
    alone_s: float, least: int, slots: int, patience: float, wide_patience: float
) -> float:
    """Return the seconds that a job has to wait until it is due.

    They are ``patience`` times what it takes alone if it can do with one slot, and grow in
    proportion to the part of the cluster that its fewest slots take, to ``wide_patience`` times.

    Args:
        alone_s: the seconds that the job takes alone, on the slots that it requested.
        least: the fewest slots that it may have.
        slots: the number of slots of the cluster.
        patience: the fair wait of a job that can do with one slot, as a multiple of ``alone_s``.
        wide_patience: that of a job which needs all slots.
    """
    part = (least - 1) / max(1, slots - 1)
    return alone_s * (patience + part * (wide_patience - patience))


def next_wait(
    known: JobWait,
    span_s: float,
    runs: bool,
    now_s: float,
    wait_s: float,
    quantum_s: float,
    rest_s: float,
) -> JobWait:
    """Return the account of a job at a decision.

    Args:
        known: its account at the last decision, or a new one.
        span_s: the seconds since then.
        runs: whether the job has had slots in that time.
        now_s: the time of the decision.
        wait_s: its fair wait, which begins if a turn ends now.
        quantum_s: the length of a turn, which begins if the job is due now.
        rest_s: the seconds until its end on its fewest slots.
    """
    counts = runs if known.due_s is not None else not (runs and known.served)
    left_s = known.left_s - (span_s if counts else 0.0)
    if left_s > LEAST_S:
        return known._replace(left_s=left_s)
    if known.due_s is not None and rest_s <= quantum_s:
        return known._replace(left_s=0.0)
    if known.due_s is not None:
        return JobWait(wait_s, None, True)
    return JobWait(quantum_s, now_s + min(left_s, 0.0), known.served)


def first_in_turn(due: Sequence[JobDeadline], slots: int) -> tuple[set[str], str]:
    """Choose the due jobs that get their fewest slots, the earliest deadline first.

    They are taken up to the first one that does not fit.

    Args:
        due: the jobs that are due.
        slots: the number of slots that can be given.

    Returns:
        (the names of the chosen jobs; the name of the first one that does not fit, or "" if all
        fit).
    """
    chosen: set[str] = set()
    for one in sorted(due, key=lambda one: one.deadline_s):
        slots -= one.least
        if slots < 0:
            return chosen, one.name
        chosen.add(one.name)
    return chosen, ""


def read_waits(state: Mapping[str, Sequence[float | None]]) -> dict[str, JobWait]:
    """Return the accounts by job name that a policy kept, as lists, in its state."""
    return {
        name: JobWait(float(left_s or 0.0), due_s, bool(served))
        for name, (left_s, due_s, served) in state.items()
    }
