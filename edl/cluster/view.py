"""Define what the leader of a cluster has read before it plans: jobs, hosts and the policy's state.

**The order of reading.** A job's own record of its devices (``assigned``) must be read before the
records of its agents, and both through the session in which the leader writes. Then a device that
neither the first nor a later read of the agent's record has, is used by no process and never will
be: an agent declares a device in its record before it starts a process there, in one transaction
that checks the version of ``assigned``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from edl.cluster.lifecycle import (
    MAX_BACK_OFF_S,
    HostLimit,
    JobLifecycle,
    LifeState,
    is_token_of,
    run_order,
)
from edl.cluster.manifest import JobManifest
from edl.cluster.records import (
    FORMAT,
    LACKS,
    AllocationRecord,
    ClusterRecord,
    Goal,
    HostAssignment,
    HostFailure,
    HostOffer,
    HostReport,
    JobAssignment,
    LeaseRecord,
    LeaseTable,
    MissingPath,
    QueueRecord,
    Wanted,
    tenant_of,
)
from edl.policy.observation import alike
from edl.policy.scaling_profile import ScalingProfile
from edl.policy.step_time import StepTimeSample
from edl.record import Record
from edl.records import Assigned, Desired, Generation, Host, Job, JobState, TrainingStatus
from edl.step.batching import Batching
from edl.text import printable

# ------------------------------------------------------------
# Move times of a cluster's records that lie ahead of the leader's clock to the present.
#
# The times are ZooKeeper's, by the clock of the leader that wrote them. If that clock is set back
# between two terms, the next leader reads times that are yet to come: a host that fell silent then
# would not be lost, a job would not stop or be tried again, until the clock has made up for all of
# the jump. So a plan takes each such time as its own, and writes it: what waits begins to wait
# anew. Times that only people read stay as they are.


def life_by(now_s: float, life: JobLifecycle, limit_s: float) -> JobLifecycle:
    """Return the record of a job's life without times that lie ahead; `life` if it has none."""
    try_s, until_s = now_s + MAX_BACK_OFF_S, now_s + limit_s  # the latest times
    is_right = (
        max(life.since_s, life.counted_s) <= now_s
        and life.not_before_s <= try_s
        and all(one.until_s <= until_s for one in life.limits.values())
    )
    if is_right or life.state is LifeState.ENDED:
        return life
    return replace(
        life,
        since_s=min(life.since_s, now_s),
        counted_s=min(life.counted_s, now_s),
        not_before_s=min(life.not_before_s, try_s),
        limits={
            host: HostLimit(one.most, min(one.until_s, until_s))
            for host, one in life.limits.items()
        },
    )


def assignment_by(now_s: float, assigned: HostAssignment) -> HostAssignment:
    """Return what is assigned to a host, without times that lie ahead of `now_s`."""

    def right(entry: JobAssignment) -> JobAssignment:
        if max(entry.changed_s, entry.idle_s) <= now_s:
            return entry
        changed_s, idle_s = min(entry.changed_s, now_s), min(entry.idle_s, now_s)
        return replace(entry, changed_s=changed_s, idle_s=idle_s)

    jobs = {job: right(entry) for job, entry in assigned.jobs.items()}
    failures = {k: replace(v, at_s=min(v.at_s, now_s)) for k, v in assigned.failures.items()}
    silent_s = min(assigned.silent_s, now_s)
    return replace(assigned, jobs=jobs, silent_s=silent_s, failures=failures)


def allocation_by(now_s: float, allocation: AllocationRecord) -> AllocationRecord:
    """Return the policy's last decision, without changes of targets that lie ahead of `now_s`."""
    return replace(allocation, changed_s=_right(now_s, allocation.changed_s))


def leases_by(now_s: float, table: LeaseTable, rest_s: float) -> LeaseTable:
    """Return the record of the leases without times that lie ahead."""

    def right(lease: LeaseRecord) -> LeaseRecord:
        return replace(
            lease,
            silent_s=min(lease.silent_s, now_s),
            offered_s=min(lease.offered_s, now_s),
            idle_s=min(lease.idle_s, now_s),
            back_s=min(lease.back_s, now_s),
        )

    return replace(
        table,
        leases={name: right(one) for name, one in table.leases.items()},
        strays=_right(now_s, table.strays),
        not_before_s=min(table.not_before_s, now_s + rest_s),
    )


