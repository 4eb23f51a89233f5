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
    """One worker of a job, as its training thread uses it. Not thread-safe.

    ``edl.init()`` creates it, one in each worker process.

    Attributes:
        ring: the connection to the other workers that was given to the constructor.
        loader: this worker's steps on the batches of edl's loader.
        script: this worker's steps if the script keeps its own place in its data.
        steps: the one of ``loader`` and ``script`` that this script uses; ``loader`` until
            :meth:`leave_data_to_script`.
        checkpointing: saves and resumes the job, and ends it when it fails.
        replica: the state that is shared; None until the script has declared it.
        size_request: asks the script how many workers more, or fewer, it wants.
        policy: this worker's access to the job's policy and scaling profile.
        follows: returns the job's policy, even while that is switched off, or, if the job has none,
            the policy that the script proposes.
        local_rank: the slot of this worker on its host.
        same_random: whether the random numbers in the training thread are the same on all workers,
            because they come from the script's seeds.
        finishing: ends this worker's training.
        learning: samples of the loss and the learning rate, for the job's learning curve.
        fits: the record of the fits (calls of Keras' ``fit``) that the script has done.

    Args:
        config: the configuration of this process.
        ring: the connection to the other workers, over which gradients are exchanged; not built
            yet.
        shared: the state that the training thread shares with the daemon's threads.
        coordinator: connects this worker with the other processes of its job.
    """

    def __init__(
        self, config: Config, ring: Ring, shared: SharedState, coordinator: Coordinator
    ) -> None:
        self.ring = ring
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
        self.steps: WorkerSteps = self.loader
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
        self.replica: Replica | None = None
        self._on_resize: list[Callable[[int, int], None]] = []
        self._on_leave: list[Callable[[frozenset[int]], None]] = []

    # --- life ---

    def start(self) -> None:
        """Join the job that the environment names, or begin a job of one worker if it names none.

        If the job is just starting, this worker is in its ring afterwards. If the job is already
        training, this worker is alone in a ring of one afterwards, to warm up.

        Raises:
            ZooKeeperUnreachable: ZooKeeper does not answer.
            UnknownJob: ZooKeeper does not have the job.
            JobFailed: the job did not start within twice its start_timeout_s, or has ended before.
        """
        self._switching.start()

    def join(self) -> None:
        """End the warm-up, enter the ring, and take over the job's state.

        Afterwards the worker is between two steps. The process ends with success (SystemExit 0) if
        the job ends, or goes on without this worker, before it has joined.

        Raises:
            NewcomerDiffers: this worker's model differs from the job's.
            FitIsDone: the job is in a later call of ``fit``. This worker warms up, as before.
        """
        self.loader.progress.abandon()
        self._check_script()
        failpoints.reached("warmed_up")
        generation = self._switching.join()
        self.steps.joined()
        # The state that came is older than the others' callbacks, which may have changed theirs.
        self._switched(len(generation.previous), self.size)

    def begin(self) -> None:
        """Begin training: get the job's state, load it from a checkpoint, or start afresh.

        It is called when the script has built its model and data loader. After this the epoch and
        the step are those of the job. Nothing happens if this worker has got the state before, as
        in :meth:`join`.

        Raises:
            FitIsDone: the job was resumed from a checkpoint of a later call of ``fit``.
        """
        self._switching.synchronise_if_due()

    def boundary(self) -> None:
        """Do what is due between two steps: resync, switch, exchange the state, pause, save.

        All workers of the ring call it at the same point. In this order:

        1. If the job resyncs, workers with another state than most get the state that most hold; so
           a newcomer gets the right state.
        2. If all have agreed to switch to a generation, this worker moves to it; newcomers get the
           state. The process ends with success (SystemExit 0) if the worker is no member of that
           generation.
        3. If the script has given a function that says how many workers it wants
           (``edl.on_interval``), and its interval is over, that function is called.
        4. With fewer workers than min_np, all wait for newcomers.
        5. If a checkpoint is due, rank 0 saves it, or each worker a part of it.

        Raises:
            StateDiffers: the states differ, and no majority holds the same state.
            JobFailed: the job has ended, or nobody joined while too few workers were left.
            WorkerEvicted: this worker was evicted. A worker that is alone in its ring sees this
                only here.
        """
        failpoints.reached("boundary")
        self._shared.check()
        self._switching.between_steps(self._check.resync)
        target, self.steps.target = self.steps.target, None
        if target is not None and not self._is_of_another_fit(target):
            self.steps.log_switch_if_due()
            if self._let_leave(target):
                self._switching.switch(target)
        self._switching.synchronise_if_due()
        if not self.warming_up:
            self.size_request.look()  # after the switch, which drops an answer
        self._switching.wait_for_min_np(self.steps.idle_record)
        share = StateShare(self.rank, self.size)
        parts, self.steps.saves_parts_in = self.steps.saves_parts_in, -1
        self.checkpointing.save_if_due(share, self.generation, parts=parts == self.generation)

    def close(self) -> None:
        """Leave the ring and the job for good; a second call does nothing.

        If a checkpoint is being written, the call waits for it.
        """
        self.ring.close()
        if not self.finished:
            self._coordinator.resign()  # no worker has to wait until the checkpoint is written
        self.checkpointing.wait_for_writes()
        self._coordinator.close()

    def request_leave(self, own: Callable[[], object] | None = None) -> None:
        """Request to leave the job at the next switch, or end this process at once (SystemExit 0).

        The handler of a signal calls it. The process ends at once outside of a ring of the job, as
        in the warm-up. The only worker of a job without a launcher ends at once if the job saves no
        checkpoints; otherwise it saves one at the next :meth:`boundary` and ends there. If the
        script has trained to its end, nothing is requested while the last checkpoint is written.
        Then the script goes on, as with an evaluation: a launcher ends it if it does not end by
        itself, and without one it ends at once, with the code of a stopped job (143).

        Args:
            own: calls the script's own handler, which decides where a job of one would end at once.
        """
        self.finishing.told_to_leave = True
        shared, outside = self.is_shared, self.warming_up or self._switching.generation is None
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
        """Whether this worker has ended its training because the job was stopped.

        A job is stopped by `edl stop`, or by a signal to `edl run`; not because all is trained.
        """
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
        """The number of the job's logical workers (its setting ``logical``); 0: it has none."""
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
        """The number of updates that the job has made, by all its workers together.

        In a script that keeps its own place in its data it is the number of saves of its state.
        """
        return self.steps.progress.steps_made

    def _is_of_another_fit(self, target: int) -> bool:
        """Return whether the newcomers of a generation were ready for another fit than the present.

        Then nobody switches to it. The result is False if it has no newcomers. ``target`` is the
        number of the generation; a fit is one call of Keras' ``fit``.
        """
        generation = self._shared.generation(target)
        return bool(generation.joined) and generation.fits != self.steps.progress.fits_done

    def _let_leave(self, target: int) -> bool:
        """Call the callbacks of :meth:`on_leave`, if workers leave with the switch to ``target``.

        If all workers leave, because the job ends, no callback is called. ``target`` is the number
        of the next generation. All old workers are in the ring still, so the callbacks may exchange
        messages with those that leave.

        Returns:
            Whether the ring is still the same; False: it broke meanwhile, and its repair replaces
            the switch.
        """
        number, staying = self.generation, self._shared.generation(target).worker_ids
        leaving = frozenset(self.loader.progress.members) - {*staying}
        for callback in self._on_leave if leaving and staying else ():
            callback(leaving)
        return self.generation == number

    # --- what the script declares ---

    def on_trained(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` once, after the first step of this worker in a ring of the job.

        It replaces an earlier callback. The training thread calls it; in a job without a launcher
        it is never called.
        """
        self.loader.on_trained = self.script.on_trained = callback

    def on_resize(self, callback: Callable[[int, int], None]) -> None:
        """Call ``callback(old_size, new_size)`` after each switch, repair and join of this worker.

        The sizes are the numbers of workers in the ring. The training thread calls all callbacks
        that were given, in the order in which they were given.
        """
        self._on_resize.append(callback)

    def on_leave(self, callback: Callable[[frozenset[int]], None]) -> None:
        """Call ``callback(ids)`` on all workers of the ring before the workers ``ids`` leave it.

        It is called before a planned switch only, not after a crash or at the end of the job. The
        training thread calls all callbacks that were given, in the order in which they were given.
        The workers may exchange messages in a callback.
        """
        self._on_leave.append(callback)

    def on_event(self, callback: Callable[[Event], None]) -> None:
        """Call ``callback`` with each event that this worker logs; it replaces an earlier callback.

        The thread that logs the event calls it: the training thread, or the one that writes a
        checkpoint.
        """
        self._shared.on_event = callback

    def attach_source(self, source: Source, reader: StreamReader | None = None) -> None:
        """Declare the data that the job trains on; ``reader`` reads ``source`` if it is a stream.

        Raises:
            DataError: the source is empty.
            UsageError: there is a source already, the script keeps its own place in its data, or
                it has trained to its end before.
        """
        if self.steps is self.script:
            raise UsageError(
                "create no edl data loader beside an elastic state; the script reads its own data"
            )
        self.check_trains()
        self.loader.progress.attach(source, self.id, reader)

    def check_trains(self) -> None:
        """Raise an error if the script is not allowed to begin another training in this job.

        Raises:
            UsageError: the script has trained to its end before.
        """
        if self.finished:
            raise UsageError(OVER)

    def attach_replica(
        self, replica: Replica, before_join: Callable[[], None] = lambda: None
    ) -> None:
        """Set the state that all workers share: the model, the optimizer and tracked objects.

        Args:
            replica: the framework's access to the state in this process.
            before_join: called in a newcomer that is warm, before it waits for its first ring; it
                may prepare to receive the state, while the other workers train.

        Raises:
            UsageError: a state was declared already.
        """
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
        """Let newcomers ask for the signature of this worker's model: the shapes of its tensors.

        ``signature`` returns it by the tensors' names; other threads than the training thread call
        it. A second call replaces it.
        """
        self._shared.signature = signature

    def describe_arithmetic(self, arithmetic: Callable[[], Arithmetic]) -> None:
        """Let newcomers ask what the last bits of this worker's results depend on.

        It matters in a job with logical workers. Other threads call ``arithmetic``.
        """
        self._shared.arithmetic = arithmetic

    def show_epoch(self, epoch: int) -> None:
        """Let newcomers ask which epoch an unchanged script trains, by the script's own number."""
        self._shared.epoch = epoch

    def epoch_of_job(self) -> int | None:
        """Return the epoch that another worker's script trains, as it was given to show_epoch().

        The call asks one worker of the ring after the other, and waits. The result is None if none
        answers, or no script has shown an epoch.
        """
        return self._coordinator.script_of_job().epoch

    def exchange_before_training(self, number: int, payload: bytes) -> list[bytes] | None:
        """Send a message of an unchanged script, and wait for those of all other workers.

        A newcomer gets the messages that the job's workers have sent before their training.

        Args:
            number: the number of the exchange in the script, from 0.
            payload: the message of this worker.

        Returns:
            The messages in rank order; None if the job trains, and has not made this exchange.

        Raises:
            JobFailed: some messages have not come in time, or the job has ended.
            UsageError: the messages of the job are too large, or the job was removed.
            WorkerEvicted: the leader has evicted this worker, or its job is gone.
            CoordinationError: ZooKeeper is still away after ``elastic_timeout_s``.
        """
        return self._coordinator.exchange_before_training(number, payload)

    def _check_script(self) -> None:
        """Raise an error if this newcomer's model or fits do not match the job's.

        It asks a worker in the ring, and waits for the answer; nothing happens if none answers. A
        fit is one call of Keras' ``fit``.

        Raises:
            NewcomerDiffers: the models cannot share a state, or would compute other bits.
            FitIsDone: the job has done the fit in which this worker is.
        """
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
        """Let the script keep its own place in its data; edl only shares its state.

        Args:
            state: the state that all workers share, which newcomers receive.
            entered: called in each new ring, before the state is exchanged there.

        Raises:
            UsageError: the script uses edl's own loader, optimizer or checkpoints as well, or a
                policy that needs them.
        """
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
        """Send ``values`` to all workers; return a list for each worker, in rank order.

        All workers call it between two steps, at the same point of the script, and each waits for
        all. The answer is the same on all, even if some workers die.

        Raises:
            UsageError: a worker has sent more numbers than another, or the call is not between two
                steps of the training.
            RingBroken: a worker is gone, in a script that keeps its own place in its data.
            WorkerEvicted, JobFailed: this worker or the job cannot go on.
        """
        return unpacked(self.exchange_bytes(packed(values), alike=True))

    def exchange_bytes(self, payload: bytes, alike: bool = False) -> list[bytes]:
        """Send ``payload`` to all workers; return the payloads of all in rank order.

        All workers call it between two steps, at the same point of the script, and each waits for
        all. The sizes of the payloads may differ, if not ``alike``. The answer is the same on all
        workers, even if some die meanwhile: if one of the survivors had the answer, then all get
        it, with what the dead workers have sent; otherwise the survivors send their payloads again.
        While this worker warms up, and in a job of one, the answer is its own payload.

        In a script that keeps its own place in its data, RingBroken is raised when a worker dies.

        Raises:
            UsageError: the call is in the midst of a step, before training has begun, or after its
                end.
            RingBroken: a worker is gone, in a script that keeps its own place in its data.
            WorkerEvicted, JobFailed: this worker or the job cannot go on.
        """
        if self.finished:
            raise UsageError(f"{OUT_OF_PLACE}: all epochs are trained")
        return self.steps.exchange(payload, alike)

    def log_event(self, details: Details, reason: str) -> None:
        """Add an event to the job's event log, with its ``details`` and a ``reason`` for people.

        All workers call it with the same event; on all but rank 0 nothing happens. The call does
        not wait: rank 0's daemon writes the event later.
        """
        if self.rank == 0:
            self._shared.log(Event(time.time(), self.generation, self.step, reason, details))

    def _switched(self, old_size: int, new_size: int) -> None:
        """Begin to time steps in a new ring, and call the callbacks of :meth:`on_resize`.

        ``old_size`` and ``new_size`` are the numbers of workers before and after.
        """
        self.steps.entered()
        for callback in self._on_resize:
            callback(old_size, new_size)
