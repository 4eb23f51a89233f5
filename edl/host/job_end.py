"""Decide when a job has ended, cannot begin or has no workers left, and what its launchers do then.

An agent and an `edl-worker` call :func:`decide_job_end` first, and :func:`decide_job_failure` if no
rule of theirs before it applies. The rules, in order:

1. The job is over: its workers end by themselves within a time limit, and are ended after that.
2. The job is stopping: the leader lets the ring end, workers in no ring are ended at once.
3. The last ring has ended: no worker is started any more, and when all have left it is STOPPED.
4. A job that cannot begin has FAILED.
5. A job without any worker left has FAILED, or FINISHED if all exited with 0. It goes on if its
   workers were killed and there is a checkpoint, unless they die again and again without progress.
"""

from __future__ import annotations

from collections.abc import Sequence

from edl.errors import REFUSED_EXIT
from edl.host.process import STOPPED_EXIT, Process, exit_status, how, how_all, last_words
from edl.host.restart import end_each, end_processes, is_terminating, why_to_end
from edl.host.supervision import (
    EndProcess,
    SupervisorDecision,
    SupervisorLimits,
    SupervisorState,
    dead_ring,
    foreign,
)
from edl.job.placement import why_too_few
from edl.job.run import HALTED_EXIT, JobEnd, halted
from edl.job.snapshot import GONE, Snapshot
from edl.records import Generation, Job, JobState, Stage
from edl.text import workers

FAILING = 3  # failures of a slot in a row, from which on the cluster takes it away
TOLD = "the workers were told to end while ZooKeeper was away"


def decide_job_end(
    snapshot: Snapshot, state: SupervisorState, now: float
) -> SupervisorDecision | None:
    """Return a launcher's decision while the job ends; None while the job goes on."""
    generation = snapshot.generation
    if snapshot.job.state.over:
        return _wind_down(snapshot, state, now)
    if snapshot.job.state is JobState.STOPPING:
        return _stop(snapshot, state, now)
    if generation is not None and not generation.members:
        reason = generation.reason
        if not snapshot.members:
            return SupervisorDecision(reason, outcome=JobEnd(JobState.STOPPED, reason))
        to_end = why_to_end(snapshot, state, now)
        return SupervisorDecision(reason, endings=end_each(to_end, state.limits, now))
    return None


def decide_job_failure(
    snapshot: Snapshot, state: SupervisorState, now: float
) -> SupervisorDecision | None:
    outcome = _cannot_begin(snapshot, state, now)
    # Too few hosts have come for the first ring in time, which is longer than `start_timeout_s`,
    # after which the leader starts with `min_np` or more.
    since, limit_s = state.too_few_since, state.limits.hosts_limit_s
    if outcome is None and since is not None and now - since >= limit_s:
        outcome = JobEnd(JobState.FAILED, why_too_few(snapshot, limit_s), 1)
    outcome = outcome or _nobody_left(snapshot, state, now)
    return None if outcome is None else SupervisorDecision(outcome.reason, outcome=outcome)


def result(job: Job, state: SupervisorState) -> int:
    if job.state is JobState.FAILED:
        return job.exit_code
    # Each agent says whether the last step of a preempted job was saved.
    if job.state is JobState.STOPPED and job.end_within_s and not job.driver:
        return job.exit_code or HALTED_EXIT
    # `edl run ... && evaluate` must not evaluate; who only takes part returns 0.
    if job.state is JobState.STOPPED and state.is_submitter:
        return job.exit_code or STOPPED_EXIT
    late = failed_late(job, state)
    if late is not None:
        return exit_status(late.exit_code or 1)
    return job.exit_code if job.state is JobState.FINISHED else 0


def failed_late(job: Job, state: SupervisorState) -> Process | None:
    late = (p for p in state.processes if p.failed_late(state.state_since, job.finished_in))
    return next(late, None) if job.state is JobState.FINISHED else None


def _wind_down(snapshot: Snapshot, state: SupervisorState, now: float) -> SupervisorDecision:
    job, limits, living = snapshot.job, state.limits, state.living
    if not living:
        return SupervisorDecision(f"the job is over: {job.reason}", exit_code=result(job, state))
    waited = now - state.state_since
    reason = f"job {job.name} {job.state.phrase}"
    if job.state is JobState.FAILED:
        return SupervisorDecision(reason, endings=end_processes(living, limits, now, reason))
    if kills := _bound_is_over(job, state, now):
        return SupervisorDecision(reason, endings=kills)
    finished = job.state is JobState.FINISHED
    patience = limits.finish_s if finished else limits.stop_s
    evicted = snapshot.evicted  # what such a worker has trained is not the job's
    late = [p for p in living if waited >= patience or not p.seated or p.worker in evicted]
    warnings: tuple[str, ...] = ()
    if finished and waited >= limits.stop_s:
        names = ", ".join(p.name for p in living)
        warnings = (f"{names} still running {limits.stop_s:g} s after the job has finished",)
    reasons = {p: reason if p.worker is None else evicted.get(p.worker, reason) for p in late}
    return SupervisorDecision(reason, endings=end_each(reasons, limits, now), warnings=warnings)


