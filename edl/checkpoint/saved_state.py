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
    """The job's records that saving and restoring read and write, as functions."""

    # writes an event, called as `log(details, step, reason)`; any thread may call it
    log: Callable[[Details, int, str], None]
    # records the newest checkpoint; called with the path of the directory and the step when one is
    # written or was restored, from any thread
    saved: Callable[[str, int], None]
    # returns the job's scaling profile (its measured throughput at each number of workers) as JSON
    # values; any thread may call it
    learned: Callable[[], Mapping[str, Any]] = dict


class Durable(Protocol):
    """The interface to copy and load the state that a checkpoint holds."""

    framework: str  # the name of the framework, which checkpoints record

    def capture(self, share: StateShare = WHOLE_STATE) -> Any:
        """A copy of the state that later steps do not change; the training thread calls it"""

    def restore(self, state: Any) -> None:
        """Load `state`, which `capture` returned, into the model, optimizer and objects."""


@dataclass(frozen=True)
class CheckpointPosition:
    """The job's position in its data, which a checkpoint stores with the job's state."""

    step: int  # how many updates the job has made
    source: Source  # the description of the training data
    # which positions of the epoch are done, leased and free, with the epoch's number
    ledger: Ledger
    samples: int  # how many samples the job has trained, over all epochs
    # the estimate of the gradient noise scale, as JSON values; empty: none
    noise: Mapping[str, Any] = field(default_factory=dict)
    # the finished calls of Keras' `fit`, the first one first, each as the fields of an `DoneFit` by
    # name
    fits: Sequence[Mapping[str, Any]] = ()
    # the seed that the script has given to its framework last, in a job with logical workers; -1:
    # not known
    seed: int = -1
    # why callbacks have stopped the present call of Keras' `fit`, which has ended; empty: they have
    # not, or it is under way
    fit_stopped: str = ""
    # what the last bits of rank 0's results depend on, as the fields of an `Arithmetic` by name;
    # empty: not known
    arithmetic: Mapping[str, Any] = field(default_factory=dict)
    length: TrainingLength = NO_LENGTH  # how long the job trains
    # the newest changes of the global batch, the oldest first, each as (number of the first update
    # with the new size, size in samples)
    batches: Sequence[tuple[int, int]] = ()


@dataclass(frozen=True)
class CheckpointConfig:
    """The settings of a job's checkpoints, as one start of the job has them."""

    directory: Location  # where checkpoints are written: a local directory, or one with a URL
    every_s: float  # seconds between the begins of two saves
    keep: int  # how many of the newest checkpoints are kept when a new one is written
    job: str  # the name of the job
    run: str  # the identifier of this start of the job
    save_timeout_s: float  # how many seconds the last checkpoint before an end may take
    # a directory to continue from, `directory` or another one; None: the job was not told to resume
    resume_from: Location | None = None
    # whether the job begins afresh if `resume_from` has no file of a checkpoint; else that is an
    # error. Damaged files, or another directory that is missing, are an error in any case.
    or_begin: bool = False
    sharded: bool = False  # whether the workers save the state together, each a part of it
    # whether the user has named `resume_from` itself (`--resume-from`)
    names_directory: bool = False
