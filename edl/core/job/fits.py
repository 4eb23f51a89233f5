"""Describe the fits of a script that trains in phases: freeze, ``fit``, unfreeze, ``fit`` again.

:class:`ScriptFits` holds how far a script is; the functions convert it and word error messages.

A *fit* is one call of Keras' ``fit``. A job goes through the fits of its script one after the
other, over the epochs of one data set: the first epoch of a fit follows the last one of the fit
before. A newcomer, or a job that is resumed, skips the fits that are done: the state that it gets
comes from the present fit, whose model and optimizer may be others than those of an earlier fit.
"""

from __future__ import annotations

import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from edl.core.plural import counted
from edl.errors import EdlError


@dataclass(frozen=True)
class DoneFit:
    """A finished call of Keras' `fit`."""

    until: int  # how many epochs the job had trained then, over all fits
    epochs: Sequence[int] = ()  # as in Keras' `History.epoch`
    # As in Keras' `History.history`: the metrics by name, as JSON values.
    history: Mapping[str, Sequence[Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class ScriptFits:
    """The calls of Keras' `fit` that a worker's script has finished, and how many it has begun."""

    done: tuple[DoneFit, ...] = ()
    begun: int = 0  # the finished ones included


NO_FITS = ScriptFits()


class FitIsDone(EdlError):
    """Raised inside a call of Keras' `fit` that the job has done already, so that it is skipped."""

    def __init__(self, done: Sequence[DoneFit]) -> None:
        super().__init__(f"the job has done {counted(len(done), 'fit')}")
        self.done = tuple(done)


def fits_of(said: Any) -> tuple[DoneFit, ...]:
    """Return the finished fits from their JSON form, in order: the inverse of `as_json`."""
    return tuple(DoneFit(**each) for each in said)


def as_json(fits: Sequence[DoneFit]) -> list[dict[str, Any]]:
    """Return one JSON object for each finished fit, in order, for newcomers and for checkpoints."""
    return [vars(each) for each in fits]


def json_value(value: Any) -> Any:
    """Return `value` as a JSON value; what JSON has no form for, such as a date, as its text."""
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, numbers.Real):
        return int(value) if isinstance(value, numbers.Integral) else float(value)
    if isinstance(value, list | tuple):
        return [json_value(one) for one in value]
    if isinstance(value, Mapping):
        return {str(name): json_value(one) for name, one in value.items()}
    return str(value)


def ended_before(worker: int, passed: int, begun: int) -> str:
    """Return the error message for a newcomer that cannot join because its script has ended."""
    return (
        f"w{worker} cannot join: its script ended after {counted(passed, 'fit')}, and the job is "
        f"in fit {begun}; all workers must call fit as often, whatever the numbers that they see"
    )


def resumed_too_short(passed: int, saved: int) -> str:
    """Return the error message for a script that ends before the fit of its checkpoint."""
    return (
        f"the checkpoint is of fit {saved + 1}, and the script ended after "
        f"{counted(passed, 'fit')}; resume with the script that has made it, or begin in another "
        "directory"
    )


def passed_too_far(worker: int, passed: int, saved: int) -> str:
    """Return the error message for a checkpoint of a fit that a worker has skipped already."""
    return (
        f"the checkpoint is of fit {saved + 1}, and w{worker} has passed over "
        f"{counted(passed, 'fit')}; start the job again with `edl run --resume`"
    )