def _right(now_s: float, times: Mapping[str, float]) -> Mapping[str, float]:
    return {name: min(at_s, now_s) for name, at_s in times.items()}


FIRST_STEP = 1.25  # of the time for the first workers: until their ring has trained a step
Devices = Mapping[str, tuple[int, ...]]  # host -> the numbers of devices there, sorted


@dataclass(frozen=True)
class AgentView:
    devices: frozenset[int] = frozenset()  # the devices on which the agent may start workers
    busy: frozenset[int] = frozenset()  # the devices that living processes use
    leaving: bool = False  # whether the agent was asked to leave the job
    disabled: int = 0  # the number of slots in which it starts no worker any more
    failing: int = 0  # other slots in which workers end as they start, again and again
    why: str = ""  # why, of one of these slots

    def is_useless(self, slots: int) -> bool:
        return 0 < slots <= self.disabled + self.failing


@dataclass(frozen=True)
class RunView:
    """One run, as the records below the job's own node (`/edl/jobs/JOB`) show it."""

    token: str
    state: JobState = JobState.RUNNING  # the state in the job's record
    reason: str = ""  # why the job is in that state
    exit_code: int = 0  # the exit code in the job's record
    trains: bool = False  # whether a ring of the run has trained a step
    devices: Devices = field(default_factory=dict)  # that the run may use, by host
    version: int = 0  # the version of that record
    agents: Mapping[str, AgentView] = field(default_factory=dict)  # by host, of the run
    batch: int | None = None  # the global batch that it was told to use; None: none
    workers: Mapping[str, int] | None = None  # by host; None: one for each device
    saves: bool = True  # whether it saves checkpoints; a run that trains has saved its first one

    @property
    def lacks_workers(self) -> bool:
        if self.workers is None:
            return False
        here = [(h, one.disabled) for h, one in self.agents.items() if not one.leaving]
        # The run's own leader, or an agent, lowers the number when workers or the agent leave.
        return any(
            self.workers.get(host, 0) < len(self.devices.get(host, ())) - disabled
            for host, disabled in here
        )

    def busy(self, host: str) -> frozenset[int]:
        agent = self.agents.get(host)
        return agent.busy if agent else frozenset()

    def uses(self, host: str, device: int) -> bool:
        agent = self.agents.get(host)
        # Silence frees nothing: without its agent's record the run may still use the device.
        if agent is None or device in self.devices.get(host, ()):
            return True
        return device in agent.devices or device in agent.busy


@dataclass(frozen=True)
class JobMeasurements:
    """Speed and length of a job's training: measured in this run, in a former one, or supplied."""

    steps: tuple[StepTimeSample, ...] = ()  # each combination of workers, hosts and batch once
    # the throughput in samples a second, by number of workers: a profile of the job, or what a
    # former run of the same name measured. It counts where `steps` has nothing.
    curve: Mapping[int, float] = field(default_factory=dict)
    left: float | None = None  # the number of samples to train until the end; None: not known
    done_steps: int = 0  # the number of complete steps
    global_batch: int = 0  # the samples of a step now; 0: not known
    noise_scale: float | None = None  # of the gradients, in samples; None: not known
    batching: Batching | None = None  # as the script gives them; None: not known


@dataclass(frozen=True)
class JobView:
    name: str
    order: int  # in the order of submission (`czxid` of the manifest); never the same twice
    manifest: JobManifest  # what was submitted
    submitted_s: float = 0.0  # in seconds since 1970; 0: at the time of the plan
    wanted: Wanted = field(default_factory=Wanted)  # what users want of the job
    life: JobLifecycle = field(default_factory=JobLifecycle)  # the default: none yet
    run: RunView | None = None  # the run that the job's own node has; None: there is no such node
    measured: JobMeasurements = field(default_factory=JobMeasurements)  # of its training
    # why the records of its run cannot be read, in a sentence; empty: they can. Then `run` is what
    # its hosts have for it.
    unreadable: str = ""
    # whether that is so only because its run was not read now; then nothing is taken from it for
    # what its records do not show
    is_unread: bool = False
    life_version: int = 0  # of the node `life`, which a write must name

    @property
    def present_run(self) -> RunView | None:
        """The run that the job's record names, if it was created; else None."""
        run = self.run
        return run if run is not None and run.token == self.life.run else None

    @property
    def run_is_over(self) -> bool:
        """Whether no run of the job can train: none was created, or the last one is over."""
        return self.run is None or self.run.state.over

    @property
    def run_is_foreign(self) -> bool:
        run = self.run
        return run is not None and not run.state.over and not is_token_of(run.token, self.order)

    @property
    def wants_slots(self) -> bool:
        state = self.life.state
        return self.wanted.goal is Goal.RUN and state not in (LifeState.HALTED, LifeState.ENDED)

    @property
    def saves_nothing(self) -> bool:
        """Whether its run trains without saving: what it has trained is lost when it is halted."""
        run = self.present_run
        return self.life.state is LifeState.RUNNING and run is not None and not run.saves

    def start_limit_s(self, settings: ClusterRecord) -> float:
        """Return in how many seconds a start must lead to a ring that trains."""
        # The job's own limit comes first: with it the job can begin with fewer workers, and not
        # long after it its agents end a run that has too few.
        return max(settings.start_timeout_s, FIRST_STEP * self.manifest.start_timeout_s)

    @property
    def min_slots(self) -> int:
        sizes = self.manifest.allowed_sizes
        return sizes.above(sizes.min_np) or sizes.min_np


