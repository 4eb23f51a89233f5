"""Combine the parts of a worker in one object, :class:`Worker`, to which a framework's API talks.

A newcomer's life: start() -> warm-up in a ring of one -> join() -> steps, with a
:meth:`Worker.boundary` before each -> finishing.finish(). The first workers of a job do not warm
up.

The steps are made by :attr:`Worker.loader` if edl's own loader keeps the position in the data, and
by :attr:`Worker.script` if the script keeps it.

A switch happens when the script asks for the next batch, not at the end of the update. So a
newcomer receives the state after all that the script does behind ``optimizer.step()``, such as a
scheduler's step or an evaluation (docs/adr/0002).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial

from edl import __version__, failpoints
from edl.config import Config
from edl.errors import CheckpointError, NewcomerDiffers, UsageError
from edl.events import Details, Event, FinishedDetails
from edl.host.process import STOPPED_EXIT
from edl.job.run import JobEnd
from edl.job.script import (
    ALIKE_IN_FITS,
    BUILT_BEFORE,
    OTHER_PROTOCOL,
    Arithmetic,
    DoneFit,
    FitIsDone,
    ScriptFits,
    Signature,
    resumed_too_short,
    why_unfit,
)
from edl.job.stall import FOR_NUMBERS
from edl.job.state_share import StateShare
from edl.policy.file import PolicyFile
from edl.records import JobState, Leader, Stage
from edl.ring.ring import Ring
from edl.spec import Sizes
from edl.step.record import PROTOCOL, StepRecord, Stop, SwitchTimes
from edl.step.source import Source
from edl.worker.checkpointing import FLUSH_S, Checkpointing
from edl.worker.coordinator import Coordinator
from edl.worker.loader_steps import (
    OUT_OF_PLACE,
    LoaderSteps,
    ScriptSteps,
    SizeRequest,
    WorkerSteps,
    packed,
    unpacked,
)
from edl.worker.progress import LoaderProgress, ScriptProgress
from edl.worker.sampler import StreamReader
from edl.worker.shared_state import SharedState
from edl.worker.state_check import Replica, ScriptState, ScriptStateCheck, StateCheck
from edl.worker.switching import Switching

logger = logging.getLogger(__name__)


# ------------------------------------------------------------
# End the training of one worker: all epochs are trained, or its script has ended before that.
#
# `Finishing` does it: by `finish` when the script has left its loop, by `script_ended` when the
# script itself has ended. A job has *finished* when all workers of its ring end after the same
# step, whether they have trained all epochs or their scripts have ended inside one. They then
# exchange one more step record each. If that fails, a worker that missed the last step gets its
# result in the repair of the ring. Another record says whether rank 0 has saved the last
# checkpoint. If a worker ends while others train on, the job fails, after rank 0 has saved; the
# error names the workers that have left (`check_together`).


ENDED_IN_WARM_UP = (
    "the script of w{worker} ended while it warmed up, before it had joined the job. A newcomer "
    "gets one batch, which counts for nothing, and joins when its loop asks for more: a decision "
    "to end must not depend on that batch (edl.is_warming_up(), edl.step())"
)


class Finishing:
    """One worker's part in the end of the job; it runs in the training thread."""

    def __init__(
        self,
        steps: Callable[[], WorkerSteps],
        switching: Switching,
        checkpointing: Checkpointing,
        shared: SharedState,
        coordinator: Coordinator,
        log_event: Callable[[Details, str], None],
    ) -> None:
        # it has begun to end its training, as its script has trained to its end
        self.finished = False
        self.is_over = False  # the end of the training is complete, with its last checkpoint
        self.told_to_leave = False  # a signal handler sets it
        # The script has come to the end of a fit, and another may follow; `FitProgress` sets it.
        self.has_trained_all = False
        # Completes the step of the batch trained last when the script asks for the next one, or has
        # ended; the framework sets it.
        self.end_batch: Callable[[], None] = lambda: None
        # After it: raises UsageError if the script may not end there, NewcomerDiffers if this
        # worker may, and the others train on; set for unchanged Horovod scripts.
        self.check_end: Callable[[], None] = lambda: None
        self._steps = steps
        self._switching = switching
        self._checkpointing = checkpointing
        self._shared = shared
        self._coordinator = coordinator
        self._log_event = log_event
        self._unsaved = ""  # why the last checkpoint of a job without a launcher is missing

    @property
    def ends_early(self) -> bool:
        """Whether the script of a worker that was told to leave ends before the worker has left."""
        return self.told_to_leave and self._switching.is_in_ring and not self.finished

    def finish(self, early: bool = False) -> None:
        """End this worker's training together with all others; its script has left the loop."""
        self._shared.check()
        self._steps().leave()
        self._conclude(Stop.FINISHED, cuts_epoch=not early)

    def script_ended(self) -> None:
        """End the training of this worker when its script has ended with success."""
        switching, steps = self._switching, self._steps()
        if self.finished:
            self._check_saved()
            return
        if self.told_to_leave or not switching.is_in_ring:
            return
        if switching.warming_up and self.has_trained_all:
            # It has passed over all fits of its script.
            switching.wait_for_end()
        if switching.warming_up:
            self.check_end()
            raise UsageError(ENDED_IN_WARM_UP.format(worker=switching.worker))
        if switching.generation is None or self._shared.job_state.over:
            return
        if later := steps.progress.later_fits:
            passed = len(self._shared.fits.done)
            self._checkpointing.fail(resumed_too_short(passed, len(later)))
        # Other scripts keep their own place in their data.
        if not (steps.ends_with_script and steps.progress.has_state):
            return
        self._shared.check()
        self.end_batch()
        try:
            self.check_end()
        except UsageError as error:
            self._checkpointing.fail(str(error))
        steps.leave()
        try:
            self._conclude(Stop.ENDED)
        finally:
            self._coordinator.release_others(None)
        self._check_saved()

    def _check_saved(self) -> None:
        """Raise CheckpointError, once, if the last checkpoint is missing in a job of one worker."""
        unsaved, self._unsaved = self._unsaved, ""
        if unsaved:
            raise CheckpointError(f"the job {unsaved}")

    def _row(self, stop: Stop) -> StepRecord:
        """Return this worker's step record about the end of its training, for the present ring."""
        steps, coordinator = self._steps(), self._coordinator
        row = steps.last_record(stop)
        if stop is Stop.ENDED and coordinator.released_from == FOR_NUMBERS:
            self._checkpointing.fail(
                f"w{self._switching.worker} ended its script after step {steps.progress.step}, and "
                "others train on, in edl.mean() or the like; all workers must end after the same "
                "step: count the steps of the job (edl.step()), not those of a worker"
            )
        # Others that wait in the ring for this worker would wait for ever.
        if stop is Stop.ENDED or not steps.ends_with_script:
            coordinator.release_others(self._switching.generation)
        return row

    def _conclude(self, stop: Stop, cuts_epoch: bool = False) -> None:
        """Agree on the end with all other workers, save a last checkpoint, and record the end."""
        steps, switching = self._steps(), self._switching
        self.finished = True
        steps.log_switch_if_due()
        trained_in = steps.trained_in
        switching.finish_together(partial(self._row, stop), steps.compare)
        # A script may end long after its last step, as after an evaluation. A worker that fails in
        # that time has trained to the end, too.
        finished_in = trained_in if stop is Stop.ENDED else switching.number
        failpoints.reached("finish")
        if cuts_epoch:  # the script may not know that it leaves samples out
            steps.note_untrained()
        end_of = Stop.FINISHED if self.has_trained_all else stop
        reason = (
            f"trained {steps.progress.steps_made} {steps.progress.unit}{steps.describe_end(end_of)}"
        )
        end = JobEnd(JobState.FINISHED, reason, finished_in=finished_in)
        unsaved = steps.save_together(partial(self._checkpointing.finish, end))
        if not unsaved:
            self._coordinator.end_job(end)
        else:  # rank 0 has recorded this before all others, if it could
            self._checkpointing.end_unsaved(end, unsaved)
            if not self._coordinator.is_shared:
                self._unsaved = f"{reason}, but {unsaved}"
        self._coordinator.set_stage(Stage.FINISHED)
        self._log_event(FinishedDetails(), reason)
        logger.info("%s", reason)
        if not self._coordinator.flush(FLUSH_S):
            logger.warning("the end of the job could not be recorded: it has %s", reason)
        self.is_over = True


