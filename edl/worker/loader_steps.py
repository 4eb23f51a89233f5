"""Make the steps of a worker on the batches of edl's own loader, with a ledger of what is trained.

:class:`LoaderSteps` is the ring and the clock of the step engine (:mod:`edl.core.step.engine`),
which decides what is sent, awaited and repaired. For a batch the training loop calls
:meth:`~LoaderSteps.begin` (:meth:`edl.worker.worker.Worker.boundary` comes before it); a framework
has the gradients reduced (:class:`edl.framework.reduction.StepReduction`), applies the update, and
calls :meth:`~LoaderSteps.end`: the ledger moves, and all workers see whether to switch.

With several optimizers a batch may have several steps: ``next_part()`` ends one and begins the next
on the same batch, and ``end_batch()`` comes before the next batch.

With accumulated gradients a step has several batches, and their number is not known at the first
one. ``accumulate()`` comes between two of them, and the record is sent *late*: in the last batch,
when the first gradient of the sum is ready to be sent to the other workers. If some workers have
sent theirs with the first batch, because they did not know this yet, all workers discard the
records of that step, and send them again late.
"""

from __future__ import annotations

import logging
import time
import zlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from edl import failpoints
from edl.core.events import EpochLeftDetails, Event, SlowWorkerDetails
from edl.core.records import Generation
from edl.core.step.batch import Batch
from edl.core.step.epoch_end import ended_by_count, ended_by_script, left_out
from edl.core.step.ledger import Ledger
from edl.core.step.slowest import SlowestWorker
from edl.core.step.step_events import (
    GRADIENT_ACCUMULATION,
    RECORDS_REQUEST,
    BatchStart,
    LoopEnd,
    PartStart,
    RepairDone,
    RingPlace,
)
from edl.core.step.step_record import (
    StepRecord,
    StepRecords,
    Stop,
    global_samples,
    stopping,
    wanting_to_stop,
)
from edl.errors import RingBroken
from edl.ring.ring import Ring
from edl.worker.activity import call_site
from edl.worker.exchange import check_place, exchange
from edl.worker.loader_progress import LoaderProgress
from edl.worker.replica import Replica
from edl.worker.ring_watch import RingWatch
from edl.worker.sampler import BatchSampler
from edl.worker.shared_state import SharedState
from edl.worker.size_request import SizeRequest
from edl.worker.state_check import DataSamples, StateCheck
from edl.worker.step_driver import StepDriver
from edl.worker.steps import WorkerSteps
from edl.worker.switching import Switching
from edl.worker.update import Update, last_update

logger = logging.getLogger(__name__)

LEFT_BY_COUNT = (
    "the loop over the batches ended before the loader did. A number of batches that was known "
    "before, such as len(loader), is too small when workers leave: take batches until the loader "
    "ends, or train by steps, loader.steps(n)"
)


