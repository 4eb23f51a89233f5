"""What `edl-worker` does next: it keeps one slot of a job that horovodrun started.

It stands between the driver of horovodrun and the training process, because the driver takes any
end of the process that it started for the end of something bigger: one that fails has its whole
host blacklisted, and one that succeeds ends the job. So the driver sees an end only when it is
one. The rules, in order:

1. The end of the job: :mod:`edl.core.host.job_end`. When nothing is left to do this process ends.
2. The driver has taken the slot back, or this process was asked to end: the worker leaves, and
   nothing is started again. A process that was asked gives back one slot of its host; the driver
   takes back the highest, so another one may go, and then this one starts again. The leader takes a
   worker whose slot was taken back out of the ring; a worker that is in no ring, or was evicted, is
   ended here.
   A process whose ssh has ended is a dead one to the driver: its worker leaves, and it ends too.
   On a host that the driver bars this process is gone before the driver kills it: that would be
   noticed some 5 s late, when the slot may be another process's, whose failure it then seems.
3. A job that cannot begin, or has nobody left: :mod:`edl.core.host.job_end`.
4. A worker that cannot stay in the job is ended (:mod:`edl.core.host.restart_policy`).
5. A worker that has ended is started again, with a back-off that grows with its failures; not
   while nobody of the ring is in ZooKeeper who could give it the state. A slot that fails more
   often than that is disabled: this process stays, for the driver would bar its host, and starts
   nothing any more. With fewer than ``min_np`` slots left the job has failed.

When another `edl-worker` has died, with its host or by kill -9, the driver knows, but acts only
when all others ask it to place the slots anew: then it bars the whole host. :func:`abandoned` finds
such slots and :func:`after_loss` says what is best.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum

from edl.core.host.job_end import (
    TOLD,
    as_the_job_cannot_go_on,
    as_the_job_ends,
    ring_is_away,
    told_to_end,
)
from edl.core.host.process import Process, how
from edl.core.host.restart_policy import (
    disable_slot,
    end,
    end_each,
    fills_its_place,
    starts,
    why_to_end,
    with_terminating,
    without_init,
)
from edl.core.host.supervision import Outcome, SupervisorDecision, SupervisorLimits, SupervisorState
from edl.core.job.placement import Placement
from edl.core.records import Assigned, Desired, Job, JobState, Snapshot
from edl.core.sizes import Sizes

Slots = Collection[tuple[str, int]]  # (host, number)


@dataclass(frozen=True)
class SlotLimits(SupervisorLimits):
    """Those of an `edl-worker`."""

    release_s: float = 30.0  # for the driver to take the slot back from one that was asked to end
    barred_s: float = 3.0  # of the 5 s that the driver leaves to the processes of a host it bars
    unseen_s: float = 10.0  # for one whose ssh ended with horovodrun to see the end of that
    removal_s: float = 30.0  # for a removal to be complete before the driver may decide again
    freed_s: float = 1.0  # after that, for the driver to see the process of the slot end
    follow_s: float = 15.0  # what the driver has not carried out by then may have escaped it
    discover_s: float = 5.0  # for an edl-discover, if there is one, to say what is desired
    move_s: float = 10.0  # for the edl-workers that the driver starts on other hosts to say so
    round_s: float = 60.0  # for the driver to answer who has asked, once the job is over
    shutdown_s: float = 6.0  # horovodrun that ends sends SIGTERM, and SIGKILL after 5 s
    given_up_s: float = 2.0  # SIGTERM this soon after an answer of the driver is the driver's own
    orphan_s: float = 15.0  # nobody reads our output; an end of horovodrun is noticed earlier
    abandoned_s: float = 5.0  # a slot without its edl-worker: that one is not just coming back
    overdue_s: float = 120.0  # a slot whose edl-worker has not come by then has none
    turn_s: float = 1.0  # between two edl-workers that would do the same for all


@dataclass(frozen=True)
class SlotState(SupervisorState):
    """What `edl-worker` knows besides ZooKeeper."""

    limits: SlotLimits = SlotLimits()
    slot: int = 0
    removed: bool = False  # the driver has taken the slot back
    ending_since: float | None = None  # since when this process was asked to end
    disabled: bool = False  # it was the driver itself that asked
    unread: bool = False  # its ssh has ended: the driver takes that for the end of this process

    @property
    def newest(self) -> Process | None:
        """The newest start of the script."""
        return self.processes[-1] if self.processes else None


def decide(snapshot: Snapshot, own: SlotState, now: float) -> SupervisorDecision:
    """The next act for one slot, or none, with the reason. ``now``: as the times in ``own``."""
    decision = as_the_job_ends(snapshot, own, now)
    if decision is None and (own.removed or own.unread or own.ending_since is not None):
        decision = _leave(snapshot, own, now)
    decision = decision or as_the_job_cannot_go_on(snapshot, own, now)
    return with_terminating(decision or _keep(snapshot, own, now), snapshot, own, now)


def _leave(snapshot: Snapshot, own: SlotState, now: float) -> SupervisorDecision:
    if own.unread and not own.removed:
        return _leave_unseen(snapshot, own, now)
    reason = f"the driver has taken back slot {own.slot}" if own.removed else "edl-worker is to end"
    if own.living:
        known = all(p.seated and p.worker not in snapshot.evicted for p in own.living)
        if own.removed and not known:
            return SupervisorDecision(reason, endings=end(own.living, own.limits, now, reason))
        if own.ending_since is None:  # the leader takes it out: its slot is not assigned
            return SupervisorDecision(reason)
        barred = own.removed and own.disabled
        patience_s = own.limits.barred_s if barred else own.limits.release_s
        return SupervisorDecision(
            reason, endings=end(own.living, own.limits, now, reason, patience_s)
        )
    if own.removed:
        return SupervisorDecision(reason, exit_code=0)
    if own.ending_since is not None and now - own.ending_since >= own.limits.release_s:
        return SupervisorDecision(
            f"{reason}, and the driver did not take back slot {own.slot}", exit_code=1
        )
    return SupervisorDecision(f"{reason}; waiting for the driver to take back slot {own.slot}")


def _leave_unseen(snapshot: Snapshot, own: SlotState, now: float) -> SupervisorDecision:
    """Leave as a process that has ended, for the driver; the last one has to say so of the job.

    horovodrun itself may be about to end, which is the end of the job, and takes a moment to see.
    """
    reason, limits = "its ssh has ended, and so has this process for the driver", own.limits
    if own.living:
        endings = end(own.living, limits, now, reason, limits.release_s)
        return SupervisorDecision(reason, endings=endings)
    ended = (own.newest.exited if own.newest is not None else None) or 0.0
    if len(snapshot.slots) > 1 and now - ended >= limits.unseen_s:
        return SupervisorDecision(reason, exit_code=1)
    if now - ended >= limits.release_s:
        reason = f"the ssh of slot {own.slot} has ended, and no other edl-worker is left"
        return SupervisorDecision(reason, outcome=Outcome(JobState.FAILED, reason, 1))
    return SupervisorDecision(f"{reason}; waiting for the end of horovodrun")


def _keep(snapshot: Snapshot, own: SlotState, now: float) -> SupervisorDecision:
    """Keep one worker in the slot."""
    to_end, last = why_to_end(snapshot, own, now), own.newest
    if own.living:
        endings = end_each(to_end, own.limits, now)
        reason = "; ".join(to_end.values()) or f"{own.living[0].name} runs"
        return SupervisorDecision(reason, endings=endings, warnings=without_init(own, now))
    if last is not None and last.used_up:
        return SupervisorDecision(f"slot {own.slot} was disabled")
    if told_to_end(snapshot, own):
        return SupervisorDecision(TOLD)
    if ring_is_away(snapshot, own, now):
        return SupervisorDecision("nobody of the ring is in ZooKeeper")
    if last is not None and last.uses_up(snapshot.job.spec.settings.max_restarts):
        unused = {(one.host, one.slot) for one in snapshot.slots if one.disabled}
        enough = snapshot.job.sizes.enough(len(assigned_slots(snapshot) - unused) - 1)
        # The driver keeps the slot assigned; no worker is started there any more.
        left = snapshot.assigned.hosts if enough else None
        return disable_slot(last, snapshot, own, left, "EDL_MAX_RESTARTS")
    if last is not None and fills_its_place(last, own.limits, now):
        return SupervisorDecision(
            f"{last.name} {how(last.exit_code or 0)}; a pause before the next start"
        )
    found = starts([(own.slot, last)], own, "the driver wants a worker", now)
    return SupervisorDecision(found[0].reason if found else "a pause before the next start", found)


def removal_pending(snapshot: Snapshot) -> bool:
    """Whether a slot that the driver has taken back is still in use, or its edl-worker there.

    The driver must not decide again meanwhile: it could start a second process for that slot,
    and take the end of the first one for the end of the second.
    """
    used = {(one.host, one.slot) for one in snapshot.members}
    return bool((used | kept(snapshot)) - assigned_slots(snapshot))


def with_answer(
    assigned: Placement, host: str, slot: int, local_size: int | None
) -> dict[str, int]:
    """What the driver assigns now: ``local_size`` slots of ``host``; None: not this one.

    A host that has lost all its slots has lost slot 0, too, whose process then says so.
    """
    workers = min(assigned.get(host, 0), slot) if local_size is None else local_size
    return {**assigned, host: workers}


def awaits_others(assigned: Assigned, lowered: Placement, desired: Desired) -> bool:
    """Whether ``lowered`` lacks workers that the driver is about to start on other hosts.

    As many are desired as before: they move. Their edl-workers say so in a moment, and only when
    they are assigned do those who go wait for those who come.
    """
    return sum(lowered.values()) < min(assigned.np, desired.np)


def forgotten(
    assigned: Placement,
    desired: Placement,
    barred: Collection[str],
    asked: float,
    answered: float,
    now: float,
    follow_s: float,
) -> bool:
    """Whether the driver has missed what is desired, and has to be asked to place the slots anew.

    It may when its rank 0 starts just then. It has not, when it placed the slots later and gave
    others all the same: each further round would give these, and count for `--reset-limit`.

    Args:
        barred: hosts that it cannot use, whatever is desired.
        asked: since when this is desired. Times by one clock, in seconds.
        answered: when it last placed the slots.
        follow_s: how long it may take to carry that out.
    """
    lacks = any(
        assigned.get(host, 0) != desired.get(host, 0)
        for host in {*assigned, *desired}.difference(barred)
    )
    return bool(desired) and lacks and answered - asked < follow_s <= now - asked


def placed_otherwise(
    assigned: Placement, discovered: Placement, max_np: int | None, min_np: int
) -> bool:
    """Return whether the driver would place the slots otherwise than it has.

    It fills the hosts that it has used longest first, with ``max_np`` slots at most.

    Args:
        assigned: what it has placed, by host.
        discovered: what the host discovery script offers now, by host.
        max_np: None: as many as there are.
        min_np: with fewer slots it places nothing, and waits for others.
    """
    if sum(discovered.values()) < min_np:
        return True
    left = sum(discovered.values()) if max_np is None else max_np
    would: dict[str, int] = {}
    for host in sorted(discovered, key=lambda one: (not assigned.get(one), one)):
        would[host] = min(discovered[host], left)
        left -= would[host]
    return any(assigned.get(host, 0) != would.get(host, 0) for host in {*assigned, *would})


class AfterLoss(Enum):
    """What is best when edl-workers have died; see :func:`after_loss`."""

    NOTHING = "nobody is lost"
    PLACE_ANEW = "the driver is asked to place the slots anew"
    WAIT = "the job goes on with fewer workers"
    HOLD = "the job goes on with fewer workers, and is not scaled: the driver would end it"


def abandoned(snapshot: Snapshot, seen: Slots) -> frozenset[tuple[str, int]]:
    """The assigned slots whose edl-worker is gone. Who was never ``seen`` is to start yet."""
    return frozenset((assigned_slots(snapshot) & set(seen)) - kept(snapshot))


def assigned_slots(snapshot: Snapshot) -> frozenset[tuple[str, int]]:
    """The slots that the driver uses."""
    hosts = snapshot.assigned.hosts
    return frozenset((host, n) for host, workers in hosts.items() for n in range(workers))


def kept(snapshot: Snapshot) -> frozenset[tuple[str, int]]:
    """The slots that have an edl-worker."""
    return frozenset((one.host, one.slot) for one in snapshot.slots)


def after_loss(assigned: Assigned, sizes: Sizes, lost: Slots) -> AfterLoss:
    """Whether the driver should place the slots anew, when the edl-workers of ``lost`` have died.

    It bars their hosts. So it should when enough slots are left on the others, or when too few
    workers are left to train in any case. It must not when no host would be left: that ends a job
    which can still train.
    """
    if not lost:
        return AfterLoss.NOTHING
    barred = {host for host, _ in lost}
    left = sum(workers for host, workers in assigned.hosts.items() if host not in barred)
    working = assigned.np - len(lost)
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
    best: AfterLoss, desired: Placement, barred: Collection[str], sizes: Sizes
) -> bool:
    """Whether the driver would end a job that trains, if it were asked to place the slots anew.

    It bars the hosts of lost slots, and then waits for ``min_np`` slots on others, with all who
    have asked. Where nobody says what is ``desired`` nobody knows here what it would find.
    """
    if best is AfterLoss.WAIT and desired:
        return not sizes.enough(sum(n for host, n in desired.items() if host not in barred))
    return best is AfterLoss.HOLD


def without_barred(assigned: Placement, lost: Slots, size: int) -> dict[str, int]:
    """What is assigned, without hosts that have only ``lost`` slots and that the driver has barred.

    ``size``: how many slots it uses. The others have that many, or the hosts may still be used.
    """
    gone = {h for h, n in assigned.items() if n and {(h, slot) for slot in range(n)} <= {*lost}}
    rest = {host: workers for host, workers in assigned.items() if host not in gone}
    return rest if sum(rest.values()) >= size else dict(assigned)


def released(desired: Placement, host: str, sizes: Sizes) -> dict[str, int]:
    """A worker less on ``host``, if the job may have that many."""
    if not desired.get(host) or not sizes.allows(sum(desired.values()) - 1):
        return dict(desired)
    return {**desired, host: desired[host] - 1}


def last_round(job: Job, slot: int, answers: bool, lost: str, late: bool) -> SupervisorDecision:
    """What to do at the end of the job while the driver waits until every slot has asked it.

    The driver counts a question and a success of the same slot as two slots', so that the end of
    the job would be lost on it; a failure takes the place of the question. So who has asked stays
    until it is answered, which ssh of a lost host may put off, and who cannot ask again fails.

    Args:
        answers: the driver has not left a question of ``slot`` without an answer.
        lost: the slots whose edl-workers have died, in words.
        late: this has been so for long.
    """
    over = f"job {job.name} {job.state.phrase}"
    if not late:
        return SupervisorDecision(f"{over}, and the driver of horovodrun places the slots anew")
    if not answers:
        reason = f"{over}, but the driver of horovodrun has not answered slot {slot}"
        return SupervisorDecision(
            f"{reason}; it ends with an error, or all would wait", exit_code=1
        )
    whom = f"{lost}, whose edl-worker has died" if lost else "an edl-worker that does not ask it"
    return SupervisorDecision(
        f"{over}, but horovodrun waits for {whom}. If its host is lost, ssh has not "
        "noticed: end horovodrun by Ctrl-C, and set ServerAliveInterval in ~/.ssh/config"
    )