# ------------------------------------------------------------
# Track which fits the script of one worker has done, if the script trains in phases.
#
# A fit is one call of Keras' `fit`. The script of a newcomer, or of a resumed job, also calls it
# for the fits that the job has done already; these calls return without training, and so the script
# *passes over* these fits (`fits`). `FitProgress` has a worker's record.


RESYNCS = 3  # at the end of a fit; what cannot be resynced shows in each whole comparison


class FitProgress:
    """One worker's record of its script's fits (calls of Keras' `fit`)."""

    def __init__(
        self,
        shared: SharedState,
        coordinator: Coordinator,
        checkpointing: Checkpointing,
        finishing: Finishing,
        loader: LoaderSteps,
        switching: Switching,
        check: StateCheck,
        exchange: Callable[[bytes], list[bytes]],
    ) -> None:
        self._shared = shared
        self._coordinator = coordinator
        self._checkpointing = checkpointing
        self._finishing = finishing
        self._loader = loader
        self._switching = switching
        self._check = check
        self._exchange = exchange
        self.passes_over = False  # the job had done the script's last fit before

    @property
    def begun(self) -> int:
        """The number of fits that the script has begun or passed over."""
        return self._shared.fits.begun

    @property
    def has_trained(self) -> bool:
        """Whether any worker has trained a sample in the fit that this script is in."""
        done = self._loader.progress.fits
        return self._loader.ledger.epochs_begun > (done[-1].until if done else 0)

    def of_job(self) -> ScriptFits:
        """Return the fits of another worker's script: it asks the ring, and waits."""
        return self._coordinator.script_of_job().fits

    def begin(self, done: tuple[DoneFit, ...]) -> None:
        """Record, for newcomers too, that the script begins a fit."""
        self._loader.progress.fits, self._loader.progress.stop = done, ""
        self._loader.progress.fit_stopped = ""
        self._loader.wants_to_stop = False
        self._finishing.has_trained_all = self.passes_over = False
        self._shared.fits = ScriptFits(done, len(done) + 1)

    def compare_states(self) -> None:
        """Compare and correct the states after a fit, for the script uses the model then."""
        for _ in range(RESYNCS):
            if self._check.is_same(self._exchange):
                return
            self._switching.between_steps(self._check.compare_all)

    def end(self, done: tuple[DoneFit, ...], stopped: str, rank: int, generation: int) -> None:
        """Record that a fit is over, and let rank 0 save a checkpoint; all workers call it."""
        self._leave(done)
        self._loader.progress.fit_stopped = stopped
        self._checkpointing.save_now(rank, generation)
        # A checkpoint is resumed only in the fit in which it was saved: another one follows between
        # the first two steps of the next.
        self._checkpointing.save_soon()

    def pass_over(self, done: tuple[DoneFit, ...]) -> None:
        """Record, for newcomers too, that a fit is over, which the job has trained before."""
        self._loader.progress.fits, self.passes_over = done, True
        self._leave(done)

    def check(self, theirs: ScriptFits) -> None:
        """Raise an error if the job has completed the fit that this newcomer's script is in."""
        if self.begun and len(theirs.done) > self._loader.progress.fits_done:
            raise FitIsDone(theirs.done)

    def _leave(self, done: tuple[DoneFit, ...]) -> None:
        self._finishing.has_trained_all = True
        self._shared.fits = ScriptFits(done, len(done))


