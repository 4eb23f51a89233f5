"""Decide what `edl-worker` does next, which keeps one slot of a job that horovodrun started.

`edl-worker` runs between the driver of horovodrun and the training process, because the driver
draws conclusions from the end of a process that it started: if one fails, its whole host is
blacklisted; if one succeeds, the job ends. So `edl-worker` ends only when the driver should see an
end. The rules of :func:`decide_slot`, in order:

1. The end of the job: :mod:`edl.host.job_end`. When nothing is left to do, this process ends.
2. The driver has taken the slot back, or this process was asked to end: the worker leaves, and no
   worker is started again. A process that was asked to end gives back one slot of its host; the
   driver takes back the highest slot, so another process may have to go, and then this one starts a
   worker again. A process whose ssh has ended is dead for the driver: its worker leaves, and the
   process ends too. On a host that the driver bars, this process ends before the driver kills it:
   the driver would notice a kill some 5 s late, when the slot may belong to another process, which
   would then seem to have failed.
3. A job that cannot begin, or has no workers left: :mod:`edl.host.job_end`.
4. A worker that cannot stay in the job is ended (:mod:`edl.host.restart`).
5. A worker that has ended is started again, with a back-off that grows with its failures. A slot
   that fails more than ``max_restarts`` times in a row is disabled: this process stays, because the
   driver would bar its host, but starts no worker any more.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import Enum

from edl.host.job_end import TOLD, decide_job_end, decide_job_failure, ring_is_away, told_to_end
from edl.host.process import Process, how
from edl.host.restart import (
    disable_slot,
    end_each,
    end_processes,
    fills_its_place,
    starts,
    why_to_end,
    with_terminating,
    without_init,
)
from edl.host.supervision import (
    SupervisorDecision,
    SupervisorLimits,
    SupervisorState,
    dead_ring,
)
from edl.job.membership import ALL_ASKED
from edl.job.placement import Placement
from edl.job.run import JobEnd
from edl.job.snapshot import Snapshot
from edl.records import Assigned, Desired, Job, JobState
from edl.spec import Sizes

Slots = Collection[tuple[str, int]]  # (host, number)


@dataclass(frozen=True)
class SlotLimits(SupervisorLimits):
    # for the driver to take the slot back, after `edl-worker` was asked to end
    release_s: float = 30.0
    barred_s: float = 3.0  # for the worker to end on a barred host; the driver kills it after 5 s
    unseen_s: float = 10.0  # for one whose ssh ended with horovodrun to see the latter's end
    # for the processes of a slot that was taken back to end, before the driver may place slots
    removal_s: float = 30.0
    freed_s: float = 1.0  # for the driver to see that the process of such a slot has ended
    # for the driver to carry out a new desired number; then it is asked to place the slots again
    follow_s: float = 15.0
    discover_s: float = 5.0  # for `edl-discover`, if horovodrun runs it, to say what is desired
    move_s: float = 10.0  # for `edl-worker` processes that it starts on other hosts to report
    round_s: float = 60.0  # for the driver to answer a slot that has asked it, once the job is over
    shutdown_s: float = 6.0  # for horovodrun to end: SIGTERM to its processes, SIGKILL after 5 s
    # for an `edl-worker` to register in its slot, after all that have were asked to end; less than
    # the 5 s until horovodrun kills them
    registered_s: float = 3.0
    given_up_s: float = 2.0  # a SIGTERM so soon after an answer of the driver is the driver's
    # an `edl-worker` whose output has no reader for so long takes its ssh for ended; the end of
    # horovodrun is noticed earlier
    orphan_s: float = 15.0
    abandoned_s: float = 5.0  # a slot that had an `edl-worker` and has had none for so long is lost
    # for the `edl-worker` of a newly assigned slot; then it counts as one that was there and is
    # gone
    overdue_s: float = 120.0
    # that each next `edl-worker`, by (host, slot), waits longer before it asks the driver about
    # lost slots, so that only one asks
    turn_s: float = 1.0


@dataclass(frozen=True)
class SlotState(SupervisorState):
    limits: SlotLimits = SlotLimits()
    slot: int = 0  # from 0
    removed: bool = False  # the driver has taken the slot back
    ending_since: float | None = None  # it was asked to end
    disabled: bool = False  # it was the driver that asked
    unread: bool = False  # its ssh has ended, which the driver takes for its own end

    @property
    def newest(self) -> Process | None:
        return self.processes[-1] if self.processes else None

    def ends_with_job(self, barred: Collection[str]) -> bool:
        """Return whether a signal asked this `edl-worker` to end, other than to bar its host."""
        by_bar = self.disabled and self.host in barred
        return self.ending_since is not None and not by_bar


def decide_slot(snapshot: Snapshot, state: SlotState, now: float) -> SupervisorDecision:
    decision = decide_job_end(snapshot, state, now)
    if decision is None and (state.removed or state.unread or state.ending_since is not None):
        decision = _leave(snapshot, state, now)
    decision = decision or decide_job_failure(snapshot, state, now)
    return with_terminating(decision or _keep(snapshot, state, now), snapshot, state, now)


def _leave(snapshot: Snapshot, state: SlotState, now: float) -> SupervisorDecision:
    if state.unread and not state.removed:
        reason, limits = "its ssh has ended, and so has this process for the driver", state.limits
        if state.living:
            endings = end_processes(state.living, limits, now, reason, limits.release_s)
            return SupervisorDecision(reason, endings=endings)
        ended = (state.newest.exited if state.newest is not None else None) or 0.0
        if len(snapshot.slots) > 1 and now - ended >= limits.unseen_s:
            return SupervisorDecision(reason, exit_code=1)
        if now - ended >= limits.release_s:
            reason = f"the ssh of slot {state.slot} has ended, and no other edl-worker is left"
            return SupervisorDecision(reason, outcome=JobEnd(JobState.FAILED, reason, 1))
        return SupervisorDecision(f"{reason}; waiting for the end of horovodrun")
    taken_back = f"the driver has taken back slot {state.slot}"
    reason = taken_back if state.removed else "edl-worker is to end"
    if state.living:
        known = all(p.seated and p.worker not in snapshot.evicted for p in state.living)
        if state.removed and not known:
            # No leader takes out a worker that is evicted or was never in a ring.
            endings = end_processes(state.living, state.limits, now, reason)
            return SupervisorDecision(reason, endings=endings)
        if state.ending_since is None:  # the leader takes it out: its slot is not assigned
            return SupervisorDecision(reason)
        barred = state.removed and state.disabled
        patience_s = state.limits.barred_s if barred else state.limits.release_s
        endings = end_processes(state.living, state.limits, now, reason, patience_s)
        return SupervisorDecision(reason, endings=endings)
    if state.removed:
        return SupervisorDecision(reason, exit_code=0)
    ending_s = now - state.ending_since if state.ending_since is not None else 0.0
    if _all_asked_to_end(snapshot, state, ending_s, now):
        return SupervisorDecision(reason, outcome=JobEnd(JobState.STOPPED, ALL_ASKED))
    if ending_s >= state.limits.release_s:
        return SupervisorDecision(
            f"{reason}, and the driver did not take back slot {state.slot}", exit_code=1
        )
    return SupervisorDecision(f"{reason}; waiting for the driver to take back slot {state.slot}")


def _all_asked_to_end(snapshot: Snapshot, state: SlotState, ending_s: float, now: float) -> bool:
    """Return whether horovodrun ends while no ring trains, so that no leader can let a ring end."""
    ending = {(one.host, one.slot) for one in snapshot.slots if one.ending}
    # One that an assigned slot lacks may still register.
    awaited = assigned_slots(snapshot) if ending_s < state.limits.registered_s else frozenset()
    if not ending or kept(snapshot) | awaited != ending or snapshot.members:
        return False
    if snapshot.generation is None:
        return True  # workers that are not registered are ended when the job is over
    return bool(dead_ring(snapshot, state)) and not ring_is_away(snapshot, state, now)


def _keep(snapshot: Snapshot, state: SlotState, now: float) -> SupervisorDecision:
    to_end, last = why_to_end(snapshot, state, now), state.newest
    if state.living:
        endings = end_each(to_end, state.limits, now)
        reason = "; ".join(to_end.values()) or f"{state.living[0].name} runs"
        return SupervisorDecision(reason, endings=endings, warnings=without_init(state, now))
    if last is not None and last.used_up:
        return SupervisorDecision(f"slot {state.slot} was disabled")
    if told_to_end(snapshot, state):
        return SupervisorDecision(TOLD)
    if ring_is_away(snapshot, state, now):
        return SupervisorDecision("nobody of the ring is in ZooKeeper")
    if last is not None and last.uses_up(snapshot.job.spec.settings.max_restarts):
        unused = {(one.host, one.slot) for one in snapshot.slots if one.disabled}
        enough = snapshot.job.sizes.enough(len(assigned_slots(snapshot) - unused) - 1)
        # The driver keeps the slot assigned; no worker is started there any more.
        left = snapshot.assigned.hosts if enough else None
        return disable_slot(last, snapshot, state, left, "EDL_MAX_RESTARTS")
    if last is not None and fills_its_place(last, state.limits, now):
        return SupervisorDecision(
            f"{last.name} {how(last.exit_code or 0)}; a pause before the next start"
        )
    found = starts([(state.slot, last)], state, "the driver wants a worker", now)
    return SupervisorDecision(found[0].reason if found else "a pause before the next start", found)


def removal_pending(snapshot: Snapshot) -> bool:
    """Return whether a slot that the driver took back still has a worker or `edl-worker`."""
    # The driver must not place slots then: it could start a second process for the slot, and take
    # the end of the first for that of the second.
    used = {(one.host, one.slot) for one in snapshot.members}
    return bool((used | kept(snapshot)) - assigned_slots(snapshot))


def with_answer(
    assigned: Placement, host: str, slot: int, local_size: int | None
) -> dict[str, int]:
    """Return host -> workers, as horovodrun's driver assigns them after its answer to one slot."""
    # None: the driver took `slot` back, so at most the lower ones are left.
    workers = min(assigned.get(host, 0), slot) if local_size is None else local_size
    return {**assigned, host: workers}


