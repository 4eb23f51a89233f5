"""The training thread's side of a worker: one object that a framework's API talks to.

``edl.torch`` calls it at four points of every step::

    boundary()      before a batch is handed out: a switch that all agreed on happens here
    begin_step()    the batch is handed out: this worker's step record goes out
    records()       before the update is applied: everybody's step records are in
    end_step()      the update is applied: the ledger moves, and all see whether to switch

Why a switch waits for the next batch instead of happening in ``end_step``: what the script does
after ``optimizer.step()`` (a scheduler's step, an evaluation at the end of the epoch) belongs to
the step, and a newcomer must receive the state that follows it (docs/adr/0002).

A newcomer's life: start() -> warm up in a world of one -> join() -> the four points.

A script that keeps its own place in its data has no steps of edl. It calls :meth:`Worker.agree`
wherever a switch may happen, and :meth:`Worker.boundary` when one is due (docs/adr/0010).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from edl import failpoints
from edl.config import Config
from edl.core.records import Event, Generation, JobState, Leader, Stage
from edl.core.step import step_record
from edl.core.step.ledger import Ledger
from edl.core.step.source import Source
from edl.core.step.step_record import StepRecord, Stop, SwitchTimes, agreed_generation, check
from edl.daemon.checkpointing import FLUSH_S, Checkpointing
from edl.daemon.daemon import Daemon
from edl.daemon.exchange import check_place, exchange
from edl.daemon.mailbox import Mailbox
from edl.daemon.pace import Pace
from edl.daemon.progress import TrainingProgress
from edl.daemon.sampler import Batch, BatchSampler
from edl.daemon.state_check import StateCheck
from edl.daemon.switching import Replica, Shared, Switching
from edl.errors import RingBroken, RingError, UsageError
from edl.ring.ring import Collectives, Ring

logger = logging.getLogger(__name__)


class Worker:
    """One worker of a job, or a job of one when no launcher started it. Not thread-safe."""

    def __init__(self, config: Config, collectives: Collectives) -> None:
        self._config = config
        self.ring = Ring(collectives, config.own_address)
        self._mailbox = Mailbox()
        self._progress = TrainingProgress()
        self._daemon: Daemon | None = None
        self._switching: Switching | None = None
        if config.job is not None:
            self._daemon = Daemon(config, self._mailbox, self.ring)
        self._checkpointing = Checkpointing(config, self._mailbox, self._progress, self._daemon)
        if self._daemon is not None:
            self._switching = Switching(
                config, self._mailbox, self.ring, self._progress, self._daemon, self._checkpointing
            )
            self._switching.median_step_us = lambda: round(self._pace.median_step_s * 1e6)
            self._switching.on_switch = self._switched
        self._check = StateCheck(self.ring, self._progress, self._checkpointing, self.tell)
        self.settle_s = lambda: self._checkpointing.settings.save_timeout_s
        self._replica: Replica | None = None
        self._target: int | None = None  # the generation that all agreed to switch to
        self.warming_up = False
        self._provisional_rank = 0  # while warming up: the rank it would get, never 0
        self.wants_to_stop = False  # the script: all stop after the next step in whose record it is
        self.begun = 0  # how many batches were handed out here, warm-ups included
        self._pending: Any = None  # the step record on its way
        self._records: tuple[StepRecord, ...] | None = None
        self._pace = Pace()
        self._on_resize: list[Callable[[int, int], None]] = []
        self._finished = False

    # --- life ---

    def start(self) -> None:
        """Take part in the job that the environment names; without one, be a job of one.

        Returns in the ring when the job is starting, and in a world of one, warming up, when
        the job is already training.

        Raises:
            ZooKeeperUnreachable, UnknownJob: see :meth:`edl.daemon.daemon.Daemon.start`.
            JobFailed: the job did not start in time.
        """
        if self._switching is None:
            self.ring.build_alone()
            return
        trains_already = self._switching.start()
        if trains_already is not None:
            self._provisional_rank = max(1, len(trains_already.seats))
            self.warming_up = True
            self.ring.build_alone()
            logger.info("w%d warms up: the job is in %s", self.id, trains_already.number)

    def join(self) -> None:
        """End the warm-up and enter the ring with the job's state; returns before a batch.

        Ends the process quietly (SystemExit 0) when the job ends or has no use for this worker.
        """
        assert self._switching is not None
        assert self.warming_up
        self._progress.abandon()
        failpoints.reached("warmed_up")
        self._switching.join()
        self.warming_up = False
        assert self._generation is not None
        # The state that came is of before the others' callbacks, which may have changed it.
        self._switched(len(self._generation.previous), self.size)

    def finish(self) -> None:
        """The script has trained all its epochs.

        Raises:
            WorkerEvicted: it was given up: what it has trained is not the job's.
        """
        self._mailbox.check()
        self._drop_step()
        self._finished = True
        if self._switching is None or self._daemon is None:
            self._checkpointing.save_last()
            return
        if self._pace.steps_here == 1:
            self._log_switch()
        self._switching.finish_together(
            None if self._progress.scripted else self._final_record, self._check.compare
        )
        failpoints.reached("finish")
        if self.rank == 0:
            self._checkpointing.save_last()
        times = "saves of its state" if self._progress.scripted else "steps"
        reason = f"trained {self.step} {times}"
        self._daemon.end_job(JobState.FINISHED, reason)
        self._daemon.set_stage(Stage.FINISHED)
        if self.rank == 0:
            self._log("finished", self.step, reason)
        if not self._daemon.flush(FLUSH_S):
            logger.warning("the end of the job could not be recorded: it has %s", reason)

    def close(self) -> None:
        """Leave ring and coordination for good. Idempotent."""
        self.ring.close()
        if self._daemon is not None and not self._finished:
            self._daemon.withdraw()  # the others need not wait for a checkpoint to be written
        self._checkpointing.settle()
        if self._daemon is not None:
            self._daemon.close()

    def request_leave(self) -> None:
        """Called by the SIGTERM handler: leave at the next switch, or now if not in the ring."""
        if self._daemon is None and self._checkpointing.saves:
            self._checkpointing.stop_requested = True
            return
        if self._daemon is None or self.warming_up or self.generation == 0:
            raise SystemExit(0)
        if not self._finished:  # else it is about to end anyway, and may be saving its result
            self._daemon.leave_requested = True

    # --- who and where ---

    @property
    def finished(self) -> bool:
        """The script has trained to its end."""
        return self._finished

    @property
    def id(self) -> int:
        return self._switching.worker if self._switching is not None else 0

    @property
    def rank(self) -> int:
        return self._provisional_rank if self._is_outside else self.ring.place.rank

    @property
    def size(self) -> int:
        return self._provisional_rank + 1 if self._is_outside else self.ring.place.size

    @property
    def _is_outside(self) -> bool:
        """A newcomer that has not been in a ring of the job can only guess its place."""
        return self.warming_up and self._generation is None

    @property
    def sends_state(self) -> bool:
        """It is this worker that brings the job's state into this generation."""
        return self._generation is None or self._generation.sync_root == self.id

    @property
    def local_rank(self) -> int:
        return self._config.slot

    @property
    def generation(self) -> int:
        current = self._generation
        return current.number if current is not None else 0

    @property
    def _generation(self) -> Generation | None:
        return self._switching.generation if self._switching is not None else None

    @property
    def leader(self) -> Leader:
        return self._mailbox.leader or Leader(0, self.id)

    @property
    def step(self) -> int:
        """How many updates the job has made."""
        return self._progress.step

    def on_resize(self, callback: Callable[[int, int], None]) -> None:
        """Call ``callback(old_size, new_size)`` after each switch, that of a join included."""
        self._on_resize.append(callback)

    # --- data ---

    def attach_source(self, source: Source) -> None:
        """Declare what is trained on; see :meth:`edl.daemon.progress.TrainingProgress.attach`."""
        self._progress.attach(source, self.id)

    def attach_replica(self, replica: Replica) -> None:
        """Declare the state that is shared.

        Raises:
            UsageError: there is one already.
        """
        if self._replica is not None:
            raise UsageError("this script has two edl.Optimizers; a job trains with one")
        self._replica = self._checkpointing.replica = self._check.replica = replica
        if self._switching is not None:
            self._switching.replica = replica

    def attach_checkpoints(self, directory: Path, every_s: float, keep: int) -> None:
        """Save the job's state; see :meth:`edl.daemon.checkpointing.Checkpointing.attach`."""
        self._checkpointing.attach(directory, every_s, keep)

    def leave_data_to_script(self, state: Shared, entered: Callable[[], None]) -> None:
        """The script keeps its own place in its data; ``state`` is what follows the job.

        ``entered()`` is called in each new ring, before the state is exchanged there.

        Raises:
            UsageError: the script uses edl's own loader, optimizer or checkpoints as well.
        """
        if self._checkpointing.saves:
            raise UsageError(
                "edl.checkpoint saves the place in edl's own data loader; a script with an "
                "elastic state keeps its own checkpoints"
            )
        if self._replica is not None:
            raise UsageError(
                "this script has an edl.Optimizer and an elastic state; a job trains with one"
            )
        self._progress.leave_data_to_script()
        if self._switching is not None:
            self._switching.replica = state
            self._switching.on_enter = entered

    @property
    def ledger(self) -> Ledger:
        return self._progress.ledger

    @property
    def sampler(self) -> BatchSampler:
        return self._progress.sampler

    @property
    def epoch(self) -> int:
        """The job's current epoch."""
        return self.ledger.epoch

    @property
    def epoch_over(self) -> bool:
        """All samples of the epoch are trained; the same answer on every worker after a step."""
        return self.ledger.finished

    def next_epoch(self) -> None:
        """Begin the next epoch with everything free; what was left of this one is dropped."""
        self._drop_step()
        self._progress.next_epoch()

    def begin(self) -> None:
        """All is built, training begins: get the job's state, or load it, or start afresh.

        After this the epoch and the step are the job's.
        """
        if self._switching is not None:
            self._switching.synchronise_if_due()
        elif not self._progress.has_state:
            self._checkpointing.begin(None, warmed_up=False)
            self._progress.has_state = True

    # --- a step ---

    def boundary(self) -> None:
        """Between two steps: switch if all agreed to, take over or send the state if it is due.

        Ends the process quietly (SystemExit 0) when the new generation has no seat for it.

        Raises:
            WorkerEvicted: it was given up, which one that is alone in its ring only sees here.
        """
        failpoints.reached("boundary")
        self._mailbox.check()
        if self._switching is None:
            self._checkpointing.save_if_due(rank=0, generation=0)
            return
        target, self._target = self._target, None
        if target is not None:
            if self._pace.steps_here == 1:
                self._log_switch()
            self._switching.switch(target)
        self._switching.synchronise_if_due()
        self._switching.wait_for_min_np(lambda: self._record(samples=0, position=-1))
        self._checkpointing.save_if_due(self.rank, self.generation)

    def begin_step(self, batch: Batch, padding: bool = False) -> None:
        """A batch is handed out. A ``padding`` takes part with no samples."""
        self._progress.begin(batch, padding)
        self.begun += 1
        self._pace.begin()
        if not self.warming_up:
            self._check.begin_step()
            self._send_record()
            failpoints.reached("step")

    @property
    def step_open(self) -> bool:
        """A batch is handed out, and its update not applied yet."""
        return self._progress.open

    @property
    def samples(self) -> int:
        """How many samples this worker contributes to the step."""
        return self._progress.samples

    @property
    def batch_weight(self) -> int:
        """How many samples count of the batch that was handed out last, trained or not yet.

        Raises:
            UsageError: the script keeps its own place in its data.
        """
        if self._progress.scripted:
            raise UsageError(
                "edl.batch_weight() is of the batches of edl's data loader; in a script with an "
                "elastic state give the number of samples: edl.mean(value, weight=len(batch))"
            )
        return self._progress.weight

    @property
    def batch(self) -> Batch | None:
        """The batch that was handed out and is not trained yet."""
        return self._progress.batch

    @property
    def batch_size(self) -> int:
        """The nominal batch size of one worker."""
        return self._progress.source.batch_size

    def records(self) -> tuple[StepRecord, ...]:
        """Everybody's step records, in rank order; waits for them.

        Raises:
            RingBroken: a worker is gone; see :meth:`recover`.
            RingError: the workers are not in the same step.
            StateDiffers: they do not hold the same state.
        """
        if self._records is None:
            self._pace.wait()
            failpoints.reached("records")
            if isinstance(self._pending, RingBroken):
                raise self._pending
            records = self.ring.finish_record(self._pending)
            check(records)
            self._check.compare(records)
            self._records, self._pending = records, None
        return self._records

    def recover(self, error: RingError) -> bool:
        """The ring broke during a step: go on with the survivors.

        Returns:
            True when others had completed the step: their state is in the model now, and this
            worker's gradients are part of it. False when the step has to be completed with the
            gradients that the survivors still hold; the step record is on its way again.

        Raises:
            WorkerEvicted, JobFailed: this worker or the job cannot go on.
        """
        self._repair(error, self._pace.waiting_since)
        if not self._progress.superseded:
            self._send_record()
        return self._progress.superseded

    def end_step(self) -> None:
        """The update is applied: move the ledger, and see whether to switch before the next."""
        position = self._progress
        if not position.open:
            return
        if self.warming_up:
            position.open = False
            return
        if position.superseded:  # the others completed this step; their state counts it already
            position.superseded = position.open = False
            self._report()
            return
        failpoints.reached("applied")
        records = self.records()
        position.complete(records)
        self._pace.steps_here += 1
        self._target, reason = agreed_generation(records)
        if self._target is not None:
            logger.info("after step %d: %s", self.step, reason)
        self._pace.end()
        if self._pace.steps_here == 2:
            self._log_switch()
        self._report()

    @property
    def stop_agreed(self) -> str:
        """Why all workers stop training after the last complete step; empty when they do not."""
        return self._progress.stop

    def fail(self, reason: str) -> NoReturn:
        """End the job as failed, for all: raises JobFailed with the ``reason``."""
        self._checkpointing.fail(reason)

    # --- in place of steps, where the script keeps its own place in its data ---

    def beat(self) -> None:
        """The gradients of an update are in, says the script's optimizer: the job moves on."""
        self.begun += 1
        if not self.warming_up:
            self._pace.end()
            self._mailbox.report(replace(self._mailbox.progress, updated_at=self._pace.ended))

    def saved(self) -> None:
        """The script has saved its state, as all workers do at this point of it."""
        self._progress.saved()

    def agree(self) -> bool:
        """All are at this point of the script. True when they are to switch: :meth:`boundary`.

        Raises:
            RingBroken: a worker is gone; see :meth:`repair`.
            RingError: the workers are not at the same point.
        """
        assert not self.warming_up
        if self._switching is None:
            return False
        failpoints.reached("boundary")
        self._mailbox.check()
        self._send_record()
        self._target, reason = agreed_generation(self.records())
        self._pace.steps_here += 1
        if self.begun == 0:
            self._pace.end()
        if self._target is not None:
            logger.info("after commit %d: %s", self.step, reason)
        if self._pace.steps_here == 2:
            self._log_switch()
        self._report()
        return self._target is not None

    def repair(self, error: RingError) -> None:
        """The ring broke: go on with the survivors, all with the state that was saved last.

        Raises:
            WorkerEvicted, JobFailed: this worker or the job cannot go on.
        """
        self._target = None
        self._repair(error, time.monotonic())

    @property
    def ended(self) -> bool:
        """Others have trained to the end; what they have is here."""
        return self._progress.ended

    def end(self) -> None:
        """The script has trained to its end, and saved: :meth:`finish` is next."""
        self._progress.saved()
        self._progress.ended = True

    def exchange(self, values: Sequence[float]) -> list[list[float]]:
        """Everybody's ``values`` in rank order, as many from each; all workers, at the same point.

        The same on all, whoever dies meanwhile: those whom the survivors lack are in the answer if
        one of the survivors had it, and then all get it; else the survivors exchange once more.
        While this worker warms up, and in a job of one, its own.

        A script that keeps its own place in its data is broken off instead, like at any collective.

        Raises:
            UsageError: in the midst of a step, before training has begun, or after its end.
            RingBroken: to the script that keeps its own place in its data.
            WorkerEvicted, JobFailed: this worker or the job cannot go on.
        """
        if self.warming_up and not self._progress.open:
            return [[float(value) for value in values]]
        check_place(self._progress, self._finished)
        return exchange(values, self.ring, self._progress, self._repair)

    def _repair(self, error: RingError, waiting_since: float) -> None:
        if self._switching is None:
            raise error
        self._switching.repair(error, waiting_since)

    def _drop_step(self) -> None:
        """The script has left its loop with a batch in hand: let its record arrive, at least.

        For the next one has the same name. If only this worker has left, the others wait for its
        gradients meanwhile: see :func:`edl.core.job.stall.judge`.
        """
        if self.warming_up or self._progress.superseded:
            return
        while self._progress.open:
            try:
                self.records()
                return
            except RingBroken as error:
                if self.recover(error):
                    self.end_step()

    def _send_record(self) -> None:
        """Send this worker's row; that the ring is broken may only show in :meth:`records`."""
        batch, samples = self._progress.batch, self._progress.samples
        self._records = None
        try:
            position = batch.position if batch is not None and samples else -1
            self._pending = self.ring.start_record(self._record(samples, position))
        except RingBroken as error:
            self._pending = error

    def _final_record(self) -> StepRecord:
        """The row of the end; it also reaches those who are in a step still, if any."""
        return replace(self._record(0, -1, Stop.FINISHED), state=self._check.now())

    def _record(self, samples: int, position: int, stop: Stop = Stop.NO) -> StepRecord:
        newest = self._mailbox.newest(self.generation)
        times = self._switching.times if self._switching is not None else SwitchTimes()
        return StepRecord(
            generation=self.generation,
            step=self.step,
            worker=self.id,
            samples=samples,
            position=position,
            newest_generation=newest.number if newest is not None else self.generation,
            stop=stop or (Stop.WANTED if self.wants_to_stop else Stop.NO),
            state=self._check.state,
            **self._progress.row(),
            compute_us=self._pace.compute_us,
            **vars(replace(times, first_step_us=self._pace.first_step_us)),
        )

    # --- telling ---

    def tell(self, kind: str, reason: str, **details: object) -> None:
        """Write what all workers know into the job's event log: rank 0 does, the others do not."""
        if self.rank == 0:
            self._log(kind, self.step, reason, **details)

    def _switched(self, old_size: int, new_size: int) -> None:
        self._pace.enter(self.step)
        self._target = None
        for callback in self._on_resize:
            callback(old_size, new_size)

    def _report(self) -> None:
        now, median_step_s = time.monotonic(), self._pace.median_step_s
        progress = self._progress.progress(self.generation, self.size, median_step_s, now)
        self._mailbox.report(progress)

    def _log_switch(self) -> None:
        """Rank 0 logs a switch once its parts are known to all."""
        generation, records = self._generation, self._records
        if generation is None or not records or self.rank != 0:
            return
        if records[0].generation != generation.number or records[0].stall_us == 0:
            return
        parts = step_record.switch_parts(records, generation.joined)
        told = {"workers": parts, "world_size": self.size}
        self._log("switch", self._pace.entered_at, generation.reason, **told)

    def _log(self, kind: str, step: int, reason: str, **details: object) -> None:
        self._mailbox.log(Event(time.time(), kind, self.generation, step, reason, details))
