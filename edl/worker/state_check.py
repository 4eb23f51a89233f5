"""Compare the workers' states, which must be equal after each step, by their digests.

The digest of one group of the state's bytes is sent with the step record of the next step, so it
needs no message of its own. Each step has the next group, or where a state has fewer groups
(:func:`edl.step.state_check.coarser`) some steps have none; the first step of each epoch and
the end of the training have the whole state. At the end of a fit (a call of Keras' ``fit``) the
digests are exchanged in a message of their own, because the script uses the model then.
:class:`StateCheck` does all this; :mod:`edl.step.state_check` defines the groups.

A job may resync (its setting ``on_divergence``): workers that differ get the state that most
workers hold. Then a difference is noted when the step records arrive; the update of that step is
still made, by all with the same mean gradients, and the state is sent between this step and the
next. So a worker that receives it has all updates.

A newcomer that differs leaves: see :mod:`edl.step.state_check`. It ends with an error, and for
the others the ring is broken, so they complete the step without it, as after a crash.
"""

from __future__ import annotations

import json
import logging
import struct
from collections.abc import Callable
from typing import ClassVar, NoReturn, Protocol

from edl.checkpoint.writer import Durable
from edl.errors import NewcomerDiffers, StateDiffers, StepsBack
from edl.events import Details, StateDiffersDetails
from edl.ring.ring import Ring
from edl.step.record import StepRecords, Stop
from edl.step.state_check import (
    CAUSE,
    NEVER,
    SCRIPT_ADVICE,
    SCRIPT_CAUSE,
    WHOLE,
    Digests,
    Split,
    StateGroup,
    StateReport,
    are_comparable,
    due,
    due_at_save,
    first_difference,
    fold,
    newcomers_that_leave,
    on_trial,
    reason,
    resynced,
    samples_of,
    split_by_digest,
    split_of,
    undecided,
    why_data_differ,
    why_they_leave,
    without_samples,
)
from edl.worker.checkpointing import Checkpointing
from edl.worker.mismatch import let_leave
from edl.worker.progress import (
    Comparable,
    LoaderProgress,
    Receive,
    ScriptProgress,
    Shared,
    TrainingProgress,
)

logger = logging.getLogger(__name__)


FROM_BATCHES = (
    "what the model sets from its batches differs among the workers (%s): each worker has its own, "
    "and a newcomer takes that of one worker. So what goes on from batch to batch (a state, a "
    "queue, a codebook) is not as in one process: set it from edl.gather(...) or edl.mean(...), "
    "alike on all workers, or train with one"
)

STATE = struct.Struct(">qq")  # a worker, and the digest of its state


class Compared(Protocol):
    """The interface of a state whose parts (such as tensors) must be equal on all workers."""

    def digests(self, group: StateGroup = WHOLE) -> dict[str, int]:
        """Return a digest of each part of the state, by the name of the part."""

    def learning_rates(self) -> dict[str, float]:
        """Return this worker's present learning rates, by the name that is shown in messages."""

    def synchronise(self, ring: Ring, root: int, receive: Receive) -> None:
        """Broadcast the state from the rank `root`; with `NOTHING` this worker's stays the same."""


class DataSamples(Protocol):
    """Digests of a few samples of the data set, by name, the same samples on all workers."""

    def digests(self, epoch: int) -> dict[str, int]:
        """Return the digests of those that are compared in `epoch`."""

    def again(self, epoch: int) -> dict[str, int]:
        """Return others, `UNSTABLE` for a sample that is not the same each time."""