def _stop(snapshot: Snapshot, state: SupervisorState, now: float) -> SupervisorDecision:
    living, limits = state.living, state.limits
    reason = snapshot.job.reason or "the job is asked to stop"
    if not living and not foreign(snapshot, state):
        return SupervisorDecision(reason, outcome=stopped_outcome(snapshot, reason))
    if kills := _bound_is_over(snapshot.job, state, now):
        return SupervisorDecision(reason, endings=kills)
    waited = now - state.state_since
    patience, quiet = limits.stop_limit_s(snapshot.job), now - max(state.stepped, state.state_since)
    preempted = bool(snapshot.job.end_within_s)
    still = [] if preempted else _stuck(snapshot, living, limits, quiet)
    ending: Sequence[Process] = living
    if snapshot.generation is None:
        why = "the job stops before it began"
    elif still:  # they know that the job stops: SIGTERM would tell them nothing else
        why = f"the job stops and no step has completed for {quiet:.0f} s"
        return SupervisorDecision(
            reason, endings=tuple(EndProcess(p.attempt_id, True, why) for p in still)
        )
    elif waited >= patience:
        why = f"the ring did not end within {patience:g} s"
    elif snapshot.leader is None and waited >= limits.leaderless_s:
        why = f"the job stops and nobody has led it for {limits.leaderless_s:g} s"
    else:
        ending, why = [p for p in living if p.worker is None], "the job stops before it joined"
    return SupervisorDecision(reason, endings=end_processes(ending, limits, now, why))


def stopped_outcome(snapshot: Snapshot, reason: str) -> JobEnd:
    job = snapshot.job
    if not job.end_within_s:
        return JobEnd(JobState.STOPPED, reason)
    return halted(reason, snapshot.status.step, job.saved_step, job.checkpoint)


def _bound_is_over(job: Job, state: SupervisorState, now: float) -> tuple[EndProcess, ...]:
    """Return the orders to kill the workers of a preempted job whose bound is over; else none."""
    since = state.preempted_since
    if since is None or now - since < job.end_within_s:
        return ()
    why = f"the job is preempted, and its {job.end_within_s:g} s are over"
    return tuple(EndProcess(process.attempt_id, True, why) for process in state.living)


def _stuck(
    snapshot: Snapshot, living: Sequence[Process], limits: SupervisorLimits, quiet: float
) -> list[Process]:
    """Return the processes that hold up the ring of a stopping job; none while it may step."""
    usual = snapshot.status.median_step_s
    limit = min(limits.stop_s, max(limits.stuck_s, limits.stuck_steps * usual))
    # With a checkpoint a worker may evaluate, which completes no step either.
    if quiet < (limits.stop_s if snapshot.job.checkpoint else limit):
        return []
    stages = {m.attempt_id: m.stage for m in snapshot.members}
    on_its_way = (Stage.LEAVING, Stage.FINISHED)
    return [
        p for p in living if stages.get(p.attempt_id) not in on_its_way and not is_terminating(p)
    ]


def _cannot_begin(snapshot: Snapshot, state: SupervisorState, now: float) -> JobEnd | None:
    processes = state.processes
    if snapshot.generation is not None or not processes:
        return None
    if any(p.exit_code == 0 and p.worker is None and p.ending_since is None for p in processes):
        return JobEnd(JobState.FAILED, f"{state.script} ended without calling edl.init()", 1)
    # For a reason that holds for each start of the same command.
    refused = [p for p in processes if p.exit_code == REFUSED_EXIT and p.worker is None]
    if refused:
        return JobEnd(JobState.FAILED, refused[0].termination_message, REFUSED_EXIT)
    failed = [p for p in processes if p.failed]
    first_died = not any(p.ready for p in processes) and all(
        p.failed or p.failures for p in processes
    )
    # Workers of other hosts, which may not have registered yet, can begin without this host's.
    others = not snapshot.job.driver and any(
        number > len(next((h.failing for h in snapshot.agents if h.name == host), ()))
        for host, number in snapshot.assigned.hosts.items()
        if host != state.host
    )
    if failed and first_died and not others and not foreign(snapshot, state):
        died, several = failed[0], len(processes) > 1
        who = f"all {len(processes)} workers" if several else "the only worker"
        who = who if several or snapshot.assigned.np == 1 else state.script
        reason = f"{who} {how_all(failed, several)} before joining the job; {last_words(died)}"
        return JobEnd(JobState.FAILED, reason, exit_status(died.exit_code or 1))
    # Too few workers, of any launcher, registered in time.
    limit_s = state.limits.start_timeout_s
    here = sum(p.alive and p.worker is not None for p in processes)
    usable = here + len(foreign(snapshot, state))
    late = [p for p in processes if p.started + limit_s <= now]
    if snapshot.job.sizes.enough(usable) or not late:
        return None
    within = f"within {limit_s:g} s (EDL_START_TIMEOUT_S)"
    if unregistered := ", ".join(p.name for p in late if p.alive and p.worker is None):
        reason = f"{state.script} ({unregistered}) did not call edl.init() {within}"
        return JobEnd(JobState.FAILED, reason, 1)
    if not failed:
        return None
    died, code = failed[0], failed[0].exit_code or 1
    reason = (
        f"{usable} of at least {workers(snapshot.job.sizes.min_np)} came up {within}; {died.name} "
        f"{how(code)}; {last_words(died)}"
    )
    return JobEnd(JobState.FAILED, reason, exit_status(code))


