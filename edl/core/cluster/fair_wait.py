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
    """The account of one job: its wait until it is due, or its turn."""

    left_s: float  # the seconds that are left of its fair wait; if it is due, of its turn
    # since when it is due, on the clock of the decisions; None: it is not
    due_s: float | None = None
    served: bool = False  # whether it has had a turn


class JobDeadline(NamedTuple):
    """A job that is due."""

    name: str
    least: int  # the fewest slots that it may have
    deadline_s: float  # the time by which due jobs are ordered


def fair_wait_s(
    alone_s: float, least: int, slots: int, patience: float, wide_patience: float
) -> float:
    """Return the seconds that a job has to wait until it is due."""
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
    """Return the account of a job at a decision."""
    # A turn counts the time with slots, the wait after one the time without.
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
    """Return the due jobs that get their fewest slots, and the first that does not fit, or ""."""
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
