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
    """The part of the job's state that a worker takes from the broadcast of the state source.

    ``NOTHING``: it has the state, and discards what it receives. ``STEP``: it missed the last
    update, and takes what that update has changed. ``RESYNC``: its state differed, and it takes
    everything except what each worker keeps for itself, such as its place in its loop. ``ALL``: it
    is a newcomer and takes everything.
    """

    NOTHING = "nothing"  # it has the state already, and just takes part in the broadcast
    STEP = "step"  # it missed the last update: it takes what that update has changed
    RESYNC = "resync"  # its state differed: it takes all but what is each worker's own
    ALL = "all"  # it is a newcomer: it takes everything


class TrainingProgress(ABC):
    """The steps that the job has made, as one worker knows them.

    It is the attribute ``progress`` of :class:`edl.worker.steps.WorkerSteps`.

    Attributes:
        unit: what the steps are, as a plural for messages, such as "steps".
        without_checkpoint: the end of the message when all workers have died and nothing was saved.
        members: the ids of the workers in the ring, in rank order.
        step: how many steps the job has completed.
        has_state: whether this worker holds the job's state, which it gets in its first ring.
        exchanges: how many exchanges of messages (:mod:`edl.worker.exchange`) the job has
            completed.
        leaves: how often all workers have left a loop over an epoch with a batch in hand.
        answer: what all workers have sent in the last exchange, in rank order; empty as soon as it
            is certain that all have received it.
        joined_after: the step after which the newest workers joined while the job trained, the same
            on all workers; ``NEVER``: none has joined.
        joined: for the step record's field of that name: when this worker joined.
        joined_inside: whether it joined inside an epoch, and not at the start of one.
        at_epochs: whether a newcomer has stepped back, so newcomers join at the start of an epoch.
    """

    unit: ClassVar[str]
    without_checkpoint: ClassVar[str]

    def __init__(self) -> None:
        self.members: tuple[int, ...] = (0,)
        self.step = 0
        self.has_state = False
        self.exchanges = self.leaves = 0
        self.answer: list[bytes] = []
        self.joined_after = NEVER
        self.joined = 0
        self.joined_inside = self.at_epochs = False

    @property
    def steps_made(self) -> int:
        """The number of steps that the job has made; a step counts when its update is made.

        In a script that keeps its own place in its data, each save of its state counts as a step.
        """
        return self.step

    @property
    def fits_done(self) -> int:
        """The number of fits (calls of Keras' ``fit``) that the script has done before this one.

        It is 0 in a script that calls no ``fit``.
        """
        return 0

    @property
    def later_fits(self) -> tuple[DoneFit, ...]:
        """The fits (calls of Keras' ``fit``) that were done before the resumed checkpoint was made.

        The script has to pass over them before the checkpoint is loaded. The result is empty once
        it has, in a job that was not resumed, and always in this class.
        """
        return ()

    @property
    def begins_epoch(self) -> bool:
        """Whether nothing of the epoch is trained; always True without edl's loader."""
        return True

    @property
    def takes_newcomers(self) -> bool:
        """Whether the script allows newcomers to join after the batch that is in training.

        It is always True in this class.
        """
        return True

    def reopen(self) -> None:
        """Take back that the training has ended here, since others train on."""
        return

    @abstractmethod
    def may_pause(self, repaired_at: int) -> bool:
        """Return whether all workers, which are between two steps now, can pause.

        ``repaired_at`` is the job's step when its ring was repaired last; -1: it never was.
        """

    @abstractmethod
    def row(self) -> dict[str, int]:
        """Return the fields of this worker's next step record that say where it is in its data.

        The names are those of :class:`edl.core.step.step_record.StepRecord`, which explains them:
        ``epoch``, ``wanted`` and ``ledger``, and what a subclass adds. ``samples`` and ``position``
        are not among them; the caller sets these.
        """

    @property
    @abstractmethod
    def epoch_progress(self) -> dict[str, Any]:
        """The fields of :class:`WorkerProgress` about the data, by field name.

        They are what this worker reports to other processes, such as ``epoch`` and ``epoch_done``;
        a field that is not in it keeps its default.
        """

    @abstractmethod
    def enter(self, members: tuple[int, ...], in_step: bool = False) -> None:
        """Set ``members`` to those of a new ring, and adapt the position in the data to them.

        Args:
            members: the ids of the workers in the new ring, in rank order.
            in_step: whether the ring replaces a broken one, so that some members may be in a step.
        """

    @abstractmethod
    def header(self) -> dict[str, Any]:
        """Return this progress as JSON values, which the state source sends to other workers.

        A subclass says which values; ``step`` and ``joined_after`` are among them.
        """

    @abstractmethod
    def take_over(self, header: Mapping[str, Any], receive: Receive) -> None:
        """Move to the progress of the state source.

        Args:
            header: the result of :meth:`header` on the state source.
            receive: which part of the job's state this worker takes over.

        Raises:
            DataError: the state source trains on other data.
            NewcomerDiffers: the state source trains in another order, or in other batches.
        """

    def passes_over(self, header: Mapping[str, Any], exchange: Exchange) -> bool:
        """Return whether some workers have to pass over fits before they can get the job's state.

        A fit is one call of Keras' ``fit``. If the result is True, the job's state is a checkpoint
        of a later fit, and is not exchanged in this ring yet. In this class the result is False.
        All workers of a ring call it at the same point, when none of them has the job's state yet.

        Args:
            header: the result of :meth:`header` on the state source.
            exchange: sends bytes to all workers, and returns what all have sent, in rank order.
        """
        return False

    def report(
        self, generation: int, size: int, median_step_s: float, now_s: float
    ) -> WorkerProgress:
        """Return the progress that this worker's daemon publishes, for the leader and `edl status`.

        It has :attr:`step`, the fields of :attr:`epoch_progress`, and the arguments.

        Args:
            generation: the number of the present generation.
            size: the number of workers in the ring.
            median_step_s: the median time of a step, in seconds.
            now_s: the present time of the monotonic clock, in seconds.
        """
        return WorkerProgress(
            generation=generation,
            size=size,
            step=self.step,
            **self.epoch_progress,
            median_step_s=median_step_s,
            counted_at=now_s,
            updated_at=now_s,
        )