@dataclass(frozen=True)
class HostView:
    name: str
    offer: HostOffer | None = None  # what it offers; None: it offers nothing now
    drained: bool = False  # whether a user wants no slots of jobs on it
    assigned: HostAssignment = field(default_factory=HostAssignment)  # by the leader
    version: int = -1  # the version of the node `assigned` of the host; -1: there is no such node
    report: HostReport | None = None  # of `edl host`; None: it never has
    lease_holds: bool = True  # whether the engine that lends it, if any, still does

    @property
    def takes_slots(self) -> bool:
        offer = self.offer
        if offer is None or self.drained or offer.leaves or not self.lease_holds:
            return False
        if self.assigned.out:
            return False
        return offer.format == FORMAT

    def is_lost(self, now_s: float, after_s: float) -> bool:
        """Return whether the host has been without an offer for longer than `after_s`."""
        silent_s = self.assigned.silent_s
        return self.offer is None and silent_s > 0 and now_s - silent_s >= after_s

    def reports_none(self, job: str) -> bool:
        # A report about an older assignment may be from before `edl host` knew of the run.
        if self.offer is None or self.report is None or self.report.version < self.version:
            return False
        # A process may still be started, unless the run is to end.
        found = self.report.jobs.get(job)
        return found is None or not found.lives

    def reports_no_start(self, job: str, run: str) -> bool:
        found = self.report.jobs.get(job) if self.offer is not None and self.report else None
        if found is None or found.run != run or found.lives:
            return False
        return bool(found.reason) or found.exit_code is not None

    def refusal(self, job: str, run: str) -> str:
        """Return why no agent of a run can live here, by the host's report; empty: one may."""
        found = self.report.jobs.get(job) if self.report is not None else None
        refused = found is not None and found.run == run and found.refused and not found.lives
        return found.reason or "its agent ends at once" if found is not None and refused else ""

    def reports_end(self, job: str) -> bool:
        entry, report = self.assigned.jobs.get(job), self.report
        # A report about an older assignment does not know that the run ends.
        if entry is None or not entry.ends or report is None or report.version < entry.ends:
            return False
        found = report.jobs.get(job)
        return found is None or not found.lives


@dataclass(frozen=True)
class ClusterView:
    jobs: Sequence[JobView]  # the jobs, in the order of submission
    hosts: Sequence[HostView]  # by name; also those that offer nothing
    settings: ClusterRecord = field(default_factory=ClusterRecord)  # how the cluster decides
    allocation: AllocationRecord = field(default_factory=AllocationRecord)  # of the policy
    secrets: Collection[str] = ()  # the names of the secrets that users have given to the cluster
    queues: Mapping[str, QueueRecord] = field(default_factory=dict)  # by name; or all jobs share
    more_hosts: str = "add hosts with `edl host`"  # the end of a sentence for people
    # path -> the host that an engine had lent, and that did not have it, as the subject of a
    # sentence. For now no host is borrowed for jobs that need the path.
    missing_paths: Mapping[str, str] = field(default_factory=dict)
    tenants: frozenset[str] = frozenset()

    @cached_property
    def by_name(self) -> Mapping[str, JobView]:
        return {job.name: job for job in self.jobs}

    @cached_property
    def _borrowed_lack(self) -> Mapping[tuple[str, int], Mapping[str, str]]:
        found: dict[tuple[str, int], dict[str, str]] = {}
        for host in self.hosts:
            if host.offer is not None and host.offer.lease:
                for job, one in host.assigned.failures.items():
                    if one.reason.startswith(LACKS):
                        what = one.reason.removeprefix(LACKS)
                        found.setdefault((job, one.order), {}).setdefault(what, host.name)
        return found

    def lacking_on_borrowed(self, job: JobView) -> Mapping[str, str]:
        """Return what `job` needs and did not find on lent hosts where it was to start: -> host."""
        return self._borrowed_lack.get((job.name, job.order), {})

    @cached_property
    def host_named(self) -> Mapping[str, HostView]:
        return {host.name: host for host in self.hosts}

    def is_closed_to(self, host: str, job: str) -> bool:
        tenant, offer = tenant_of(job, self.tenants), self.host_named[host].offer
        return bool(tenant) and (offer is None or not {tenant, ""} & set(offer.tenants))


