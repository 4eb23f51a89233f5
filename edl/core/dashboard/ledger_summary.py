"""Say what the ledger has counted of the present epoch, and what a job has lost of its work."""

from __future__ import annotations

from dataclasses import dataclass, replace

from edl.core.events import CheckpointDetails, Event, ResumedDetails
from edl.core.record import Record
from edl.core.snapshot import Snapshot


@dataclass(frozen=True)
class SavedWork(Record):
    """A summary of a job's checkpoints, collected from its events by `with_event`."""

    saved: int = 0  # the number of checkpoints written
    saved_at_s: float = 0.0  # when the newest was written, in seconds since 1970; 0: none was
    capture_s: float = 0.0  # for how long it stopped training, in seconds
    bytes: int = 0  # its size
    resumed: int = 0  # how often the job went on from a checkpoint
    lost_steps: int = 0  # the steps that were trained again after all workers had died, at least

    def with_event(self, event: Event) -> SavedWork:
        """Return the summary with `event` added, if that is of a checkpoint or of a resume."""
        details = event.details
        if isinstance(details, CheckpointDetails):
            return replace(
                self,
                saved=self.saved + 1,
                saved_at_s=event.time,
                capture_s=details.capture_s,
                bytes=details.bytes,
            )
        if isinstance(details, ResumedDetails):
            lost = details.lost_steps or 0
            return replace(self, resumed=self.resumed + 1, lost_steps=self.lost_steps + lost)
        return self


@dataclass(frozen=True)
class LedgerSummary(Record):
    """The samples that the workers' ledger counts as trained, and the job's checkpoints."""

    epoch: int  # the number of the epoch, from 0
    done: int  # the samples of this epoch that are trained
    total: int  # the samples of an epoch; 0: of a stream, or the script keeps its own place
    untrained: int  # the samples of epochs that the script left before their end
    left: float | None  # the samples until the end of the job; None: not known
    saved_step: int  # the step of the newest checkpoint; -1: there is none
    work: SavedWork  # what is known of checkpoints


def ledger_summary(snapshot: Snapshot, work: SavedWork) -> LedgerSummary:
    """Return what the ledger has counted, from the records of a job and what its events tell."""
    now = snapshot.status
    return LedgerSummary(
        epoch=now.epoch,
        done=now.epoch_done,
        total=now.epoch_total,
        untrained=now.untrained,
        left=now.left,
        saved_step=snapshot.job.saved_step,
        work=work,
    )