def keeps_slot(local_size: int | None, ended: bool, released: bool) -> bool:
    """Return whether an answer of horovodrun's driver lets an ending `edl-worker` begin again."""
    # A worker that lives is only started again if the driver can have known of the signal.
    return local_size is not None and (ended or released)


def awaits_others(assigned: Assigned, lowered: Placement, desired: Desired) -> bool:
    """Return whether the driver moves workers to other hosts, but has not assigned them."""
    # The caller waits up to `move_s` until these have reported before it writes `lowered`, so that
    # the workers that leave stay in the ring until the new ones join.
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
    """Return whether horovodrun's driver missed a new desired number and must place slots again."""
    # The driver may miss a change while its rank 0 starts. If it has placed the slots after
    # `follow_s`, asking again would give the same numbers, and count for `--reset-limit`.
    lacks = any(
        assigned.get(host, 0) != desired.get(host, 0)
        for host in {*assigned, *desired}.difference(barred)
    )
    return bool(desired) and lacks and answered - asked < follow_s <= now - asked


def placed_otherwise(
    assigned: Placement, discovered: Placement, max_np: int | None, min_np: int
) -> bool:
    """Return whether the driver, if asked, would place the slots differently than it has."""
    # The driver waits for other hosts.
    if sum(discovered.values()) < min_np:
        return True
    # It fills the hosts that it uses now first, then the others, each group by name.
    left = sum(discovered.values()) if max_np is None else max_np
    would: dict[str, int] = {}
    for host in sorted(discovered, key=lambda one: (not assigned.get(one), one)):
        would[host] = min(discovered[host], left)
        left -= would[host]
    return any(assigned.get(host, 0) != would.get(host, 0) for host in {*assigned, *would})