# ------------------------------------------------------------
# Keep account of which run has which devices of each host, while a plan is made.
#
# A `DeviceTable` begins with what the hosts' records `assigned` say, and `changed` has the records
# to write; nothing is written here. The rules:
#
# 1. **A device belongs to one run.** A process may live on a device only if the record of its host
#    assigns the device to the process's run. It is written before the run may use the device.
# 2. **A device is free when there is proof.** A run that trains gives a device back when neither
#    its own record `assigned` nor its agent's record has the device any more (`uses`). A run that
#    has ended gives back all devices of a host when `edl host` reports, about a version of its
#    assignment that tells it to end the run, that no process of it lives.
# 3. **Silence frees nothing.** Without a report or an agent's record everything stays as it is.


FAILED_S = 300.0  # for so long a job that could not start on a host gets no slots there
FAILED_JOBS = 3  # so many different jobs that could not start take a host out


class DeviceTable:
    def __init__(self, hosts: Sequence[HostView], now_s: float) -> None:
        self.hosts = {host.name: host for host in hosts}
        self.now_s = now_s
        records = {host.name: assignment_by(now_s, host.assigned) for host in hosts}
        self._jobs = {name: dict(record.jobs) for name, record in records.items()}
        self._silent_s = {name: record.silent_s for name, record in records.items()}
        self._failures = {
            name: {k: v for k, v in one.failures.items() if now_s - v.at_s < FAILED_S}
            for name, one in records.items()
        }
        self._out = {
            name: one.out if len(self._blamed(name)) >= FAILED_JOBS else ""
            for name, one in records.items()
        }
        self._hosts_of: dict[str, set[str]] = {}
        for host, job, _ in self.all_entries():
            self._hosts_of.setdefault(job, set()).add(host)

    # --- what is so

    def of_job(self, job: str) -> dict[str, JobAssignment]:
        return {host: self._jobs[host][job] for host in sorted(self._hosts_of.get(job, ()))}

    def entries(self, job: str, run: str) -> dict[str, JobAssignment]:
        return {
            host: entry
            for host, entry in self.of_job(job).items()
            if entry.run == run and not entry.ends
        }

    def all_entries(self) -> Iterator[tuple[str, str, JobAssignment]]:
        """Yield (host, job, the job's devices there); the table may be changed meanwhile."""
        for host, jobs in self._jobs.items():
            for job, entry in list(jobs.items()):
                yield host, job, entry

    def blocked(self, job: str, run: str) -> set[str]:
        entries = self.of_job(job).items()
        return {host for host, entry in entries if entry.run != run or entry.ends}

    def free(self, host: str) -> list[int]:
        view = self.hosts.get(host)
        if view is None or view.offer is None or not view.takes_slots:
            return []
        taken = {device for entry in self._jobs[host].values() for device in entry.devices}
        return sorted(set(view.offer.numbers) - taken)

    def stuck(self, host: str, after_s: float) -> int:
        offer = self.hosts[host].offer
        late = [e for e in self._jobs[host].values() if self.now_s - e.changed_s >= after_s]
        devices = {
            one for entry in late for one in (entry.devices if entry.ends else entry.leaving)
        }
        return len(devices if offer is None else devices.intersection(offer.numbers))

    def capacity(self, host: str, after_s: float) -> int:
        offer = self.hosts[host].offer
        if offer is not None:
            return max(0, len(offer.numbers) - self.stuck(host, after_s))
        kept = (entry for entry in self._jobs[host].values() if not entry.ends)
        return sum(len(entry.devices) - len(entry.leaving) for entry in kept)

    # --- what is changed

    def give(self, host: str, job: str, run: str, count: int) -> None:
        devices = self.free(host)[:count]
        if devices and host not in self.blocked(job, run):
            entry = self._jobs[host].get(job, JobAssignment(run))
            both = tuple(sorted((*entry.devices, *devices)))
            self._put(host, job, replace(entry, devices=both))

    def reclaim(self, host: str, job: str, count: int, run: RunView) -> None:
        entry = self._jobs[host][job]
        assigned, busy = run.devices.get(host, ()), run.busy(host)
        offer = self.hosts[host].offer
        offered = entry.devices if offer is None else offer.numbers

        def rank(device: int) -> tuple[bool, bool, bool, int]:
            # Kept first are those that were not marked, then those assigned, then busy ones.
            marked = device in entry.leaving
            return marked, device not in assigned, device not in busy, device

        kept = sorted(set(entry.devices).intersection(offered), key=rank)[:count]
        leaving = tuple(sorted(set(entry.devices).difference(kept)))
        if leaving != entry.leaving:
            self._put(host, job, replace(entry, leaving=leaving))

    def release(self, host: str, job: str, run: RunView) -> None:
        entry = self._jobs[host][job]
        gone = {device for device in entry.leaving if not run.uses(host, device)}
        if gone:
            devices = tuple(device for device in entry.devices if device not in gone)
            leaving = tuple(device for device in entry.leaving if device not in gone)
            if devices:
                self._put(host, job, replace(entry, devices=devices, leaving=leaving))
            else:
                self._remove(host, job)

    def end(self, host: str, job: str) -> None:
        """Mark the run of `job` as to be ended by `host`; do nothing if it was marked before."""
        entry = self._jobs[host][job]
        if not entry.ends:
            # The record is written with a check of its version, so this is the next one.
            ends = self.hosts[host].version + 1
            self._put(host, job, replace(entry, ends=ends, idle_s=0.0))

    def release_ended(self, host: str, job: str) -> None:
        if self.hosts[host].reports_end(job):
            self._remove(host, job)

    def refuses(self, job: str, order: int) -> dict[str, HostFailure]:
        found = {host: failures.get(job) for host, failures in self._failures.items() if failures}
        return {host: one for host, one in found.items() if one and one.order == order}

    def fail(self, host: str, job: str, order: int, reason: str, blamed: bool) -> None:
        """Note that a job could not start on a host; `blamed`: that is the host's fault."""
        if host in self._failures:
            blamed = blamed or any(name != job for name in self._blamed(host))
            # Jobs that need no such file may run where one is not.
            blamed = blamed and not reason.startswith(LACKS)
            self._failures[host][job] = HostFailure(order, reason, self.now_s, blamed)

    def forgive(self, job: str) -> None:
        for failures in self._failures.values():
            failures.pop(job, None)

    def take_out(self, host: str) -> None:
        """Give no job slots of a host on which too many could not start; else do nothing."""
        blamed = self._blamed(host)
        if len(blamed) >= FAILED_JOBS and not self._out[host]:
            newest = max(blamed.values(), key=lambda one: one.at_s)
            self._out[host] = f"jobs {', '.join(sorted(blamed))} could not start: {newest.reason}"

    def _blamed(self, host: str) -> dict[str, HostFailure]:
        return {job: one for job, one in self._failures[host].items() if one.blamed}

    def note_idle(self, host: str, job: str, is_idle: bool) -> float:
        """Note whether a run keeps idle devices on a host; return since when, or 0."""
        entry = self._jobs[host][job]
        if is_idle != bool(entry.idle_s):
            idle_s = self.now_s if is_idle else 0.0
            self._jobs[host][job] = replace(entry, idle_s=idle_s)
        return self._jobs[host][job].idle_s

    def changed(self) -> dict[str, HostAssignment]:
        """Return the records `assigned` to write, by host: those that differ from what was read."""
        found = {}
        for name, host in self.hosts.items():
            silent_s = 0.0
            if host.offer is None and host.version >= 0:
                silent_s = self._silent_s[name] or self.now_s
            failures, out = self._failures[name], self._out[name]
            new = HostAssignment(self._jobs[name], silent_s, failures, out)
            if new != host.assigned:
                found[name] = new
        return found

    def _put(self, host: str, job: str, entry: JobAssignment) -> None:
        self._jobs[host][job] = replace(entry, changed_s=self.now_s)
        self._hosts_of.setdefault(job, set()).add(host)

    def _remove(self, host: str, job: str) -> None:
        del self._jobs[host][job]
        self._hosts_of[job].remove(host)