class StateComparison:
    """One worker's part in comparing its state with the others'; it runs in the training thread."""

    cause: ClassVar[str] = CAUSE  # why a newcomer may compute something else, and what to do
    unit: ClassVar[str] = "step"  # in messages

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
        self.replica: Compared | None = None  # None until the script has declared the state
        self.state = 0  # the digest that goes with the row of this step; 0: none is due

    @property
    def _every(self) -> int:
        return self._checkpointing.settings.state_check_steps

    def joined(self) -> None:
        """Mark this worker as a newcomer that has joined after the last complete step."""
        self._joined_after = self._at.step

    def now(self, group: StateGroup = WHOLE) -> int:
        """Return one digest of the present state, or of one `group` of its bytes."""
        if self._every == 0 or self._ring.alone or self.replica is None:
            return 0
        self._digests = self.replica.digests(group)
        return fold(self._digests)

    def _exchange(self, digests: Digests) -> dict[int, StateReport]:
        """Exchange reports with all workers, and return the report of each by worker id."""
        rates = self.replica.learning_rates() if self.replica is not None else {}
        joined_after = on_trial(self._joined_after, self._at.step)
        mine = StateReport(digests, rates, joined_after, self._at.joined_inside)
        sent = json.dumps(vars(mine)).encode()
        return {
            worker: StateReport(**json.loads(self._ring.broadcast(sent, rank, "edl.digests")))
            for rank, worker in enumerate(self._at.members)
        }

    def _leave(self, leaving: tuple[int, ...], said: dict[int, StateReport], step: int) -> NoReturn:
        """Make newcomers leave the ring: each of them ends, and the ring breaks for the others."""
        back = all(said[worker].inside for worker in leaving)
        self._at.at_epochs |= back
        why = why_they_leave(leaving, step, said, self.cause, self.unit, back)
        self._let_leave(leaving, why, back)

    def _let_leave(self, leaving: tuple[int, ...], why: str, back: bool = False) -> NoReturn:
        """Make the newcomers `leaving` end, or step back; see `let_leave`."""
        self._log_event(StateDiffersDetails(tuple(f"w{worker}" for worker in leaving)), why)
        self._checkpointing.distrust_parts()
        error = StepsBack if back else NewcomerDiffers
        let_leave(self._ring, self._at.members, leaving, why, error)

    def _end(self, why: str, found: Split) -> NoReturn:
        """End the job as failed on all workers, because the states in `found` differ."""
        self._log_event(StateDiffersDetails(tuple(f"w{worker}" for worker in found.odd)), why)
        self._checkpointing.fail(why, StateDiffers)


