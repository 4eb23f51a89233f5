"""Define a worker's progress in its job, which is equal on all workers of a ring between two steps.

:class:`TrainingProgress` is the base class. The position in the data is kept either by edl's own
loader (:mod:`edl.worker.loader_progress`), with a ledger of what is trained, or by the script
itself (:mod:`edl.worker.script_progress`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, ClassVar

from edl.core.job.fits import DoneFit
from edl.core.progress import WorkerProgress
from edl.core.step.state_check import NEVER

Exchange = Callable[[bytes], list[bytes]]


class Receive(Enum):
    """The part of the job's state that a worker takes from the broadcast of the state source."""

    NOTHING = "nothing"  # it has the state already, and just takes part in the broadcast
    STEP = "step"  # it missed the last update: it takes what that update has changed
    RESYNC = "resync"  # its state differed: it takes all but what is each worker's own
    ALL = "all"  # it is a newcomer: it takes everything


class TrainingProgress(ABC):
    """The steps that the job has made, as one worker knows them."""

    unit: ClassVar[str]  # what the steps are, as a plural for messages, such as "steps"
    without_checkpoint: ClassVar[str]  # ends the message that all workers and the state are lost

    def __init__(self) -> None:
        self.members: tuple[int, ...] = (0,)  # of the ring, in rank order
        self.step = 0  # steps that the job has completed
        self.has_state = False  # it holds the job's state, which it gets in its first ring
        # `exchanges`: the exchanges of messages that the job has completed. `leaves`: how often all
        # workers have left a loop over an epoch with a batch in hand.
        self.exchanges = self.leaves = 0
        # of the last exchange, in rank order; empty once it is certain that all have received it
        self.answer: list[bytes] = []
        # the step after which the newest workers joined the training job; the same on all workers
        self.joined_after = NEVER
        self.joined = 0  # as in the step record: when this worker joined
        # `joined_inside`: it joined inside an epoch. `at_epochs`: a newcomer has stepped back, so
        # newcomers join at the start of an epoch.
        self.joined_inside = self.at_epochs = False

    @property
    def steps_made(self) -> int:
        """The number of steps that the job has made; a step counts when its update is made."""
        return self.step

    @property
    def fits_done(self) -> int:
        """The number of fits (calls of Keras' `fit`) that the script has done before this one."""
        return 0

    @property
    def later_fits(self) -> tuple[DoneFit, ...]:
        """The fits before the resumed checkpoint, while the script has yet to pass over some."""
        return ()

    @property
    def begins_epoch(self) -> bool:
        """Whether nothing of the epoch is trained; always True without edl's loader."""
        return True

    @property
    def takes_newcomers(self) -> bool:
        """Whether the script allows newcomers to join after the batch that is in training."""
        return True

    def reopen(self) -> None:
        """Take back that the training has ended here, since others train on."""
        return

    @abstractmethod
    def may_pause(self, repaired_at: int) -> bool:
        """Return whether all workers, now between two steps, can pause; `repaired_at` -1: never."""

    @abstractmethod
    def row(self) -> dict[str, int]:
        """Return the fields of this worker's next step record that say where it is in its data."""

    @property
    @abstractmethod
    def epoch_progress(self) -> dict[str, Any]:
        """The fields of `WorkerProgress` about the data, by field name."""

    @abstractmethod
    def enter(self, members: tuple[int, ...], in_step: bool = False) -> None:
        """Set `members` to those of a new ring, and adapt the position in the data to them."""

    @abstractmethod
    def header(self) -> dict[str, Any]:
        """Return this progress as JSON values, which the state source sends to other workers."""

    @abstractmethod
    def take_over(self, header: Mapping[str, Any], receive: Receive) -> None:
        """Move to the progress of the state source."""

    def passes_over(self, header: Mapping[str, Any], exchange: Exchange) -> bool:
        """Return whether some workers have to pass over fits before they get the job's state."""
        return False

    def report(
        self, generation: int, size: int, median_step_s: float, now_s: float
    ) -> WorkerProgress:
        """Return the progress that the daemon publishes, for the leader and `edl status`."""
        return WorkerProgress(
            generation=generation,
            size=size,
            step=self.step,
            **self.epoch_progress,
            median_step_s=median_step_s,
            counted_at=now_s,
            updated_at=now_s,
        )