def failing_slots(state: SupervisorState) -> dict[str, str]:
    """Return the slots of which no worker is ready after a failure -> why, from the third on."""
    found, reasons = {}, {}
    for p in sorted(state.processes, key=lambda p: p.started):
        found[str(p.slot)] = not p.ready and (p.failed or p.failures > 0)
        if p.failed:  # kept while the next one starts
            many = p.failures_now >= FAILING
            reasons[str(p.slot)] = f"{how_all([p], False)}; {last_words(p)}" if many else ""
    return {slot: reasons.get(slot, "") for slot, failing in found.items() if failing}


def _nobody_left(snapshot: Snapshot, state: SupervisorState, now: float) -> JobEnd | None:
    """Return the outcome of a job whose workers have all ended; None if it may yet go on."""
    generation, mine = snapshot.generation, dead_ring(snapshot, state)
    if generation is None or not mine:
        return None
    if any(p.stopped for p in mine):
        # The agent that told them to end writes that, if ZooKeeper comes back.
        late = _dead_for(generation, state, now) >= state.limits.away_s
        return JobEnd(JobState.STOPPED, TOLD) if late else None
    if not _others_are_dead(snapshot, generation, state, now):
        return None
    failed = [p for p in mine if p.failed] or [p for p in mine if p.exit_code]
    if not failed:
        settled = all(now - (p.exited or 0.0) >= state.limits.settle_s for p in mine)
        all_well = JobEnd(JobState.FINISHED, "all workers have exited with code 0")
        return all_well if settled else None
    # It may go on from a checkpoint, unless the script's own errors would come again.
    unrecoverable = ""
    if not all(map(_by_an_error, failed)):
        saved, start_s = snapshot.job.saved_step, 2 * state.limits.start_timeout_s
        same = [death for death in state.ring_deaths if death.saved_step == saved]
        if saved < 0:
            unrecoverable = "; there is no checkpoint to resume from (edl.checkpoint)"
        elif len(same) > state.limits.restarts:
            times = f", {len(same)} times without progress"
            unrecoverable = f"{times} after the checkpoint of step {saved}"
        elif same and now - same[-1].at > start_s:
            unrecoverable = f", and no new ones began within {start_s:g} s"
        else:
            return None
    died = next(filter(_by_an_error, failed), failed[0])
    if len(generation.members) == 1:
        who = f"the last worker {how_all(failed, several=False)}"
    elif len(mine) == len(generation.members):
        who = f"all workers {how_all(failed, several=True)}"
    else:
        who = f"all workers died, {died.name} {how(died.exit_code or 1)}"
    reason = f"{who}{unrecoverable}; {last_words(died)}"
    return JobEnd(JobState.FAILED, reason, exit_status(died.exit_code or 1))


def ring_is_away(snapshot: Snapshot, state: SupervisorState, now: float) -> bool:
    # A worker that only lost its session opens another soon; till then none could send the state to
    # a new one.
    generation = snapshot.generation
    if generation is None or not dead_ring(snapshot, state):
        return False
    return not _others_are_dead(snapshot, generation, state, now)


def _others_are_dead(
    snapshot: Snapshot, generation: Generation, state: SupervisorState, now: float
) -> bool:
    """Return whether all ring members of other launchers count as dead, this one's being dead."""
    gone = {worker for worker, reason in snapshot.evicted.items() if reason.startswith(GONE)}
    if {p.worker for p in state.processes} | state.ended | gone >= snapshot.state_owners:
        return True
    # A worker that only lost its session trains on, and opens another within that time.
    return _dead_for(generation, state, now) >= state.limits.lost_s


def _dead_for(generation: Generation, state: SupervisorState, now: float) -> float:
    lost = [death.at for death in state.ring_deaths if death.generation == generation.number]
    return now - lost[0] if lost else 0.0


def told_to_end(snapshot: Snapshot, state: SupervisorState) -> bool:
    """Return whether a ring worker of this launcher has ended because its job was told to end."""
    # The job may still be *running* in ZooKeeper, which was away then. False again once the others
    # have repaired their ring without that worker.
    return any(p.stopped and p.worker in snapshot.state_owners for p in state.processes)


def _by_an_error(process: Process) -> bool:
    return process.failed and (process.exit_code or 0) > 0