class LoaderSteps(WorkerSteps):
    """The steps of one worker on batches that are formed from its leases."""

    ends_with_script = True

    def __init__(
        self,
        ring: Ring,
        shared: SharedState,
        switching: Switching,
        wishes: SizeRequest,
        progress: LoaderProgress,
        state_check: StateCheck,
    ) -> None:
        super().__init__(ring, shared, switching, wishes)
        self.engine = progress.engine  # the open step: its batches, records and optimizers
        self.driver = StepDriver(self.engine, self)
        self._leaves_before = 0  # how often all had left their loops when the open step began
        self._exchanges_before = 0  # and how often they had exchanged messages
        self.before_exchange: Callable[[], None] = lambda: None  # between two steps
        self.on_reduced: Callable[[], None] = lambda: None  # gradients are reduced, or not needed
        self.replica: Replica | None = None  # None where no other worker can miss an update
        self._progress = progress
        self._sites: set[int] = set()  # lines of the script where all have exchanged together
        self._check = state_check
        self._watch = RingWatch(shared)

    @property
    def begun(self) -> int:
        """The number of steps that this worker has begun, including warm-ups."""
        return self.engine.number

    @property
    def progress(self) -> LoaderProgress:
        """This worker's position in the data of edl's loader."""
        return self._progress

    # --- the data

    @property
    def ledger(self) -> Ledger:
        """The record of which positions of the current epoch are done, leased and free."""
        return self._progress.ledger

    @property
    def sampler(self) -> BatchSampler:
        """The sampler that forms this worker's batches from its leases."""
        return self._progress.sampler

    @property
    def epoch(self) -> int:
        """The number of the job's current epoch, from 0."""
        return self.ledger.epoch

    @property
    def iterations_of_epoch(self) -> int:
        """The number of iterations of the script's loop in an epoch; not of a stream."""
        return self._progress.iterations_of_epoch(self._switching.began_with)

    @property
    def first_global_batch(self) -> int:
        """The global batch with which the job began, in samples; the same on newcomers."""
        batching = replace(self._progress.source.batching, chosen=0)
        return batching.of_all(self._switching.began_with)

    def next_epoch(self) -> None:
        """Begin the next epoch, and drop what is untrained of the present one."""
        self.leave()  # waits for the records of a batch in training
        self.note_untrained()
        self._progress.next_epoch()
        self.target, self._held = self.target or self._held, None

    def note_untrained(self) -> None:
        """Count and log the samples of the epoch that are not trained when all workers leave it."""
        left, first = self._progress.epoch_left, self._progress.untrained == 0
        if left.is_over or self.warming_up:
            return
        self._progress.untrained += left.untrained
        self._report()
        if self.ring.place.rank != 0:
            return
        step = self._progress.step
        details = EpochLeftDetails(left.epoch, left.trained, left.untrained if left.total else None)
        self._shared.log(Event(time.time(), self.generation, step, str(left), details))
        if first:
            logger.warning("%s: %s", left, LEFT_BY_COUNT)

    # --- the step that is under way

    @property
    def open(self) -> bool:
        """Whether a batch is handed out whose update is not applied yet."""
        return self.engine.is_open

    @property
    def batch_weight(self) -> int:
        """The number of samples that count in the batch handed out last, whether trained or not."""
        return self.engine.batches.weight

    def begin(self, batch: Batch, padding: bool = False) -> None:
        """Begin a step on `batch`, or add the batch to the open step."""
        engine, nothing = self.engine, None
        padding = padding or batch.repeats  # another worker's samples count for nothing, too
        first, is_next = not engine.is_open, engine.batches.pieces_left == 0
        if padding and not self.warming_up:
            nothing = self.sampler.nothing(() if first else engine.batches.untrained)
        pieces = 1 if self.warming_up else self.sampler.microbatches
        if first:
            self._leaves_before = self._progress.leaves
            self._exchanges_before = self._progress.exchanges
            self._prepare_step()
        self.driver.tell(BatchStart(batch, padding, self.place, nothing, pieces))
        if first:
            self._begun_step()
        elif is_next:
            self._progress.update_order = self._progress.update_order.after_batch()

    def next_part(self) -> None:
        """End the open step and begin the next one on the same batch, for another update."""
        self.end()  # if it is open still
        self._prepare_step()
        self.driver.tell(PartStart(self.place))
        self._begun_step()

    def end_batch(self) -> None:
        """End the present batch: all optimizers have made updates with it, so it is done."""
        self._progress.end_batch()

    def accumulate(self) -> None:
        """Note that gradients of the batch are added up: its step may have more batches."""
        self.driver.tell(GRADIENT_ACCUMULATION)
        if not self.warming_up:
            failpoints.reached("accumulated")

    def records(self) -> StepRecords:
        """Return the step records of all workers in rank order; send this worker's, and wait."""
        if self.engine.records is None:
            self.driver.tell(RECORDS_REQUEST)
        records = self.engine.records
        assert records is not None
        return records

    # --- what the engine instructs: see StepRing

    @property
    def place(self) -> RingPlace:
        """The properties of the present ring on which a step depends."""
        return RingPlace(self.ring.alone, self.warming_up, self._progress.source.batch_size)

    def start_record(self) -> None:
        """Send this worker's record of the open step, with the epoch position of its batches."""
        engine = self.engine
        stop = Stop.LEFT if engine.leaves else Stop.NO
        record = self._record(engine.batches.samples, stop, self._check.state)
        data = self.sampler.row(self.ledger, engine.batches.untrained)
        self._send(replace(record, **data, buffers=self._check.buffers))

    def wait_for_records(self) -> StepRecords:
        """Wait for the step records of all workers; see `records` for the errors."""
        return self._awaited()

    def list_departures(self) -> None:
        """Exchange one more record, which tells how those that have left their loops have ended."""
        self._send(self.idle_record())
        self._awaited()

    def repair(self, error: RingBroken) -> RepairDone:
        """Build a ring of the survivors, after the ring broke with `error` during a step."""
        self._repair(error, self.timer.waiting_since)
        sampler = self.sampler
        follow = sampler.untrained_pieces(self.ledger, self.engine.batches.untrained)
        return RepairDone(self.place, sampler.microbatches, follow, self._has_left)

    def reduced(self) -> None:
        """Stop the timer of the step's reduction, whose gradients are averaged or not needed."""
        self.on_reduced()
        if not self.warming_up:
            self.timer.reduce()
            failpoints.reached("reduced")

    @property
    def update(self) -> Update:
        """The update of the open step once its records are here; otherwise the job's last one."""
        progress, step = self._progress, self.engine
        trained, number = progress.trained, progress.step
        noise = progress.noise.scale, progress.noise.before
        if self.warming_up:
            return Update(number, trained, trained + step.batches.samples, progress.batches, *noise)
        records = step.records
        if not self.open or step.completed_by_peers or records is None:
            return last_update(progress)
        samples = global_samples(records)
        trained -= samples if step.batches.part else 0  # counted with the first part of the batch
        batches = progress.batches_with(records)
        resumed = progress.batches_resumed
        return Update(number, trained, trained + samples, batches, *noise, resumed)

    def end(self) -> None:
        """Complete the open step after its update; `target` is then a generation to switch to."""
        progress = self._progress
        if not self.open:
            return
        if self.warming_up:
            progress.close_step()
            return
        if self.engine.completed_by_peers:  # the others' state counts the step already
            progress.close_step()
            self._report()
            return
        failpoints.reached("applied")
        records = self.records()
        progress.complete(records)
        slow = self.slowest.look(records)
        if slow is not None and self.ring.place.rank == 0:
            self._shared.log(_slow_event(slow, self._switching.generation, progress.step))
        self._watch.look(records, self._switching, progress)
        reason = self._completed(records)
        self._held = None
        if self.target is not None and self._shared.generation(self.target).waits_for_epoch:
            self.target, self._held = None, self.target
        elif reason:
            logger.info("after step %d: %s", progress.step, reason)
        self.timer.end()
        self._publish()

    def compare_data(self, data: DataSamples) -> None:
        """Compare samples of the data set with the other workers', from the first step on."""
        self._check.data = data

    def joined(self) -> None:
        """Mark this worker as a newcomer, which leaves if its state differs from the others'."""
        self._check.joined()

    def compare(self, records: StepRecords) -> None:
        """Raise an error if the digests in the step records say that the workers' states differ."""
        self._check.compare(records)

    # --- between two steps, and at the end

    def exchange(self, payload: bytes, alike: bool = False) -> list[bytes]:
        """Send `payload` to all workers between two steps; return all payloads in rank order."""
        self.before_exchange()
        if self.warming_up and not self.open:
            return [payload]
        check_place(self._progress)
        if self.replica is not None:
            # A worker that missed the last update gets what is kept now, not at the next batch.
            self.replica.end_batch(self._progress.step, self.epoch)
        now_s = self._shared.clock.now_s
        send = partial(self._exchange, len(payload) if alike else 0)
        return exchange(payload, send, self._progress, self._repair, now_s)

    def _exchange(self, size: int, payload: bytes) -> list[bytes]:
        """Send `payload` in the place of a step record, so all see who does something else."""
        call, _, site = call_site()
        row = replace(
            self._row(),
            exchange=(size << 33) + zlib.crc32(call.encode()) + 1,
            site=site if site in self._sites else -site,
            payload_bytes=len(payload),
        )
        records = self.ring.exchange_rows(row, payload)
        self._switching.check_point(records)
        if len(records) > 1 and not records.differ_in("site"):
            self._sites.add(site)
        answer = records.payloads()
        return self.ring.exchange(payload) if answer is None else answer

    def exchange_in_step(
        self, payload: bytes, repair: Callable[[RingBroken, float], None]
    ) -> list[bytes]:
        """Send `payload` to all workers in an open step; return all payloads in rank order."""
        progress = self._progress
        first = progress.exchanges == self._exchanges_before

        def send(message: bytes) -> list[bytes]:
            # Only a table of rows shows that others are elsewhere, such as between two steps.
            if not self.engine.late:
                self.records()
            elif first:
                self._switching.check_point(self.ring.exchange_rows(self._row(), b""))
            return self.ring.exchange(message)

        # `repair` must handle gradients of the step that are being exchanged, too.
        return exchange(payload, send, progress, repair, self._shared.clock.now_s)

    def _row(self) -> StepRecord:
        """A row that says where this worker is, sent in the place of its step record."""
        progress = self._progress
        return StepRecord(
            generation=self.generation,
            step=progress.step,
            worker=self._switching.worker,
            epoch=self.epoch,
            samples=0,
            position=-1,
            wanted=0,
            newest_generation=self.generation,
            ledger=0,
            joined=progress.joined,
            inside=int(progress.joined_inside),
        )

    def leave(self) -> None:
        """End the exchange of step records in a batch during which the script has left its loop."""
        # The records of an open step would be mixed up with the next ones if nobody awaited them.
        # If only this worker has left, the others wait for its gradients, and the leader sees a
        # stall.
        if not self._lacks_leave():
            return
        self.driver.tell(LoopEnd())
        if self.engine.completed_by_peers:
            self.end()
        elif self._lacks_leave():  # and all have left now
            self._progress.leaves += 1

    def all_stop(self) -> bool:
        """Return whether all workers want to stop (`wants_to_stop`) before the open step."""
        if not self._lacks_leave():
            return self._has_left
        self.driver.tell(LoopEnd(asks=True))
        records = self.engine.records
        if records is not None and len(wanting := wanting_to_stop(records)) == len(records):
            self._progress.stop = stopping(wanting)[1]
            return True
        return self._has_left  # else all train the step, and stop after it

    def _lacks_leave(self) -> bool:
        missed = self.engine.completed_by_peers
        return self.open and not (self._has_left or self.warming_up or missed)

    @property
    def _has_left(self) -> bool:
        return self._progress.leaves > self._leaves_before

    def describe_end(self, stop: Stop) -> str:
        """Return a clause that says where the training ended and how many samples it left out."""
        left, untrained = self._progress.epoch_left, self._progress.untrained
        here = ended_by_script(left) if stop is Stop.ENDED else ended_by_count(left)
        return here + left_out(untrained)

    def last_record(self, stop: Stop) -> StepRecord:
        """Return, without sending it, this worker's step record about the end of its training."""
        return self._record(0, stop, self._check.now())

    def save_together(self, save: Callable[[], str]) -> str:
        """Let rank 0 call `save` for the last checkpoint while the other workers wait."""
        unsaved = ""

        def saved() -> StepRecord:
            """Save on rank 0, and return this worker's step record, which says if it succeeded."""
            nonlocal unsaved
            unsaved = save() if self.ring.place.rank == 0 else ""
            return self.last_record(Stop.UNSAVED if unsaved else Stop.SAVED)

        while True:
            records = self._switching.finish_together(saved, self.compare)
            if records is None:
                # The others have ended the job before they told this worker.
                return unsaved
            stops = records.column("stop")
            if (stops >= Stop.SAVED).all():  # a worker that was late repeats
                break
        if unsaved or not (stops == Stop.UNSAVED).any():
            return unsaved
        return "its last checkpoint was not written; the output of rank 0 says why"

    def idle_record(self) -> StepRecord:
        """Return a step record with 0 samples for an exchange outside a step; do not send it."""
        return replace(super().idle_record(), state=self._check.state)

    def _prepare_step(self) -> None:
        if not self.warming_up:
            self._check.begin_step()

    def _begun_step(self) -> None:
        if not self.warming_up:
            failpoints.reached("step")


def _slow_event(slow: SlowestWorker, ring: Generation | None, step: int) -> Event:
    """Return the event that all workers wait for `slow` in each step."""
    name = f"w{slow.worker}"
    seats = ring.members if ring is not None else ()
    host = next((one.host for one in seats if one.id == slow.worker), "")
    generation = ring.number if ring is not None else 0
    details = SlowWorkerDetails(name, round(slow.own_s, 6), round(slow.others_s, 6), host)
    reason = f"the others wait for {name} in each step: {slow}"
    return Event(time.time(), generation, step, reason, details)
