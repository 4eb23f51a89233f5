"""Decide what a launcher does with each of its worker processes while the job goes on.

It ends those that cannot stay (:func:`why_to_end`), and starts a slot whose worker has ended again,
with a back-off that grows with its failures. A slot that fails too often is disabled; if the job
needs that slot, the job has FAILED.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain

from edl.host.process import Process, exit_status, how, last_words
from edl.host.supervision import (
    DisableSlot,
    EndProcess,
    Start,
    SupervisorDecision,
    SupervisorLimits,
    SupervisorState,
)
from edl.job.placement import Placement
from edl.job.run import JobEnd
from edl.job.snapshot import Snapshot
from edl.records import JobState, RingMember
from edl.text import verb, workers

MAX_ASKED = 8  # workers of the ring, whether one waits for a suspended one


def with_terminating(
    decision: SupervisorDecision, snapshot: Snapshot, state: SupervisorState, now: float
) -> SupervisorDecision:
    """Return `decision` with orders to kill the processes that should have ended by now."""
    # Workers in borrowed slots that are due to be given back. One in the ring may be the last with
    # the job's state: the leader decides.
    ring = {member.id for member in snapshot.ring}
    overdue = tuple(
        EndProcess(p.attempt_id, True, "its slot was to be given back by now")
        for p in state.living
        if state.overdue
        and (p.worker in snapshot.evicted or (p.departing is not None and p.worker not in ring))
    )
    killed = {ending.attempt_id for ending in overdue}
    endings = tuple(one for one in decision.endings if one.attempt_id not in killed) + overdue
    named = {ending.attempt_id for ending in endings}
    lingering = [p for p in state.living if p.attempt_id not in named and is_terminating(p)]
    endings += end_processes(lingering, state.limits, now, "")
    late = {one.attempt_id: one.reason for one in endings if one.kill}
    warnings = tuple(
        f"{p.name} is killed: {late[p.attempt_id]}"
        for p in state.living
        if p.ended is not None and p.handled is None and p.attempt_id in late
    )
    return replace(decision, endings=endings, warnings=(*decision.warnings, *warnings))


def is_terminating(process: Process) -> bool:
    return process.ended is not None or process.exited_at is not None


def end_processes(
    processes: Iterable[Process],
    limits: SupervisorLimits,
    now: float,
    reason: str,
    patience_s: float | None = None,
) -> tuple[EndProcess, ...]:
    """Return the orders due now that end `processes`: SIGTERM, later SIGKILL, at most one each."""
    patience_s = limits.kill_s if patience_s is None else patience_s
    endings = (_ending_of(process, limits, now, reason, patience_s) for process in processes)
    return tuple(ending for ending in endings if ending is not None)


def end_each(
    reasons: Mapping[Process, str], limits: SupervisorLimits, now: float
) -> tuple[EndProcess, ...]:
    each = (end_processes([process], limits, now, cause) for process, cause in reasons.items())
    return tuple(chain.from_iterable(each))


def _ending_of(
    process: Process, limits: SupervisorLimits, now: float, reason: str, patience_s: float
) -> EndProcess | None:
    """Return the next signal for `process`: SIGTERM, or SIGKILL if that did not help, or None."""
    if process.ended is not None:
        # It ends by itself: SIGTERM would hide how. SIGKILL after the limit of its exit handlers,
        # or its own.
        cause = f"its script has ended (with code {process.ended_code}), and "
        if process.handled is None:
            late = now - process.ended >= limits.exit_timeout_s
            cause += "the exit handlers (atexit) that other libraries have registered did not end "
            cause += f"within {limits.exit_timeout_s:g} s (EDL_EXIT_TIMEOUT_S)"
        else:
            late = now - process.handled >= limits.exit_s
            cause += f"the process has not within {limits.exit_s:g} s"
        return EndProcess(process.attempt_id, True, cause) if late else None
    if process.exited_at is not None:
        cause = f"its port is closed, and the process has not ended within {limits.gone_s:g} s"
        late = now - process.exited_at >= limits.gone_s
        return EndProcess(process.attempt_id, True, cause) if late else None
    if process.ending_since is None:
        return EndProcess(process.attempt_id, _is_suspended(process, limits, now), reason)
    if now - process.ending_since >= patience_s:
        return EndProcess(process.attempt_id, True, f"{reason}; SIGTERM did not help")
    return None


def why_to_end(snapshot: Snapshot, state: SupervisorState, now: float) -> dict[Process, str]:
    limits, evicted = state.limits, snapshot.evicted
    reasons = {
        p: evicted[p.worker] for p in state.living if p.worker is not None and p.worker in evicted
    }
    # One that never was in a ring has had no ZooKeeper session for too long.
    absent = [p for p in state.living if not p.seated and p.no_session_since is not None]
    vanished = f"it left ZooKeeper {limits.absent_s:g} s ago"
    reasons |= {p: vanished for p in absent if now - (p.no_session_since or 0) >= limits.absent_s}
    frozen = f"it is frozen: it left ZooKeeper and does not answer for {limits.frozen_s:g} s"
    reasons |= {p: frozen for p in state.living if _is_frozen(p, snapshot, limits, now)}
    if state.waiting:
        halted = f"it is suspended (SIGSTOP) for {limits.suspended_s:g} s, and others wait for it"
        reasons |= dict.fromkeys(suspended(snapshot, state, now), halted)
    return reasons


def suspended(snapshot: Snapshot, state: SupervisorState, now: float) -> tuple[Process, ...]:
    members = _members(snapshot)
    return tuple(
        p
        for p in state.living
        if _is_suspended(p, state.limits, now)
        and p.worker in members
        and p.departing is None
        and not is_terminating(p)
    )


def _is_suspended(process: Process, limits: SupervisorLimits, now: float) -> bool:
    since, limit_s = process.suspended_since, limits.suspended_s
    return since is not None and limit_s > 0 and now - since >= limit_s


def _members(snapshot: Snapshot) -> dict[int, RingMember]:
    return {member.id: member for member in (*snapshot.ring, *snapshot.newest_members)}


def waiting_members(
    snapshot: Snapshot, state: SupervisorState, now: float
) -> tuple[RingMember, ...]:
    """Return the workers to ask whether they live and wait for a suspended one of ours."""
    if not suspended(snapshot, state, now):
        return ()
    stand = {p.worker for p in state.living if p.suspended_since is not None}
    others = [one for worker, one in _members(snapshot).items() if worker not in stand]
    return tuple(others[:MAX_ASKED])


def _is_frozen(process: Process, snapshot: Snapshot, limits: SupervisorLimits, now: float) -> bool:
    """Return whether a frozen worker of the ring holds up a job that another worker leads."""
    if (
        process.unresponsive_since is None
        or process.no_session_since is None
        or process.departing is not None
    ):
        return False
    # Their leader may be a newcomer, which cannot tell this from a broken network.
    leads = snapshot.leader is not None and snapshot.leader.worker != process.worker
    long = now - max(process.unresponsive_since, process.no_session_since) >= limits.frozen_s
    return process.seated and leads and long


def to_ask(processes: Iterable[Process], snapshot: Snapshot) -> tuple[Process, ...]:
    """Return those of `processes` that may be frozen, in their order, for the launcher to test."""
    return tuple(
        p
        for p in processes
        if p.alive and (p.no_session_since is not None or p.worker in snapshot.evicted)
    )


def without_init(state: SupervisorState, now: float) -> tuple[str, ...]:
    limit_s = state.limits.start_timeout_s
    return tuple(
        f"{state.script} in {p.name} runs for {limit_s:g} s and did not call edl.init()"
        for p in state.living
        if p.worker is None and p.ending_since is None and p.started + limit_s <= now
    )


def fills_its_place(process: Process, limits: SupervisorLimits, now: float) -> bool:
    """Return whether `process` still fills its slot, so that no worker is started in its place."""
    # On a scale-in the launcher may see a worker leave before it reads the lower number, and would
    # start one that is not wanted.
    if process.ending_since is not None or process.failed:
        return False
    if process.alive:
        return process.departing is None or now - process.departing < limits.settle_s
    return process.worker is not None and now - (process.exited or 0.0) < limits.settle_s


def starts(
    places: Sequence[tuple[int, Process | None]], state: SupervisorState, cause: str, now: float
) -> tuple[Start, ...]:
    found = []
    for slot, before in places:
        if before is None or before.used_up:
            again = " again" if before is not None else ""
            found.append(Start(slot, 0, f"{cause}{again}"))
        elif before.alive:
            found.append(Start(slot, 0, f"{before.name} leaves and {cause}"))
        elif now >= (before.exited or 0.0) + before.pause_s(state.limits.backoff_max_s):
            reason = f"{before.name} {how(before.exit_code or 0)} and {cause}"
            replaces = before.seated and before.exit_code != 0
            found.append(Start(slot, before.failures_now, reason, replaces))
    return tuple(found)


def disable_slot(
    process: Process,
    snapshot: Snapshot,
    state: SupervisorState,
    desired: Placement | None,
    setting: str,
) -> SupervisorDecision:
    job = snapshot.job
    slot = f"slot {process.slot} of host {state.host}"
    what = (
        f"{slot} failed {process.failures_now} times in a row "
        f"({setting} is {job.spec.settings.max_restarts})"
    )
    last = f"{process.name} {how(process.exit_code or 0)}; {last_words(process)}"
    if process.refused:
        what = f"{slot} would get another worker that differs"
        last = last_words(process) if desired is None else f"{process.name} has said why"
    if desired is None:
        reason = f"{what}, and without it fewer than {job.sizes.min_np} (--min-np) are left: {last}"
        code = exit_status(process.exit_code or 1)
        return SupervisorDecision(reason, outcome=JobEnd(JobState.FAILED, reason, code))
    count = sum(desired.values())
    fewer = desired != snapshot.assigned.hosts
    lowered = f"; {workers(count)} {verb(count)} wanted now" if fewer else ""
    reason = f"{what} and is disabled{lowered}; {last}"
    return SupervisorDecision(
        reason, disable_slot=DisableSlot(process.attempt_id, process.slot, desired, reason)
    )
