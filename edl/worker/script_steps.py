"""The commits of a script that keeps its own place in its data (docs/adr/0010).

It calls :meth:`ScriptSteps.agree` wherever a switch may happen, and
:meth:`edl.worker.worker.Worker.boundary` when one is due.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from edl import failpoints
from edl.core.policy.ring_report import RingReport
from edl.core.step.step_record import StepRecords, Stop
from edl.errors import RingError, UsageError
from edl.ring.ring import Ring
from edl.worker.script_progress import ScriptProgress
from edl.worker.script_state_check import ScriptStateCheck
from edl.worker.shared_state import SharedState
from edl.worker.size_request import SizeRequest
from edl.worker.steps import Steps
from edl.worker.switching import Switching

logger = logging.getLogger(__name__)


class ScriptSteps(Steps):
    """The steps of one worker whose script says when its state is saved."""

    def __init__(
        self,
        ring: Ring,
        shared: SharedState,
        switching: Switching,
        wishes: SizeRequest,
        progress: ScriptProgress,
        check: ScriptStateCheck,
    ) -> None:
        super().__init__(ring, shared, switching, wishes)
        self._progress = progress
        self._check = check

    @property
    def progress(self) -> ScriptProgress:
        return self._progress

    @property
    def batch_weight(self) -> int:
        raise UsageError(
            "edl.batch_weight() is of the batches of edl's data loader; in a script with an "
            "elastic state give the number of samples: edl.mean(value, weight=len(batch))"
        )

    @property
    def ended(self) -> bool:
        """Others have trained to the end; what they have is here."""
        return self._progress.ended

    def beat(self) -> None:
        """The gradients of an update are in, says the script's optimizer: the job moves on."""
        self.begun += 1
        if not self.warming_up:
            self.timer.end()
            self._shared.report(replace(self._shared.progress, updated_at=self.timer.ended))

    def before_save(self) -> None:
        """The script is about to save its state: look first whether newcomers hold the same.

        Raises:
            RingBroken: a worker is gone, or a newcomer that differs; see :meth:`repair`.
            NewcomerDiffers: that is this worker.
            StateDiffers: old workers differ from each other; the job ends.
        """
        if self._check.newcomers_are_due:
            self._check.before_save()
            self._send(replace(self.idle_record(), state=self._check.state))
            self.records()
            self._check.newcomers_are_right()

    def saved(self) -> None:
        """The script has saved its state, as all workers do at this point of it."""
        self._progress.saved()

    def agree(self, compares: bool = False) -> bool:
        """All are at this point of the script. True when they are to switch: at the boundary.

        Args:
            compares: the state has just been saved: a part of it is compared.

        Raises:
            RingBroken: a worker is gone; see :meth:`repair`.
            RingError: the workers are not at the same point.
            NewcomerDiffers, StateDiffers: the states differ.
        """
        assert not self.warming_up
        failpoints.reached("boundary")
        self._shared.check()
        self._size_request.look()
        if compares:
            self._check.saved()
        self._send(replace(self.idle_record(), state=self._check.state if compares else 0))
        reason = self._completed()
        wishes = tuple(self.records().values("size_change"))
        self._shared.ring = RingReport(size_changes=wishes, is_timed=False)
        if self.begun == 0:
            self.timer.end()
        if reason:
            logger.info("after commit %d: %s", self._progress.step, reason)
        self._publish()
        return self.target is not None

    def repair(self, error: RingError) -> None:
        """The ring broke: go on with the survivors, all with the state that was saved last.

        Raises:
            WorkerEvicted, JobFailed: this worker or the job cannot go on.
        """
        self.target = None
        self._repair(error, self._shared.clock.now_s())

    def end(self) -> None:
        """The script has trained to its end, and saved: the end of the worker is next."""
        self._progress.saved()
        self._progress.ended = True

    def exchange(self, payload: bytes) -> list[bytes]:
        if self.warming_up:
            return [payload]
        failpoints.reached("exchange")
        return self.ring.exchange(payload)

    def leave(self) -> None:
        """It holds no batch."""

    def last_record(self, stop: Stop) -> None:
        return None

    def joined(self) -> None:
        self._check.joined()

    def compare(self, records: StepRecords) -> None:
        self._check.compare(records)
