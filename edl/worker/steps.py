"""The steps of one worker in its ring: its record of each goes out, everybody's come back.

What a step is depends on who leads through the data: :class:`edl.worker.loader_steps.LoaderSteps`,
or :class:`edl.worker.script_steps.ScriptSteps`.
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
    check,
    switch_parts,
)
from edl.errors import RingBroken, RingError, UnevenEnd
from edl.ring.ring import Ring
from edl.worker.progress import TrainingProgress
from edl.worker.shared_state import SharedState
from edl.worker.size_request import SizeRequest
from edl.worker.step_timer import StepTimer
from edl.worker.switching import Switching


class Steps(ABC):
    """What both kinds have in common. Runs in the training thread.

    Attributes:
        begun: how many batches were handed out here, or updates made; warm-ups included.
        target: the generation that all agreed to switch to.
        slowest: the worker that the others wait for, if there is one.
        ends_with_script: a script that ends ends the training, wherever it is.
        trained_in: the number of the generation in which the last step was completed.
        on_trained: called when this worker has completed its first step in a ring.
        wants_to_stop: the script: all stop after the next step in whose record it is.
        pace: how long they take, here.
    """

    ends_with_script: ClassVar[bool] = False

    def __init__(
        self, ring: Ring, shared: SharedState, switching: Switching, wishes: SizeRequest
    ) -> None:
        self.ring = ring
        self.begun = 0
        self.target: int | None = None
        self.trained_in = 0
        self.on_trained: Callable[[], None] = lambda: None
        self.wants_to_stop = False
        self._shared = shared
        self._switching = switching
        self.timer = StepTimer(shared.clock.now_s)
        self.slowest = Slowest()
        self._size_request = wishes
        self._pending: Any = None  # the step record on its way
        self._records: StepRecords | None = None

    @property
    @abstractmethod
    def progress(self) -> TrainingProgress:
        """How far they are."""

    @property
    @abstractmethod
    def batch_weight(self) -> int:
        """How many samples count of the batch that was handed out last, trained or not yet.

        Raises:
            UsageError: the script keeps its own place in its data.
        """

    @abstractmethod
    def exchange(self, payload: bytes) -> list[bytes]:
        """Return all payloads in rank order, between two steps.

        See :meth:`edl.worker.worker.Worker.exchange_bytes`.
        """

    @abstractmethod
    def leave(self) -> None:
        """The script has trained all its epochs."""

    @abstractmethod
    def last_record(self, stop: Stop) -> StepRecord | None:
        """This worker's row of the end; None: the others can do without."""

    def note_untrained(self) -> None:
        """All workers leave the epoch: tell what is not trained of it, if that is known."""
        return

    def describe_end(self, stop: Stop) -> str:
        """How much of the last epoch is trained, as the end of a sentence; empty: all of it."""
        return ""

    def save_together(self, save: Callable[[], str]) -> str:
        """Let rank 0 ``save`` for the last time while the others wait; why it could not.

        A script that keeps its own place in its data has nothing of edl's to save.
        """
        return ""

    @abstractmethod
    def joined(self) -> None:
        """This worker has joined a job that trains."""

    @abstractmethod
    def compare(self, records: StepRecords) -> None:
        """Raises StateDiffers when the workers do not hold the same state."""

    @property
    def warming_up(self) -> bool:
        """A newcomer trains alone, for nothing."""
        return self._switching.warming_up

    @property
    def generation(self) -> int:
        """The number of the present ring; 0 while this worker is in none."""
        current = self._switching.generation
        return current.number if current is not None else 0

    @property
    def median_step_us(self) -> int:
        """The usual step."""
        return round(self.timer.median_step_s * 1e6)

    @property
    def sync_root(self) -> int:
        """The worker that brings the job's state into the present ring."""
        current = self._switching.generation
        return self._switching.worker if current is None else current.state_source

    def records(self) -> StepRecords:
        """Everybody's step records, in rank order; waits for them.

        Raises:
            RingBroken: a worker is gone.
            RingError: the workers are not in the same step.
            JobFailed: some have left the epoch, or ended, and others have not.
            StateDiffers: they do not hold the same state.
        """
        if self._records is None:
            self.timer.wait()
            failpoints.reached("records")
            if isinstance(self._pending, RingBroken):
                raise self._pending
            records = self.ring.finish_record(self._pending)
            try:
                check(records)
            except UnevenEnd as error:
                self._switching.end_unevenly(error)
            self.compare(records)
            self._records, self._pending = records, None
        return self._records

    def entered(self) -> None:
        """A new ring stands."""
        self.timer.enter(self.progress.step)
        self.slowest.restart()
        self.target = None

    def log_switch_if_due(self) -> None:
        """The ring is left or training ends after one step in it: nobody logs it later."""
        if self.timer.steps_here == 1:
            self._log_switch()

    def idle_record(self) -> StepRecord:
        """This worker's row while nothing is trained."""
        return self._record(samples=0, idle=True)

    # --- for the two kinds

    def _send(self, record: StepRecord) -> None:
        """Send this worker's row; that the ring is broken may only show in :meth:`records`."""
        self._records = None
        try:
            self._pending = self.ring.start_record(record)
        except RingBroken as error:
            self._pending = error

    def _completed(self) -> str:
        """A step is complete: whether all are to switch, with the reason."""
        self.target, reason = agreed_generation(self.records())
        self.timer.steps_here += 1
        if not self.trained_in and self.generation:
            self.on_trained()
        self.trained_in = self.generation
        return reason if self.target is not None else ""

    def _publish(self) -> None:
        """The others, and the log, hear of a step that is complete."""
        if self.timer.steps_here == 2:
            self._log_switch()
        self._report()

    def _report(self) -> None:
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
        newest = self._shared.newest(self.generation)
        if newest is not None and newest.joined and not (idle or self.progress.takes_newcomers):
            newest = None  # it is adopted some batches later
        if newest is not None and newest.joined and newest.fits != self.progress.fits_done:
            newest = None  # those who join are in another fit of the script; they notice it
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
            **self.progress.row(),
            compute_us=self.timer.compute_us,
            data_us=self.timer.data_us,
            reduce_us=self.timer.reduce_us,
            size_change=self._size_request.change,
            batch=self._shared.requested_batch,
            **vars(times),
        )

    def _log_switch(self) -> None:
        """Rank 0 logs a switch once its parts are known to all."""
        generation, records = self._switching.generation, self._records
        if generation is None or not records or self.ring.place.rank != 0:
            return
        if records[0].generation == generation.number and records[0].stall_us:
            self._shared.log(self._switch_event(generation, records))

    def _switch_event(self, generation: Generation, records: StepRecords) -> Event:
        details = SwitchDetails(self.ring.place.size, switch_parts(records, generation.joined))
        at, reason = self.timer.entered_at, generation.reason
        return Event(time.time(), generation.number, at, reason, details)
