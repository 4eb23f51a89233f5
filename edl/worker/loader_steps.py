"""Make the steps of a worker on the batches of edl's own loader, with a ledger of what is trained.

:class:`LoaderSteps` is the ring and the clock of the step engine (:mod:`edl.step.engine`),
which decides what is sent, awaited and repaired. For a batch the training loop calls
:meth:`~LoaderSteps.begin` (:meth:`edl.worker.worker.Worker.boundary` comes before it); a framework
has the gradients reduced (:class:`edl.binding.reduction.StepReduction`), applies the update, and
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
import statistics
import time
import zlib
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from edl import failpoints
from edl.errors import RingBroken, RingError, UsageError
from edl.events import EpochLeftDetails, SlowWorkerDetails, SwitchDetails
from edl.events import Event as JobEvent
from edl.job.placement import whole
from edl.policy.file import PolicyFile
from edl.policy.observation import State
from edl.policy.stragglers import NO_MITIGATION, NO_REPORT, RingReport, Times
from edl.records import Generation, StepTotals, SwitchParts
from edl.ring.ring import Ring
from edl.step.engine import (
    ALLREDUCE_DONE,
    GRADIENT_ACCUMULATION,
    RECORD_DONE,
    RECORDS_REQUEST,
    RESULT_PLACED,
    Allreduce,
    Batch,
    BatchStart,
    Event,
    Instruction,
    ListDepartures,
    LoopEnd,
    PartStart,
    PlaceResult,
    Raise,
    RecordsArrival,
    Repair,
    RepairDone,
    RingFault,
    RingPlace,
    StartRecord,
    StepEngine,
    WaitRecords,
)
from edl.step.ledger import Ledger
from edl.step.noise import UNKNOWN, NoiseScale
from edl.step.record import (
    Slowest,
    SlowestWorker,
    StepRecord,
    StepRecords,
    Stop,
    agreed_generation,
    check_records,
    ended_by_count,
    ended_by_script,
    global_samples,
    left_out,
    saves_parts,
    stopping,
    us,
    wanting_to_stop,
)
from edl.step.state_check import APART
from edl.step.weighting import Weights
from edl.text import workers
from edl.worker.activity import call_site
from edl.worker.progress import LoaderProgress, ScriptProgress, TrainingProgress
from edl.worker.sampler import BatchSampler
from edl.worker.shared_state import SharedState
from edl.worker.state_check import DataSamples, Replica, ScriptStateCheck, StateCheck
from edl.worker.switching import Switching

logger = logging.getLogger(__name__)


# ------------------------------------------------------------
# Exchange messages among all workers, so that all get the same answer even if some die.
#
# The answer of an exchange is the messages of all workers. When a ring breaks during an exchange,
# some survivors may have the answer and others not. So each worker counts the exchanges that it has
# completed, beside its steps and its leaves of an epoch with a batch in hand, and reports these
# numbers when its ring breaks (`RingFailure`). The state source of the repair is a survivor that
# has completed the most steps, then exchanges, then leaves. If it has the answer, it sends the
# answer to all others together with its progress (`header`, `synchronise_if_due`). If no survivor
# has the answer, the survivors send their messages again, in the new ring.
#
# A worker that had missed the step before the exchange gets the result of that step in the same
# repair, and then comes to the exchange in its script as the others do.
#
# `exchange` does all this wherever it is called. How a broken ring is repaired depends on the place
# of the call, and so is an argument. `check_place` is for exchanges between two steps.


OUT_OF_PLACE = (
    "workers exchange numbers between two steps: call edl.mean(), edl.gather() and the like after "
    "the update of a batch and before the next one, inside the loop over the epochs"
)


def exchange(
    payload: bytes,
    send: Callable[[bytes], list[bytes]],
    progress: LoaderProgress,
    repair: Callable[[RingBroken, float], None],
    now_s: Callable[[], float],
) -> list[bytes]:
    """Send `payload` to all workers; return all payloads in rank order, the same everywhere."""
    failpoints.reached("exchange")
    done = False
    while not done:
        began, before = now_s(), progress.exchanges
        try:
            progress.exchanged(send(payload))
            done = True
        except RingBroken as error:
            # If a survivor has the answer, this counts the exchange, too; else all send again. But
            # the answer may be that of an exchange that others have made apart.
            repair(error, began)
            done = progress.exchanges > before and progress.has_called
    failpoints.reached("exchanged")
    return progress.answer


def packed(values: Sequence[float]) -> bytes:
    """Return `values` as the payload of an exchange: eight bytes (float64) for each number."""
    return np.array(values, dtype=np.float64).tobytes()


def unpacked(answer: Sequence[bytes]) -> list[list[float]]:
    """Return the numbers of each worker from the payloads of an exchange, both in rank order."""
    rows: list[list[float]] = [np.frombuffer(payload).tolist() for payload in answer]
    if len(sizes := {len(row) for row in rows}) > 1:
        raise UsageError(
            f"the {workers(len(rows))} exchanged {', '.join(str(len(row)) for row in rows)} "
            f"numbers (from {min(sizes)} to {max(sizes)}); all must exchange the same at the same "
            "point of the script, in edl.mean() a dict with the same keys"
        )
    return rows


def check_place(progress: LoaderProgress) -> None:
    """Raise UsageError unless the training is between two steps."""
    why = None
    if progress.engine.is_open:
        why = "this batch is not trained yet"
        if progress.engine.batches.pieces > 1:
            why = f"{why}; it is one of several of a step, which is made when edl.step() has moved"
    elif not progress.has_state:
        why = "training has not begun"
    if why is not None:
        raise UsageError(f"{OUT_OF_PLACE}: {why}")


# ------------------------------------------------------------
# Summarise how fast the workers of a ring train, by their step records.
#
# The job's policy, `edl policy explain` and the dashboard use the summary. By its speed each worker
# sets its share: the part of a full batch that it trains in a step, as its step record says. The
# leader also replaces workers that are too slow.


EVERY = 10  # steps between two reports
COLUMNS = ("compute_us", "data_us", "reduce_us")


class RingWatch:
    """A summary of the step times of the workers in one ring, for the job's policy."""

    def __init__(self, shared: SharedState) -> None:
        self._shared = shared
        self._state: State = {}
        self._generation = 0
        self._before: npt.NDArray[np.int64] | None = None  # samples by rank in the step before
        self._rows: list[npt.NDArray[np.int64]] = []

    def look(
        self,
        records: StepRecords,
        switching: Switching,
        progress: LoaderProgress,
    ) -> None:
        """Add a complete step; every tenth step, report on the ring and set this worker's share."""
        sampler, batching = progress.sampler, progress.source.batching
        policy, generation = self._shared.policy, switching.generation
        if generation is None:
            self._shared.ring, self._generation = NO_REPORT, 0
            sampler.share(1.0)
            return
        if generation.number != self._generation:
            self._restart(generation)
        times = self._add(records, generation)
        if policy is None and not batching.is_chosen:
            known = self._shared.ring.times if times is None else tuple(times)
            self._shared.ring = RingReport(
                times=known,
                batching=batching,
                step_batches=progress.step_batches,
                generation=generation.number,
            )
            sampler.share(1.0)
            return
        if times is None:
            if self._shared.ring.batching != batching:  # a policy's choice needs it
                self._shared.ring = replace(self._shared.ring, batching=batching)
            return
        care = NO_MITIGATION
        if policy is not None and policy.stragglers is not None:
            care = policy.stragglers(times, self._state)
            self._state = care.state
            if not sampler.takes_shares:
                care = care._replace(shares={})
        wishes = tuple(records.values("size_change"))
        self._shared.ring = RingReport(
            care,
            tuple(times),
            wishes,
            noise=progress.noise.scale,
            batching=batching,
            step_batches=progress.step_batches,
            generation=generation.number,
        )
        sampler.share(care.shares.get(switching.worker, 1.0))

    def _restart(self, generation: Generation) -> None:
        """Begin to measure the ring of `generation`, without the step times measured before."""
        members = map(str, generation.worker_ids)
        self._state = {name: self._state[name] for name in members if name in self._state}
        self._generation, self._before = generation.number, None
        self._rows.clear()

    def _add(self, records: StepRecords, generation: Generation) -> list[Times] | None:
        """Add the step records of a step; every tenth time, return the workers' mean times."""
        before, self._before = self._before, records.column("samples").copy()
        if before is None:  # a record tells of the times of the step before
            return None
        self._rows.append(np.stack([before, *(records.column(name) for name in COLUMNS)]))
        if len(self._rows) < EVERY:
            return None
        rows = np.stack(self._rows)
        self._rows.clear()
        return _times(rows, records.values("worker"), generation)


