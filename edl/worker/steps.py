"""Make the steps of one worker in its ring: send its step record, receive those of all workers.

:class:`WorkerSteps` is the base class. What a step is depends on where the position in the data is
kept: by edl's loader (:class:`edl.worker.loader_steps.LoaderSteps`) or by the script
(:class:`edl.worker.script_steps.ScriptSteps`).
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

from edl import failpoints
from edl.core.events import Event, SwitchDetails
from edl.core.records import Generation
from edl.core.step.slowest import Slowest
from edl.core.step.step_record import (
    StepRecord,
    StepRecords,
    Stop,
    agreed_generation,
    check_records,
    saves_parts,
    switch_parts,
)
from edl.errors import RingBroken, RingError
from edl.ring.ring import Ring
from edl.worker.progress import TrainingProgress
from edl.worker.shared_state import SharedState
from edl.worker.size_request import SizeRequest
from edl.worker.step_timer import StepTimer
from edl.worker.switching import Switching


class WorkerSteps(ABC):
    """One worker's steps in its ring: the base class for edl's loader and for scripts."""

    ends_with_script: ClassVar[bool] = False  # the training ends with it, wherever it is

    def __init__(
        self, ring: Ring, shared: SharedState, switching: Switching, wishes: SizeRequest
    ) -> None:
        self.ring = ring
        # the generation that all workers have agreed to switch to, until the switch is made
        self.target: int | None = None
        self._held: int | None = None  # the generation to switch to when the epoch is over
        # the generation in which all have agreed to save their parts of a checkpoint after the last
        # step; -1: they have not
        self.saves_parts_in = -1
        self.trained_in = 0  # the generation in which the last step was completed
        # Called once, after its first step in a ring of the job; never without a launcher.
        self.on_trained: Callable[[], None] = lambda: None
        # From the number of workers, on rank 0 for each record: whether all shall save their parts.
        self.wants_parts: Callable[[int], bool] = lambda size: False
        self.wants_to_stop = False  # after the next step, all workers; set by the caller
        self._shared = shared
        self._switching = switching
        self.timer = StepTimer(shared.clock.now_s, shared.step_totals)
        self.slowest = Slowest()
        self._size_request = wishes
        self._pending: Any = None  # the handle of this worker's step record that was sent
        self._last_records: StepRecords | None = None  # those that came last

    @property
    @abstractmethod
    def begun(self) -> int:
        """The number of steps that this worker has begun, including warm-ups."""

    @property
    @abstractmethod
    def progress(self) -> TrainingProgress:
        """This worker's progress: the number of steps, and the position in the data."""

    @property
    @abstractmethod
    def batch_weight(self) -> int:
        """The number of samples that count in the batch handed out last, whether trained or not."""

    @abstractmethod
    def exchange(self, payload: bytes, alike: bool = False) -> list[bytes]:
        """Send `payload` to all workers between two steps; return all payloads in rank order."""

    @abstractmethod
    def leave(self) -> None:
        """Take part in the open step, though the script left its loop: records must not mix."""

    @abstractmethod
    def last_record(self, stop: Stop) -> StepRecord:
        """Return, without sending it, this worker's step record about the end of its training."""

    def note_untrained(self) -> None:
        """Count and log the samples of the epoch that are not trained when all workers leave it."""
        return

    def describe_end(self, stop: Stop) -> str:
        """Return a clause that says where the training ended and how many samples it left out."""
        return ""

    def save_together(self, save: Callable[[], str]) -> str:
        """Let rank 0 call `save` for the last checkpoint while the other workers wait."""
        return ""

    @abstractmethod
    def joined(self) -> None:
        """Mark this worker as a newcomer, because it has joined a job that trains."""

    @abstractmethod
    def compare(self, records: StepRecords) -> None:
        """Raise an error if the digests in the step records say that the workers' states differ."""

    @property
    def warming_up(self) -> bool:
        """Whether this worker is a newcomer that trains its warm-up batch alone."""
        return self._switching.warming_up

    @property
    def generation(self) -> int:
        """The number of the present generation; 0 while this worker is in no ring of the job."""
        current = self._switching.generation
        return current.number if current is not None else 0

    @property
    def median_step_us(self) -> int:
        """The median time of the last 50 steps on this worker, in microseconds; 0 before any."""
        return round(self.timer.median_step_s * 1e6)

    @property
    def state_source(self) -> int:
        """The id of the worker that is the state source of the present ring."""
        current = self._switching.generation
        return self._switching.worker if current is None else current.state_source

    def entered(self) -> None:
        """Begin to time the steps in a new ring, and set `target` to None."""
        self._size_request.change, self._held = 0, None
        self.timer.enter(self.progress.step)
        self.slowest.restart()
        self.target = None

    def log_switch_if_due(self) -> None:
        """Log the switch into the present ring, if just one step was completed in it."""
        if self.timer.steps_here == 1:  # else the second step has logged it
            self._log_switch()

    def idle_record(self) -> StepRecord:
        """Return a step record with 0 samples for an exchange outside a step; do not send it."""
        return self._record(samples=0, idle=True)

    # --- for the two kinds

    def _send(self, record: StepRecord) -> None:
        """Send this worker's step record; an error of the ring is raised later, by `_awaited`."""
        try:
            self._pending = self.ring.start_record(record)
        except RingBroken as error:
            self._pending = error

    def _awaited(self) -> StepRecords:
        """Wait for the step records of all workers, after this worker's was sent; check them."""
        self.timer.wait()
        failpoints.reached("records")
        if isinstance(self._pending, RingBroken):
            raise self._pending
        records = self.ring.finish_record(self._pending)
        self._switching.check_point(records)
        check_records(records)
        self.compare(records)
        self._last_records = records
        return records

    def _completed(self, records: StepRecords) -> str:
        """Count a complete step; set `target` and `saves_parts_in` as they have agreed."""
        self.target, reason = agreed_generation(records)
        self.saves_parts_in = self.generation if saves_parts(records) else -1
        self.timer.steps_here += 1
        if not self.trained_in and self.generation:
            self.on_trained()
        self.trained_in = self.generation
        return reason if self.target is not None else ""

    def _publish(self) -> None:
        """Report a complete step to the daemon; after the second one in a ring, log the switch."""
        self._shared.step_totals.steps += 1
        step, size = self.progress.step, self.ring.place.size
        self._shared.learning.completed(step, size, self.timer.ended)
        if self.timer.steps_here == 2:  # its records have the times of the first
            self._log_switch()
        self._report()

    def _report(self) -> None:
        """Report the progress of this worker, and the slowest worker of the ring, to the daemon."""
        size, now_s = self.ring.place.size, self._shared.clock.now_s()
        report = self.progress.report(self.generation, size, self.timer.median_step_s, now_s)
        if (slow := self.slowest.found) is not None:
            report = replace(
                report, slowest=f"w{slow.worker}", slowest_s=slow.own_s, others_s=slow.others_s
            )
        self._shared.report(report)

    def _repair(self, error: RingError, waiting_since: float) -> None:
        self._switching.repair(error, waiting_since)

    def _record(
        self,
        samples: int,
        stop: Stop = Stop.NO,
        state: int = 0,
        idle: bool = False,
    ) -> StepRecord:
        """Return, without sending it, this worker's step record for the present step."""
        newest = self._shared.newest(self.generation)
        if newest is not None and newest.joined and not (idle or self.progress.takes_newcomers):
            newest = None  # the switch waits for some batches
        if newest is not None and newest.joined and newest.fits != self.progress.fits_done:
            newest = None  # its newcomers are in another fit of the script; they notice it
        times = replace(self._switching.times, first_step_us=self.timer.first_step_us)
        return StepRecord(
            generation=self.generation,
            step=self.progress.step,
            worker=self._switching.worker,
            samples=samples,
            position=-1,
            newest_generation=newest.number if newest is not None else self.generation,
            stop=stop or (Stop.WANTED if self.wants_to_stop else Stop.NO),
            state=state,
            joined=self.progress.joined,
            inside=int(self.progress.joined_inside),
            **self.progress.row(),
            compute_us=self.timer.compute_us,
            data_us=self.timer.data_us,
            reduce_us=self.timer.reduce_us,
            size_change=self._size_request.change,
            batch=self._shared.requested_batch,
            save=int(self.ring.place.rank == 0 and self.wants_parts(self.ring.place.size)),
            **vars(times),
        )

    def _log_switch(self) -> None:
        """Log the switch into the present ring, with its times on all workers, on rank 0 only."""
        generation, records = self._switching.generation, self._last_records
        if generation is None or not records or self.ring.place.rank != 0:
            return
        if records[0].generation == generation.number and records[0].stall_us:
            self._shared.log(self._switch_event(generation, records))

    def _switch_event(self, generation: Generation, records: StepRecords) -> Event:
        details = SwitchDetails(self.ring.place.size, switch_parts(records, generation.joined))
        at, reason = self.timer.entered_at, generation.reason
        return Event(time.time(), generation.number, at, reason, details)
