"""The states of scripts for Horovod Elastic are compared when they are saved.

Of such a script edl knows that its saves are made by all workers at the same point, and that all
are given the same state before they train on. Whether they keep it equal is the script's matter:
some train parameters of their own, and average them now and then. So the first save of a job tells.
If the states are equal then, they are compared from then on: a part at each save. If not, they are
not compared, and the log says so.

After a join the whole is compared at the first save, before the state is saved. If a newcomer
differs it leaves, and the others go back to what they had saved when it joined, as after a crash.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import ClassVar

from edl.core.events import Details
from edl.core.step.newcomers import SCRIPT_CAUSE, who_leaves
from edl.core.step.state_check import (
    NEVER,
    SCRIPT_ADVICE,
    due_at_save,
    first_difference,
    reason,
    split_of,
)
from edl.core.step.step_record import StepRecords
from edl.daemon.checkpointing import Checkpointing
from edl.daemon.script_progress import Comparable, ScriptProgress
from edl.daemon.state_check import Comparison
from edl.ring.ring import Ring

logger = logging.getLogger(__name__)


class ScriptStateCheck(Comparison):
    """One worker's part in it. Runs in the training thread."""

    cause: ClassVar[str] = SCRIPT_CAUSE
    unit: ClassVar[str] = "save"

    def __init__(
        self,
        ring: Ring,
        progress: ScriptProgress,
        checkpointing: Checkpointing,
        log_event: Callable[[Details, str], None],
    ) -> None:
        super().__init__(ring, progress, checkpointing, log_event)
        self._progress = progress
        self._saves = 0  # which save is next, or was made last

    @property
    def newcomers_are_due(self) -> bool:
        """Workers have joined since the last save: the whole is compared before the next one."""
        checks = self._progress.comparable is not Comparable.NO and self._every > 0
        return checks and self._progress.joined_after != NEVER and not self._ring.alone

    def before_save(self) -> None:
        """The state is about to be saved, and :attr:`newcomers_are_due`."""
        self._saves, self.state = self._progress.step + 1, self.now()

    def newcomers_are_right(self) -> None:
        """All workers' rows of that are here, and nobody had to leave."""
        self._progress.joined_after, self.state = NEVER, 0

    def saved(self) -> None:
        """The state is saved."""
        progress = self._progress
        self._saves, self.state = progress.step, 0
        if progress.comparable is not Comparable.NO:
            is_first = progress.comparable is Comparable.UNKNOWN
            group = due_at_save(progress.step, self._every, is_first)
            self.state = self.now(group) if group is not None else 0

    def compare(self, records: StepRecords) -> None:
        """All rows of a save are here.

        Raises:
            StateDiffers: the job ends.
            NewcomerDiffers: this worker is a newcomer that differs, and ends.
            RingBroken: for the others then.
        """
        progress, found = self._progress, split_of(records)
        if found is None:
            if self.state and progress.comparable is Comparable.UNKNOWN:
                progress.comparable = Comparable.YES
            return
        said = self._exchange(self._digests)
        if leaving := who_leaves(found, said):
            self._leave(leaving, said, self._saves)
        tables = {worker: one.digests for worker, one in said.items()}
        if progress.comparable is Comparable.UNKNOWN:
            progress.comparable = Comparable.NO
            if self._ring.place.rank == 0:
                logger.warning(
                    "the workers' states differ at the first commit, first in %s: this script's "
                    "workers train each on their own, and the states are not compared",
                    first_difference(tables),
                )
            return
        rates = {worker: one.rates for worker, one in said.items()}
        why = reason(found, self._saves, tables, rates, SCRIPT_ADVICE, self.unit)
        self._end(why, found)