def _times(
    rows: npt.NDArray[np.int64], workers: Sequence[int], generation: Generation
) -> list[Times]:
    """Return the mean times (in seconds) and samples of each worker per step, in rank order."""
    hosts: Mapping[int, str] = {member.id: member.host for member in generation.members}
    # `rows`: (steps, 4, workers): samples, then `COLUMNS` in microseconds. A small batch at the end
    # of an epoch says nothing about the speed.
    samples = rows[:, 0]
    usual = (samples > 0) & (2 * samples > samples.max(axis=0))
    steps = usual.sum(axis=0)
    means = (rows * usual[:, None]).sum(axis=0) / np.maximum(steps, 1)
    found = zip(workers, steps.tolist(), *means.tolist(), strict=True)
    return [
        Times(w, hosts.get(w, ""), count, compute / 1e6, data / 1e6, reduce / 1e6, steps)
        for w, steps, count, compute, data, reduce in found
    ]


# ------------------------------------------------------------
# Ask the script of a worker, again and again, how many workers more or fewer it wants.
#
# A `SizeRequest` keeps the answer, which goes out with the worker's step records.


MOST = 10**6  # workers in one answer; the step record has numbers of 64 bits


class SizeRequest:
    """The script's request for more or fewer workers; it is used by the training thread."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self.change = 0  # the newest answer: workers more, or fewer (below 0); 0 in a new ring
        self.policy: PolicyFile | None = None  # the first one that the script has proposed
        self._now_s = now_s
        self._ask: Callable[[], Any] | None = None
        self._every_s = 0.0
        self._asked_s = 0.0

    def ask(self, desired_change: Callable[[], Any], every_s: float) -> None:
        """Let `look` call the script's function every `every_s` seconds from now on."""
        if self._ask is not None:
            raise UsageError("edl.on_interval was called already; a script has one wish at a time")
        self._ask, self._every_s, self._asked_s = desired_change, every_s, self._now_s()

    def look(self) -> None:
        """Call the script's function and keep its answer in `change`, if it is time."""
        if self._ask is None or self._now_s() - self._asked_s < self._every_s:
            return
        self._asked_s = self._now_s()
        answer, wish = self._ask(), None
        with suppress(UsageError):
            wish = None if isinstance(answer, bool) else whole(answer)
        if wish is None or abs(wish) > MOST:
            raise UsageError(
                f"the function of edl.on_interval returned {answer!r}; it must return a whole "
                "number: workers more, or fewer, or 0"
            )
        self.change = wish