def assigned_slots(snapshot: Snapshot) -> frozenset[tuple[str, int]]:
    hosts = snapshot.assigned.hosts
    return frozenset((host, n) for host, workers in hosts.items() for n in range(workers))


def kept(snapshot: Snapshot) -> frozenset[tuple[str, int]]:
    return frozenset((one.host, one.slot) for one in snapshot.slots)


def may_ask(state: JobState, runs: bool, done: bool, fatal: bool) -> bool:
    """Return whether a slot's `edl-worker` may ask the driver, which answers when all have."""
    # When the job is over the script saves or evaluates, and the driver would end it. `done`: each
    # slot that the driver took back is empty. `fatal`: see `would_end_the_job`.
    return not runs if state.over else done and not fatal


def released(desired: Placement, host: str, sizes: Sizes) -> dict[str, int]:
    if not desired.get(host) or not sizes.allows(sum(desired.values()) - 1):
        return dict(desired)
    return {**desired, host: desired[host] - 1}


class SlotRelease:
    """Lower the desired number of a host by one, for one signal, in several attempts."""

    # An attempt may be written though its answer is lost: the next one finds the numbers that it
    # would have written, and does not lower them again.

    def __init__(self, host: str) -> None:
        self._host = host
        self._written: Placement | None = None  # by the last attempt, if it was

    def choice(self, sizes: Sizes) -> Callable[[Placement], Placement]:
        before = self._written

        def lower(now: Placement) -> Placement:
            self._written = now if now == before else released(now, self._host, sizes)
            return self._written

        return lower


def last_round(job: Job, slot: int, answers: bool, lost: str, late: bool) -> SupervisorDecision:
    # A slot that asks and ends with success is counted twice, and the driver misses the end of the
    # job; one that asks and fails is counted once.
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


# ------------------------------------------------------------
# Slots whose `edl-worker` has died, with its host or by kill -9. The driver knows it, but acts only
# when all other `edl-worker` processes ask it to place the slots again: then it bars the whole
# host.


