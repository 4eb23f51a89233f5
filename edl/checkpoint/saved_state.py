"""Define what a checkpoint saves: the state, the job's position in its data, and the settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from edl.checkpoint.location import Location
from edl.core.events import Details
from edl.core.job.state_share import WHOLE_STATE, StateShare
from edl.step.ledger import Ledger
from edl.step.order import NO_LENGTH, TrainingLength
from edl.step.source import Source


@dataclass(frozen=True)
class JobRecords:
    """The job's records that saving and restoring use, as functions, for any thread."""

    log: Callable[[Details, int, str], None]  # (details, step, reason)
    # the directory and step of a checkpoint that was written or restored
    saved: Callable[[str, int], None]
    learned: Callable[[], Mapping[str, Any]] = dict  # the scaling profile, as JSON


class Durable(Protocol):
    """The interface to copy and load the state that a checkpoint holds."""

    framework: str  # which checkpoints record

    def capture(self, share: StateShare = WHOLE_STATE) -> Any:
        """Return a copy, for `pack_state`, of a part of the state; in the training thread."""

    def restore(self, state: Any) -> None:
        """Load `state`, which `capture` returned, into the model, optimizer and objects."""


@dataclass(frozen=True)
class CheckpointPosition:
    """The job's position in its data, which a checkpoint stores with the job's state."""

    step: int  # updates that the job has made
    source: Source
    ledger: Ledger  # of the epoch
    samples: int  # trained over all epochs
    # the gradient noise scale, as JSON; empty: none
    noise: Mapping[str, Any] = field(default_factory=dict)
    fits: Sequence[Mapping[str, Any]] = ()  # calls of Keras' `fit`, as fields of `DoneFit`
    seed: int = -1  # given last to the framework, with logical workers; -1: not known
    fit_stopped: str = ""  # why callbacks have stopped the call of `fit` that has ended; else empty
    # fields of `Arithmetic`; empty: not known
    arithmetic: Mapping[str, Any] = field(default_factory=dict)
    length: TrainingLength = NO_LENGTH
    batches: Sequence[tuple[int, int]] = ()  # of the global batch: (first update with it, samples)


@dataclass(frozen=True)
class CheckpointConfig:
    """The settings of a job's checkpoints, as one start of the job has them."""

    directory: Location  # where checkpoints are written
    every_s: float  # between the begins of two saves
    keep: int  # the newest ones
    job: str
    run: str  # this start of the job
    save_timeout_s: float  # for the last checkpoint before an end
    resume_from: Location | None = None  # `directory` or another one; None: it does not resume
    # begin afresh if `resume_from` has no checkpoint; damaged files are an error in any case
    or_begin: bool = False
    sharded: bool = False  # each worker saves a part of the state
    names_directory: bool = False  # the user has named `resume_from` (`--resume-from`)