class StateCheck(StateComparison):
    """One worker's comparison of states, in a job whose batches come from edl's loader."""

    def __init__(
        self,
        ring: Ring,
        progress: LoaderProgress,
        checkpointing: Checkpointing,
        log_event: Callable[[Details, str], None],
    ) -> None:
        super().__init__(ring, progress, checkpointing, log_event)
        self._progress = progress
        self.data: DataSamples | None = None  # None: they are not compared
        self._split_in: int | None = None  # the generation in whose ring states differ
        self.from_batches: Callable[[], Digests] = dict  # of what the model sets from its batches
        self.buffers = 0  # as state, of what the model sets from its batches
        self._from_batches: Digests = {}
        self._steps_in = (0, 0)  # a generation, and how many steps were begun in it
        self._has_warned = False

    def begin_step(self) -> None:
        """Set `state` to the digest that goes into the step record of the step that begins."""
        progress = self._progress
        begins_epoch = progress.ledger.done == 0
        group = due(progress.step, begins_epoch, self._every, progress.joined_after)
        # Kept until the next step: the record may have to be sent again when the state has changed.
        self.state = self.now(group) if group is not None else 0
        compared = self.data is not None and self._every and not self._ring.alone
        if compared and (begins_epoch or progress.step == progress.joined_after):
            assert self.data is not None
            held = self._digests if self.state else {}
            self._digests = {**held, **self.data.digests(progress.ledger.epoch)}
            self.state = fold(self._digests)
        here = self._ring.generation
        self._steps_in = here, 1 + (self._steps_in[1] if self._steps_in[0] == here else 0)
        # Once a ring is enough: what differs, differs after the first batch.
        compares = self._steps_in[1] == 2 and self._every > 0 and not self._ring.alone
        self._from_batches = self.from_batches() if compares else {}
        self.buffers = fold(self._from_batches) if self._from_batches else 0

    def compare(self, records: StepRecords) -> None:
        """Compare the digests in `records`, the step records of all workers."""
        sets = records.column("buffers").all() and records.differ_in("buffers")
        if sets and not self._has_warned:
            self._has_warned = True
            if self._ring.place.rank == 0:
                logger.warning(FROM_BATCHES, ", ".join([*self._from_batches][:3]))
        found = split_of(records)
        if found is not None:
            said = self._exchange(self._digests)
            found = self._judge_data(found, said)
            if found is not None and not self._only_resyncs:
                self._judge(found, said)
        if self._resyncs:
            if found is not None:
                self._split_in = self._ring.generation
            if (records.column("stop") >= Stop.FINISHED).all():
                self.resync()

    def _judge_data(self, found: Split, said: dict[int, StateReport]) -> Split | None:
        """Judge whether the data sets differ; return how the states do, without the samples."""
        tables = {worker: report.digests for worker, report in said.items()}
        if not any(map(samples_of, tables.values())):
            return found
        if len({fold(samples_of(table)) for table in tables.values()}) > 1:
            epoch = self._progress.ledger.epoch
            again = self._exchange(self.data.again(epoch) if self.data is not None else {})
            read = {worker: report.digests for worker, report in again.items()}
            if not are_comparable(read):
                self.data = None  # on all
            elif split := split_by_digest((w, fold(table)) for w, table in read.items()):
                if leaving := newcomers_that_leave(split, again):
                    staying = tuple(w for w in read if w not in leaving)
                    why = why_data_differ(leaving, staying, epoch, read, again, leaving=True)
                    self._let_leave(leaving, why)
                odd = split.odd or split.groups[1]
                why = why_data_differ(odd, split.groups[0], epoch, read, again, leaving=False)
                self._end(why, split)
        return split_by_digest((w, fold(without_samples(one))) for w, one in tables.items())

    def is_same(self, exchange: Callable[[bytes], list[bytes]]) -> bool:
        """Compare the digests of the whole state of all workers, which are between two steps."""
        worker = self._progress.members[self._ring.place.rank]
        rows = [STATE.unpack(row) for row in exchange(STATE.pack(worker, self.now()))]
        return split_by_digest(rows) is None

    def compare_all(self) -> None:
        """Compare the whole state of all workers between two steps, and correct a wrong state."""
        if self.replica is None:
            return
        said = self._exchange(self.replica.digests())
        tables = {worker: one.digests for worker, one in said.items()}
        found = split_by_digest((worker, fold(table)) for worker, table in tables.items())
        if found is not None and not self._only_resyncs:
            self._judge(found, said)  # ends the job unless that resyncs
        if found is not None:
            self._resync(found, tables)

    def resync(self) -> None:
        """Give workers that differ the state that most workers hold, between two steps."""
        if self._split_in == self._ring.generation:
            self.compare_all()
            # If a worker has failed meanwhile, `compare` finds the difference in the next ring
            # again.
            self._split_in = None

    @property
    def _resyncs(self) -> bool:
        return self._checkpointing.settings.on_divergence == "resync"

    @property
    def _only_resyncs(self) -> bool:
        return self._resyncs and self._progress.step != self._progress.joined_after + 1

    def _judge(self, found: Split, said: dict[int, StateReport]) -> None:
        """Let newcomers whose states differ leave; if there are none, end the job."""
        step = self._progress.step
        if leaving := newcomers_that_leave(found, said):
            self._leave(leaving, said, step)
        if not self._resyncs:
            tables = {worker: one.digests for worker, one in said.items()}
            rates = {worker: one.rates for worker, one in said.items()}
            self._end(reason(found, step, tables, rates), found)

    def _resync(self, found: Split, tables: dict[int, Digests]) -> None:
        """Broadcast the state that most workers hold; the workers that differ take it over."""
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
        self._checkpointing.distrust_parts()


# ------------------------------------------------------------
# Define the interfaces of the state that all workers hold alike, in a framework or in a script.
#
# `Replica` is a framework's model and optimizer; `ScriptState` is a script's own state.


class ScriptState(Shared, Compared, Protocol):
    """The interface to broadcast and compare the state of a script that loads its own data."""


class Replica(Shared, Durable, Compared, Protocol):
    """The interface to broadcast, compare and save a framework's state."""

    def end_batch(self, step: int, epoch: int) -> None:
        """Copy the state of the tracked objects, or load copies received from another worker."""
        # One that missed the last step has received copies, and loads them; all others make some to
        # send. Called when the script asks for its next batch, or exchanges numbers before.

    def average_buffers(self, step: int, exchange: Callable[[bytes], list[bytes]]) -> None:
        """Set BatchNorm's averages, each worker's own in training, to their means over all."""


# ------------------------------------------------------------
# Compare the workers' states in a script for Horovod Elastic, whenever it saves its state.
#
# All workers of such a script save (`state.commit()`) at the same point, and all begin with the
# same state. Whether the states stay equal is the script's choice: in some scripts each worker
# trains parameters of its own, which are averaged now and then. So the whole states are compared at
# the first save of a job that two or more workers make. If they are equal, each later save compares
# one group of their bytes, each group in its turn (`StateGroup`). If not, they are not compared any
# more, and the log says so. `ScriptStateCheck` does this.
#
# After a join the whole state is compared at the next commit, before it is saved. A newcomer that
# differs leaves, and the others return to the state that they saved when it joined, as after a
# crash.


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
