"""How far a worker is in its job. All workers of a ring are equally far between two steps.

Who leads through the data is either edl's own loader (:mod:`edl.worker.loader_progress`), with a
ledger of what is trained, or the script itself (:mod:`edl.worker.script_progress`).
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

    NOTHING = "nothing"  # it has it already, and just takes part in the broadcast
    STEP = "step"  # it missed the last update: what that has changed, and nothing else
    RESYNC = "resync"  # its state differed: all but what is each worker's own
    ALL = "all"  # a newcomer


class TrainingProgress(ABC):
    """The steps that the job has made, as one worker knows them.

    Attributes:
        unit: what its steps are, in words.
        without_checkpoint: what to do before all workers die, as the end of a sentence.
        members: worker ids of the ring in rank order.
        has_state: it holds the job's, since the first time it was synchronised.
        exchanges: how many exchanges of messages (:mod:`edl.worker.exchange`) the job has made.
        answer: what all workers have sent in the last one, in rank order, as long as one of them
            may not have it yet; else nothing.
        joined_after: the step after which the newest workers joined, while the job trained; the
            same on all workers.
    """

    unit: ClassVar[str]
    without_checkpoint: ClassVar[str]

    def __init__(self) -> None:
        self.members: tuple[int, ...] = (0,)
        self.step = 0
        self.has_state = False
        self.exchanges = 0
        self.answer: list[bytes] = []
        self.joined_after = NEVER

    @property
    def steps_made(self) -> int:
        """How many steps the script has made: an update counts when it is made."""
        return self.step

    @property
    def fits_done(self) -> int:
        """How many fits of the script (:mod:`edl.core.job.fits`) are before the present one."""
        return 0

    @property
    def later_fits(self) -> tuple[DoneFit, ...]:
        """The fits before that of the checkpoint, if this script has to pass over some of them."""
        return ()

    @property
    def takes_newcomers(self) -> bool:
        """They may come in after the batch that is in training, as far as the script goes."""
        return True

    @abstractmethod
    def may_pause(self, repaired_at: int) -> bool:
        """Whether all workers, which are at this boundary, can pause in the ring that they are in.

        ``repaired_at``: the job's step when its ring was repaired last.
        """

    @abstractmethod
    def row(self) -> dict[str, int]:
        """What a step record says of the ledger (:mod:`edl.core.step.step_record`)."""

    @property
    @abstractmethod
    def epoch_progress(self) -> dict[str, Any]:
        """The fields of :class:`WorkerProgress` about the data."""

    @abstractmethod
    def enter(self, members: tuple[int, ...], in_step: bool = False) -> None:
        """Membership changed; ``in_step``: after a failure, when some may be in a step."""

    @abstractmethod
    def header(self) -> dict[str, Any]:
        """This progress as JSON values, for those who take it over."""

    @abstractmethod
    def take_over(self, header: Mapping[str, Any], receive: Receive) -> None:
        """Be as far as the state source is.

        Raises:
            DataError: the root trains on other data.
        """

    def passes_over(self, header: Mapping[str, Any], exchange: Exchange) -> bool:
        """Whether some workers pass over fits of the script before they can get the job's state.

        Called by all workers of a ring where none has the state yet.

        Args:
            header: of the state source.
            exchange: returns what all workers have sent, in rank order.
        """
        return False

    def report(
        self, generation: int, size: int, median_step_s: float, now_s: float
    ) -> WorkerProgress:
        """What is reported to other processes. ``now_s``: on the monotonic clock."""
        return WorkerProgress(
            generation=generation,
            size=size,
            step=self.step,
            **self.epoch_progress,
            median_step_s=median_step_s,
            counted_at=now_s,
            updated_at=now_s,
        )
