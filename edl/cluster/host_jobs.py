"""Decide which agents `edl host` starts, which processes it ends, and what it reports.

:func:`decide_host` is a pure function of what is assigned to the host and of the processes that
live there. It looks at how things are, never at what has changed, so `edl host` may miss any number
of assignments, and may begin anew at any time. The rules:

1. **An agent a run.** While a run that is assigned does not end, one agent of it lives. One that
   dies is started again, with a pause that grows if its successors die soon, too. After an end that
   is final, such as that of a run that is over, no agent of that run is started again.
2. **A run that ends** (:attr:`JobAssignment.ends`) has a moment to end by itself. Then its agent
   gets SIGTERM, or its workers do if it has no agent. After a time limit all its processes are
   killed.
3. **What nobody assigned** is ended in the same way, without the moment. No agent is started before
   all of that is gone, for it may use any device.
4. **The report** has what was found, and the version of the assignment that was read before that.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from edl.cluster.records import LACKS, HostAssignment, HostReport, JobReport
from edl.errors import ALREADY_HERE_EXIT, UsageError


@dataclass(frozen=True)
class HostLimits:
    by_itself_s: float = 2.0  # how long a run that ends may take to end by itself
    kill_after_s: float = 10.0  # how long after SIGTERM the processes of a run are killed
    move_s: float = 5.0  # for the leader to move jobs off a host that leaves, before its agents do
    stable_s: float = 10.0  # an agent that lives so long has not failed at its start
    pause_s: float = 1.0  # after the second failure at the start; it doubles each time
    most_pause_s: float = 30.0  # the longest such pause
    left_pause_s: float = 0.5  # after an agent that left because its run has no devices here


LIMITS = HostLimits()
REFUSED_AFTER = 4  # agents of a run that failed soon after their start, one after another


@dataclass(frozen=True)
class RunProcess:
    pid: int  # the process id
    started: int  # when it was started, in clock ticks since the machine came up
    job: str  # the name of the job
    run: str  # the token of the run
    attempt_id: str = ""  # of the worker that it is, or that has started it; else empty
    is_agent: bool = False  # whether it is an agent

    @property
    def identity(self) -> tuple[int, int]:
        return self.pid, self.started

    @property
    def of_run(self) -> tuple[str, str]:
        return self.job, self.run


@dataclass(frozen=True)
class LastAgent:
    """How the last agent of a run on this host that has ended did so."""

    run: str  # the token of the run
    exit_code: int | None = None  # its exit code; None: it is not known
    reason: str = ""  # why it ended, as a sentence; empty: it is not known
    is_final: bool = False  # whether no other agent of the run is started
    refused: bool = False  # final, though its run is not over
    has_left: bool = False  # whether it ended because its run has no devices here any more
    failures: int = 0  # agents of the run that ended soon after their start, in a row
    ended_s: float = 0.0  # when it ended, by the clock of the decision

    def again_s(self, limits: HostLimits) -> float:
        if self.failures < 2:
            return self.ended_s + (limits.left_pause_s if self.has_left else 0.0)
        pause_s = limits.pause_s * 2.0 ** min(self.failures - 2, 30)
        return self.ended_s + min(pause_s, limits.most_pause_s)


@dataclass(frozen=True)
class HostObservation:
    """The facts on this host from which `edl host` decides: processes found, and its own memory."""

    version: int  # the version of the assignment that was read before the processes were looked at
    processes: Sequence[RunProcess] = ()  # of the cluster's jobs, on this host
    agents: Mapping[str, LastAgent] = field(default_factory=dict)  # job -> the last ended one
    obstacles: Mapping[str, str] = field(default_factory=dict)  # job -> why no agent can start now
    ending_s: Mapping[tuple[str, str], float] = field(default_factory=dict)  # (job, run) -> since
    terminated: frozenset[tuple[int, int]] = frozenset()  # those that have got SIGTERM
    leaves: bool = False  # whether all agents are to leave, as this host leaves the cluster
    kills: bool = False  # whether the time for that is over


@dataclass(frozen=True)
class ProcessSignal:
    process: RunProcess
    kill: bool  # whether the signal is SIGKILL; otherwise it is SIGTERM
    reason: str  # why the process is to end, as a clause


@dataclass(frozen=True)
class HostDecision:
    report: HostReport  # the report to write
    starts: tuple[str, ...] = ()  # the jobs whose assigned runs get an agent, sorted
    signals: tuple[ProcessSignal, ...] = ()  # the processes that get a signal, in this order
    ending_s: Mapping[tuple[str, str], float] = field(default_factory=dict)  # for the next turn
    next_s: float | None = None  # when to decide again in any case; None: no limit runs


def after_end(
    before: LastAgent | None, ended: LastAgent, lived_s: float, limits: HostLimits = LIMITS
) -> LastAgent:
    if lived_s >= limits.stable_s:
        return ended
    earlier = before.failures if before is not None and before.run == ended.run else 0
    # That another agent is here, or its session is, passes by itself: the run is not refused by it.
    most = REFUSED_AFTER - 1 if ended.exit_code == ALREADY_HERE_EXIT else earlier + 1
    return replace(ended, failures=min(earlier + 1, most))


def decide_host(
    assigned: HostAssignment, seen: HostObservation, now_s: float, limits: HostLimits = LIMITS
) -> HostDecision:
    # `now_s` is of any clock that only goes forward, as are the times in `seen`.
    runs: dict[tuple[str, str], list[RunProcess]] = {}
    for process in sorted(seen.processes, key=lambda one: (one.started, one.pid)):
        runs.setdefault(process.of_run, []).append(process)
    signals: list[ProcessSignal] = []
    ending_s: dict[tuple[str, str], float] = {}
    times: list[float] = []
    for of_run in sorted(runs):
        terms = _terms(assigned, of_run, seen, limits)
        if terms is None:
            continue
        ending_s[of_run] = seen.ending_s.get(of_run, now_s)
        passed_s = now_s - ending_s[of_run]
        signals += _signals(runs[of_run], terms, passed_s, seen.terminated)
        times += [
            ending_s[of_run] + after_s
            for after_s in (terms.terminate_after_s, terms.kill_after_s)
            if passed_s < after_s < math.inf
        ]
    starts, again_s = _starts(assigned, seen, runs, now_s, limits)
    return HostDecision(
        HostReport(seen.version, _reports(assigned, seen, runs)),
        starts,
        tuple(signals),
        ending_s,
        min([*times, *again_s], default=None),
    )


@dataclass(frozen=True)
class _Terms:
    """Why the processes of a run are to end on this host, and how long after that was decided."""

    reason: str  # why, as a clause
    terminate_after_s: float  # when they get SIGTERM, in seconds
    kill_after_s: float  # when they are killed, in seconds; infinite: never


def _terms(
    assigned: HostAssignment, of_run: tuple[str, str], seen: HostObservation, limits: HostLimits
) -> _Terms | None:
    """Return why and when the processes of a run are to end on this host; None: the run goes on."""
    job, run = of_run
    entry = assigned.jobs.get(job)
    if entry is None or entry.run != run:
        terms = _Terms("nobody has assigned it to this host", 0.0, limits.kill_after_s)
    elif entry.ends:
        by_itself_s = limits.by_itself_s
        terms = _Terms("its run has ended", by_itself_s, by_itself_s + limits.kill_after_s)
    elif seen.leaves or seen.kills:
        terms = _Terms("the host leaves", limits.move_s, math.inf)
    else:
        return None
    return replace(terms, kill_after_s=0.0) if seen.kills else terms


def _signals(
    processes: Sequence[RunProcess],
    terms: _Terms,
    passed_s: float,
    terminated: Collection[tuple[int, int]],
) -> list[ProcessSignal]:
    if passed_s >= terms.kill_after_s:
        # An agent is killed before its workers, so that it starts no others.
        order = sorted(processes, key=lambda one: not one.is_agent)
        return [ProcessSignal(one, True, terms.reason) for one in order]
    if passed_s < terms.terminate_after_s:
        return []
    agents = [one for one in processes if one.is_agent][:1]
    return [
        ProcessSignal(one, False, terms.reason)
        for one in agents or _oldest_of_attempts(processes)
        if one.identity not in terminated
    ]


def _oldest_of_attempts(processes: Sequence[RunProcess]) -> list[RunProcess]:
    found: dict[str, RunProcess] = {}
    for one in processes:
        found.setdefault(one.attempt_id, one)
    return list(found.values())


def _starts(
    assigned: HostAssignment,
    seen: HostObservation,
    runs: Mapping[tuple[str, str], Sequence[RunProcess]],
    now_s: float,
    limits: HostLimits,
) -> tuple[tuple[str, ...], list[float]]:
    """Return the pair (jobs that get an agent now, sorted; times at which others may get one)."""
    known = {(job, entry.run) for job, entry in assigned.jobs.items()}
    strangers = runs.keys() - known
    # A stranger may use any device.
    if seen.kills or strangers:
        return (), []
    starts, times = [], []
    have_agents = {one.of_run for one in seen.processes if one.is_agent}
    for job, entry in sorted(assigned.jobs.items()):
        if entry.ends or (job, entry.run) in have_agents:
            continue
        if seen.leaves and (job, entry.run) not in runs:
            continue  # only workers that live need an agent, with which they leave
        last = seen.agents.get(job)
        if last is not None and last.run == entry.run:
            if last.is_final:
                continue
            if now_s < last.again_s(limits):
                times.append(last.again_s(limits))
                continue
        if job not in seen.obstacles:
            starts.append(job)
    return tuple(starts), times


def _reports(
    assigned: HostAssignment,
    seen: HostObservation,
    runs: Mapping[tuple[str, str], Sequence[RunProcess]],
) -> dict[str, JobReport]:
    living: dict[str, list[RunProcess]] = {}
    for (job, _), processes in sorted(runs.items()):
        # Processes of former runs count, too: they may use the devices.
        living.setdefault(job, []).extend(processes)
    found = {}
    for job in sorted(assigned.jobs.keys() | living.keys()):
        entry = assigned.jobs.get(job)
        run = entry.run if entry is not None else living[job][0].run
        report = _report(run, living.get(job, ()), seen.agents.get(job))
        if entry is not None and not entry.ends and not report.agent and job in seen.obstacles:
            why = seen.obstacles[job]
            report = replace(report, reason=why, refused=why.startswith(LACKS))
        if report.lives or report != JobReport(run):
            found[job] = report
    return found


def _report(run: str, living: Sequence[RunProcess], last: LastAgent | None) -> JobReport:
    agent = any(one.is_agent for one in living)
    # What an agent has started for itself lives as long as the agent.
    counted = [one for one in living if one.attempt_id or (not agent and not one.is_agent)]
    processes = tuple(sorted(one.pid for one in _oldest_of_attempts(counted)))
    if last is None or last.run != run:
        return JobReport(run, agent, None, processes)
    has_failed = last.failures >= REFUSED_AFTER and last.exit_code != 0
    refused = not agent and (last.refused or has_failed)
    return JobReport(run, agent, last.exit_code, processes, "" if agent else last.reason, refused)


# ------------------------------------------------------------
# Define how much of a host the processes of a job may use: so much for each of its slots there.


_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)([KMGT]?)")
_FACTORS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}
LEAST_BYTES = 64 << 20  # of a slot's memory: with less no agent starts
LEAST_TASKS = 64


@dataclass(frozen=True)
class SlotLimits:
    """The most that a job's processes, its agent included, may use on a host, for each slot."""

    memory_bytes: int | None = None  # memory, in bytes. No swap is used beside it.
    cpus: float | None = None  # processors, as a number that need not be whole
    tasks: int | None = None  # processes and threads

    @property
    def is_empty(self) -> bool:
        return self == NO_LIMITS

    def properties(self, slots: int) -> tuple[str, ...]:
        found = []
        if self.memory_bytes is not None:
            found += [f"MemoryMax={self.memory_bytes * slots}", "MemorySwapMax=0"]
        if self.cpus is not None:
            found.append(f"CPUQuota={max(1, round(100 * self.cpus * slots))}%")
        if self.tasks is not None:
            found.append(f"TasksMax={self.tasks * slots}")
        return tuple(found)


NO_LIMITS = SlotLimits()


def slot_limits(memory: str | None, cpus: float | None, tasks: int | None) -> SlotLimits:
    size = None if memory is None else _bytes(memory)
    if size is not None and size < LEAST_BYTES:
        raise UsageError(f"--memory-per-slot {memory} is too little to start a worker; give 64M up")
    if cpus is not None and not (math.isfinite(cpus) and cpus >= 0.01):
        raise UsageError(f"--cpus-per-slot is {cpus:g}; give at least 0.01 processors")
    if tasks is not None and tasks < LEAST_TASKS:
        raise UsageError(f"--tasks-per-slot {tasks} is too few for any worker; give 64 up")
    return SlotLimits(size, cpus, tasks)


def _bytes(text: str) -> int:
    """Return the size that `text`, like "16G", stands for, in bytes; see `slot_limits`."""
    match = _SIZE.fullmatch(text.strip().upper().removesuffix("B").removesuffix("I"))
    if match is None:
        raise UsageError(f"--memory-per-slot is {text!r}; give bytes, or a size like 16G or 500M")
    return int(float(match[1]) * (1 << _FACTORS[match[2]]))
