"""Move a worker from one ring to the next: agreed switches, joins, and repairs after a crash.

:class:`Switching` does that. Rules that make it safe:

1. A planned switch happens between two steps that all old members agree on through their step
   records, and only when all of them have arrived there (a row of each in the old ring).
2. A worker whose ring broke cuts the ring, so that the others fail too, reports what it has
   completed, and then accepts only a generation that *repairs*: one that was made from reports.
3. After a repair all workers take over the progress of the state source, which has completed as
   much as any survivor. A worker that missed the last step takes the model that includes the step,
   and a worker that missed the last exchange takes its result.
4. A newcomer holds no state until it has received it once. If its first ring breaks before, the
   others need not wait for it, and it waits for a generation again, as a newcomer.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import compress
from typing import NoReturn

from edl import failpoints
from edl.config import Config
from edl.errors import (
    JobFailed,
    JobTrained,
    MismatchedEnd,
    NewcomerDiffers,
    RendezvousFailed,
    RingBroken,
    RingError,
    UsageError,
)
from edl.job.run import HALTED_EXIT
from edl.job.script import FitIsDone, ScriptFits, ended_before
from edl.job.state_share import WHOLE_STATE, StateShare
from edl.records import Generation, JobState, RingFailure, RingMember, Stage
from edl.ring.ring import Ring, split_bytes
from edl.step.record import (
    StepRecord,
    StepRecords,
    SwitchTimes,
    agreed_generation,
    repair_times,
    us,
)
from edl.step.state_check import APART, find_mismatch, why_apart
from edl.text import workers
from edl.worker.activity import ends, waits
from edl.worker.checkpointing import Checkpointing
from edl.worker.coordinator import Coordinator
from edl.worker.mismatch import end_mismatch
from edl.worker.progress import Receive, Shared, TrainingProgress
from edl.worker.shared_state import SharedState

logger = logging.getLogger(__name__)


# ------------------------------------------------------------
# Let a newcomer wait, warmed up, until a generation of the job has it as a member.
#
# `Newcomer` does that. A fit is one call of Keras' `fit`; a script *passes over* a fit when it
# calls `fit` for one that the job has done, which returns without training.


NEWS_SLICE_S = 1.0  # after so long a waiting worker looks at other news


class Newcomer:
    """The wait of one worker for its first generation; it runs in the training thread."""

    def __init__(
        self,
        shared: SharedState,
        ring: Ring,
        progress: TrainingProgress,
        coordinator: Coordinator,
        exit: Callable[[str], NoReturn],
    ) -> None:
        self._shared = shared
        self._ring = ring
        self._progress = progress
        self._coordinator = coordinator
        self._exit = exit  # ends the process, for a reason
        # from the first worker in the ring that answers; no fits if none does
        self.fits_of_job: Callable[[], ScriptFits] = ScriptFits

    @waits("waiting for the others to switch")
    def wait_for_membership(self, worker: int, fits: int, after: int = 0) -> Generation:
        """Wait for a generation with this newcomer, whose ring the old members enter now."""

        def ready() -> None:
            self._coordinator.set_stage(Stage.READY, 0, newest_generation=after, fits=fits)

        if after:  # else the leader would take this worker to be stuck
            ready()
        while True:
            newest = self._shared.wait_for_generation(after, slice_s=NEWS_SLICE_S)
            if self._shared.job_state.over or (newest is not None and not newest.members):
                self._exit("the job ended before this worker joined")
            if newest is None:
                self.look_for_a_later_fit(worker)
                continue
            is_member = newest.rank_of(worker) is not None
            is_member &= newest.repairs or newest.fits == fits  # else the others do not enter it
            if is_member and (newest.repairs or self._ring.wait_for_announcement(newest)):
                return newest
            if is_member:
                self.look_for_a_later_fit(worker)
            if not is_member or newest.state_source in self._shared.evicted:
                # The others go on without this worker, or no state source will announce the switch
                # to it: it is a newcomer like any other again.
                after = newest.number
                ready()

    def look_for_a_later_fit(self, worker: int) -> None:
        """Raise an error if the job is in a later fit than this newcomer."""
        mine = self._shared.fits
        if not mine.begun:  # the script has no fits
            return
        theirs = self.fits_of_job()
        if mine.begun == len(mine.done) < theirs.begun:
            raise NewcomerDiffers(ended_before(worker, mine.begun, theirs.begun))
        if len(theirs.done) > self._progress.fits_done:
            self._coordinator.set_stage(Stage.PREPARING, fits=len(theirs.done))
            raise FitIsDone(theirs.done)


# ------------------------------------------------------------
# Wait for the generation that repairs a broken ring, and end a job whose rings break for ever.
#
# `Repairs` does that; when repairs are in vain, `RepairCount` decides.


class Repairs:
    """Lets the training thread wait for repairs of its rings, which one object counts."""

    def __init__(
        self,
        shared: SharedState,
        coordinator: Coordinator,
        checkpointing: Checkpointing,
        progress: Callable[[], TrainingProgress],
    ) -> None:
        self._shared = shared
        self._now_s = shared.clock.now_s
        self._coordinator = coordinator
        self._checkpointing = checkpointing
        self._progress = progress
        self._count: RepairCount | None = None  # the settings are known when the job is

    def wait(self, worker: int, failed: int, error: RingError) -> Generation:
        """Wait until the leader has published the generation that repairs a ring, and return it."""
        settings = self._coordinator.settings
        # A leader waits repair_timeout_s for workers that are not proven dead. Another leader gets
        # the same time again, but three times this time is the end in any case.
        limit = settings.repair_timeout_s + settings.switch_timeout_s
        began = now = self._now_s()
        while now - max(began, self._shared.led_since) < limit and now - began < 3 * limit:
            found = self._shared.wait_for_generation(failed, slice_s=NEWS_SLICE_S, repairs=True)
            if found is not None:
                self._check(found, worker, error)
                return found
            if self._shared.job_state.over:
                raise self.over() from error
            now = self._now_s()
        away = "ZooKeeper is away, so " if self._coordinator.away else ""
        raise JobFailed(
            f"{away}no leader has repaired generation {failed} within {now - began:.0f} s "
            f"({error}); `edl status` says what it waits for"
        ) from error

    def over(self) -> JobFailed:
        """Return the error that other workers have ended the job; its message says how."""
        return JobFailed(f"the job {self._shared.job_end}")

    def _check(self, generation: Generation, worker: int, error: RingError) -> None:
        """Count the repair by `generation`; end the job if repairs are in vain."""
        if not generation.members:  # the job stops
            return
        if self._count is None:
            self._count = RepairCount(self._coordinator.settings.elastic_timeout_s)
        progress = self._progress()
        reason = self._count.why_in_vain(
            generation.worker_ids,
            (progress.step, progress.exchanges, progress.leaves),
            is_built=not isinstance(error, RendezvousFailed),
            reason=short_error(getattr(error, "detail", str(error))),
            now_s=self._now_s(),
        )
        if not reason:
            return
        try:
            # The worker whose state the repair would go on from saves a last checkpoint.
            self._checkpointing.fail_together(reason, int(worker != generation.state_source))
        except JobFailed as failed:
            raise failed from error


NO_STATE = -1  # reported as the step of a worker that does not hold the job's state yet
PAUSE_S = 0.2  # between two rounds of records while too few workers are left


class Switching:
    """The moves of one worker through the generations of its job, in the training thread."""

    def __init__(
        self,
        config: Config,
        shared: SharedState,
        ring: Ring,
        progress: TrainingProgress,
        coordinator: Coordinator,
        checkpointing: Checkpointing,
    ) -> None:
        self._shared = shared
        self._now_s = shared.clock.now_s
        self._ring = ring
        self.progress = progress
        self._coordinator = coordinator
        self._checkpointing = checkpointing
        self.warming_up = False  # a newcomer trains its warm-up batch alone, before it joins
        self._expected_rank = 0
        self._opens_host = False  # as a newcomer, before others of its host
        self._member = RingMember(-1, config.host, config.slot, config.own_address, 0)
        self._synchronised = True
        self._begins = False  # no worker had the job's state in this ring
        self._repaired_at = -1  # the job's step when its ring was repaired last
        self._warmed_up = False  # the model has trained a warm-up batch
        self._repairs = Repairs(shared, coordinator, checkpointing, lambda: self.progress)
        # the shared state; None until the script has declared it
        self.replica: Shared | None = None
        self.generation: Generation | None = None  # None: it has been in no ring of the job
        self.began_with = 1  # workers of the job's first ring
        self.stopped = False  # this worker has left its ring because the job was told to end
        self.times = SwitchTimes()  # of the last switch or repair
        self.median_step_us: Callable[[], int] = lambda: 0
        # with the old and the new number of workers, after each switch or repair
        self.on_switch: Callable[[int, int], None] = lambda _old, _new: None
        self.before_join: Callable[[], None] = lambda: None  # a newcomer is warm, and waits now
        self.on_enter: Callable[[], None] = lambda: None  # in each new ring, before the exchange
        self.roll_call: Callable[[], None] = lambda: None  # in a repaired ring
        self._has_been_apart = False  # workers exchange numbers at steps of their own
        self.newcomer = Newcomer(shared, ring, progress, coordinator, self.exit)

    # --- into the first ring ---

    def start(self) -> None:
        """Register this worker, and enter the first ring of a job that is just starting."""
        member, generation = self._coordinator.start()
        self._member = RingMember(member.id, member.host, member.slot, member.address, member.port)
        if generation is None:
            generation = self._wait_for_start()
        self.began_with = max(1, generation.began_with or len(generation.members))
        if generation.rank_of(self.worker) is None:
            self._coordinator.set_stage(Stage.PREPARING)
            self.warming_up, self._expected_rank = True, max(1, len(generation.members))
            hosts = {each.host for each in generation.members}
            self._opens_host = member.slot == 0 and member.host not in hosts
            self._ring.build_alone()
            logger.info("w%d warms up: the job is in %s", self.worker, generation.number)
            return
        began = self._now_s()
        try:
            self._enter(generation)
        except RingError as error:
            self.repair(error, began, generation.number)

    @property
    def expected_rank(self) -> int:
        """The rank that a newcomer would get, above 0; 0 for all but a newcomer that warms up."""
        return self._expected_rank if self.warming_up and self.generation is None else 0

    @property
    def is_first_of_host(self) -> bool:
        """Whether it has the lowest rank on its host; for a newcomer: whether it is alone there."""
        return self._opens_host if self.warming_up else self._ring.place.local_rank == 0

    def _wait_for_start(self) -> Generation:
        """Wait as a candidate for leader until the first generation is announced; return it."""
        self._coordinator.campaign()
        self._coordinator.set_stage(Stage.READY)
        limit = 2 * self._coordinator.settings.start_timeout_s
        first = self._shared.wait_for_generation(0, self._now_s() + limit)
        if first is None:
            state = self._shared.job_state
            raise JobFailed(
                f"the job ended before it began: it {state.phrase}"
                if state.over
                else f"the job did not start within {limit:g} s; `edl status` says who is missing"
            )
        return first

    def join(self) -> Generation:
        """Enter the ring of a job that trains, take over its state, and return the generation."""
        assert self.warming_up
        self._warmed_up = True
        self.before_join()
        # If all that held the state are dead, newcomers have to lead the restart of the job.
        self._coordinator.campaign()
        ready = self._now_s()
        self._ring.close()
        failed = 0
        while True:
            try:
                generation = self.newcomer.wait_for_membership(
                    self.worker, self.progress.fits_done, after=failed
                )
            except FitIsDone:
                self._ring.build_alone()
                raise
            began = self._now_s()
            try:
                built, synchronised = self._enter(generation)
                break
            except RingError as error:
                failed = generation.number
                self._drop_ring(failed, error)
        self.times = SwitchTimes(
            wait_us=us(began - ready),
            init_us=us(built - began),
            broadcast_us=us(synchronised - built),
            stall_us=us(synchronised - began),
        )
        self.warming_up = False
        self.progress.joined = self.progress.step + 1
        # Below min_np nobody can train to the end of the epoch: a second time does not help.
        self.progress.joined_inside = not (self.progress.begins_epoch or generation.at_epochs)
        return generation

    def wait_for_end(self) -> None:
        """Wait for the job's end, then exit: this newcomer has passed over all its fits."""
        self.newcomer.look_for_a_later_fit(self.worker)
        mine = self._shared.fits
        # No generation comes: the others are in no such fit.
        self.newcomer.wait_for_membership(self.worker, mine.begun + 1)
        raise NewcomerDiffers(ended_before(self.worker, mine.begun, mine.begun + 1))

    # --- between two steps ---

    @waits("waiting for the others before a switch")
    def _meet(self, record: Callable[[], StepRecord]) -> None:
        """Wait until all workers of the ring are between the same two steps."""
        # By rows, as some may exchange numbers apart on their way here, and wait for ours.
        while not self.check_point(
            records := self._ring.finish_record(self._ring.start_record(record()))
        ):
            self.sit_out(records)

    def switch(self, number: int, record: Callable[[], StepRecord]) -> None:
        """Move to the generation with this number, on which all workers of the ring have agreed."""
        generation = self._shared.generation(number)
        old_size, median_us, began = self._ring.place.size, self.median_step_us(), self._now_s()
        try:
            self._meet(record)
            arrived = self._now_s()
            failpoints.reached("agreed")
            if generation.rank_of(self.worker) is None:
                self._leave(generation)
            if generation.joined and self.worker == generation.state_source:
                self._ring.announce_switch(generation)
            self._ring.close()
            closed = self._now_s()
            failpoints.reached("closed")
            built, synchronised = self._enter(generation)
        except RingError as error:
            # A worker that goes on after a failed end ends, too: the end is known already.
            self.repair(error, began, generation.number if generation.members else 0)
            return
        self.times = SwitchTimes(
            wait_us=us(arrived - began),
            shutdown_us=us(closed - arrived),
            init_us=us(built - closed),
            broadcast_us=us(synchronised - built),
            stall_us=us(self._now_s() - began),
            median_step_us=median_us,
        )
        self.on_switch(old_size, self._ring.place.size)

    def synchronise_if_due(self) -> None:
        """Exchange the state, if that was put off until the script has built its model."""
        while not self._synchronised:
            assert self.generation is not None
            began = self._now_s()
            try:
                self._synchronised = self._synchronise(self.generation)
            except RingError as error:
                self.repair(error, began)
            if not self._synchronised and (ahead := self.progress.later_fits):
                raise FitIsDone(ahead)

    def between_steps(self, act: Callable[[], None]) -> None:
        """Call `act`, in which all workers take part; repair the ring if it breaks meanwhile."""
        began = self._now_s()
        try:
            act()
        except RingBroken as error:
            self.repair(error, began)

    def wait_for_min_np(self, record: Callable[[], StepRecord]) -> None:
        """Pause while fewer workers than min_np are left, until replacements have joined."""
        if not self._pauses():
            return
        settings, min_np = self._coordinator.settings, self._coordinator.sizes.min_np
        limit = settings.elastic_timeout_s
        deadline = self._now_s() + limit
        logger.warning("paused: %d workers left, min_np is %d", self._ring.place.size, min_np)
        while self._pauses():
            began = self._now_s()
            try:
                # By records without samples they agree on a switch, and notice a death.
                records = self._ring.finish_record(self._ring.start_record(record()))
                if not self.check_point(records):
                    self.sit_out(records)
                    continue
            except RingBroken as error:
                self.repair(error, began)
                continue
            target, _ = agreed_generation(records)
            if target is not None:
                self.switch(target, record)
            elif self._shared.job_state.over:
                raise self._repairs.over()
            elif self._ring.place.rank == 0 and self._now_s() > deadline:
                self._checkpointing.save_last()
                size = self._ring.place.size
                self._checkpointing.fail(
                    f"only {workers(size)} left, min_np is {min_np}, and nobody joined within "
                    f"{limit:g} s; add a host with `edl join`, or raise --elastic-timeout"
                )
            else:
                self._shared.wait_for_generation(records[0].generation, slice_s=PAUSE_S)

    def _pauses(self) -> bool:
        """Return whether all members of this ring, which are between two steps now, must pause."""
        if self._ring.place.size >= self._coordinator.sizes.min_np:
            return False
        # After a repair some may be in a step, and would wait for gradients of those that pause.
        return self.progress.may_pause(self._repaired_at)

    @property
    def is_in_ring(self) -> bool:
        """Whether this worker has an open ring, perhaps a ring of one; False: it has left."""
        return self._ring.is_open

    @property
    def number(self) -> int:
        """The number of the present generation; 0 before the first ring, or without a launcher."""
        return 0 if self.generation is None else self.generation.number

    def check_point(self, records: StepRecords) -> bool:
        """Return whether all workers are at the same point of the script, or some exchange apart.

        Who then exchanges nothing calls `sit_out`, and sends its row again.
        """
        found = find_mismatch(records)
        if found is None:
            return True
        if not found.apart:
            try:
                end_mismatch(found, records, self._ring, self.progress)
            except MismatchedEnd as error:
                self._checkpointing.fail_together(str(error), self._ring.place.rank)
            except JobTrained:
                self._coordinator.set_stage(Stage.FINISHED)
                raise
        if not self._has_been_apart:
            self._has_been_apart = True
            if self._ring.place.rank == 0:
                logger.warning("%s", why_apart(records))
        return False

    def messages(self, records: StepRecords, payload: bytes, together: bool) -> list[bytes]:
        """Return the messages of all workers, or of those that exchange some apart, by rank."""
        answer = records.payloads()
        if answer is None:
            answer = self._ring.exchange(payload)
        calls = [together or bool(call & APART) for call in records.values("exchange")]
        self.progress.callers = () if together else tuple(compress(records.values("worker"), calls))
        return [*compress(answer, calls)]

    def sit_out(self, records: StepRecords) -> None:
        """Count an exchange that others make apart from this worker."""
        self.progress.exchanged(self.messages(records, b"", together=False))

    @ends
    def finish_together(
        self,
        record: Callable[[], StepRecord],
        compare: Callable[[StepRecords], None],
    ) -> StepRecords | None:
        """Wait at the end of training until all workers have completed the last step."""
        while True:
            began = self._now_s()
            try:
                row = record()
                records = self._ring.finish_record(self._ring.start_record(row))
                if not self.check_point(records):
                    self.sit_out(records)
                    continue
                compare(records)  # no later step would do so
                return records
            except RingBroken as error:
                if self._coordinator.released_from:  # the others train on, so this was not the end
                    self.progress.reopen()
                try:
                    self.repair(error, began)
                except JobFailed:
                    if self._shared.job_state is JobState.FINISHED:
                        return None  # the others have finished the job
                    raise

    # --- after a failure ---

    def repair(self, error: RingError, waiting_since: float, failed: int = 0) -> None:
        """Go on in a ring of the survivors, after a ring broke or could not be built."""
        began, old_size = self._now_s(), self._ring.place.size
        median_step_us, known = self.median_step_us(), began
        if self.generation is not None:
            failed = max(failed, self.generation.number)
        while True:
            self._drop_ring(failed, error)
            generation = self._repairs.wait(self.worker, failed, error)
            if generation.rank_of(self.worker) is None:
                self._leave(generation)
            heard, repaired = self._shared.announced_at, self._now_s()
            try:
                built, synchronised = self._enter(generation)
                break
            except RingError as again:
                failed, error = generation.number, again
                waiting_since, known = repaired, self._now_s()
        self.times = replace(
            repair_times(waiting_since, known, self._shared.led_since, heard),
            wait_us=us(repaired - began),
            init_us=us(built - repaired),
            broadcast_us=us(synchronised - built),
            stall_us=us(self._now_s() - began),
            median_step_us=median_step_us,
        )
        self.on_switch(old_size, self._ring.place.size)

    def _drop_ring(self, generation: int, error: RingError) -> None:
        """Leave a ring that failed, make all its other members fail too, and report the failure."""
        text, name = getattr(error, "detail", str(error)), f"w{self.worker}"
        logger.info("%s: ring %d is broken: %s", name, generation, short_error(text))
        logger.debug("%s: %s", name, text)
        failpoints.reached("broken")
        self._ring.break_()
        step = self.progress.step if self.progress.has_state else NO_STATE
        gone = getattr(error, "gone", ())
        self._coordinator.report_broken(replace(self._failure(generation, step, text), gone=gone))
        self._ring.close()
        failpoints.reached("reported")

    def _failure(self, generation: int, step: int, text: str) -> RingFailure:
        """Return a report: ring `generation` failed by `text` after `step` (-1: no state)."""
        current = self.generation
        members = current.members if current is not None and current.number == generation else ()
        blamed, made = blamed_rank(text, members, self._ring.place.rank), self.progress
        at, error = -1 if blamed is None else blamed, short_error(text)
        return RingFailure(generation, step, made.exchanges, error, at, made.leaves, made.at_epochs)

    # --- the parts of every change

    def _enter(self, generation: Generation) -> tuple[float, float]:
        """Build the ring of `generation`; return (when it was built, when the exchange ended)."""
        rank = generation.rank_of(self.worker)
        assert rank is not None
        failpoints.reached("build")
        self._ring.build(generation, rank)
        built = self._now_s()
        failpoints.reached("built")
        self.generation = generation
        self.progress.enter(generation.worker_ids, in_step=generation.repairs)
        self.on_enter()
        if generation.joined or generation.repairs:
            if self.replica is None:  # the script is still in edl.init(), on every member
                self._synchronised = False
            else:
                self._synchronised = self._synchronise(generation)  # in place of one that broke
        if generation.repairs:
            self._repaired_at = self.progress.step
            if self._synchronised:
                self.roll_call()
        synchronised = self._now_s()
        # Not before: the write keeps the daemons busy, on the processors that the exchange needs.
        self._coordinator.set_stage(Stage.ACTIVE, generation=generation.number)
        return built, synchronised

    def _synchronise(self, generation: Generation) -> bool:
        """Give members of `generation` the state source's progress, and the state they lack."""
        if self.replica is None and self._coordinator.is_shared:
            raise UsageError("create an edl.Optimizer before the first batch")
        root = generation.rank_of(generation.state_source)
        assert root is not None
        if self.worker == generation.state_source and not self.progress.has_state:
            self._begins = True
            self._checkpointing.begin(generation, self._warmed_up)
        if generation.joined and generation.previous and not generation.repairs:
            self.progress.joined_after = self.progress.step  # as its header tells all
        mine = json.dumps({**self.progress.header(), "begins": self._begins}).encode()
        header = json.loads(self._ring.broadcast(mine, root, "edl.header"))
        failpoints.reached("broadcast")
        if header["begins"] and self.progress.passes_over(header, self._ring.exchange):
            return False  # the state is a checkpoint of a later fit
        self._begins = False
        receive = Receive.NOTHING
        if self.worker in generation.joined and self.worker != generation.state_source:
            receive = Receive.STEP if self.progress.has_state else Receive.ALL
        if generation.joined and self.replica is not None:
            self.replica.synchronise(self._ring, root, receive)
        answer: list[bytes] = []
        if sizes := header.get("answer"):  # of an exchange that survivors may have missed
            mine = b"".join(self.progress.answer)
            answer = split_bytes(self._ring.broadcast(mine, root, "edl.answer"), sizes)
        self.progress.answer = answer
        self.progress.take_over(header, receive)
        return True

    def _leave(self, generation: Generation) -> NoReturn:
        """Leave the job and end the process: this worker is no member of `generation`."""
        self.stopped = not generation.members
        # After a break no worker knows which others are left: then each of them saves.
        place = self._ring.place
        share = StateShare(place.rank, place.size) if self._ring.is_open else WHOLE_STATE
        self._ring.close()
        if self.stopped:  # a worker that saves is not stuck, although it completes no step
            self._coordinator.set_stage(Stage.LEAVING)
            self._checkpointing.save_stopped(share, self._ring.generation)
        self._checkpointing.wait_for_writes()
        halts = self.stopped and self._shared.preemption is not None
        why = "the job stops" if self.stopped else "it left the job"
        why += f" after step {self.progress.step} ({generation.reason})"
        self.exit(why, HALTED_EXIT if halts else 0)

    def exit(self, reason: str, code: int = 0) -> NoReturn:
        """Leave ring and job, log `reason`, and end this process with the exit code `code`."""
        logger.info("w%d ends: %s", self.worker, reason)
        self._ring.close()
        self._coordinator.close()
        sys.exit(code)

    @property
    def worker(self) -> int:
        """The id of this worker; -1 before it is registered."""
        return self._member.id


