"""What a launcher does with each of its worker processes while the job goes on.

1. A worker that the leader has evicted is ended, and so is one that was never in a ring and has
   left ZooKeeper for long: it is frozen, and no leader knows of it. So is one of the ring that has
   left ZooKeeper and does not answer us, on its own host, while others could go on: it is frozen,
   and who leads them may be a newcomer that cannot tell this from a network that is cut. One whose
   script has ended, or that the leader knows is gone, ends by itself; it is killed when it does
   not.
2. A slot whose worker has ended is started again, with a back-off that grows with its failures.
   One that fails more often than that is disabled; a job that needs it has FAILED.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from edl.core.host.process import Process, exit_status, how, last_words
from edl.core.host.supervision import (
    DisableSlot,
    Ending,
    Outcome,
    Start,
    SupervisorDecision,
    SupervisorLimits,
    SupervisorState,
)
from edl.core.job.placement import Placement
from edl.core.plural import verb, workers
from edl.core.records import JobState, Snapshot


def with_terminating(
    decision: SupervisorDecision, snapshot: Snapshot, own: SupervisorState, now: float
) -> SupervisorDecision:
    """``decision``, and the end of whoever was to end by itself and does not, whatever goes on.

    Who leaves a slot that was to be given back by now is killed.
    """
    overdue = _overdue(snapshot, own)
    killed = {ending.attempt_id for ending in overdue}
    endings = tuple(one for one in decision.endings if one.attempt_id not in killed) + overdue
    named = {ending.attempt_id for ending in endings}
    lingering = [p for p in own.living if p.attempt_id not in named and is_terminating(p)]
    endings += end(lingering, own.limits, now, "")
    late = {one.attempt_id: one.reason for one in endings if one.kill}
    warnings = tuple(
        f"{p.name} is killed: {late[p.attempt_id]}"
        for p in own.living
        if p.ended is not None and p.handled is None and p.attempt_id in late
    )
    return replace(decision, endings=endings, warnings=(*decision.warnings, *warnings))


def is_terminating(process: Process) -> bool:
    """Whether it is about to end by itself."""
    return process.ended is not None or process.exited_at is not None


def end(
    processes: Iterable[Process],
    limits: SupervisorLimits,
    now: float,
    reason: str,
    patience_s: float | None = None,
) -> tuple[Ending, ...]:
    """How to end processes now; ``patience_s``: from SIGTERM to SIGKILL, if not `limits.kill_s`."""
    patience_s = limits.kill_s if patience_s is None else patience_s
    endings = (_ending_of(process, limits, now, reason, patience_s) for process in processes)
    return tuple(ending for ending in endings if ending is not None)


def end_each(
    reasons: Mapping[Process, str], limits: SupervisorLimits, now: float
) -> tuple[Ending, ...]:
    """How to end processes now, each for its own reason."""
    return tuple(
        one for process, why in reasons.items() for one in end([process], limits, now, why)
    )


def _ending_of(
    process: Process, limits: SupervisorLimits, now: float, reason: str, patience_s: float
) -> Ending | None:
    """SIGTERM once, SIGKILL when that did not help.

    Who ends by itself gets no SIGTERM: it would hide how it has ended.
    """
    if process.ended is not None:
        why = why_killed(process, limits)
        handled = process.handled
        late = (
            now - process.ended >= limits.exit_timeout_s
            if handled is None
            else now - handled >= limits.exit_s
        )
        return Ending(process.attempt_id, True, why) if late else None
    if process.exited_at is not None:
        why = f"its port is closed, and the process has not ended within {limits.gone_s:g} s"
        late = now - process.exited_at >= limits.gone_s
        return Ending(process.attempt_id, True, why) if late else None
    if process.ending_since is None:
        return Ending(process.attempt_id, False, reason)
    if now - process.ending_since >= patience_s:
        return Ending(process.attempt_id, True, f"{reason}; SIGTERM did not help")
    return None


def why_killed(process: Process, limits: SupervisorLimits) -> str:
    """Why a process is killed whose script has ended; it counts as what the script has returned."""
    said = f"its script has ended (with code {process.ended_code}), and"
    if process.handled is None:
        handlers = "the exit handlers (atexit) that other libraries have registered"
        limit = f"{limits.exit_timeout_s:g} s (EDL_EXIT_TIMEOUT_S)"
        return f"{said} {handlers} did not end within {limit}"
    return f"{said} the process has not within {limits.exit_s:g} s"


def why_to_end(snapshot: Snapshot, own: SupervisorState, now: float) -> dict[Process, str]:
    """The processes that cannot stay in the job, each with the reason."""
    limits, evicted = own.limits, snapshot.evicted
    reasons = {
        p: evicted[p.worker] for p in own.living if p.worker is not None and p.worker in evicted
    }
    vanished = f"it left ZooKeeper {limits.absent_s:g} s ago"
    reasons |= {p: vanished for p in own.living if _vanished(p, limits, now)}
    frozen = f"it is frozen: it left ZooKeeper and does not answer for {limits.frozen_s:g} s"
    reasons |= {p: frozen for p in own.living if _is_frozen(p, snapshot, limits, now)}
    return reasons


def _vanished(process: Process, limits: SupervisorLimits, now: float) -> bool:
    """Whether it was never in a ring, and has been absent from ZooKeeper for too long."""
    absent = process.no_session_since
    return not process.seated and absent is not None and now - absent >= limits.absent_s


def _is_frozen(process: Process, snapshot: Snapshot, limits: SupervisorLimits, now: float) -> bool:
    """Whether it holds up a ring that could go on without it: somebody else leads."""
    if (
        process.unresponsive_since is None
        or process.no_session_since is None
        or process.departing is not None
    ):
        return False
    leads = snapshot.leader is not None and snapshot.leader.worker != process.worker
    long = now - max(process.unresponsive_since, process.no_session_since) >= limits.frozen_s
    return process.seated and leads and long


def _overdue(snapshot: Snapshot, own: SupervisorState) -> tuple[Ending, ...]:
    """Return the ends of workers in slots that should have been given back by now.

    Only workers that were evicted or have left are ended. One that is still in the ring may be the
    last with the state, so the leader decides about it.
    """
    ring = {member.id for member in snapshot.ring}
    return tuple(
        Ending(p.attempt_id, True, "its slot was to be given back by now")
        for p in own.living
        if own.overdue
        and (p.worker in snapshot.evicted or (p.departing is not None and p.worker not in ring))
    )


def to_ask(processes: Iterable[Process], snapshot: Snapshot) -> tuple[Process, ...]:
    """Those that may be frozen: they have left ZooKeeper, or were evicted, and have not ended."""
    return tuple(
        p
        for p in processes
        if p.alive and (p.no_session_since is not None or p.worker in snapshot.evicted)
    )


def without_init(own: SupervisorState, now: float) -> tuple[str, ...]:
    """A warning for each script that runs for long and has not called `edl.init()`."""
    limit_s = own.limits.start_timeout_s
    return tuple(
        f"{own.script} in {p.name} runs for {limit_s:g} s and did not call edl.init()"
        for p in own.living
        if p.worker is None and p.ending_since is None and p.started + limit_s <= now
    )


def fills_its_place(process: Process, limits: SupervisorLimits, now: float) -> bool:
    """Whether no other worker is to be started in place of this one.

    Whoever scales in wants fewer in the same moment in which a worker leaves, and the two are
    not read in one: so only a lasting lack of workers is filled again.
    """
    if process.ending_since is not None or process.failed:
        return False
    if process.alive:
        return process.departing is None or now - process.departing < limits.settle_s
    return process.worker is not None and now - (process.exited or 0.0) < limits.settle_s


def starts(
    places: Sequence[tuple[int, Process | None]], own: SupervisorState, why: str, now: float
) -> tuple[Start, ...]:
    """Fill places: slots, each with its last process. A failed one waits for its back-off.

    ``why``: who wants a worker there, as a clause.
    """
    found = []
    for slot, before in places:
        if before is None or before.used_up:
            again = " again" if before is not None else ""
            found.append(Start(slot, 0, f"{why}{again}"))
        elif before.alive:
            found.append(Start(slot, 0, f"{before.name} leaves and {why}"))
        elif now >= (before.exited or 0.0) + before.pause_s(own.limits.backoff_max_s):
            reason = f"{before.name} {how(before.exit_code or 0)} and {why}"
            replaces = before.seated and before.exit_code != 0
            found.append(Start(slot, before.failures_now, reason, replaces))
    return tuple(found)


def disable_slot(
    process: Process,
    snapshot: Snapshot,
    own: SupervisorState,
    desired: Placement | None,
    setting: str,
) -> SupervisorDecision:
    """Go on without the slot of ``process``, or end the job that cannot.

    Args:
        desired: without it; None: fewer than min_np workers would be left.
        setting: by which `max_restarts` is set.
    """
    job = snapshot.job
    slot = f"slot {process.slot} of host {own.host}"
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
        return SupervisorDecision(reason, outcome=Outcome(JobState.FAILED, reason, code))
    count = sum(desired.values())
    fewer = desired != snapshot.assigned.hosts
    lowered = f"; {workers(count)} {verb(count)} wanted now" if fewer else ""
    reason = f"{what} and is disabled{lowered}; {last}"
    return SupervisorDecision(
        reason, disable_slot=DisableSlot(process.attempt_id, process.slot, desired, reason)
    )
