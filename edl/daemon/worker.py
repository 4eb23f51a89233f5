"""The training thread's side of a worker: it steps, switches and synchronises.

A frameworks's API (``edl.torch``) calls it at four points of every step::

    boundary()      before a batch is handed out: a switch that all agreed on happens here
    begin_step()    the batch is handed out: this worker's step record goes out
    records()       before the update is applied: everybody's step records are in
    end_step()      the update is applied: the ledger moves, and all see whether to switch

Why a switch waits for the next batch instead of happening in ``end_step``: what the script does
after ``optimizer.step()`` (a scheduler's step, an evaluation at the end of the epoch) belongs to
the step, and a newcomer must receive the state that follows it (docs/adr/0002).

A newcomer's life: start() -> rehearse in a world of one -> join() -> the four points.
"""

from __future__ import annotations

import json
import logging
import statistics
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Protocol

from edl.config import Config
from edl.core.facts import Event, Generation, JobState, Leader, Seat, Stage
from edl.core.ledger import (
    LeasePolicy,
    Ledger,
    complete_step,
    give_back,
    grant,
    restore,
    start_epoch,
)
from edl.core.steprecord import StepRecord, agreed_generation, check
from edl.daemon import points
from edl.daemon.daemon import Daemon
from edl.daemon.mailbox import Mailbox, Progress
from edl.daemon.shard import Batch, Shard, Source
from edl.errors import (
    DataError,
    JobFailed,
    RendezvousFailed,
    RingBroken,
    RingError,
    UsageError,
)
from edl.ring import client
from edl.ring.ring import Collectives, Ring

logger = logging.getLogger(__name__)

MEDIAN_OF_STEPS = 50
IDLE = StepRecord(0, 0, 0, 0, 0, 0, 0, 0, 0)  # gives a barrier its shape
NO_STATE = -1  # the step that a worker reports which does not hold the job's state yet
PAUSE_S = 0.2  # between two rounds of records while too few workers are left
NEWS_SLICE_S = 1.0  # how often a waiting worker looks up
GO = "edl/go"  # key in a generation's rendezvous scope: its old members are switching now
GO_SLICE_S = 2.0  # how long a newcomer waits for it before it looks for a newer generation


class Receive(Enum):
    """What a worker takes of the state that the sync root sends."""

    NOTHING = "nothing"  # it has it already, and just takes part in the broadcast
    STEP = "step"  # it missed the last step: what a step changes, and nothing else
    ALL = "all"  # a newcomer


class Replica(Protocol):
    """The framework's copy of what all workers share: model, optimizer, tracked objects."""

    def synchronise(self, ring: Ring, root: int, receive: Receive) -> None:
        """Send (rank ``root``), or take over what ``receive`` says."""


@dataclass(frozen=True)
class SwitchTimes:
    """The parts of one worker's last switch, in microseconds (see the step record)."""

    wait_us: int = 0
    shutdown_us: int = 0
    init_us: int = 0
    broadcast_us: int = 0
    stall_us: int = 0
    first_step_us: int = 0
    median_us: int = 0