# ------------------------------------------------------------
# Carry out what the step engine instructs, over the ring and with the frameworks' gradients.
#
# `StepDriver` tells `StepEngine` what happens, and carries out its instructions one after the other
# until there is none left. There is no recursion: a ring that breaks while a reduction is repeated
# is one more answer.


class StepRing(Protocol):
    """The interface of what a step needs of the worker and its ring, all in the training thread."""

    def start_record(self) -> None:
        """Send this worker's record of the open step; do not wait, and raise nothing."""

    def wait_for_records(self) -> StepRecords:
        """Wait for the step records of all workers, and return them in rank order."""

    def list_departures(self) -> None:
        """Exchange one more record, by which all learn how workers have ended; raise JobFailed."""

    def repair(self, error: RingBroken) -> RepairDone:
        """Build a ring of the survivors, and return the engine's answer."""
        # It tells the engine if others had completed the step, or have this worker's leases.

    def reduced(self) -> None:
        """Note that the gradients of an optimizer are averaged, or that nothing is to be sent."""


class Reducer(Protocol):
    """The interface by which one optimizer's gradients are sent, awaited and put in their place."""

    def allreduce(self, weights: Weights, again: bool) -> None:
        """Send the gradients that are not sent yet, wait for all, and keep the averages."""
        # It changes no local gradient: if it raises RingBroken, it is called again in the next
        # ring.

    def place_result(self, again: bool) -> None:
        """Put the result of the reduction in its place, by the state of the optimizer's part."""

    def forget(self) -> None:
        """Drop the gradients that were being sent in a ring that is gone."""


