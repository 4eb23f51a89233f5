"""The state that all workers must hold alike is compared in each step: no split goes unseen.

The digest of a part of the state after a step rides on the row of the next one, so it costs no
collective: another part after each step, the whole at the first step of each epoch and at the end
of the training. At the end of a fit the digests are exchanged by themselves, for the script uses
the model then. See :mod:`edl.core.step.state_check`.

Where the job resyncs, a split is noted when the rows arrive, and looked into when all workers are
between two steps again. Their updates are by the same mean meanwhile, so who was right still is,
and whoever gets the state then has what it would have with the state before that update.

A newcomer that differs leaves: see :mod:`edl.core.step.newcomers`. It ends with an error, and for
the others the ring is broken, so they complete the step without it, as after a crash.
"""

from __future__ import annotations

import contextlib
import json
import logging
import struct
from collections.abc import Callable
from typing import ClassVar, NoReturn, Protocol

from edl.core.events import Details, StateDiffersDetails
from edl.core.plural import names
from edl.core.step.newcomers import CAUSE, Said, on_trial, who_leaves, why_they_leave
from edl.core.step.state_check import (
    WHOLE,
    Digests,
    Group,
    Split,
    due,
    fold,
    reason,
    resynced,
    split,
    split_of,
    undecided,
)
from edl.core.step.step_record import StepRecords, Stop
from edl.errors import NewcomerDiffers, RingBroken, StateDiffers
from edl.ring.ring import Ring
from edl.worker.checkpointing import Checkpointing
from edl.worker.loader_progress import LoaderProgress
from edl.worker.progress import Receive, TrainingProgress

logger = logging.getLogger(__name__)

STATE = struct.Struct(">qq")  # a worker, and the digest of its state


class Compared(Protocol):
    """What has parts that are to be equal on all workers."""

    def digests(self, group: Group = WHOLE) -> dict[str, int]:
        """A digest of each part of a group, by name."""

    def learning_rates(self) -> dict[str, float]:
        """The present learning rates, by what each is called in a sentence."""

    def synchronise(self, ring: Ring, root: int, receive: Receive) -> None:
        """See :class:`edl.worker.switching.Shared`."""


class Comparison:
    """What a worker does to compare its state with the others'. Runs in the training thread.

    Args:
        checkpointing: knows the settings of the job, too.
        log_event: writes an event, on one worker.
    """

    cause: ClassVar[str] = CAUSE  # of what a newcomer computes otherwise, and what to do
    unit: ClassVar[str] = "step"

    def __init__(
        self,
        ring: Ring,
        progress: TrainingProgress,
        checkpointing: Checkpointing,
        log_event: Callable[[Details, str], None],
    ) -> None:
        self._ring = ring
        self._at: TrainingProgress = progress
        self._checkpointing = checkpointing
        self._log_event = log_event
        self._digests: Digests = {}
        self._joined_after: int | None = None  # the step, if the job trained before
        self.replica: Compared | None = None
        self.state = 0  # what goes with the row of this step; 0: nothing is due

    @property
    def _every(self) -> int:
        """Steps in which all is compared; 0: nothing is."""
        return self._checkpointing.settings.state_check_steps

    def joined(self) -> None:
        """This worker has joined a job that trains, and has its state."""
        self._joined_after = self._at.step

    def now(self, group: Group = WHOLE) -> int:
        """The digest of that group of the state as it is; 0: there is nothing to compare."""
        if self._every == 0 or self._ring.alone or self.replica is None:
            return 0
        self._digests = self.replica.digests(group)
        return fold(self._digests)

    def _exchange(self, digests: Digests) -> dict[int, Said]:
        """Everybody's digests of the parts and learning rates, by worker in rank order."""
        rates = self.replica.learning_rates() if self.replica is not None else {}
        mine = Said(digests, rates, on_trial(self._joined_after, self._at.step))
        sent = json.dumps(vars(mine)).encode()
        return {
            worker: Said(**json.loads(self._ring.broadcast(sent, rank, "edl.digests")))
            for rank, worker in enumerate(self._at.members)
        }

    def _leave(self, leaving: tuple[int, ...], said: dict[int, Said], step: int) -> NoReturn:
        """Let newcomers leave the ring: it is broken, and the others go on without them."""
        why = why_they_leave(leaving, step, said, self.cause, self.unit)
        self._log_event(StateDiffersDetails(tuple(f"w{worker}" for worker in leaving)), why)
        members, ring = self._at.members, self._ring
        if members[ring.place.rank] in leaving:
            with contextlib.suppress(RingBroken):
                ring.exchange(b"")  # when it ends, all know
            ring.break_()
            raise NewcomerDiffers(why)
        logger.info("%s", why)
        ring.exchange(b"")
        # Nobody breaks the ring before those who leave: they have to know it, or would come back.
        ring.broadcast(b"", members.index(leaving[0]), "edl.leaving")
        raise RingBroken(ring.generation, f"{names(leaving)} did not leave it")

    def _end(self, why: str, found: Split) -> NoReturn:
        self._log_event(StateDiffersDetails(tuple(f"w{worker}" for worker in found.odd)), why)
        self._checkpointing.fail(why, StateDiffers)