class AfterLoss(Enum):
    """The best thing to do after `edl-worker` processes have died, as `after_loss` finds it."""

    # HOLD: the driver, once asked, would end the job.

    NOTHING = "nobody is lost"
    PLACE_ANEW = "the driver is asked to place the slots anew"
    WAIT = "the job goes on with fewer workers"
    HOLD = "the job goes on with fewer workers, and is not scaled: the driver would end it"


class LostSlots:
    def __init__(self, host: str, slot: int, limits: SlotLimits) -> None:
        self.lost: frozenset[tuple[str, int]] = frozenset()  # whose `edl-worker` has died
        self.best = AfterLoss.NOTHING  # about `lost`
        self.barred: frozenset[str] = frozenset()  # until an `edl-worker` registers there again
        self._place, self._limits = (host, slot), limits
        self._assigned: dict[tuple[str, int], float] = {}  # slots, since when
        self._seen: frozenset[tuple[str, int]] = frozenset()  # that an edl-worker has kept, or none
        self._missing: frozenset[tuple[str, int]] = frozenset()  # of these, without one now
        self._missing_since = 0.0
        self._asked_for: frozenset[tuple[str, int]] = frozenset()

    def update(self, snapshot: Snapshot, answered: float, now: float) -> bool:
        """Update the attributes; return, once for a set of lost slots, whether to ask."""
        # A slot that is assigned again is another edl-worker's, which may be on its way.
        slots = assigned_slots(snapshot)
        self._assigned = {slot: self._assigned.get(slot, now) for slot in slots}
        overdue = {
            s for s, since in self._assigned.items() if now - since >= self._limits.overdue_s
        }
        self._seen = slots & (self._seen | kept(snapshot) | overdue)
        missing = abandoned(snapshot, self._seen)
        if missing != self._missing:
            self._missing, self._missing_since = missing, now
        waited = now - max(self._missing_since, answered)
        self.lost = missing if waited >= self._limits.abandoned_s else self.lost & missing
        if not self.lost:
            self._asked_for = self.lost  # the same slots may be lost again
        back = {one.host for one in snapshot.slots if (one.host, one.slot) in slots}
        self.barred = (self.barred - back) | {host for host, _ in self.lost}
        self.best = after_loss(snapshot.assigned, snapshot.job.sizes, self.lost)
        ask = self.best is AfterLoss.PLACE_ANEW and self.lost != self._asked_for
        turn_s = self.turn(snapshot) * self._limits.turn_s
        if not ask or waited < self._limits.abandoned_s + turn_s:
            return False
        self._asked_for = self.lost
        return True

    def turn(self, snapshot: Snapshot) -> int:
        """Return the index of this `edl-worker` by (host, slot); the first one asks for all."""
        here = sorted(kept(snapshot))
        return here.index(self._place) if self._place in here else 0

    def __str__(self) -> str:
        return " and ".join(f"slot {slot} on {host}" for host, slot in sorted(self.lost))


def abandoned(snapshot: Snapshot, seen: Slots) -> frozenset[tuple[str, int]]:
    return frozenset((assigned_slots(snapshot) & set(seen)) - kept(snapshot))


def after_loss(assigned: Assigned, sizes: Sizes, lost: Slots) -> AfterLoss:
    if not lost:
        return AfterLoss.NOTHING
    # The driver, if asked, bars the hosts of these slots.
    barred = {host for host, _ in lost}
    left = sum(workers for host, workers in assigned.hosts.items() if host not in barred)
    working = assigned.np - len(lost)
    if sizes.enough(left) or not sizes.enough(working):
        return AfterLoss.PLACE_ANEW
    return AfterLoss.WAIT if left else AfterLoss.HOLD  # HOLD: it would end the job


def would_end_the_job(
    best: AfterLoss, desired: Placement, barred: Collection[str], sizes: Sizes
) -> bool:
    """Return whether horovodrun's driver would end a training job if asked to place slots again."""
    # It bars the hosts of lost slots, waits for `min_np` slots on others, and then ends the job.
    # Nothing desired: edl does not know what the driver would find.
    if best is AfterLoss.WAIT and desired:
        return not sizes.enough(sum(n for host, n in desired.items() if host not in barred))
    return best is AfterLoss.HOLD


def without_barred(assigned: Placement, lost: Slots, size: int) -> dict[str, int]:
    gone = {h for h, n in assigned.items() if n and {(h, slot) for slot in range(n)} <= {*lost}}
    rest = {host: workers for host, workers in assigned.items() if host not in gone}
    # With fewer slots than it uses, the driver has not barred these hosts.
    return rest if sum(rest.values()) >= size else dict(assigned)
