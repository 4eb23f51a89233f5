"""Define what a checkpoint saves: the state, the job's position in its data, and the settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from edl.checkpoint.location import Location
from edl.core.events import Details
from edl.core.job.state_share import WHOLE_STATE, StateShare
from edl.core.step.ledger import Ledger
from edl.core.step.source import Source
from edl.core.step.training_length import NO_LENGTH, TrainingLength


@dataclass(frozen=True)
class JobRecords:
    """The job's records that saving and restoring read and write, as functions.

    Attributes:
        log: writes an event, called as ``log(details, step, reason)``; any thread may call it.
        saved: records the newest checkpoint; called with the path of the directory and the step
            when one is written or was restored, from any thread.
        learned: returns the job's scaling profile (its measured throughput at each number of
            workers) as JSON values; any thread may call it.
    """

    log: Callable[[Details, int, str], None]
    saved: Callable[[str, int], None]
    learned: Callable[[], Mapping[str, Any]] = dict


class Durable(Protocol):
    """The interface to copy and load the state that a checkpoint holds.

    The state is that of the model, the optimizer and the tracked objects.

    Attributes:
        framework: the name of the framework, which checkpoints record.
    """

    framework: str

    def capture(self, share: StateShare = WHOLE_STATE) -> Any:
        """Return a copy of the state that later steps do not change; the training thread calls it.

        It has the form that :func:`edl.checkpoint.format.pack_state` takes.

        Args:
            share: the part of the state that is wanted. In place of an array of another worker's
                part there may be a :class:`edl.core.job.state_share.RankArray`.
        """

    def restore(self, state: Any) -> None:
        """Load ``state``, which :meth:`capture` returned, into the model, optimizer and objects.

        Raises:
            CheckpointError: if the state does not fit the script's model, optimizer or tracked
                objects.
        """


@dataclass(frozen=True)
class CheckpointPosition:
    """The job's position in its data, which a checkpoint stores with the job's state.

    Attributes:
        step: how many updates the job has made.
        source: the description of the training data.
        ledger: which positions of the epoch are done, leased and free, with the epoch's number.
        samples: how many samples the job has trained, over all epochs.
        noise: the estimate of the gradient noise scale, as JSON values; empty: none.
        fits: the finished calls of Keras' ``fit``, the first one first, each as the fields of an
            :class:`edl.core.job.fits.DoneFit` by name.
        seed: the seed that the script has given to its framework last, in a job with logical
            workers; -1: not known.
        fit_stopped: why callbacks have stopped the present call of Keras' ``fit``, which has ended;
            empty: they have not, or it is under way.
        arithmetic: what the last bits of rank 0's results depend on, as the fields of an
            :class:`edl.core.job.signature.Arithmetic` by name; empty: not known.
        length: how long the job trains.
        batches: the newest changes of the global batch, the oldest first, each as (number of the
            first update with the new size, size in samples).
    """

    step: int
    source: Source
    ledger: Ledger
    samples: int
    noise: Mapping[str, Any] = field(default_factory=dict)
    fits: Sequence[Mapping[str, Any]] = ()
    seed: int = -1
    fit_stopped: str = ""
    arithmetic: Mapping[str, Any] = field(default_factory=dict)
    length: TrainingLength = NO_LENGTH
    batches: Sequence[tuple[int, int]] = ()


@dataclass(frozen=True)
class CheckpointConfig:
    """The settings of a job's checkpoints, as one start of the job has them.

    Attributes:
        directory: where checkpoints are written: a local directory, or one with a URL.
        every_s: seconds between the begins of two saves.
        keep: how many of the newest checkpoints are kept when a new one is written.
        job: the name of the job.
        run: the identifier of this start of the job.
        save_timeout_s: how many seconds the last checkpoint before an end may take.
        resume_from: a directory to continue from, ``directory`` or another one; None: the job was
            not told to resume.
        or_begin: whether the job begins afresh if ``resume_from`` has no file of a checkpoint; else
            that is an error. Damaged files, or another directory that is missing, are an error in
            any case.
        sharded: whether the workers save the state together, each a part of it.
        names_directory: whether the user has named ``resume_from`` itself (``--resume-from``).
    """

    directory: Location
    every_s: float
    keep: int
    job: str
    run: str
    save_timeout_s: float
    resume_from: Location | None = None
    or_begin: bool = False
    sharded: bool = False
    names_directory: bool = False
