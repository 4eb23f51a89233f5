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
    """A finished call of Keras' ``fit``.

    Attributes:
        until: how many epochs the job had trained when the fit was done, over all fits until then.
        epochs: the indices of the fit's epochs, as in Keras' ``History.epoch``.
        history: the metrics of each epoch by name, as in Keras' ``History.history``; each is a JSON
            value (:func:`json_value`).
    """

    until: int
    epochs: Sequence[int] = ()
    history: Mapping[str, Sequence[Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class ScriptFits:
    """The calls of Keras' ``fit`` that a worker's script has finished, and how many it has begun.

    Attributes:
        done: the finished calls, in order.
        begun: how many calls the script has begun, the finished ones included.
    """

    done: tuple[DoneFit, ...] = ()
    begun: int = 0


NO_FITS = ScriptFits()


class FitIsDone(EdlError):
    """The error that makes a script skip a call of Keras' ``fit`` that the job has done already.

    It is raised inside the call, which catches it and ends without training.

    Args:
        done: all calls of ``fit`` that the job has done.
    """

    def __init__(self, done: Sequence[DoneFit]) -> None:
        super().__init__(f"the job has done {counted(len(done), 'fit')}")
        self.done = tuple(done)


def fits_of(said: Any) -> tuple[DoneFit, ...]:
    """Return the finished fits from their JSON form, in order: the inverse of :func:`as_json`.

    Args:
        said: the list of JSON objects that :func:`as_json` gave to another worker or to a
            checkpoint.
    """
    return tuple(DoneFit(**each) for each in said)


def as_json(fits: Sequence[DoneFit]) -> list[dict[str, Any]]:
    """Return one JSON object for each finished fit, in order, for newcomers and for checkpoints.

    Each object has the attributes of :class:`DoneFit` by name; the metrics must be JSON values.
    """
    return [vars(each) for each in fits]


def json_value(value: Any) -> Any:
    """Return ``value`` as a JSON value, for the history of a finished fit.

    Text, booleans, None, numbers, lists and dicts stay what they are, with tuples as lists and keys
    as text. What JSON has no form for, such as a date or bytes, becomes its text, ``str(value)``.
    """
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
    """Return the error message for a newcomer that cannot join because its script has ended.

    Args:
        worker: the id of the newcomer, a number.
        passed: how many times its script has called ``fit``; the job had done all of these fits
            before.
        begun: how many fits the other workers have begun, the present one included.
    """
    return (
        f"w{worker} cannot join: its script ended after {counted(passed, 'fit')}, and the job is "
        f"in fit {begun}; all workers must call fit as often, whatever the numbers that they see"
    )


def resumed_too_short(passed: int, saved: int) -> str:
    """Return the error message for a script that ends before it reaches the fit of its checkpoint.

    Args:
        passed: how many times the script has called ``fit`` until its end.
        saved: how many fits were done before the fit in which the checkpoint was made.
    """
    return (
        f"the checkpoint is of fit {saved + 1}, and the script ended after "
        f"{counted(passed, 'fit')}; resume with the script that has made it, or begin in another "
        "directory"
    )


def passed_too_far(worker: int, passed: int, saved: int) -> str:
    """Return the error message for a checkpoint of a fit that a worker has skipped already.

    Args:
        worker: the worker's id.
        passed: how many fits its script has skipped.
        saved: how many fits were done before the fit in which the checkpoint was made.
    """
    return (
        f"the checkpoint is of fit {saved + 1}, and w{worker} has passed over "
        f"{counted(passed, 'fit')}; start the job again with `edl run --resume`"
    )