class StepDriver:
    """The link between a worker's step engine, its ring and the reducers of its optimizers."""

    def __init__(self, engine: StepEngine, ring: StepRing) -> None:
        self.engine = engine
        self.reducers: list[Reducer] = []  # by the number of the optimizer
        self._ring = ring

    def tell(self, event: Event) -> None:
        """Tell the engine of `event`, and carry out its instructions until there is none left."""
        instruction = self.engine.handle(event)
        while instruction is not None:
            try:
                answer = self._carry_out(instruction)
            except RingBroken as error:
                if not isinstance(instruction, WaitRecords | Allreduce):
                    raise
                answer = RingFault(error)
            instruction = self.engine.handle(answer)

    def _carry_out(self, instruction: Instruction) -> Event:
        """Carry out an instruction, and return the answer to it."""
        match instruction:
            case StartRecord():
                self._ring.start_record()
                return RECORD_DONE
            case WaitRecords():
                return RecordsArrival(self._ring.wait_for_records())
            case ListDepartures():
                self._ring.list_departures()
                return RECORD_DONE
            case Allreduce(optimizer, weights, again):
                self.reducers[optimizer].allreduce(weights, again)
                failpoints.reached("averaged")  # where a test may break the ring
                return ALLREDUCE_DONE
            case PlaceResult(optimizer, again):
                self._ring.reduced()
                self.reducers[optimizer].place_result(again)
                return RESULT_PLACED
            case Repair(error):
                assert isinstance(error, RingBroken)
                done = self._ring.repair(error)
                for each in self.reducers:
                    each.forget()
                return done
            case Raise(error):
                raise error


# ------------------------------------------------------------
# Measure how long the steps of one worker take, by its own clock (`StepTimer`).


MEDIAN_OF_STEPS = 50


