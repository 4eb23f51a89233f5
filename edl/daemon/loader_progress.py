"""Where a worker is in the data of edl's loader: step, epoch, ledger, and the batch in its hands.

It moves when a step is complete, and when a generation is adopted; both by pure functions of what
all workers know.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from edl.core.step.ledger import (
    LeasePolicy,
    Ledger,
    complete_step,
    give_back,
    grant,
    restore,
    start_epoch,
)
from edl.core.step.source import NO_FINGERPRINT, Source
from edl.core.step.step_record import StepRecord, global_samples, stopping, wanting_to_stop
from edl.daemon.progress import Receive, TrainingProgress
from edl.daemon.sampler import Batch, BatchSampler
from edl.errors import DataError, UsageError


class LoaderProgress(TrainingProgress):
    """The place of one worker in the epochs of edl's own loader, and the batch in its hands."""

    unit = "steps"
    without_checkpoint = ", and nothing was saved: call edl.checkpoint(directory) in the script"

    def __init__(self) -> None:
        super().__init__()
        self._worker = 0
        self._source: Source | None = None
        self._sampler: BatchSampler | None = None
        self._ledger: Ledger | None = None
        self._upcoming: Ledger | None = None  # of the epoch that the others have begun
        self.open = False  # a batch is handed out, its step not complete
        self.superseded = False  # others completed the step that is open here
        self.batch: Batch | None = None
        self.padding = False  # the batch is repeated and counts for nothing
        self.samples_total = 0  # trained by all workers, since this one is in the job
        self.weight = 0  # the samples that count of the batch that was handed out last
        self.last_exchange: list[list[float]] = []  # everybody's values in the last exchange
        self.stop = ""  # why all stop training after the last complete step, if they do

    def attach(self, source: Source, worker: int) -> None:
        """Begin the first epoch of ``source``.

        Raises:
            DataError: it is empty.
            UsageError: there is a source already.
        """
        if self._source is not None:
            raise UsageError(
                "this script has two edl data loaders; a job trains on one (use the framework's "
                "own loader for evaluation)"
            )
        self._worker, self._source, self._sampler = worker, source, BatchSampler(source, worker)
        self._ledger = self._granted(start_epoch(source.total, 0))
        self._sampler.enter(0)

    @property
    def attached(self) -> bool:
        return self._source is not None

    @property
    def source(self) -> Source:
        if self._source is None:
            raise UsageError("create an edl.DataLoader before training")
        return self._source

    @property
    def sampler(self) -> BatchSampler:
        if self._sampler is None:
            raise UsageError("create an edl.DataLoader before training")
        return self._sampler

    @property
    def ledger(self) -> Ledger:
        if self._ledger is None:
            raise UsageError("create an edl.DataLoader before training")
        return self._ledger

    @property
    def samples(self) -> int:
        """How many samples this worker contributes to the open step."""
        return 0 if self.padding or self.batch is None else self.batch.samples

    def next_epoch(self) -> None:
        """Begin the next epoch with everything free; what was left of this one is dropped."""
        self.abandon()
        if self._upcoming is not None:
            self._ledger, self._upcoming = self._upcoming, None
        else:
            self._ledger = self._granted(start_epoch(self.source.total, self.ledger.epoch + 1))
        self.sampler.enter(self.ledger.epoch)

    def begin(self, batch: Batch, padding: bool) -> None:
        """A batch is handed out."""
        assert not self.open
        self.open, self.batch, self.padding = True, batch, padding
        self.weight = self.samples

    def complete(self, records: Sequence[StepRecord]) -> None:
        """The step is in the model: the ledger moves."""
        self._ledger = complete_step(self.ledger, records, self._policy)
        self.samples_total += global_samples(records)
        stops, reason = stopping(wanting_to_stop(records))
        self.stop = reason if stops else ""
        self._forget_batch()
        self.open = False
        self.step += 1

    def exchanged(self, values: list[list[float]]) -> None:
        """An exchange between two steps is complete: what everybody has sent, in rank order."""
        self.exchanges += 1
        self.last_exchange = values

    def abandon(self) -> None:
        """Forget a batch that was handed out and never trained (the script left its loop)."""
        self.open, self.batch, self.weight = False, None, 0

    def adopt(self, members: tuple[int, ...]) -> None:
        """Membership changed: what the others have left is free again.

        Nobody starts with empty hands, so no step can be without samples.
        """
        self.members = members
        if self._ledger is not None and not self._ledger.finished:
            self._ledger = self._granted(give_back(self._ledger, members))

    def row(self) -> dict[str, int]:
        """What a step record says of the ledger (:mod:`edl.core.step.step_record`)."""
        ledger = self.ledger
        wanted = self.sampler.wanted(ledger)
        return {"epoch": ledger.epoch, "wanted": wanted, "ledger": ledger.digest()}

    @property
    def epoch_progress(self) -> dict[str, int]:
        ledger = self.ledger
        return {
            "epoch": ledger.epoch,
            "epoch_done": ledger.done,
            "epoch_total": ledger.total,
            "samples_total": self.samples_total,
        }

    def may_pause(self, repaired_at: int) -> bool:
        """After a repair some are in the midst of a step, and need the others for it."""
        return self.step > repaired_at

    def header(self) -> dict[str, Any]:
        """This progress as JSON values, for those who take it over."""
        return {
            "step": self.step,
            "ledger": self.ledger.snapshot(),
            "stop": self.stop,
            "fingerprint": self.source.fingerprint,
            "exchanges": self.exchanges,
            "last_exchange": self.last_exchange,
        }

    def take_over(self, header: Mapping[str, Any], receive: Receive) -> None:
        """Move to the sync root's progress.

        Who missed a step that others completed is done with it: its samples are in the model
        that it receives. Who missed an exchange that the root has completed gets what was told in
        it. Nobody has missed two of either, or both: an exchange needs all, after the step before
        it, and so does each step.

        If the root has left the epoch already, this one is over here, too, and the root's ledger
        is kept for the next. A root that has not left it yet will begin the next one as all do,
        with the members that there are now.

        Raises:
            DataError: the root trains on other data.
        """
        mine, theirs = self.source.fingerprint, header["fingerprint"]
        if mine != theirs:
            raise DataError(
                f"the data of w{self._worker} are not the job's; every worker must load the same. "
                f"Here: {mine or NO_FINGERPRINT}. The job: {theirs or NO_FINGERPRINT}"
            )
        self._upcoming = None  # it was of members that are no more
        if receive is not Receive.ALL and self.has_state:
            missed = int(header["step"]) - self.step, int(header["exchanges"]) - self.exchanges
            assert missed in ((0, 0), (0, 1), (1, 0)), missed
        self.stop = str(header["stop"])
        ledger = restore(header["ledger"])
        if ledger.total != self.source.total:
            raise DataError(
                f"the dataset of w{self._worker} has {self.source.total} samples and the job's "
                f"{ledger.total}; every worker must load the same data"
            )
        if receive is Receive.ALL:
            self.sampler.enter(ledger.epoch)
        if receive is Receive.STEP:
            assert self.open
            assert int(header["step"]) == self.step + 1
            self.superseded = True
            self._forget_batch()
        if receive is not Receive.ALL:
            if ledger.epoch > self.ledger.epoch:
                self._upcoming, ledger = ledger, replace(self.ledger, free=(), leases=())
            elif ledger.epoch < self.ledger.epoch:
                ledger = self._granted(start_epoch(ledger.total, self.ledger.epoch))
        if not self.sampler.agrees_with(ledger):
            # It held leases of a generation that never came to be. What it has loaded from them
            # is somebody else's now.
            self.sampler.enter(ledger.epoch)
            self.padding = True
            if not self.superseded:
                self.weight = 0
        self.step, self._ledger, self.has_state = int(header["step"]), ledger, True
        self.exchanges, self.last_exchange = int(header["exchanges"]), header["last_exchange"]

    def resume(self, step: int, ledger: Mapping[str, Any]) -> None:
        """Go on from a checkpoint. All leases are free: other workers held them.

        Raises:
            DataError: it has no usable ledger.
        """
        saved = restore(ledger)
        if saved.finished:  # it was made after the last step of its epoch
            saved = start_epoch(saved.total, saved.epoch + 1)
        self._ledger = self._granted(give_back(saved, ()))
        self.sampler.enter(saved.epoch)
        self.step, self.has_state = step, True

    def _forget_batch(self) -> None:
        """The batch in hand is in the model; the next one is formed after it."""
        if self.batch is not None and not self.padding:
            self.sampler.trained(self.batch)
        self.batch, self.padding = None, False

    def _granted(self, ledger: Ledger) -> Ledger:
        """``ledger`` with every member holding what it needs to start with."""
        need = self.source.need
        needs = [(w, max(0, need - ledger.held_samples(w))) for w in self.members]
        return grant(ledger, needs, self._policy)

    @property
    def _policy(self) -> LeasePolicy:
        return LeasePolicy(self.source.batch_size)