OVER = (
    "this job's training is over: a job trains once, in one `for epoch in ....epochs(n)`; run each "
    "further one, and each fold or trial, as a job of its own: `edl run ... train.py --phase 2`, "
    "which loads the weights that rank 0 has saved at the end of phase 1; at a prompt, edl.init() "
    "begins a new job"
)


class Worker:
    """One worker of a job, as its training thread uses it. Not thread-safe."""

    def __init__(
        self, config: Config, ring: Ring, shared: SharedState, coordinator: Coordinator
    ) -> None:
        self.ring = ring
        # `local_rank`: its slot on its host; `same_random`: the random numbers in the training
        # thread are the same on all workers, because they come from the script's seeds
        self.local_rank, self.same_random = config.slot, config.same_random
        self._shared, self.learning = shared, shared.learning
        self._coordinator = coordinator
        progress = LoaderProgress()
        self.checkpointing = Checkpointing(config, shared, progress, coordinator)
        progress.noise.follow(lambda: self.checkpointing.settings, shared)
        self._switching = Switching(config, shared, ring, progress, coordinator, self.checkpointing)
        self._switching.median_step_us = lambda: self.steps.median_step_us
        self._switching.on_switch = self._switched
        self._check = StateCheck(ring, progress, self.checkpointing, self.log_event)
        self.size_request = SizeRequest(shared.clock.now_s)
        # the job's policy, even while it is switched off, or the one that the script proposes
        self.follows: Callable[[], PolicyFile | None] = lambda: (
            shared.written or self.size_request.policy
        )
        self.policy = coordinator.policy
        self.loader = LoaderSteps(
            ring, shared, self._switching, self.size_request, progress, self._check
        )
        self.loader.wants_parts = self.checkpointing.wants_parts
        saves = ScriptProgress()
        self._saved_check = ScriptStateCheck(ring, saves, self.checkpointing, self.log_event)
        self.script = ScriptSteps(
            ring, shared, self._switching, self.size_request, saves, self._saved_check
        )
        self.steps: WorkerSteps = self.loader  # or `script`, after `leave_data_to_script`
        self.finishing = Finishing(
            lambda: self.steps,
            self._switching,
            self.checkpointing,
            shared,
            coordinator,
            self.log_event,
        )
        self.fits = FitProgress(
            shared,
            coordinator,
            self.checkpointing,
            self.finishing,
            self.loader,
            self._switching,
            self._check,
            self.exchange_bytes,
        )
        self._switching.newcomer.fits_of_job = self.fits.of_job
        self.replica: Replica | None = None  # None until the script has declared the shared state
        self._on_resize: list[Callable[[int, int], None]] = []
        self._on_leave: list[Callable[[frozenset[int]], None]] = []

    # --- life ---

    def start(self) -> None:
        """Join the job that the environment names; if it names none, begin a job of one worker."""
        self._switching.start()

    def join(self) -> None:
        """End the warm-up, enter the ring, and take over the job's state."""
        self.loader.progress.abandon()
        self._check_script()
        failpoints.reached("warmed_up")
        generation = self._switching.join()
        self.steps.joined()
        # The state that came is older than the others' callbacks, which may have changed theirs.
        self._switched(len(generation.previous), self.size)

    def begin(self) -> None:
        """Begin training: get the job's state, load it from a checkpoint, or start afresh."""
        self._switching.synchronise_if_due()

    def boundary(self) -> None:
        """Do what is due between two steps, on all workers of the ring at the same point."""
        failpoints.reached("boundary")
        if self._shared.eviction is not None:
            self._shared.check()
        self._switching.between_steps(self._check.resync)  # first: a newcomer gets the right state
        target, self.steps.target = self.steps.target, None
        if target is not None and not self._is_of_another_fit(target):
            self.steps.log_switch_if_due()
            if self._let_leave(target):
                self._switching.switch(target, self.steps.idle_record)  # who is no member ends
        self._switching.synchronise_if_due()
        if not self.warming_up:
            self.size_request.look()  # after the switch, which drops an answer
        self._switching.wait_for_min_np(self.steps.idle_record)
        share = StateShare(self.rank, self.size)
        parts, self.steps.saves_parts_in = self.steps.saves_parts_in, -1
        self.checkpointing.save_if_due(share, self.generation, parts=parts == self.generation)

    def close(self) -> None:
        """Leave the ring and the job for good; a second call does nothing."""
        self.ring.close()
        if not self.finished:
            self._coordinator.resign()  # no worker has to wait until the checkpoint is written
        self.checkpointing.wait_for_writes()
        self._coordinator.close()

    def request_leave(self, own: Callable[[], object] | None = None) -> None:
        """Leave at the next switch, or end this process at once; a signal handler calls it."""
        self.finishing.told_to_leave = True
        shared, outside = self.is_shared, self.warming_up or self._switching.generation is None
        # A job of one that saves checkpoints saves one at the next boundary, and ends there.
        ends = outside or not (shared or self.checkpointing.saves)
        if ends and (own is None or shared):  # own: it might save a model that has not trained
            raise SystemExit(0)
        if not self.finished:  # else it is about to end anyway, and may be saving its result
            self._coordinator.leave_requested = True
        elif self.finishing.is_over and own is None and not shared:
            raise SystemExit(STOPPED_EXIT)
        if own is not None:
            own()

    # --- who and where ---

    @property
    def finished(self) -> bool:
        """Whether this worker's script has trained to its end; True while it ends its training."""
        return self.finishing.finished

    @property
    def stopped(self) -> bool:
        """Whether this worker has ended its training because of `edl stop` or a signal."""
        return self._switching.stopped

    @property
    def is_shared(self) -> bool:
        """Whether other workers may take part: False only in a job without a launcher."""
        return self._coordinator.is_shared

    @property
    def sizes(self) -> Sizes:
        """The numbers of workers that the job may have."""
        return self._coordinator.sizes

    @property
    def warming_up(self) -> bool:
        """Whether this worker is a newcomer that trains its warm-up batch alone."""
        return self._switching.warming_up

    @property
    def id(self) -> int:
        """The id of this worker: a number that is never used again in its job; -1 before start."""
        return self._switching.worker

    @property
    def rank(self) -> int:
        """This worker's rank in the ring; before a newcomer's first ring, the rank expected."""
        return self._switching.expected_rank or self.ring.place.rank

    @property
    def is_first_of_host(self) -> bool:
        """Whether it has the lowest rank on its host; for a newcomer: whether it is alone there."""
        return self._switching.is_first_of_host

    @property
    def size(self) -> int:
        """The number of workers in the ring; for a newcomer, the number expected."""
        expected = self._switching.expected_rank
        return expected + 1 if expected else self.ring.place.size

    @property
    def logical(self) -> int:
        """The number of the job's logical workers (its setting `logical`); 0: it has none."""
        return self.checkpointing.settings.logical

    @property
    def generation(self) -> int:
        """The number of the present generation; 0 in no ring of a shared job."""
        return self.steps.generation

    @property
    def leader(self) -> Leader:
        """The leader of the job; this worker itself, in term 0, if no leader is known."""
        return self._shared.leader or Leader(0, self.id)

    @property
    def switch_times(self) -> SwitchTimes:
        """The durations of this worker's last switch or repair; all 0 before the first one."""
        return self._switching.times

    @property
    def step(self) -> int:
        """The number of updates that the job has made, by all its workers together."""
        return self.steps.progress.steps_made

    def _is_of_another_fit(self, target: int) -> bool:
        generation = self._shared.generation(target)
        return bool(generation.joined) and generation.fits != self.steps.progress.fits_done

    def _let_leave(self, target: int) -> bool:
        number, staying = self.generation, self._shared.generation(target).worker_ids
        leaving = frozenset(self.loader.progress.members) - {*staying}
        # Not if all leave, because the job ends. All are in the ring still, and may exchange
        # messages.
        for callback in self._on_leave if leaving and staying else ():
            callback(leaving)
        return self.generation == number

    # --- what the script declares ---

    def on_trained(self, callback: Callable[[], None]) -> None:
        """Call `callback` once, after the first step of this worker in a ring of the job."""
        self.loader.on_trained = self.script.on_trained = callback

    def on_resize(self, callback: Callable[[int, int], None]) -> None:
        """Call `callback(old_size, new_size)` after each switch, repair and join of this worker."""
        self._on_resize.append(callback)

    def on_leave(self, callback: Callable[[frozenset[int]], None]) -> None:
        """Call `callback(ids)` on all workers of the ring before the workers `ids` leave it."""
        self._on_leave.append(callback)

    def on_event(self, callback: Callable[[Event], None]) -> None:
        """Call `callback` with each event that this worker logs, in the thread that logs it."""
        self._shared.on_event = callback

    def attach_source(self, source: Source, reader: StreamReader | None = None) -> None:
        """Declare the data that the job trains on; `reader` reads `source` if it is a stream."""
        if self.steps is self.script:
            raise UsageError(
                "create no edl data loader beside an elastic state; the script reads its own data"
            )
        self.check_trains()
        self.loader.progress.attach(source, self.id, reader)

    def check_trains(self) -> None:
        """Raise an error if the script is not allowed to begin another training in this job."""
        if self.finished:
            raise UsageError(OVER)

    def attach_replica(
        self, replica: Replica, before_join: Callable[[], None] = lambda: None
    ) -> None:
        """Set the state that all workers share: the model, the optimizer and tracked objects."""
        if self.replica is not None:
            raise UsageError("this script has two edl.Optimizers; a job trains with one")
        self.replica = self._check.replica = replica
        # Only the replicas of frameworks know which values are such.
        self._check.from_batches = getattr(replica, "from_batches", dict)
        self.checkpointing.replica = self._switching.replica = replica
        self._switching.before_join = before_join
        if self.is_shared:
            self.loader.replica = replica

    def describe_model(self, signature: Callable[[], Signature]) -> None:
        """Let newcomers ask for the shapes of the model; other threads call `signature`."""
        self._shared.signature = signature

    def describe_arithmetic(self, arithmetic: Callable[[], Arithmetic]) -> None:
        """Let newcomers ask what the last bits depend on; other threads call `arithmetic`."""
        self._shared.arithmetic = arithmetic

    def show_epoch(self, epoch: int) -> None:
        """Let newcomers ask which epoch an unchanged script trains, by the script's own number."""
        self._shared.epoch = epoch

    def epoch_of_job(self) -> int | None:
        """Ask the ring, and return the epoch that another worker's script has shown."""
        return self._coordinator.script_of_job().epoch

    def exchange_before_training(self, number: int, payload: bytes) -> list[bytes] | None:
        """Send a message of an unchanged script, and wait for those of all other workers."""
        return self._coordinator.exchange_before_training(number, payload)

    def _check_script(self) -> None:
        """Raise an error if this newcomer's edl, model or fits do not match the job's."""
        theirs = self._coordinator.script_of_job()
        if theirs.protocol not in (None, PROTOCOL):
            why = OTHER_PROTOCOL.format(version=__version__)
            raise NewcomerDiffers(f"w{self.id} cannot join: {why}")
        mine, fits = self._shared.signature(), self.fits.begun
        if not mine and not fits:
            return
        if why := self._shared.arithmetic().why_unlike(theirs.arithmetic):
            raise NewcomerDiffers(f"w{self.id} cannot join: {why}")
        self.fits.check(theirs.fits)
        if why := why_unfit(mine, theirs.signature, ALIKE_IN_FITS if fits else BUILT_BEFORE):
            raise NewcomerDiffers(f"w{self.id} cannot join: {why}")

    def leave_data_to_script(self, state: ScriptState, entered: Callable[[], None]) -> None:
        """Let the script keep its own place in its data; edl only shares its state."""
        if self.checkpointing.saves:
            raise UsageError(
                "edl.checkpoint saves the place in edl's own data loader; a script with an "
                "elastic state keeps its own checkpoints"
            )
        if self.replica is not None:
            raise UsageError(
                "this script has an edl.Optimizer and an elastic state; a job trains with one"
            )
        if (policy := self.follows()) is not None and any(policy.of_script):
            raise UsageError(
                "the policy has a [batch] or a [learning_rate], which edl's data loader and "
                "edl.Optimizer follow; a script with an elastic state reads its own data, so leave "
                "these tables out"
            )
        if self.loader.progress.attached:
            raise UsageError(
                "this script has an edl data loader and a Horovod elastic state; a job has one "
                "of them: loader.epochs(n) with edl.Optimizer, or elastic.run with an elastic "
                "state and the framework's own loader"
            )
        self.steps, progress = self.script, self.script.progress
        progress.enter(self.loader.progress.members)
        self._switching.progress = self.checkpointing.progress = progress
        self._switching.replica = self._saved_check.replica = state
        self._switching.on_enter = entered
        self._switching.roll_call = lambda: self.script.roll_call(self.finished)

    # --- between two steps ---

    def exchange(self, values: Sequence[float], apart: bool = False) -> list[list[float]]:
        """Send `values` to all workers; return a list for each worker, in rank order.

        With `apart` some may call it at other steps than the others: a list for each that calls.
        """
        return unpacked(self.exchange_bytes(packed(values), alike=True, apart=apart))

    def exchange_bytes(
        self, payload: bytes, alike: bool = False, apart: bool = False
    ) -> list[bytes]:
        """Send `payload` to all workers; return the payloads of all in rank order."""
        if self.finished:
            raise UsageError(f"{OUT_OF_PLACE}: all epochs are trained")
        return self.steps.exchange(payload, alike, apart)

    def log_event(self, details: Details, reason: str) -> None:
        """Add an event to the job's event log, with its `details` and a `reason` for people."""
        if self.rank == 0:
            self._shared.log(Event(time.time(), self.generation, self.step, reason, details))

    def _switched(self, old_size: int, new_size: int) -> None:
        """Begin to time steps in a new ring, and call the callbacks of `on_resize`."""
        self.steps.entered()
        for callback in self._on_resize:
            callback(old_size, new_size)