# ------------------------------------------------------------
# Remember which paths of jobs the hosts of an engine lack, also when they have been given back.
#
# Else a job whose files the hosts lack would make them come and go for as long as it waits: asked
# for, found to lack the files, idle, given back, and asked for again.


MISSING_S = 3600.0  # then hosts are asked for again: the files may be there by now


def missing_paths(
    before: Mapping[str, MissingPath], cluster: ClusterView, now_s: float
) -> dict[str, MissingPath]:
    """Return the paths of jobs that a lent host lacks, or has lacked within `MISSING_S`."""
    found = {}
    for job in cluster.jobs:
        if not job.wants_slots:
            continue
        lacking = cluster.lacking_on_borrowed(job)
        for path, what in job.manifest.required_paths.items():
            known = before.get(path)
            if known is not None and 0.0 <= now_s - known.since_s < MISSING_S:
                found[path] = known
            elif what in lacking:
                found.setdefault(path, MissingPath(lacking[what], now_s))
    return found


def missing_on_borrowed(job: JobView, cluster: ClusterView) -> str:
    """Return why no host is borrowed for `job`: a lent host lacked one of its files."""
    for path, what in job.manifest.required_paths.items():
        if host := cluster.missing_paths.get(path):
            return (
                f"{host} lacked {what}; for an hour no other one is asked for on its behalf: once "
                f"such hosts have it, do `edl halt {job.name}` and `edl resume {job.name}`"
            )
    return ""