# ------------------------------------------------------------
# Interpret how a ring broke, for messages, and decide when it is in vain to repair it again.
#
# Horovod's error is a line of C++ that names the failed neighbour by its address only, so its rank
# is a hint for people: whether a worker is dead is decided by proof (`edl.job.liveness`).


MAX_CHARS = 200
_SOURCE = re.compile(r"\[[^\]\s]*\.(?:cc|h):\d+\]\s*")
# Horovod's error on each worker of a ring that another worker has left, in 300 characters.
_SHUT_DOWN = "Horovod has been shut down. "
_ADDRESS = re.compile(r"\[([0-9a-fA-F.:]+)\]:\d+")


def short_error(text: str) -> str:
    """Return the first line of an error, without the names of source files, cut to `MAX_CHARS`."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    line = "another worker has left it" if line.startswith(_SHUT_DOWN) else _SOURCE.sub("", line)
    return line if len(line) <= MAX_CHARS else f"{line[: MAX_CHARS - 1]}…"


def blamed_rank(text: str, members: Sequence[RingMember], own_rank: int) -> int | None:
    named = set(_ADDRESS.findall(text))
    ranks = [rank for rank, s in enumerate(members) if rank != own_rank and s.address in named]
    return ranks[0] if len(ranks) == 1 else None


# ------------------------------------------------------------
# A repair helps if a worker has died, for the next ring lacks that worker. If the same workers
# break ring after ring at the same point, a collective of the script fails in each of them, or the
# network between two of the workers is cut.


MAX_REPAIRS = 10  # in a row, of the same workers at the same point of the training


class RepairCount:
    """The repairs in a row that one worker has seen without a death and without progress."""

    def __init__(self, cut_limit_s: float) -> None:
        # So long rings that cannot be built are repaired, however often: a network may come back.
        self._cut_limit_s = cut_limit_s
        self._last: object = None
        self._count = 0
        self._since_s = 0.0  # when the first of these was

    def why_in_vain(
        self,
        workers: tuple[int, ...],
        progress: tuple[int, int, int],  # steps, exchanges and leaves
        is_built: bool,  # the ring that broke had been built
        reason: str,
        now_s: float,
    ) -> str:
        """Count one more repair; return why the job is to end instead, or "" if it is to go on."""
        if (workers, progress) != self._last:
            self._last, self._count, self._since_s = (workers, progress), 0, now_s
        self._count += 1
        may_come_back = not is_built and now_s - self._since_s < self._cut_limit_s
        if self._count <= MAX_REPAIRS or may_come_back:
            return ""
        hint = "look for what keeps these workers from connecting to each other"
        if is_built:
            hint = "look for a collective of the script that fails in each ring, "
            hint += "as in a reset callback"
        return (
            f"the ring was repaired {self._count - 1} times after step {progress[0]} and broke "
            f"again each time, although no worker was lost: {reason}; {hint}"
        )