class StepTimer:
    """A timer of one worker's steps in its present ring, with the median time of its last steps."""

    def __init__(self, now_s: Callable[[], float], totals: StepTotals | None = None) -> None:
        self._now_s = now_s
        self._totals = totals or StepTotals()
        self.steps_here = 0  # steps completed in this ring
        self.entered_at = 0  # the step after which this generation began
        # when it last began to wait for the others; when the last step ended
        self.waiting_since = self.ended = self._entered = self._now_s()
        # Of the last step: its own time, the wait for data, the time from its gradients to the mean
        # of all. `first_step_us`: from the beginning of the ring to its first step; 0: unknown.
        self.compute_us = self.data_us = self.reduce_us = self.first_step_us = 0
        self._data_s = 0.0  # time spent waiting for data in the open step
        self._reduced: float | None = None  # when its gradients were the mean of all
        self._durations: deque[float] = deque(maxlen=MEDIAN_OF_STEPS)
        self._is_first = True  # of this ring is the step that ends next

    def enter(self, step: int) -> None:
        """Begin to measure a new ring, which was built after `step`."""
        # The log of the switch must not show values of the ring before.
        self.steps_here, self.entered_at, self.first_step_us = 0, step, 0
        self.waiting_since = self._entered = self._now_s()
        self._is_first = True

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Count the time inside a `with` block as waiting for data, unless the block raises."""
        began_s = self._now_s()
        yield
        self.load(self._now_s() - began_s)

    def load(self, seconds: float) -> None:
        """Add `seconds` to the time for which this worker waits for data in the open step."""
        self._data_s += seconds

    def wait(self) -> None:
        """Note that this worker begins to wait for the other workers."""
        self.waiting_since = self._now_s()
        own_us = us(self.waiting_since - max(self.ended, self._entered))  # all its own
        self.data_us = min(us(self._data_s), own_us)
        self.compute_us = own_us - self.data_us
        self._reduced = None

    def reduce(self) -> None:
        """Note that the mean of all gradients has arrived; the wait for the others ends."""
        self._reduced = self._now_s()

    def end(self) -> None:
        """Note the end of a step, and set the attributes with the times of that step."""
        now, totals = self._now_s(), self._totals
        reduced = now if self._reduced is None else self._reduced
        self.reduce_us = us(reduced - self.waiting_since)
        self.compute_us += us(now - reduced)
        self._data_s, self._reduced = 0.0, None
        if self._is_first:
            self._is_first = False
            self.first_step_us = us(now - self._entered)
        else:
            self._durations.append(now - self.ended)
            totals.durations.observe(now - self.ended)
        totals.compute_us += self.compute_us
        totals.data_us += self.data_us
        totals.reduce_us += self.reduce_us
        self.ended = now

    @property
    def median_step_s(self) -> float:
        """The median time of the last 50 steps, in seconds; 0 before there is one."""
        return statistics.median(self._durations) if self._durations else 0.0


# ------------------------------------------------------------
# Describe one update of the model: its number, its samples, and what its learning rate follows.


class Update(NamedTuple):
    """One update of the model, as all workers know it."""

    number: int  # from 0
    before: int  # samples that the job has trained without it
    after: int  # and with it
    # changes of the global batch until then, oldest first: (first update with the new size,
    # samples)
    batches: tuple[tuple[int, int], ...]
    noise: NoiseScale = UNKNOWN  # as known before this update
    last_noise: NoiseScale = UNKNOWN  # as known before the update before
    # `batches` of the checkpoint from which the job was resumed; empty: none, or not known
    resumed: tuple[tuple[int, int], ...] = ()

    @property
    def last_batches(self) -> tuple[tuple[int, int], ...]:
        """The changes of the global batch with which the update before this one was made."""
        is_first = bool(self.batches) and self.batches[0][0] == self.number
        return self.resumed if is_first and self.resumed else self.batches


def last_update(progress: LoaderProgress) -> Update:
    """Return the last update that the job has made, even if this worker missed it."""
    known = progress.noise.before  # what all have made it with; the one before is not kept
    before, after = progress.trained_before, progress.trained
    return Update(progress.step - 1, before, after, progress.batches, known, known)


# ------------------------------------------------------------
# Make the steps of one worker in its ring: send its step record, receive those of all workers.
#
# `WorkerSteps` is the base class. What a step is depends on where the position in the data is kept:
# by edl's loader (`LoaderSteps`) or by the script (`ScriptSteps`).


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
        self._sent: Any = None  # that record
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
    def exchange(self, payload: bytes, alike: bool = False, apart: bool = False) -> list[bytes]:
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
            self._sent, self._pending = record, self.ring.start_record(record)
        except RingBroken as error:
            self._pending = error

    def _awaited(self) -> StepRecords:
        """Wait for the step records of all workers, after this worker's was sent; check them."""
        self.timer.wait()
        failpoints.reached("records")
        while True:
            if isinstance(self._pending, RingBroken):
                raise self._pending
            records = self.ring.finish_record(self._pending)
            if self._switching.check_point(records):
                break
            self._switching.sit_out(records)
            self._send(self._sent)
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
        if self.timer.ended >= self._shared.learning.due_s:  # twice a second
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
        self._shared.progress = report

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
        newest = None
        if self._shared.newest_number > self.generation:
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

    def _switch_event(self, generation: Generation, records: StepRecords) -> JobEvent:
        parts = {
            f"w{one.worker}": SwitchParts(
                "new" if one.worker in generation.joined else "old", **one.seconds()
            )
            for one in records
        }
        details = SwitchDetails(self.ring.place.size, parts)
        at, reason = self.timer.entered_at, generation.reason
        return JobEvent(time.time(), generation.number, at, reason, details)


