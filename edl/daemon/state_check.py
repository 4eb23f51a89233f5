"""The state that all workers must hold alike is compared, now and then: no split goes unseen.

The digest of the state after a step rides on the row of the next one, so it costs no collective.
Every ``state_check_steps``, at the first step of each epoch, and at the end of the training. See
:mod:`edl.core.step.state_check`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import NoReturn, Protocol

from edl.core.events import Details, StateDiffersDetails
from edl.core.step.state_check import Digests, Split, due, fold, reason, split_of
from edl.core.step.step_record import StepRecords
from edl.daemon.checkpointing import Checkpointing
from edl.daemon.loader_progress import LoaderProgress
from edl.errors import StateDiffers
from edl.ring.ring import Ring


class Compared(Protocol):
    """What has parts that are to be equal on all workers."""

    def digests(self) -> dict[str, int]:
        """A digest of each part, by name."""


class StateCheck:
    """One worker's part in it. Runs in the training thread.

    Args:
        checkpointing: knows the settings of the job, too.
        log_event: writes an event, on one worker.
    """

    def __init__(
        self,
        ring: Ring,
        progress: LoaderProgress,
        checkpointing: Checkpointing,
        log_event: Callable[[Details, str], None],
    ) -> None:
        self._ring = ring
        self._progress = progress
        self._checkpointing = checkpointing
        self._log_event = log_event
        self._digests: Digests = {}
        self.replica: Compared | None = None
        self.state = 0  # what goes with the row of this step; 0: nothing is due

    @property
    def _every(self) -> int:
        """Steps between two comparisons; 0: nothing is compared."""
        return self._checkpointing.settings.state_check_steps

    def begin_step(self) -> None:
        """A batch is handed out, so all that belongs to the step before is done.

        The row may have to be sent again, after this step's batch has changed what it may change.
        """
        progress = self._progress
        begins_epoch = progress.ledger.done == 0
        self.state = self.now() if due(progress.step, begins_epoch, self._every) else 0

    def compare(self, records: StepRecords) -> None:
        """All rows of a step are here.

        Raises:
            StateDiffers: the job ends.
            RingBroken: it does, but a worker went before all knew in what; the rows come again.
        """
        if (found := split_of(records)) is not None:
            self._explain(found)

    def now(self) -> int:
        """The digest of the state as it is; 0: there is nothing to compare."""
        if self._every == 0 or self._ring.alone or self.replica is None:
            return 0
        self._digests = self.replica.digests()
        return fold(self._digests)

    def _explain(self, found: Split) -> NoReturn:
        """All workers are here: exchange the digests of the parts, and end the job."""
        mine = json.dumps(self._digests).encode()
        tables = {
            worker: json.loads(self._ring.broadcast(mine, rank, "edl.digests"))
            for rank, worker in enumerate(self._progress.members)
        }
        why = reason(found, self._progress.step, tables)
        self._log_event(StateDiffersDetails(tuple(f"w{worker}" for worker in found.odd)), why)
        self._checkpointing.fail(why, StateDiffers)