# ------------------------------------------------------------
# Define what a plan of a cluster asks the runs of jobs to do.
#
# **How an order is carried out.** After the plan's records are written, and under the fence of the
# same term; one after another, each to its end (done, refused, or the session is lost) before the
# cluster is read again. An order that is lost is in the next plan again, and an order that is
# carried out twice changes nothing the second time.


@dataclass(frozen=True)
class CreateRun:
    job: str  # the name of the job
    run: str  # the token of the run
    devices: Devices  # that the run may use, by host; one for each worker
    batch: int | None = None  # that the policy has chosen; None: the script chooses it


@dataclass(frozen=True)
class PlaceRun:
    """Let a run use other devices, by one compare-and-set of its desired and assigned workers."""

    job: str  # the name of the job
    run: str  # the token of the run
    # host -> the devices that the run may use there. A host on which it may use none, and has or
    # had an agent, is in it with no devices.
    devices: Devices
    version: int  # of the run's record `assigned`; with another one it is refused
    batch: int | None = None  # that the policy has chosen; None: the script chooses it
    reason: str = ""  # why, in a sentence, for the run's record


@dataclass(frozen=True)
class StopRun:
    job: str  # the name of the job
    run: str  # the token of the run; a run of another token is left alone
    # whether the run saves a checkpoint and ends by itself. If not, its record says at once that it
    # is over, so that no process can join it any more.
    checkpoint: bool
    reason: str = ""  # why, in a sentence, for the run's record


Action = CreateRun | PlaceRun | StopRun


# ------------------------------------------------------------
# Describe a run to the plan, from the records of an ordinary edl job.


STATUSES_PER_S = 100.0  # written by all runs of a cluster together, once there are many
RESUME = "auto"  # the setting of a run that continues from the newest checkpoint, if there is one


