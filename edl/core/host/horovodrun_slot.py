"""What `edl-worker` does next: it keeps one slot of a job that horovodrun started.

It stands between the driver of horovodrun and the training process, because the driver takes any
end of the process that it started for the end of something bigger: one that fails has its whole
host blacklisted, and one that succeeds ends the job. So the driver sees an end only when it is
one. The rules, in order:

1. The job is over: the worker ends by itself within a time limit, then it is ended; so does this.
2. The job is stopping: as in :mod:`edl.core.host.agent`.
3. The driver has taken the slot back, or this process was told to end: the worker leaves, and
   nothing is started again. Who was told gives up one slot of its host; the driver takes back the
   highest, so another one may go, and then this one starts again. A worker whose slot was taken
   back is taken out of the ring by the leader; who is in none, or was given up, is ended here.
   A process whose ssh has ended is a dead one to the driver: its worker leaves, and it ends too.
   On a host that the driver bars this process is gone before the driver kills it: that would be
   noticed some 5 s late, when the slot may be another process's, whose failure it then seems.
4. A script that fails before the job could begin, with nobody else there, has failed the job.
5. So has the last one of a ring that died, unless a checkpoint is there to go on from.
6. A worker that was given up, or that left ZooKeeper for long without ever training, is ended.
7. A worker that has ended is started again, with a back-off that grows with its failures; not
   while nobody is left of the ring who could give it the state. A slot that fails more often than
   that is given up: this process stays, for the driver would bar its host, and starts nothing any
   more. With fewer than ``min_np`` slots left the job has failed.

When another `edl-worker` has died, with its host or by kill -9, the driver knows, but acts only
when all others ask it to place the slots anew: then it bars the whole host. :func:`abandoned` finds
such slots and :func:`after_loss` says what is best.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from edl.core.host.agent import (
    ABSENT_S,
    FINISH_S,
    LOST_S,
    RESTARTS,
    SETTLE_S,
    STOP_S,
    Ending,
    Outcome,
    Start,
    ending_of,
    lingers,
    stop_limit,
    stuck,
)
from edl.core.host.process import BACKOFF_MAX_S, Process, exit_status, how, last_words
from edl.core.job.liveness import GONE
from edl.core.records import Job, JobState, Snapshot
from edl.core.sizes import Sizes

RELEASE_S = 30.0  # for the driver to take the slot back from a process that was told to end
BARRED_S = 3.0  # of the 5 s that the driver leaves to the processes of a host that it bars
UNSEEN_S = 10.0  # for the end of horovodrun to be seen by a process whose ssh ended with it
REMOVAL_S = 30.0  # for a removal to be complete before the driver may decide about the next
WISH_S = 15.0  # a wish that the driver has not carried out by then may have escaped it
ROUND_S = 60.0  # for the driver to answer who has asked, once the job is over
ABANDONED_S = 5.0  # a slot without its edl-worker for this long: that one is not just coming back
OVERDUE_S = 120.0  # a slot whose edl-worker has not come by then has none

Slots = Collection[tuple[str, int]]  # (host, number)


@dataclass(frozen=True)
class SlotState:
    """What `edl-worker` knows besides ZooKeeper. Times by its own clock."""

    slot: int
    process: Process | None  # the newest start of the script
    state_since: float  # since when the job has its present state
    removed: bool = False  # the driver has taken the slot back
    told: float | None = None  # since when this process has been told to end
    given_up: bool = False  # it was the driver itself that told it
    cut_off: bool = False  # its ssh has ended: the driver takes that for the end of this process
    lost_since: float | None = None  # since when nobody of the ring is in ZooKeeper
    backoff_max_s: float = BACKOFF_MAX_S
    script: str = "the script"
    stepped: float = 0.0  # when the job's step was last seen to change
    ended: frozenset[int] = frozenset()  # workers of which some edl-worker has told how they ended


@dataclass(frozen=True)
class SlotDecision:
    """What is done now. ``exit_code``: this process ends with it."""

    reason: str
    start: Start | None = None
    ending: Ending | None = None
    outcome: Outcome | None = None
    exit_code: int | None = None
    give_up: bool = False  # no worker is started in the slot any more, for ``reason``


def decide(snapshot: Snapshot, own: SlotState, now: float) -> SlotDecision:
    """The next act for one slot, or none, with the reason. ``now``: as the times in ``own``."""
    process = own.process
    living = process if process is not None and process.alive else None
    decision = _decide(snapshot, own, living, now)
    if decision.ending is None and living is not None and lingers(living):
        return replace(decision, ending=ending_of(living, now, ""))
    return decision


def _decide(snapshot: Snapshot, own: SlotState, living: Process | None, now: float) -> SlotDecision:
    job = snapshot.job
    if job.state.over:
        return _wind_down(snapshot, own, living, now)
    if job.state is JobState.STOPPING:
        return _stop(snapshot, own, living, now)
    if snapshot.generation is not None and not snapshot.generation.seats:
        return _end_with_the_ring(snapshot)
    if own.removed or own.cut_off or own.told is not None:
        return _leave(snapshot, own, living, now)
    outcome = _cannot_begin(snapshot, own) or _nobody_left(snapshot, own, now)
    if outcome is not None:
        return SlotDecision(outcome.reason, outcome=outcome)
    if living is not None:
        return _watch(snapshot, living, now)
    return _start(snapshot, own, now)


def ring_lost(snapshot: Snapshot, process: Process | None) -> bool:
    """Whether nobody of the present ring is in ZooKeeper, nor running here."""
    generation = snapshot.generation
    if generation is None or not generation.seats:
        return False
    here = process is not None and process.alive and process.worker in generation.members
    return not here and not any(m.id in generation.members for m in snapshot.members)


def removal_pending(snapshot: Snapshot) -> bool:
    """Whether a slot that the driver has taken back is still in use, or its edl-worker there.

    The driver must not decide again meanwhile: it could start a second process for that slot,
    and take the end of the first one for the end of the second.
    """
    used = {(one.host, one.slot) for one in snapshot.members}
    return bool((used | kept(snapshot)) - planned(snapshot))


def assigned(
    plan: Mapping[str, int], host: str, slot: int, local_size: int | None
) -> dict[str, int]:
    """The plan as the driver has it now: ``local_size`` slots of ``host``; None: not this one.

    A host that has lost all its slots has lost slot 0, too, whose process then says so.
    """
    workers = min(plan.get(host, 0), slot) if local_size is None else local_size
    return {**plan, host: workers}


def awaits_others(
    plan: Mapping[str, int], lowered: Mapping[str, int], wish: Mapping[str, int]
) -> bool:
    """Whether ``lowered`` lacks workers that the driver is about to start on other hosts.

    The ``wish`` has as many as before: they move. Their edl-workers say so in a moment, and only
    with them in the plan do those who go wait for those who come.
    """
    return sum(lowered.values()) < min(sum(plan.values()), sum(wish.values()))


def forgotten(
    plan: Mapping[str, int],
    wish: Mapping[str, int],
    barred: Collection[str],
    wished: float,
    answered: float,
    now: float,
) -> bool:
    """Whether the driver has missed the ``wish``, and has to be asked to place the slots anew.

    It may when its rank 0 starts just then. It has not, when it placed the slots later and gave
    others all the same: each further round would give these, and count for `--reset-limit`.

    Args:
        barred: hosts that it cannot use, whatever is wished.
        wished: since when this is the wish. Times by one clock, in seconds.
        answered: when it last placed the slots.
    """
    lacks = any(
        plan.get(host, 0) != wish.get(host, 0) for host in {*plan, *wish}.difference(barred)
    )
    return bool(wish) and lacks and answered - wished < WISH_S <= now - wished


class AfterLoss(Enum):
    """What is best when edl-workers have died; see :func:`after_loss`."""

    NOTHING = "nobody is lost"
    PLACE_ANEW = "the driver is asked to place the slots anew"
    WAIT = "the job goes on with fewer workers"
    HOLD = "the job goes on with fewer workers, and is not scaled: the driver would end it"


def abandoned(snapshot: Snapshot, seen: Slots) -> frozenset[tuple[str, int]]:
    """The slots of the plan whose edl-worker is gone. Who was never ``seen`` is to start yet."""
    return frozenset((planned(snapshot) & set(seen)) - kept(snapshot))


def planned(snapshot: Snapshot) -> frozenset[tuple[str, int]]:
    """The slots that the plan has."""
    return frozenset((host, n) for host, workers in snapshot.plan.items() for n in range(workers))


def kept(snapshot: Snapshot) -> frozenset[tuple[str, int]]:
    """The slots that have an edl-worker."""
    return frozenset((one.host, one.slot) for one in snapshot.slots)


def after_loss(plan: Mapping[str, int], sizes: Sizes, lost: Slots) -> AfterLoss:
    """Whether the driver should place the slots anew, when the edl-workers of ``lost`` have died.

    It bars their hosts. So it should when enough slots are left on the others, or when too few
    workers are left to train in any case. It must not when no host would be left: that ends a job
    which can still train.
    """
    if not lost:
        return AfterLoss.NOTHING
    barred = {host for host, _ in lost}
    left = sum(workers for host, workers in plan.items() if host not in barred)
    working = sum(plan.values()) - len(lost)
    if sizes.enough(left) or not sizes.enough(working):
        return AfterLoss.PLACE_ANEW
    return AfterLoss.WAIT if left else AfterLoss.HOLD


def may_ask(state: JobState, runs: bool, done: bool, fatal: bool) -> bool:
    """Whether a slot may ask the driver for its new rank, which it does once all have asked.

    Not after the job while its script ``runs``, and saves or evaluates: the driver would end it.
    Before, not until its last answer is ``done``, nor where it would be :func:`fatal
    <would_end_the_job>`.
    """
    return not runs if state.over else done and not fatal


def would_end_the_job(
    best: AfterLoss, wish: Mapping[str, int], barred: Collection[str], sizes: Sizes
) -> bool:
    """Whether the driver would end a job that trains, if it were asked to place the slots anew.

    It bars the hosts of lost slots, and then waits for ``min_np`` slots on others, with all who
    have asked. Without a ``wish`` nobody knows here what it would find.
    """
    if best is AfterLoss.WAIT and wish:
        return not sizes.enough(sum(n for host, n in wish.items() if host not in barred))
    return best is AfterLoss.HOLD


def without_barred(plan: Mapping[str, int], lost: Slots, size: int) -> dict[str, int]:
    """The plan without the hosts that have only ``lost`` slots and which the driver has barred.

    ``size``: how many slots it uses. The others have that many, or the hosts may still be used.
    """
    gone = {h for h, n in plan.items() if n and {(h, slot) for slot in range(n)} <= {*lost}}
    rest = {host: workers for host, workers in plan.items() if host not in gone}
    return rest if sum(rest.values()) >= size else dict(plan)


def released(wish: Mapping[str, int], host: str, sizes: Sizes) -> dict[str, int]:
    """The wish with a worker less on ``host``, if the job may have that many."""
    if not wish.get(host) or not sizes.allows(sum(wish.values()) - 1):
        return dict(wish)
    return {**wish, host: wish[host] - 1}


def last_round(job: Job, slot: int, answers: bool, lost: str, waited: float) -> SlotDecision:
    """What to do at the end of the job while the driver waits until every slot has asked it.

    The driver counts a question and a success of the same slot as two slots', so that the end of
    the job would be lost on it; a failure takes the place of the question. So who has asked stays
    until it is answered, which ssh of a lost host may put off, and who cannot ask again fails.

    Args:
        answers: the driver has not left a question of ``slot`` without an answer.
        lost: the slots whose edl-workers have died, in words.
        waited: for how long this has been so, in seconds.
    """
    over = f"job {job.name} is {job.state}"
    if waited < ROUND_S:
        return SlotDecision(f"{over}, and the driver of horovodrun places the slots anew")
    if not answers:
        reason = f"{over}, but the driver of horovodrun has not answered slot {slot}"
        return SlotDecision(f"{reason}; it ends with an error, or all would wait", exit_code=1)
    whom = f"{lost}, whose edl-worker has died" if lost else "an edl-worker that does not ask it"
    return SlotDecision(
        f"{over}, but horovodrun waits for {whom}. If its host is lost, ssh has not "
        "noticed: end horovodrun by Ctrl-C, and set ServerAliveInterval in ~/.ssh/config"
    )


def _wind_down(
    snapshot: Snapshot, own: SlotState, living: Process | None, now: float
) -> SlotDecision:
    job = snapshot.job
    reason = f"job {job.name} is {job.state}"
    if living is None:
        code = job.exit_code if job.state is JobState.FAILED else 0
        last = own.process
        if job.state is JobState.FINISHED and last is not None:
            code = exit_status(last.exit_code or 1) if last.failed_late(own.state_since) else 0
        return SlotDecision(reason, exit_code=code)
    limit = {JobState.FAILED: 0.0, JobState.FINISHED: FINISH_S}.get(job.state, STOP_S)
    if now - own.state_since >= limit or not living.seated:
        return SlotDecision(reason, ending=ending_of(living, now, reason))
    return SlotDecision(f"{reason}; {living.name} still runs")


def _stop(snapshot: Snapshot, own: SlotState, living: Process | None, now: float) -> SlotDecision:
    reason = snapshot.job.reason or "the job is asked to stop"
    if living is None:
        stopped = Outcome(JobState.STOPPED, reason) if not snapshot.members else None
        return SlotDecision(reason, outcome=stopped)
    waited = now - own.state_since
    patience = stop_limit(snapshot.job)
    quiet = now - max(own.stepped, own.state_since)
    if snapshot.generation is not None and stuck(snapshot, [living], quiet):
        why = f"the job stops and no step has completed for {quiet:.0f} s"
        return SlotDecision(reason, ending=Ending(living.launch, True, why))
    if snapshot.generation is None or living.worker is None or waited >= patience:
        return SlotDecision(reason, ending=ending_of(living, now, reason))
    return SlotDecision(reason)


def _end_with_the_ring(snapshot: Snapshot) -> SlotDecision:
    """The last generation has no seats: the job has stopped when all have left."""
    assert snapshot.generation is not None
    reason = snapshot.generation.reason
    stopped = None if snapshot.members else Outcome(JobState.STOPPED, reason)
    return SlotDecision(reason, outcome=stopped)


def _leave(snapshot: Snapshot, own: SlotState, living: Process | None, now: float) -> SlotDecision:
    if own.cut_off and not own.removed:
        return _leave_unseen(snapshot, own, living, now)
    reason = f"the driver has taken back slot {own.slot}" if own.removed else "edl-worker is to end"
    if living is not None:
        if own.removed and (not living.seated or living.worker in snapshot.evicted):
            return SlotDecision(reason, ending=ending_of(living, now, reason))
        if own.told is None:  # the leader takes it out of the ring: its slot is beyond the plan
            return SlotDecision(reason)
        patience_s = BARRED_S if own.removed and own.given_up else RELEASE_S
        return SlotDecision(reason, ending=ending_of(living, now, reason, patience_s))
    if own.removed:
        return SlotDecision(reason, exit_code=0)
    if own.told is not None and now - own.told >= RELEASE_S:
        return SlotDecision(
            f"{reason}, and the driver did not take back slot {own.slot}", exit_code=1
        )
    return SlotDecision(f"{reason}; waiting for the driver to take back slot {own.slot}")


def _leave_unseen(
    snapshot: Snapshot, own: SlotState, living: Process | None, now: float
) -> SlotDecision:
    """Leave as a process that has ended, for the driver; the last one has to say so of the job.

    horovodrun itself may be about to end, which is the end of the job, and takes a moment to see.
    """
    reason = "its ssh has ended, and so has this process for the driver"
    if living is not None:
        return SlotDecision(reason, ending=ending_of(living, now, reason, RELEASE_S))
    ended = (own.process.exited if own.process is not None else None) or 0.0
    if len(snapshot.slots) > 1 and now - ended >= UNSEEN_S:
        return SlotDecision(reason, exit_code=1)
    if now - ended >= RELEASE_S:
        reason = f"the ssh of slot {own.slot} has ended, and no other edl-worker is left"
        return SlotDecision(reason, outcome=Outcome(JobState.FAILED, reason, 1))
    return SlotDecision(f"{reason}; waiting for the end of horovodrun")


def _cannot_begin(snapshot: Snapshot, own: SlotState) -> Outcome | None:
    """FAILED, when the first start of the script shows that it cannot work."""
    process = own.process
    if snapshot.generation is not None or process is None or process.alive:
        return None
    if process.exit_code == 0 and process.worker is None:
        return Outcome(JobState.FAILED, f"{own.script} ended without calling edl.init()", 1)
    if process.failed and not snapshot.members:
        code = process.exit_code or 1
        reason = f"{own.script} {how(code)} before joining the job; {last_words(process)}"
        return Outcome(JobState.FAILED, reason, exit_status(code))
    return None


def _nobody_left(snapshot: Snapshot, own: SlotState, now: float) -> Outcome | None:
    """FAILED, when the whole ring has died and there is nothing to go on from."""
    process, job = own.process, snapshot.job
    if not _all_dead(snapshot, own, now) or process is None or process.alive:
        return None
    code = process.exit_code or 0
    if job.saved_step < 0:
        why = "there is no checkpoint to resume from (edl.checkpoint)"
    elif code > 0 and process.failed and process.seated:
        why = "the script's own error would come again"
    elif process.failures_now > RESTARTS:
        why = f"slot {own.slot} failed {process.failures_now} times in a row"
    else:
        return None
    reason = f"all workers died, {process.name} {how(code)}; {why}"
    return Outcome(JobState.FAILED, reason, exit_status(code or 1))


def _watch(snapshot: Snapshot, living: Process, now: float) -> SlotDecision:
    evicted = snapshot.evicted.get(living.worker) if living.worker is not None else None
    if evicted is not None:
        return SlotDecision(evicted, ending=ending_of(living, now, evicted))
    if not living.seated and living.absent is not None and now - living.absent >= ABSENT_S:
        reason = f"it left ZooKeeper {ABSENT_S:g} s ago"
        return SlotDecision(reason, ending=ending_of(living, now, reason))
    return SlotDecision(f"{living.name} runs")


def _start(snapshot: Snapshot, own: SlotState, now: float) -> SlotDecision:
    last = own.process
    if last is None:
        return SlotDecision("the driver wants it", Start(own.slot, 0, "the driver wants it"))
    if last.used_up:
        return SlotDecision(f"slot {own.slot} was given up")
    if own.lost_since is not None and not _all_dead(snapshot, own, now):
        return SlotDecision("nobody of the ring is in ZooKeeper")
    if last.uses_up(snapshot.job.spec.settings.max_restarts):
        return _give_up(snapshot, own, last)
    told = f"{last.name} {how(last.exit_code or 0)}"
    pause = last.pause_s(own.backoff_max_s) or SETTLE_S
    if now < (last.exited or 0.0) + pause:
        return SlotDecision(f"{told}; a pause before the next start")
    reason = f"{told} and the driver wants a worker"
    return SlotDecision(reason, Start(own.slot, last.failures_now, reason))


def _give_up(snapshot: Snapshot, own: SlotState, last: Process) -> SlotDecision:
    """Go on without this slot, or end the job that cannot."""
    job = snapshot.job
    code = last.exit_code or 0
    what = f"slot {own.slot} failed {last.failures_now} times in a row"
    how_often = f"EDL_MAX_RESTARTS is {job.spec.settings.max_restarts}"
    story = f"{last.name} {how(code)}; {last_words(last)}"
    unused = {(one.host, one.slot) for one in snapshot.slots if one.given_up}
    if job.sizes.enough(len(planned(snapshot) - unused) - 1):
        return SlotDecision(f"{what} and is given up ({how_often}): {story}", give_up=True)
    reason = f"{what} ({how_often}), and without it fewer than {job.sizes.min_np} are left: {story}"
    return SlotDecision(reason, outcome=Outcome(JobState.FAILED, reason, exit_status(code or 1)))


def _all_dead(snapshot: Snapshot, own: SlotState, now: float) -> bool:
    """Whether the whole ring, of which nobody is in ZooKeeper, is dead.

    How each has ended was told, or the leader had proof of it; or they are away for so long.
    """
    members = snapshot.generation.members if snapshot.generation else ()
    gone = {worker for worker, reason in snapshot.evicted.items() if reason.startswith(GONE)}
    lost = own.lost_since is not None
    return lost and (own.ended | gone >= {*members} or now - (own.lost_since or 0.0) >= LOST_S)