class Worker:
    """One worker of a job, or a job of one when no launcher started it. Not thread-safe."""

    def __init__(self, config: Config, collectives: Collectives) -> None:
        self._config = config
        self.ring = Ring(collectives, config.address)
        self._mailbox = Mailbox()
        self._daemon: Daemon | None = None
        self._seat = Seat(0, config.host, config.slot, config.address, 0)
        self._generation = Generation(0, 0, (self._seat,), 0, (), (), "a job of one worker")
        self._target: int | None = None
        self._synchronised = True
        self.rehearsing = False
        self._provisional_rank = 0  # while rehearsing: the rank it would get, never 0
        self._source: Source | None = None
        self._shard: Shard | None = None
        self._replica: Replica | None = None
        self._ledger: Ledger | None = None
        self.step = 0
        self._batch: Batch | None = None
        self._filler = False
        self._pending: Any = None
        self._records: tuple[StepRecord, ...] | None = None
        self.step_open = False
        self._began = self._ended = time.monotonic()
        self._compute_us = 0
        self._samples_total = 0
        self._durations: deque[float] = deque(maxlen=MEDIAN_OF_STEPS)
        self._times = SwitchTimes()
        self._steps_here = 0  # steps completed in this generation
        self._old_members: tuple[int, ...] = ()
        self._on_resize: list[Callable[[int, int], None]] = []
        self._finished = False
        self._superseded = False  # others completed the step that is open here
        self._has_state = False  # the job's, since the first time it was synchronised
        self._upcoming: Ledger | None = None  # of the epoch that the others have begun

    # --- life ---

    def start(self) -> None:
        """Take part in the job that the environment names; without one, be a job of one.

        Returns in the ring when the job is starting, and in a world of one, rehearsing, when
        the job is already training.

        Raises:
            ZooKeeperUnreachable, UnknownJob: see :meth:`edl.daemon.daemon.Daemon.start`.
            JobFailed: the job did not start in time.
        """
        if self._config.job is None:
            self.ring.build_alone()
            return
        self._daemon = Daemon(self._config, self._mailbox, self.ring)
        member, generation = self._daemon.start()
        self._seat = Seat(member.id, member.host, member.slot, member.address, member.port)
        if generation is None:
            generation = self._wait_for_start()
        if generation.rank_of(self.id) is None:
            self._start_rehearsal(generation)
            return
        # The first ring of a job; a failed attempt is followed by the next generation.
        try:
            self._enter(generation)
        except RingError as error:
            self._rejoin(generation.number, error)

    def _wait_for_start(self) -> Generation:
        assert self._daemon is not None
        self._daemon.stand_for_election()
        self._daemon.set_stage(Stage.READY)
        limit = 2 * self._config.start_timeout_s
        first = self._mailbox.wait_for_generation(0, time.monotonic() + limit)
        if first is None:
            state = self._mailbox.job_state
            raise JobFailed(
                f"the job ended before it began: it is {state}"
                if state.over
                else f"the job did not start within {limit:g} s; `edl status` says who is missing"
            )
        return first

    def _start_rehearsal(self, generation: Generation) -> None:
        assert self._daemon is not None
        self._daemon.set_stage(Stage.PREPARING)
        self._provisional_rank = max(1, len(generation.seats))
        self.rehearsing = True
        self.ring.build_alone()
        logger.info("w%d rehearses: the job trains in generation %d", self.id, generation.number)

    def join(self) -> None:
        """End the rehearsal and enter the ring with the job's state; returns at the top of a batch.

        Ends the process quietly (SystemExit 0) when the job ends or has no use for this worker.
        """
        daemon = self._daemon
        assert daemon is not None
        assert self.rehearsing
        self.abandon_step()
        points.reached("rehearsed")
        daemon.set_stage(Stage.READY)
        ready = time.monotonic()
        self.ring.close()
        failed = 0
        while True:
            generation = self._wait_for_seat(after=failed)
            began = time.monotonic()
            try:
                built, synchronised = self._enter(generation)
                break
            except RingError as error:
                failed = generation.number
                self._drop_ring(failed, error, step=NO_STATE)
        self.rehearsing = False
        self._times = SwitchTimes(
            wait_us=_us(began - ready),
            init_us=_us(built - began),
            broadcast_us=_us(synchronised - built),
            stall_us=_us(synchronised - began),
        )
        daemon.stand_for_election()

    def _wait_for_seat(self, after: int) -> Generation:
        """Wait for a generation that seats this newcomer and whose old members are switching."""
        assert self._daemon is not None
        while True:
            newest = self._mailbox.wait_for_generation(after, slice_s=NEWS_SLICE_S)
            if self._mailbox.job_state.over or (newest is not None and not newest.seats):
                self.exit("the job ended before this worker joined")
            if newest is None:
                continue
            if newest.rank_of(self.id) is None:
                # The others go on without it; it is a newcomer like any other again.
                after = newest.number
                self._daemon.set_stage(Stage.READY, 0)
            elif newest.repairs or self._heard_go(newest):
                return newest

    def _heard_go(self, generation: Generation) -> bool:
        """Whether the old members of ``generation`` say that they are switching now."""
        root = generation.seats[0]
        path = client.rendezvous_path(root.port, generation.scope, GO)
        try:
            status, _ = client.fetch(root.address, root.port, path, timeout_s=GO_SLICE_S)
        except (RingError, OSError):
            time.sleep(0.05)
            return False
        return status == 200

    def close(self) -> None:
        """Leave ring and coordination for good. Idempotent."""
        self.ring.close()
        if self._daemon is not None:
            self._daemon.close()

    def exit(self, reason: str) -> None:
        """End this process with success, for ``reason``."""
        logger.info("w%d ends: %s", self.id, reason)
        self.close()
        raise SystemExit(0)

    def request_leave(self) -> None:
        """Called by the SIGTERM handler: leave at the next switch, or now if not in the ring."""
        if self._daemon is None or self.rehearsing or self.generation == 0:
            raise SystemExit(0)
        if not self._finished:  # else it is about to end anyway, and may be saving its result
            self._daemon.leave_requested = True

    # --- who and where ---

    @property
    def id(self) -> int:
        return self._seat.id

    @property
    def rank(self) -> int:
        return self._provisional_rank if self.rehearsing else self.ring.place.rank

    @property
    def size(self) -> int:
        return self._provisional_rank + 1 if self.rehearsing else self.ring.place.size

    @property
    def local_rank(self) -> int:
        return self._config.slot

    @property
    def generation(self) -> int:
        return self._generation.number

    @property
    def leader(self) -> Leader:
        known = self._daemon.leader if self._daemon is not None else None
        return known or Leader(0, self.id)

    def on_resize(self, callback: Callable[[int, int], None]) -> None:
        """Call ``callback(old_size, new_size)`` after each switch."""
        self._on_resize.append(callback)

    # --- data ---

    def attach_source(self, source: Source) -> None:
        """Declare what is trained on.

        Raises:
            DataError: it is empty.
            UsageError: there is a source already.
        """
        if self._source is not None:
            raise UsageError(
                "this script has two edl data loaders; a job trains on one (use the framework's "
                "own loader for evaluation)"
            )
        self._source, self._shard = source, Shard(source, self.id)
        self._ledger = self._granted(start_epoch(source.total, 0))
        self._shard.enter(0)

    def attach_replica(self, replica: Replica) -> None:
        if self._replica is not None:
            raise UsageError("this script has two edl.Optimizers; a job trains with one")
        self._replica = replica

    @property
    def ledger(self) -> Ledger:
        if self._ledger is None:
            raise UsageError("create an edl.DataLoader before training")
        return self._ledger

    @property
    def shard(self) -> Shard:
        if self._shard is None:
            raise UsageError("create an edl.DataLoader before training")
        return self._shard

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
        assert self._source is not None
        self.abandon_step()
        if self._upcoming is not None:
            self._ledger, self._upcoming = self._upcoming, None
        else:
            self._ledger = self._granted(start_epoch(self._source.total, self.epoch + 1))
        self.shard.enter(self.epoch)

    def finish(self) -> None:
        """The script has trained all its epochs."""
        self._finished = True
        if self._daemon is None:
            return
        if self._steps_here == 1:
            self._log_switch(self._records or ())
        self._finish_together()
        points.reached("finish")
        reason = f"trained {self.step} steps"
        self._daemon.end_job(JobState.FINISHED, reason)
        self._daemon.set_stage(Stage.FINISHED)
        if self.rank == 0:
            self._log("finished", reason)
        self._daemon.flush(5.0)

    def _finish_together(self) -> None:
        """Wait until all have completed the last step: who missed it needs somebody who has it."""
        while True:
            try:
                self.ring.barrier(IDLE)
                return
            except RingBroken as error:
                try:
                    self._rejoin(self.generation, error)
                except JobFailed:
                    if self._mailbox.job_state is JobState.FINISHED:
                        return  # the others are through
                    raise

    # --- a step ---

    def boundary(self) -> None:
        """Between two steps: switch if all agreed to, take over or send the state if it is due.

        Ends the process quietly (SystemExit 0) when the new generation has no seat for it.
        """
        points.reached("boundary")
        if self._target is not None:
            target, self._target = self._target, None
            self._switch(self._mailbox.generation(target))
        while not self._synchronised:
            try:
                self._synchronise(self._generation)
                self._synchronised = True
            except RingError as error:
                self._rejoin(self.generation, error)
        self._wait_for_min_np()

    def begin_step(self, batch: Batch, filler: bool = False) -> None:
        """A batch is handed out. A ``filler`` takes part with no samples."""
        assert not self.step_open
        self.step_open = True
        self._batch, self._filler, self._records = batch, filler, None
        self._began = time.monotonic()
        if not self.rehearsing:
            self._send_record()
            points.reached("step")

    def _send_record(self) -> None:
        """Send this worker's row; that the ring is broken may only show in :meth:`records`."""
        assert self._batch is not None
        self._records = None
        samples, position = (0, -1) if self._filler else (self._batch.samples, self._batch.position)
        try:
            self._pending = self.ring.start_record(self._record(samples, position))
        except RingBroken as error:
            self._pending = error

    def _record(self, samples: int, position: int) -> StepRecord:
        newest = self._mailbox.newest(self.generation)
        return StepRecord(
            generation=self.generation,
            step=self.step,
            worker=self.id,
            epoch=self.epoch,
            samples=samples,
            position=position,
            wanted=self.shard.wanted(self.ledger),
            known=newest.number if newest is not None else self.generation,
            ledger=self.ledger.digest(),
            compute_us=self._compute_us,
            **vars(self._times),
        )

    @property
    def samples(self) -> int:
        """How many samples this worker contributes to the step."""
        return 0 if self._filler or self._batch is None else self._batch.samples

    @property
    def batch_size(self) -> int:
        """The nominal batch size of one worker."""
        assert self._source is not None
        return self._source.batch_size

    def records(self) -> tuple[StepRecord, ...]:
        """Everybody's step records, in rank order; waits for them.

        Raises:
            RingBroken: a worker is gone.
            RingError: the workers are not in the same step.
        """
        if self._records is None:
            self._compute_us = _us(time.monotonic() - self._began)
            points.reached("records")
            if isinstance(self._pending, RingBroken):
                raise self._pending
            self._records = self.ring.finish_record(self._pending)
            self._pending = None
            check(self._records)
        return self._records

    def end_step(self) -> None:
        """The update is applied: move the ledger, and see whether to switch before the next."""
        if not self.step_open:
            return
        self.step_open = False
        if self.rehearsing:
            return
        if self._superseded:  # the others completed this step; their state counts it already
            self._superseded = False
            self._report()
            return
        points.reached("applied")
        records = self.records()
        self._ledger = complete_step(self.ledger, records, self._policy)
        self._forget_batch()
        self.step += 1
        self._steps_here += 1
        self._samples_total += sum(record.samples for record in records)
        self._target, reason = agreed_generation(records)
        if self._target is not None:
            logger.info("after step %d: %s", self.step, reason)
        self._time_step()
        if self._steps_here == 2:
            self._log_switch(records)
        self._report()

    def _forget_batch(self) -> None:
        """The batch is in the model; the next one is formed after it."""
        if not self._filler and self._batch is not None:
            self.shard.trained(self._batch)
        self._batch, self._filler = None, False

    def abandon_step(self) -> None:
        """Forget a batch that was handed out and never trained (the script left its loop)."""
        self.step_open = False
        self._batch = self._pending = None

    def _time_step(self) -> None:
        now = time.monotonic()
        if self._steps_here == 1:
            self._times = replace(self._times, first_step_us=_us(now - self._began))
        else:
            self._durations.append(now - self._ended)
        self._ended = now

    def _report(self) -> None:
        ledger = self.ledger
        self._mailbox.report(
            Progress(
                generation=self.generation,
                size=self.size,
                step=self.step,
                epoch=ledger.epoch,
                epoch_done=ledger.done,
                epoch_total=ledger.total,
                samples_total=self._samples_total,
                median_step_s=self._median_step_s(),
                updated_at=self._ended,
            )
        )

    def _median_step_s(self) -> float:
        return statistics.median(self._durations) if self._durations else 0.0

    # --- a switch ---

    def _switch(self, generation: Generation) -> None:
        """Move from this ring to the next, together with all its old members."""
        old_size, began = self.size, time.monotonic()
        median_us = _us(self._median_step_s())
        if self._steps_here == 1:
            self._log_switch(self._records or ())
        try:
            self.ring.barrier(IDLE)
            arrived = time.monotonic()
            points.reached("agreed")
            if generation.rank_of(self.id) is None:
                self._leave(generation)
            if generation.joined and self.id == generation.sync_root:
                self._say_go(generation)
            self.ring.close()
            closed = time.monotonic()
            points.reached("closed")
            built, synchronised = self._enter(generation)
        except RingError as error:
            self._rejoin(generation.number, error)
            return
        self._times = SwitchTimes(
            wait_us=_us(arrived - began),
            shutdown_us=_us(closed - arrived),
            init_us=_us(built - closed),
            broadcast_us=_us(synchronised - built),
            stall_us=_us(time.monotonic() - began),
            median_us=median_us,
        )
        for callback in self._on_resize:
            callback(old_size, self.size)

    def _leave(self, generation: Generation) -> None:
        why = "the job stops" if not generation.seats else "it left the job"
        self.exit(f"{why} after step {self.step} ({generation.reason})")

    def _say_go(self, generation: Generation) -> None:
        """Tell newcomers that the old members are on their way into the new ring."""
        root = generation.seats[0]
        path = client.rendezvous_path(root.port, generation.scope, GO)
        try:
            client.put(root.address, root.port, path, b"go", self._config.connect_timeout_s)
        except ConnectionRefusedError as error:
            raise RendezvousFailed(generation.number, f"w{root.id} is gone: {error}") from error

    def _enter(self, generation: Generation) -> tuple[float, float]:
        """Build the ring of ``generation`` and bring its newcomers to the job's state."""
        rank = generation.rank_of(self.id)
        assert rank is not None
        points.reached("build")
        self.ring.build(generation, rank)
        built = time.monotonic()
        points.reached("built")
        self._adopt(generation)
        if generation.joined or generation.repairs:
            if self._replica is None:  # the script is still in edl.init(), on every member
                self._synchronised = False
            else:
                self._synchronise(generation)
        return built, time.monotonic()

    def _adopt(self, generation: Generation) -> None:
        """This worker is in ``generation`` now: move its ledger along and say so."""
        self._old_members = tuple(w for w in generation.members if w not in generation.joined)
        self._generation = generation
        self._steps_here = 0
        if self._ledger is not None and not self._ledger.finished:
            # What the others have left is free again; nobody may start with empty hands.
            self._ledger = self._granted(give_back(self._ledger, generation.members))
        if self._daemon is not None:
            self._daemon.set_stage(Stage.ACTIVE, generation.number)

    def _synchronise(self, generation: Generation) -> None:
        """Send the job's state from the sync root to those who joined or are behind.

        After a repair everybody takes the root's ledger: the others may have come to different
        ones on the way. Who missed the last step takes the model that includes it; what belongs
        to the script's place in its loop (schedulers, the epoch) stays its own.
        """
        if self._replica is None:
            raise UsageError("create an edl.Optimizer before the first batch")
        root = generation.rank_of(generation.sync_root)
        assert root is not None
        assert self._source is not None
        sending = self.id == generation.sync_root
        mine = {"step": self.step, "ledger": self.ledger.snapshot()}
        header = json.loads(self.ring.broadcast(json.dumps(mine).encode(), root, "edl.header"))
        points.reached("broadcast")
        ledger = restore(header["ledger"])
        if ledger.total != self._source.total:
            raise DataError(
                f"the dataset of w{self.id} has {self._source.total} samples and the job's "
                f"{ledger.total}; every worker must load the same data"
            )
        behind = self.id in generation.joined and not sending
        receive = Receive.NOTHING
        if behind:
            receive = Receive.STEP if self._has_state else Receive.ALL
        if generation.joined:
            self._replica.synchronise(self.ring, root, receive)
        if receive is Receive.ALL:
            self.shard.enter(ledger.epoch)
        if receive is Receive.STEP:
            assert self.step_open
            assert int(header["step"]) == self.step + 1
            self._superseded = True
            self._forget_batch()
            if ledger.epoch > self.epoch:
                # The root has left this epoch already. End it here too, then go on with it.
                self._upcoming, ledger = ledger, replace(self.ledger, free=(), leases=())
        if not self.shard.agrees_with(ledger):
            # It held leases of a generation that never came to be. What it has loaded from them
            # is somebody else's now.
            self.shard.enter(ledger.epoch)
            self._filler = True
        self.step, self._ledger, self._has_state = int(header["step"]), ledger, True

    def recover(self, error: RingError) -> bool:
        """The ring broke during a step: go on with the survivors.

        Returns:
            True when others had completed the step: their state is in the model now, and this
            worker's gradients are part of it. False when the step has to be completed with the
            gradients that the survivors still hold; the step record is on its way again.

        Raises:
            WorkerEvicted, JobFailed: this worker or the job cannot go on.
        """
        self._rejoin(self.generation, error)
        if not self._superseded:
            self._send_record()
        return self._superseded

    def _rejoin(self, failed: int, error: RingError) -> None:
        """A ring broke or could not be built: report it and enter the one that repairs it."""
        if self._daemon is None:
            raise error
        began = time.monotonic()
        old_size = self.size
        while True:
            failed = max(failed, self.generation)
            self._drop_ring(failed, error, self.step if self._has_state else NO_STATE)
            generation = self._wait_for_repair(failed, error)
            if generation.rank_of(self.id) is None:
                self._leave(generation)
            repaired = time.monotonic()
            try:
                built, synchronised = self._enter(generation)
                break
            except RingError as again:
                failed, error = generation.number, again
        self._target = None
        self._times = SwitchTimes(
            wait_us=_us(repaired - began),
            init_us=_us(built - repaired),
            broadcast_us=_us(synchronised - built),
            stall_us=_us(time.monotonic() - began),
            median_us=_us(self._median_step_s()),
        )
        for callback in self._on_resize:
            callback(old_size, self.size)

    def _drop_ring(self, generation: int, error: RingError, step: int) -> None:
        """Leave a ring that failed, let all others in it fail too, and report it."""
        assert self._daemon is not None
        logger.warning("w%d: %s", self.id, error)
        self.ring.break_()
        self._daemon.report_broken(generation, step)
        self.ring.close()

    def _wait_for_repair(self, failed: int, error: RingError) -> Generation:
        """The generation that the leader makes of the survivors."""
        limit = self._config.switch_timeout_s
        found = self._mailbox.wait_for_generation(failed, time.monotonic() + limit, repairs=True)
        if found is None:
            raise JobFailed(
                f"no leader has repaired generation {failed} within {limit:g} s ({error}); "
                "`edl status` says what it waits for"
            ) from error
        return found

    def _wait_for_min_np(self) -> None:
        """Pause while fewer workers than min_np are left, until replacements have joined.

        The records go round meanwhile: they carry the agreement to switch, and show who dies.
        """
        if self._daemon is None or self.size >= self._daemon.min_np:
            return
        limit, min_np = self._config.elastic_timeout_s, self._daemon.min_np
        deadline = time.monotonic() + limit
        logger.warning("paused: %d workers are left and min_np is %d", self.size, min_np)
        while self.size < min_np:
            try:
                handle = self.ring.start_record(self._record(samples=0, position=-1))
                target, _ = agreed_generation(self.ring.finish_record(handle))
            except RingBroken as error:
                self._rejoin(self.generation, error)
                continue
            if target is not None:
                self._switch(self._mailbox.generation(target))
            elif time.monotonic() > deadline:
                raise JobFailed(
                    f"{self.size} workers are left, min_np is {min_np}, and nobody joined within "
                    f"{limit:g} s; add a host with `edl join`, or raise --elastic-timeout"
                )
            else:
                self._mailbox.wait_for_generation(self.generation, slice_s=PAUSE_S)

    # --- telling ---

    def _log_switch(self, records: tuple[StepRecord, ...]) -> None:
        """Rank 0 logs a switch once its parts are known to all."""
        if self._daemon is None or self.rank != 0 or not records:
            return
        if records[0].generation != self.generation or records[0].stall_us == 0:
            return
        workers = {
            f"w{r.worker}": {
                "role": "old" if r.worker in self._old_members else "new",
                "wait_s": r.wait_us / 1e6,
                "shutdown_s": r.shutdown_us / 1e6,
                "init_s": r.init_us / 1e6,
                "broadcast_s": r.broadcast_us / 1e6,
                "stall_s": r.stall_us / 1e6,
                "first_step_s": r.first_step_us / 1e6,
                "median_step_s": r.median_us / 1e6,
            }
            for r in records
        }
        self._log("switch", self._generation.reason, workers=workers, world_size=self.size)

    def _log(self, kind: str, reason: str, **details: object) -> None:
        step = self.step - self._steps_here if kind == "switch" else self.step
        self._mailbox.log(Event(time.time(), kind, self.generation, step, reason, details))

    def _granted(self, ledger: Ledger) -> Ledger:
        """``ledger`` with every member of this generation holding what it needs to start with."""
        assert self._source is not None
        needs = [
            (w, max(0, self._source.need - ledger.held_samples(w)))
            for w in self._generation.members
        ]
        return grant(ledger, needs, self._policy)

    @property
    def _policy(self) -> LeasePolicy:
        assert self._source is not None
        return LeasePolicy(self._source.batch_size, self._config.lease_batches)


def _us(seconds: float) -> int:
    return round(seconds * 1e6)