@dataclass(frozen=True)
class RunRecords:
    """The records of the present run of a job, as the leader of its cluster has read them."""

    token: str
    job: Job  # the job's record
    assigned: Assigned  # which workers the run has, and which devices it may use
    version: int = 0  # the version of the record `assigned` in ZooKeeper
    desired: Desired = field(default_factory=Desired)  # and the batch that was chosen
    generation: Generation | None = None  # the newest generation; None: there was none yet
    status: TrainingStatus = field(default_factory=TrainingStatus)  # the progress of the training
    learned: ScalingProfile = field(default_factory=ScalingProfile)  # by workers and batch
    agents: tuple[Host, ...] = ()

    @property
    def trains(self) -> bool:
        # A run that was resumed counts the steps of former runs, too: their number says nothing.
        sample = self.status.progress_sample
        has_trained = self.status.median_step_s > 0 or (sample is not None and sample.samples > 0)
        return self.generation is not None and has_trained

    @property
    def view(self) -> RunView:
        return RunView(
            token=self.token,
            state=self.job.state,
            # The job's code can write it, and it goes to logs and terminals of administrators.
            reason=printable(self.job.reason),
            exit_code=self.job.exit_code,
            trains=self.trains,
            devices={host: tuple(own) for host, own in sorted(self.assigned.devices.items())},
            version=self.version,
            agents={
                agent.name: AgentView(
                    devices=frozenset(agent.devices),
                    busy=frozenset(agent.busy),
                    leaving=agent.leaving,
                    disabled=len(agent.disabled),
                    failing=sum(
                        bool(w) and s not in agent.disabled for s, w in agent.failing.items()
                    ),
                    why=next(filter(None, (*agent.disabled.values(), *agent.failing.values())), ""),
                )
                for agent in self.agents
            },
            batch=self.desired.batch or None,
            workers=dict(self.assigned.hosts),
            saves=bool(self.job.checkpoint) or self.job.saved_step >= 0,
        )


def status_period_s(own_s: float, runs: int) -> float:
    """Return how often a new run writes its status, in seconds, so that all together write few."""
    return max(own_s, runs / STATUSES_PER_S)


def resume_setting(manifest: JobManifest, order: int, last: RunRecords | None) -> str:
    """Return the setting `resume` of a job's next run: "auto", or empty to begin anew."""
    if manifest.checkpoint:
        return RESUME
    if last is None or not is_token_of(last.token, order):
        return ""
    # A script that calls no `edl.checkpoint` is refused with "auto".
    continued = last.job.spec.settings.resume == RESUME
    return RESUME if last.job.checkpoint or continued else ""


# ------------------------------------------------------------
# Decide which devices a run that trains may use next, on its way to the slots of its target.
#
# A run changes its devices in one step where it can: the new ones are free and assigned to its job
# before the run is told of them, and with the same order it gives up the old ones; a worker that
# moves starts on its new host before the old one leaves. Where not all new devices are free yet,
# the run keeps old ones in their place. It never gets a number of workers that the job may not
# have, and never fewer than its minimum.


class DeviceChange(NamedTuple):
    devices: Devices | None  # by host, if any; None: no change is possible now
    lacking: int  # how many devices the run needs for its target beyond those that it has and keeps
    without_agent: tuple[str, ...]  # hosts of the target with devices, without an agent
    survivors: int  # how many devices the run uses now on hosts that are not lost
    owned: int  # devices there of the run, without those that it gives back and does not use


def next_devices(
    job: JobView,
    run: RunView,
    target: Mapping[str, int],
    table: DeviceTable,
    lost: Collection[str],
    may_wait: bool,
) -> DeviceChange:
    present, final = [], []
    for host, entry in table.entries(job.name, run.token).items():
        if host not in lost:
            used = run.devices.get(host, ())
            present += [(host, device) for device in entry.devices if device in used]
            final += [(host, device) for device in entry.devices if device not in entry.leaving]
    # Where it has no agent, `edl host` starts one when a device is assigned to the run.
    ready = [one for one in final if one[0] in run.agents or one in present]
    unready = tuple(sorted({host for host, _ in final} - {host for host, _ in ready}))
    wanted, survivors = sum(target.values()), len(present)
    lacking = max(0, wanted - len(final))
    surplus = [one for one in present if one not in final]
    owned = len(final) + len(surplus)
    if len(ready) >= wanted:
        return DeviceChange(_by_host(ready), 0, (), survivors, owned)
    size = job.manifest.allowed_sizes.below(min(wanted, len(ready) + len(surplus)))
    # It waits rather than grow by a part of what it lacks.
    if size is None or (may_wait and survivors < size < wanted):
        return DeviceChange(None, lacking, unready, survivors, owned)
    ordered = sorted(ready, key=lambda one: one not in present) + surplus
    return DeviceChange(_by_host(ordered[:size]), lacking, unready, survivors, owned)


def _by_host(devices: Collection[tuple[str, int]]) -> Devices:
    hosts = sorted({host for host, _ in devices})
    return {host: tuple(sorted(d for at, d in devices if at == host)) for host in hosts}