# ------------------------------------------------------------
# Make the steps of a script that keeps its own place in its data: its commits (docs/adr/0010).
#
# The script's elastic state calls `agree` wherever a switch may happen, and `boundary` is called
# when all workers have agreed on one.


class ScriptSteps(WorkerSteps):
    """The steps of one worker whose script says when its state is saved: `Worker.script`."""

    def __init__(
        self,
        ring: Ring,
        shared: SharedState,
        switching: Switching,
        wishes: SizeRequest,
        progress: ScriptProgress,
        check: ScriptStateCheck,
    ) -> None:
        super().__init__(ring, shared, switching, wishes)
        self._begun = 0
        self._progress = progress
        self._check = check

    @property
    def begun(self) -> int:
        """The number of updates that this worker has made."""
        return self._begun

    @property
    def progress(self) -> ScriptProgress:
        """The counter of the saves of the script's state."""
        return self._progress

    @property
    def batch_weight(self) -> int:
        """Not available: edl knows no batches of a script that keeps its own place in its data."""
        raise UsageError(
            "edl.batch_weight() is of the batches of edl's data loader; in a script with an "
            "elastic state give the number of samples: edl.mean(value, weight=len(batch))"
        )

    @property
    def ended(self) -> bool:
        """Whether the training has ended: here, or on others, whose final state this worker has."""
        return self._progress.ended

    def beat(self) -> None:
        """Count an update in `begun`, and report to the daemon that this worker goes on."""
        self._begun += 1
        self.ring.updates += 1
        if not self.warming_up:
            self.timer.end()
            # Else the leader would see a stall between two saves.
            self._shared.progress = replace(self._shared.progress, updated_at=self.timer.ended)

    def before_save(self) -> None:
        """Compare the state of newcomers with the others' before the script saves its state."""
        if self._check.newcomers_are_due:
            self._check.before_save()
            self._send(replace(self.idle_record(), state=self._check.state))
            self._awaited()
            self._check.newcomers_are_right()

    def saved(self) -> None:
        """Count a save of the script's state as one more step; all workers save together."""
        self._progress.saved()

    def agree(self, compares: bool = False) -> bool:
        """Exchange step records with all workers, which call it at the same point of the script."""
        assert not self.warming_up
        failpoints.reached("boundary")
        self._shared.check()
        self._size_request.look()  # calls the function of edl.on_interval, if it is time
        if compares:
            self._check.saved()
        self._send(replace(self.idle_record(), state=self._check.state if compares else 0))
        records = self._awaited()
        reason = self._completed(records)
        wishes = tuple(records.values("size_change"))
        self._shared.ring = RingReport(
            size_changes=wishes, is_timed=False, generation=self.generation
        )
        if self.begun == 0:
            self.timer.end()
        if reason:
            logger.info("after commit %d: %s", self._progress.step, reason)
        self._publish()
        return self.target is not None

    def repair(self, error: RingError) -> None:
        """Build a ring of the survivors, all with the last save; the caller has gone back to it."""
        self.target = None
        self._repair(error, self._shared.clock.now_s())

    def end(self) -> None:
        """Count the last save of a script that has trained to its end, and set `ended`."""
        self._progress.saved()
        self._progress.ended = True

    def exchange(self, payload: bytes, alike: bool = False, apart: bool = False) -> list[bytes]:
        """Send `payload` to all workers, wait for theirs, and return all in rank order."""
        if self.warming_up:
            return [payload]
        failpoints.reached("exchange")
        # Nothing is repaired here: `elastic.run` sets the state back, and calls `repair`.
        return self.ring.exchange(payload)

    def leave(self) -> None:
        """Do nothing: a script with its own data holds no batch of edl's loader to complete."""

    def last_record(self, stop: Stop) -> StepRecord:
        """Return, without sending it, this worker's record about the end of its training."""
        return replace(self.idle_record(), stop=stop)

    def roll_call(self, finished: bool) -> None:
        """Exchange a record in a repaired ring: all learn whether some ended the training."""
        is_over = finished or self.ended
        self._send(self.last_record(Stop.FINISHED if is_over else Stop.NO))
        self._awaited()

    def joined(self) -> None:
        """Mark this worker as a newcomer, which leaves if its state differs from the others'."""
        self._check.joined()

    def compare(self, records: StepRecords) -> None:
        """Raise an error if the digests in the step records say that the workers' states differ."""
        self._check.compare(records)


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
        # The script gets a batch, for a pass that draws from the loader's random numbers.
        self.on_pass: Callable[[Any], None] = lambda numbers: None
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
        self._shared.log(JobEvent(time.time(), self.generation, step, str(left), details))
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

    def exchange(self, payload: bytes, alike: bool = False, apart: bool = False) -> list[bytes]:
        """Send `payload` to all workers between two steps; return all payloads in rank order."""
        self.before_exchange()
        if self.warming_up and not self.open:
            return [payload]
        check_place(self._progress)
        if self.replica is not None:
            # A worker that missed the last update gets what is kept now, not at the next batch.
            self.replica.end_batch(self._progress.step, self.epoch)
        now_s = self._shared.clock.now_s
        send = partial(self._exchange, len(payload) if alike else 0, APART if apart else 0)
        return exchange(payload, send, self._progress, self._repair, now_s)

    def _exchange(self, size: int, apart: int, payload: bytes) -> list[bytes]:
        """Send `payload` in the place of a step record, so all see who does something else."""
        call, _, site = call_site()
        row = replace(
            self._row(),
            exchange=apart + (size << 33) + zlib.crc32(call.encode()) + 1,
            site=site if site in self._sites else -site,
            payload_bytes=len(payload),
        )
        records = self.ring.exchange_rows(row, payload)
        while not (together := self._switching.check_point(records)) and not apart:
            self._switching.sit_out(records)
            records = self.ring.exchange_rows(row, payload)
        if together and len(records) > 1 and not records.differ_in("site"):
            self._sites.add(site)
        return self._switching.messages(records, payload, together)

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
                rows = self.ring.exchange_rows(self._row(), b"")
                while not self._switching.check_point(rows):
                    self._switching.sit_out(rows)
                    rows = self.ring.exchange_rows(self._row(), b"")
            progress.callers = ()
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


def _slow_event(slow: SlowestWorker, ring: Generation | None, step: int) -> JobEvent:
    """Return the event that all workers wait for `slow` in each step."""
    name = f"w{slow.worker}"
    seats = ring.members if ring is not None else ()
    host = next((one.host for one in seats if one.id == slow.worker), "")
    generation = ring.number if ring is not None else 0
    details = SlowWorkerDetails(name, round(slow.own_s, 6), round(slow.others_s, 6), host)
    reason = f"the others wait for {name} in each step: {slow}"
    return JobEvent(time.time(), generation, step, reason, details)
