"""The state that all workers must hold alike is compared in each step: no split goes unseen.

The digest of a part of the state after a step rides on the row of the next one, so it costs no
collective: another part after each step, the whole at the first step of each epoch and at the end
of the training. See :mod:`edl.core.step.state_check`.

Where the job heals, a split is noted when the rows arrive, and looked into when all workers are
between two steps again. Their updates are by the same mean meanwhile, so who was right still is,
and whoever gets the state then has what it would have with the state before that update.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import NoReturn, Protocol

from edl.core.events import Details, StateDiffersDetails
from edl.core.step.state_check import (
    WHOLE,
    Digests,
    Group,
    Split,
    due,
    fold,
    healed,
    reason,
    split,
    split_of,
    undecided,
)
from edl.core.step.step_record import StepRecords, Stop
from edl.daemon.checkpointing import Checkpointing
from edl.daemon.loader_progress import LoaderProgress
from edl.daemon.progress import Receive
from edl.errors import StateDiffers
from edl.ring.ring import Ring

logger = logging.getLogger(__name__)


class Compared(Protocol):
    """What has parts that are to be equal on all workers."""

    def digests(self, group: Group = WHOLE) -> dict[str, int]:
        """A digest of each part of a group, by name."""

    def synchronise(self, ring: Ring, root: int, receive: Receive) -> None:
        """See :class:`edl.daemon.switching.Shared`."""


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
        self._split_in: int | None = None  # the generation in whose ring states differ
        self.replica: Compared | None = None
        self.state = 0  # what goes with the row of this step; 0: nothing is due

    @property
    def _every(self) -> int:
        """Steps in which all is compared; 0: nothing is."""
        return self._checkpointing.settings.state_check_steps

    def begin_step(self) -> None:
        """A batch is handed out, so all that belongs to the step before is done.

        The row may have to be sent again, after this step's batch has changed what it may change.
        """
        progress = self._progress
        group = due(progress.step, progress.ledger.done == 0, self._every)
        self.state = self.now(group) if group is not None else 0

    def compare(self, records: StepRecords) -> None:
        """All rows of a step are here, or all workers are at the end.

        Raises:
            StateDiffers: the job ends.
            RingBroken: it does, or somebody is to be healed at the end, but a worker went before
                all knew; the rows come again.
        """
        found = split_of(records)
        if self._checkpointing.settings.on_divergence == "heal":
            if found is not None:
                self._split_in = self._ring.generation
            if (records.column("stop") >= Stop.FINISHED).all():
                self.heal()
        elif found is not None:
            self._end(reason(found, self._progress.step, self._exchange(self._digests)), found)

    def now(self, group: Group = WHOLE) -> int:
        """The digest of that group of the state as it is; 0: there is nothing to compare."""
        if self._every == 0 or self._ring.alone or self.replica is None:
            return 0
        self._digests = self.replica.digests(group)
        return fold(self._digests)

    def heal(self) -> None:
        """All workers are between two steps: who differs gets what most hold, if anybody does.

        In a new ring after a failure nothing is known of it; the parts are compared there again.

        Raises:
            StateDiffers: no majority holds the same; the job ends.
            RingBroken: a worker is gone. Who was not healed yet is found again.
        """
        if self._split_in != self._ring.generation or self.replica is None:
            return
        tables = self._exchange(self.replica.digests())
        found = split((worker, fold(table)) for worker, table in tables.items())
        if found is not None:
            self._heal(found, tables)
        self._split_in = None

    def _heal(self, found: Split, tables: dict[int, Digests]) -> None:
        assert self.replica is not None
        progress, ring = self._progress, self._ring
        if not found.odd:
            self._end(undecided(found, progress.step, tables), found)
        why = healed(found, progress.step, tables)
        is_odd = progress.members[ring.place.rank] in found.odd
        receive = Receive.HEALED if is_odd else Receive.NOTHING
        self.replica.synchronise(ring, progress.members.index(found.source), receive)
        logger.warning("%s", why)
        workers = tuple(f"w{worker}" for worker in found.odd)
        self._log_event(StateDiffersDetails(workers, f"w{found.source}"), why)

    def _exchange(self, mine: Digests) -> dict[int, Digests]:
        """Everybody's digests of the parts, by worker in rank order."""
        said = json.dumps(mine).encode()
        return {
            worker: json.loads(self._ring.broadcast(said, rank, "edl.digests"))
            for rank, worker in enumerate(self._progress.members)
        }

    def _end(self, why: str, found: Split) -> NoReturn:
        self._log_event(StateDiffersDetails(tuple(f"w{worker}" for worker in found.odd)), why)
        self._checkpointing.fail(why, StateDiffers)