# ------------------------------------------------------------
# Keep what the runs of a job have measured, for its later runs and for later jobs of its name.
#
# A run writes what it measures into its own records (`ScalingProfile`), which end with it. So
# before the leader of a cluster lets the next run take the place of one, it adds these measurements
# to the job's own record, of this module.


MAX_STEPS = 200  # kept of a job, the newest
# The code of a job may write any number. What policies compute with must not overflow, or be 0.
MAX_VALUE = 1e12  # workers, hosts, samples, steps, samples a second
MAX_WORKERS = 10**6
MIN_VALUE = 1e-9  # samples of a worker in a step, samples a second


@dataclass(frozen=True)
class MeasuredThroughput(Record):
    """The record of what former runs have measured, at the node `measured` of a job."""

    order: int = -1  # of the job that has measured it, by submission; -1: none has
    steps: tuple[StepTimeSample, ...] = ()  # the newest at the end
    # pairs of a number of workers and the throughput in samples a second that jobs which had the
    # name before have measured with it
    curve: tuple[tuple[int, float], ...] = ()

    def of_job(self, order: int) -> MeasuredThroughput:
        if order == self.order:
            return self
        # The steps of another job of the name only say how fast the new one may be.
        curve = {**dict(self.curve), **_curve(self.steps)}
        return MeasuredThroughput(order, (), tuple(sorted(curve.items())))

    def with_run(self, run: RunRecords | None) -> MeasuredThroughput:
        measured = _samples(run.learned) if run is not None else ()
        if run is not None and run_order(run.token) != self.order:
            curve = {**dict(self.curve), **_curve(measured)}
            return replace(self, curve=tuple(sorted(curve.items())))
        steps = list(self.steps)
        for new in measured:
            key = new.workers, new.hosts
            others = [
                old
                for old in steps
                if (old.workers, old.hosts) != key or not alike(old.batch, new.batch)
            ]
            steps = [*others, new]
        return replace(self, steps=tuple(steps[-MAX_STEPS:]))


def measurements(
    kept: MeasuredThroughput, run: RunRecords | None, order: int
) -> tuple[MeasuredThroughput, JobMeasurements]:
    found = kept.of_job(order).with_run(run)
    known = JobMeasurements(steps=found.steps, curve=dict(found.curve))
    if run is None or run_order(run.token) != order:
        return found, known
    status, noise = run.status, run.status.noise_scale
    return found, replace(
        known,
        left=status.left if status.left is not None and 0 <= status.left <= MAX_VALUE else None,
        done_steps=status.step if 0 <= status.step <= MAX_VALUE else 0,
        global_batch=status.global_batch if 0 <= status.global_batch <= MAX_VALUE else 0,
        noise_scale=noise if noise is not None and noise >= 0 else None,
        batching=_batching_of_steps(run.learned),
    )


def _samples(learned: ScalingProfile) -> tuple[StepTimeSample, ...]:
    """Return the throughputs in `learned` as step times, without those that cannot be."""
    return tuple(
        StepTimeSample(workers, one.hosts, one.batch, one.batch * workers / one.samples_per_s)
        for workers, one in learned.by_batch
        if 1 <= workers <= MAX_VALUE and 1 <= one.hosts <= MAX_VALUE
        if MIN_VALUE <= one.samples_per_s <= MAX_VALUE and MIN_VALUE <= one.batch <= MAX_VALUE
    )


def _batching_of_steps(learned: ScalingProfile) -> Batching | None:
    """Return the sizes of the batches of a step: of all whose gradients a worker adds up for it."""
    batching, times = learned.batching, learned.step_batches
    if batching is None or not 1 <= times <= MAX_VALUE:
        return None
    least, most = batching.batch_range
    whole = replace(
        batching,
        batch_size=batching.batch_size * times,
        max_global_batch=batching.max_global_batch * times,
        global_batch=batching.global_batch * times,
        batch_range=(least * times, most * times),
        chosen=batching.chosen * times,
    )
    return whole if 1 <= whole.of_all(1) <= whole.of_all(MAX_WORKERS) <= MAX_VALUE else None


def _curve(steps: Iterable[StepTimeSample]) -> dict[int, float]:
    found: dict[int, float] = {}
    for one in steps:
        rate = one.workers * one.batch / one.step_s
        found[one.workers] = max(rate, found.get(one.workers, 0.0))
    return found
