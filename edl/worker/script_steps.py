"""Make the steps of a script that keeps its own place in its data: its commits (docs/adr/0010).

The script's elastic state calls :meth:`ScriptSteps.agree` wherever a switch may happen, and
:meth:`edl.worker.worker.Worker.boundary` is called when all workers have agreed on one.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from edl import failpoints
from edl.core.policy.ring_report import RingReport
from edl.core.step.step_record import StepRecord, StepRecords, Stop
from edl.errors import RingError, UsageError
from edl.ring.ring import Ring
from edl.worker.script_progress import ScriptProgress
from edl.worker.script_state_check import ScriptStateCheck
from edl.worker.shared_state import SharedState
from edl.worker.size_request import SizeRequest
from edl.worker.steps import WorkerSteps
from edl.worker.switching import Switching

logger = logging.getLogger(__name__)


class ScriptSteps(WorkerSteps):
    """The steps of one worker whose script says when its state is saved: `Worker.script`."""

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
        self._begun = 0
        self._progress = progress
        self._check = check

    @property
    def begun(self) -> int:
        """The number of updates that this worker has made."""
        return self._begun

    @property
    def progress(self) -> ScriptProgress:
        """The counter of the saves of the script's state."""
        return self._progress

    @property
    def batch_weight(self) -> int:
        """Not available: edl knows no batches of a script that keeps its own place in its data."""
        raise UsageError(
            "edl.batch_weight() is of the batches of edl's data loader; in a script with an "
            "elastic state give the number of samples: edl.mean(value, weight=len(batch))"
        )

    @property
    def ended(self) -> bool:
        """Whether the training has ended: here, or on others, whose final state this worker has."""
        return self._progress.ended

    def beat(self) -> None:
        """Count an update in `begun`, and report to the daemon that this worker goes on."""
        self._begun += 1
        self.ring.updates += 1
        if not self.warming_up:
            self.timer.end()
            # Else the leader would see a stall between two saves.
            self._shared.report(replace(self._shared.progress, updated_at=self.timer.ended))

    def before_save(self) -> None:
        """Compare the state of newcomers with the others' before the script saves its state."""
        if self._check.newcomers_are_due:
            self._check.before_save()
            self._send(replace(self.idle_record(), state=self._check.state))
            self._awaited()
            self._check.newcomers_are_right()

    def saved(self) -> None:
        """Count a save of the script's state as one more step; all workers save together."""
        self._progress.saved()

    def agree(self, compares: bool = False) -> bool:
        """Exchange step records with all workers, which call it at the same point of the script."""
        assert not self.warming_up
        failpoints.reached("boundary")
        self._shared.check()
        self._size_request.look()  # calls the function of edl.on_interval, if it is time
        if compares:
            self._check.saved()
        self._send(replace(self.idle_record(), state=self._check.state if compares else 0))
        records = self._awaited()
        reason = self._completed(records)
        wishes = tuple(records.values("size_change"))
        self._shared.ring = RingReport(
            size_changes=wishes, is_timed=False, generation=self.generation
        )
        if self.begun == 0:
            self.timer.end()
        if reason:
            logger.info("after commit %d: %s", self._progress.step, reason)
        self._publish()
        return self.target is not None

    def repair(self, error: RingError) -> None:
        """Build a ring of the survivors, all with the last save; the caller has gone back to it."""
        self.target = None
        self._repair(error, self._shared.clock.now_s())

    def end(self) -> None:
        """Count the last save of a script that has trained to its end, and set `ended`."""
        self._progress.saved()
        self._progress.ended = True

    def exchange(self, payload: bytes, alike: bool = False) -> list[bytes]:
        """Send `payload` to all workers, wait for theirs, and return all in rank order."""
        if self.warming_up:
            return [payload]
        failpoints.reached("exchange")
        # Nothing is repaired here: `elastic.run` sets the state back, and calls `repair`.
        return self.ring.exchange(payload)

    def leave(self) -> None:
        """Do nothing: a script with its own data holds no batch of edl's loader to complete."""

    def last_record(self, stop: Stop) -> StepRecord:
        """Return, without sending it, this worker's record about the end of its training."""
        return replace(self.idle_record(), stop=stop)

    def roll_call(self, finished: bool) -> None:
        """Exchange a record in a repaired ring: all learn whether some ended the training."""
        is_over = finished or self.ended
        self._send(self.last_record(Stop.FINISHED if is_over else Stop.NO))
        self._awaited()

    def joined(self) -> None:
        """Mark this worker as a newcomer, which leaves if its state differs from the others'."""
        self._check.joined()

    def compare(self, records: StepRecords) -> None:
        """Raise an error if the digests in the step records say that the workers' states differ."""
        self._check.compare(records)
