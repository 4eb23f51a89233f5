"""The fits of a script that trains in phases: freeze, ``fit``, unfreeze, compile, ``fit`` again.

A fit is one call of Keras' ``fit``. A job goes through the fits of its script one after the other,
over the epochs of one data set: the first epoch of a fit follows the last one of the fit before. A
newcomer, or a job that is resumed, passes over the fits that are done: the state that it gets
comes from the present fit, whose model and optimizer may be others than those of an earlier one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from edl.core.plural import counted
from edl.errors import EdlError


@dataclass(frozen=True)
class DoneFit:
    """A fit that the job has done.

    Attributes:
        until: the job's epochs, over all fits, when it was done.
        epochs: the numbers of its epochs, as Keras' ``History`` has them.
        history: the numbers of each epoch by name, as Keras' ``History`` has them.
    """

    until: int
    epochs: Sequence[int] = ()
    history: Mapping[str, Sequence[Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class ScriptFits:
    """How far a worker's script is in its fits.

    Attributes:
        done: the fits that are done, in order.
        begun: how many it has begun.
    """

    done: tuple[DoneFit, ...] = ()
    begun: int = 0


NO_FITS = ScriptFits()


class FitIsDone(EdlError):
    """The job has done the fit that the script is in: the script passes over it.

    Args:
        done: all fits that the job has done.
    """

    def __init__(self, done: Sequence[DoneFit]) -> None:
        super().__init__(f"the job has done {counted(len(done), 'fit')}")
        self.done = tuple(done)


def fits_of(said: Any) -> tuple[DoneFit, ...]:
    """Return the fits that another worker, or a checkpoint, tells as JSON values."""
    return tuple(DoneFit(**each) for each in said)


def as_json(fits: Sequence[DoneFit]) -> list[dict[str, Any]]:
    """Return fits as JSON values."""
    return [vars(each) for each in fits]


def ended_before(worker: int, passed: int, begun: int) -> str:
    """Say why a newcomer cannot join whose script has ended.

    Args:
        worker: the newcomer's number.
        passed: how many fits its script has called; all were done before.
        begun: how many the others have begun.
    """
    return (
        f"w{worker} cannot join: its script ended after {counted(passed, 'fit')}, and the job is "
        f"in fit {begun}; all workers must call fit as often, whatever the numbers that they see"
    )


def resumed_too_short(passed: int, saved: int) -> str:
    """Say why a script that has ended cannot go on from a checkpoint.

    Args:
        passed: how many fits it has called.
        saved: how many were done before the checkpoint's.
    """
    return (
        f"the checkpoint is of fit {saved + 1}, and the script ended after "
        f"{counted(passed, 'fit')}; resume with the script that has made it, or begin in another "
        "directory"
    )


def passed_too_far(worker: int, passed: int, saved: int) -> str:
    """Say why a job cannot go on from a checkpoint of a fit that a worker has passed over."""
    return (
        f"the checkpoint is of fit {saved + 1}, and w{worker} has passed over "
        f"{counted(passed, 'fit')}; start the job again with `edl run --resume`"
    )