class StateCheck(Comparison):
    """One worker's part in a job whose batches come from edl's loader."""

    def __init__(
        self,
        ring: Ring,
        progress: LoaderProgress,
        checkpointing: Checkpointing,
        log_event: Callable[[Details, str], None],
    ) -> None:
        super().__init__(ring, progress, checkpointing, log_event)
        self._progress = progress
        self._split_in: int | None = None  # the generation in whose ring states differ

    def begin_step(self) -> None:
        """A batch is handed out, so all that belongs to the step before is done.

        The row may have to be sent again, after this step's batch has changed what it may change.
        """
        progress = self._progress
        begins_epoch = progress.ledger.done == 0
        group = due(progress.step, begins_epoch, self._every, progress.joined_after)
        self.state = self.now(group) if group is not None else 0

    def compare(self, records: StepRecords) -> None:
        """All rows of a step are here, or all workers are at the end.

        Raises:
            StateDiffers: the job ends.
            NewcomerDiffers: this worker is a newcomer that differs, and ends.
            RingBroken: for the others then. Or the job ends, or somebody is to be resynced at the
                end, but a worker went before all knew; the rows come again.
        """
        found = split_of(records)
        if found is not None and not self._only_resyncs:
            self._judge(found, self._exchange(self._digests))
        if self._resyncs:
            if found is not None:
                self._split_in = self._ring.generation
            if (records.column("stop") >= Stop.FINISHED).all():
                self.resync()

    def is_same(self, exchange: Callable[[bytes], list[bytes]]) -> bool:
        """Compare the digests of the whole state of all workers, which are between two steps.

        Args:
            exchange: gives the bytes of all workers, see
                :meth:`edl.worker.worker.Worker.exchange_bytes`.

        Returns:
            Whether all hold the same state; every worker gets the same answer.
        """
        worker = self._progress.members[self._ring.place.rank]
        rows = [STATE.unpack(row) for row in exchange(STATE.pack(worker, self.now()))]
        return split(rows) is None

    def compare_all(self) -> None:
        """Compare the state of all workers, between two steps, part by part, and act on it.

        A newcomer that differs leaves. Of the others, those that differ get what most hold, if the
        job resyncs; else the job ends. Nothing happens where all are equal.

        Raises:
            StateDiffers, NewcomerDiffers, RingBroken: see :meth:`compare`.
        """
        if self.replica is None:
            return
        said = self._exchange(self.replica.digests())
        tables = {worker: one.digests for worker, one in said.items()}
        found = split((worker, fold(table)) for worker, table in tables.items())
        if found is not None and not self._only_resyncs:
            self._judge(found, said)
        if found is not None:
            self._resync(found, tables)

    def resync(self) -> None:
        """All workers are between two steps: who differs gets what most hold, if anybody does.

        In a new ring after a failure nothing is known of it; the parts are compared there again.

        Raises:
            StateDiffers: no majority holds the same; the job ends.
            RingBroken: a worker is gone. Who was not resynced yet is found again.
        """
        if self._split_in == self._ring.generation:
            self.compare_all()
            self._split_in = None

    @property
    def _resyncs(self) -> bool:
        return self._checkpointing.settings.on_divergence == "resync"

    @property
    def _only_resyncs(self) -> bool:
        """Whether nobody who differs has to leave, and the job goes on."""
        return self._resyncs and self._progress.step != self._progress.joined_after + 1

    def _judge(self, found: Split, said: dict[int, Said]) -> None:
        """Let newcomers that differ leave; else the job ends, unless it resyncs."""
        step = self._progress.step
        if leaving := who_leaves(found, said):
            self._leave(leaving, said, step)
        if not self._resyncs:
            tables = {worker: one.digests for worker, one in said.items()}
            rates = {worker: one.rates for worker, one in said.items()}
            self._end(reason(found, step, tables, rates), found)

    def _resync(self, found: Split, tables: dict[int, Digests]) -> None:
        assert self.replica is not None
        progress, ring = self._progress, self._ring
        if not found.odd:
            self._end(undecided(found, progress.step, tables), found)
        why = resynced(found, progress.step, tables)
        is_odd = progress.members[ring.place.rank] in found.odd
        receive = Receive.RESYNC if is_odd else Receive.NOTHING
        self.replica.synchronise(ring, progress.members.index(found.source), receive)
        logger.warning("%s", why)
        workers = tuple(f"w{worker}" for worker in found.odd)
        self._log_event(StateDiffersDetails(workers, f"w{found.source}"), why)
