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

import time
from collections.abc import Callable, Sequence

from edl import failpoints
from edl.config import Config
from edl.core.events import Details, Event
from edl.core.host.process import STOPPED_EXIT
from edl.core.job.signature import ALIKE_IN_FITS, BUILT_BEFORE, Arithmetic, Signature, why_unfit
from edl.core.job.state_share import StateShare
from edl.core.policy.file import PolicyFile
from edl.core.records import Leader
from edl.core.sizes import Sizes
from edl.core.step.source import Source
from edl.core.step.step_record import SwitchTimes
from edl.errors import NewcomerDiffers, UsageError
from edl.ring.ring import Ring
from edl.worker.checkpointing import Checkpointing
from edl.worker.coordinator import Coordinator
from edl.worker.exchange import OUT_OF_PLACE, packed, unpacked
from edl.worker.finishing import Finishing
from edl.worker.fits import FitProgress
from edl.worker.loader_progress import LoaderProgress
from edl.worker.loader_steps import LoaderSteps
from edl.worker.replica import Replica, ScriptState
from edl.worker.script_progress import ScriptProgress
from edl.worker.script_state_check import ScriptStateCheck
from edl.worker.script_steps import ScriptSteps
from edl.worker.shared_state import SharedState
from edl.worker.size_request import SizeRequest
from edl.worker.state_check import StateCheck
from edl.worker.steps import WorkerSteps
from edl.worker.stream_sampler import StreamReader
from edl.worker.switching import Switching

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
        self._shared.check()
        self._switching.between_steps(self._check.resync)  # first: a newcomer gets the right state
        target, self.steps.target = self.steps.target, None
        if target is not None and not self._is_of_another_fit(target):
            self.steps.log_switch_if_due()
            if self._let_leave(target):
                self._switching.switch(target)  # it ends the process of one that is no member
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
        """Raise an error if this newcomer's model or fits do not match the job's."""
        mine, fits = self._shared.signature(), self.fits.begun
        if not mine and not fits:
            return
        theirs = self._coordinator.script_of_job()
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

    def exchange(self, values: Sequence[float]) -> list[list[float]]:
        """Send `values` to all workers; return a list for each worker, in rank order."""
        return unpacked(self.exchange_bytes(packed(values), alike=True))

    def exchange_bytes(self, payload: bytes, alike: bool = False) -> list[bytes]:
        """Send `payload` to all workers; return the payloads of all in rank order."""
        if self.finished:
            raise UsageError(f"{OUT_OF_PLACE}: all epochs are trained")
        return self.steps.exchange(payload, alike)

    def log_event(self, details: Details, reason: str) -> None:
        """Add an event to the job's event log, with its `details` and a `reason` for people."""
        if self.rank == 0:
            self._shared.log(Event(time.time(), self.generation, self.step, reason, details))

    def _switched(self, old_size: int, new_size: int) -> None:
        """Begin to time steps in a new ring, and call the callbacks of `on_resize`."""
        self.steps.entered()
        for callback in self._on_resize:
            callback(old_size, new_size)
