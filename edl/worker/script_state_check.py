"""Compare the workers' states in a script for Horovod Elastic, whenever it saves its state.

All workers of such a script save (``state.commit()``) at the same point, and all begin with the
same state. Whether the states stay equal is the script's choice: in some scripts each worker trains
parameters of its own, which are averaged now and then. So the whole states are compared at the
first save of a job that two or more workers make. If they are equal, each later save compares one
group of their bytes, each group in its turn (:class:`edl.core.step.state_check.StateGroup`). If
not, they are not compared any more, and the log says so. :class:`ScriptStateCheck` does this.

After a join the whole state is compared at the next commit, before it is saved. A newcomer that
differs leaves, and the others return to the state that they saved when it joined, as after a crash.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import ClassVar

from edl.core.events import Details
from edl.core.step.newcomers import SCRIPT_CAUSE, newcomers_that_leave
from edl.core.step.state_check import (
    NEVER,
    SCRIPT_ADVICE,
    due_at_save,
    first_difference,
    reason,
    split_of,
)
from edl.core.step.step_record import StepRecords
from edl.ring.ring import Ring
from edl.worker.checkpointing import Checkpointing
from edl.worker.script_progress import Comparable, ScriptProgress
from edl.worker.state_check import StateComparison

logger = logging.getLogger(__name__)


class ScriptStateCheck(StateComparison):
    """One worker's part in comparing the states at each save; it runs in the training thread."""

    cause: ClassVar[str] = SCRIPT_CAUSE
    unit: ClassVar[str] = "save"  # the word for a step in messages

    def __init__(
        self,
        ring: Ring,
        progress: ScriptProgress,
        checkpointing: Checkpointing,
        log_event: Callable[[Details, str], None],
    ) -> None:
        super().__init__(ring, progress, checkpointing, log_event)
        self._progress = progress
        self._saves = 0  # the number of the save that is compared

    @property
    def newcomers_are_due(self) -> bool:
        """Whether the states of newcomers must be compared before the next save."""
        checks = self._progress.comparable is not Comparable.NO and self._every > 0
        return checks and self._progress.joined_after != NEVER and not self._ring.alone

    def before_save(self) -> None:
        """Set `state` to the digest of the whole state, for the step record before a save."""
        self._saves, self.state = self._progress.step + 1, self.now()

    def newcomers_are_right(self) -> None:
        """Note that the newcomers' states equal those of the other workers."""
        self._progress.joined_after, self.state = NEVER, 0

    def saved(self) -> None:
        """Set `state` to the digest that goes into the step record after a save."""
        progress = self._progress
        self._saves, self.state = progress.step, 0
        if progress.comparable is not Comparable.NO:
            is_first = progress.comparable is Comparable.UNKNOWN
            group = due_at_save(progress.step, self._every, is_first)
            self.state = self.now(group) if group is not None else 0

    def compare(self, records: StepRecords) -> None:
        """Compare the digests that all workers have sent, before or after a save."""
        progress, found = self._progress, split_of(records)
        if found is None:
            if self.state and progress.comparable is Comparable.UNKNOWN:
                progress.comparable = Comparable.YES
            return
        said = self._exchange(self._digests)
        if leaving := newcomers_that_leave(found, said):
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
