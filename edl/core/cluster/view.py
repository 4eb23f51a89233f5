"""Define what the leader of a cluster has read before it plans: jobs, hosts and the policy's state.

**The order of reading.** A job's own record of its devices (``assigned``) must be read before the
records of its agents, and both through the session in which the leader writes. Then a device that
neither the first nor a later read of the agent's record has, is used by no process and never will
be: an agent declares a device in its record before it starts a process there, in one transaction
that checks the version of ``assigned``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from edl.core.cluster.job_life import JobLife, LifeState, is_token_of
from edl.core.cluster.path_checks import PathChecks
from edl.core.cluster.records import (
    FORMAT,
    AllocationRecord,
    ClusterRecord,
    Goal,
    HostAssignment,
    HostOffer,
    HostReport,
    QueueRecord,
    Wanted,
)
from edl.core.cluster.tenant_names import tenant_of
from edl.core.policy.step_time import StepTimeSample
from edl.core.records import JobState
from edl.core.sizes import Sizes
from edl.core.step.batching import Batching

FIRST_STEP = 1.25  # of the time for the first workers: until their ring has trained a step

Devices = Mapping[str, tuple[int, ...]]
"""Host -> the numbers of devices there, sorted."""


class BatchLimit(Protocol):
    """The global batches that a job may train with, as its manifest has them, in samples."""

    @property
    def min(self) -> int:
        """The smallest global batch that the job may train with, in samples."""

    @property
    def max(self) -> int:
        """The largest global batch that the job may train with, in samples."""

    @property
    def set_by_policy(self) -> bool:
        """Whether the cluster's policy may choose the batch."""


class JobHints(Protocol):
    """A user's estimates of a job's length and speed, as its manifest has them."""

    @property
    def steps(self) -> int | None:
        """The number of steps that the job trains; None: not known."""

    @property
    def duration_s(self) -> float | None:
        """How long the job trains on the slots that it requests, in seconds; None: not known."""

    @property
    def samples_per_s(self) -> Mapping[int, float]:
        """The throughput in samples a second, by number of workers."""


class ProfileLimits(Protocol):
    """The limits within which a job of unknown speed is measured, as its manifest has them."""

    @property
    def sizes(self) -> int:
        """With how many numbers of workers it is measured at most."""

    @property
    def each_s(self) -> float:
        """For how many seconds it trains at least with each of them."""

    @property
    def within_s(self) -> float:
        """How many seconds after its first step all of it ends."""


class JobRequest(Protocol):
    """The part of a manifest (`edl.core.cluster.manifest.JobManifest`) that a plan reads."""

    @property
    def requested_np(self) -> int:
        """The number of workers that the user asks for."""

    @property
    def allowed_sizes(self) -> Sizes:
        """The numbers of workers that the job may have."""

    @property
    def labels(self) -> Mapping[str, str]:
        """The labels (key -> value) that a host must have to get workers of the job."""

    @property
    def required_paths(self) -> Mapping[str, str]:
        """Path -> what it is, for all that a host must have before the job gets a slot there."""

    @property
    def start_timeout_s(self) -> float:
        """In how many seconds all first workers must be ready; then fewer are enough."""

    @property
    def weight(self) -> float:
        """The weight of the job in policies that share slots by weight."""

    @property
    def queue(self) -> str:
        """The name of the queue that the job is in."""

    @property
    def after(self) -> Sequence[str]:
        """The names of the jobs that must have finished before this one starts."""

    @property
    def after_failed(self) -> str:
        """What becomes of it when one of these has failed: "end", "wait" or "start"."""

    @property
    def secrets(self) -> Sequence[str]:
        """The names of the secrets of the cluster that its command reads."""

    @property
    def retries(self) -> int:
        """How often the job is started again after it has failed."""

    @property
    def preemptible(self) -> bool | None:
        """Whether the policy may change the job's slots, or take all of them, while it runs."""
        # None: it may, but not take all for a job of the same priority while it saves nothing.

    @property
    def min_run_s(self) -> float:
        """For how many seconds after a start the job is not halted for others."""

    @property
    def cool_down_s(self) -> float:
        """For how many seconds after a change of its slots the policy does not change them."""

    @property
    def snooze_s(self) -> float:
        """For how many seconds after a start the job gets no further slots."""

    @property
    def batch(self) -> BatchLimit | None:
        """The global batches that the job may train with; None: its script alone chooses one."""

    @property
    def hints(self) -> JobHints:
        """The user's estimates of the job's length and speed."""

    @property
    def profile(self) -> ProfileLimits | None:
        """The limits within which it is measured when it first trains; None: it is not."""


@dataclass(frozen=True)
class AgentView:
    """The record of one agent of a run (`Host`), as far as a plan needs it."""

    devices: frozenset[int] = frozenset()  # the devices on which the agent may start workers
    busy: frozenset[int] = frozenset()  # the devices that living processes use
    leaving: bool = False  # whether the agent was asked to leave the job
    disabled: int = 0  # the number of slots in which it starts no worker any more
    # the number of other slots in which workers end as they start, again and again
    failing: int = 0
    why: str = ""  # why, of one of these slots

    def is_useless(self, slots: int) -> bool:
        """Return whether no worker can live in any of `slots` slots."""
        return 0 < slots <= self.disabled + self.failing


@dataclass(frozen=True)
class RunView:
    """One run, as the records below the job's own node (`/edl/jobs/JOB`) show it."""

    token: str
    state: JobState = JobState.RUNNING  # the state in the job's record
    reason: str = ""  # why the job is in that state
    exit_code: int = 0  # the exit code in the job's record
    trains: bool = False  # whether a ring of the run has trained a step
    # the devices of each host that the run may use, by its record `assigned`
    devices: Devices = field(default_factory=dict)
    version: int = 0  # the version of that record
    # host -> the record of the run's agent there; a host without one is not in it
    agents: Mapping[str, AgentView] = field(default_factory=dict)
    # the global batch that the run was told to train with, in samples; None: it was told nothing
    batch: int | None = None
    # host -> the number of workers that the run is to have there, by that record; None: one for
    # each device
    workers: Mapping[str, int] | None = None
    saves: bool = True  # whether it saves checkpoints; a run that trains has saved its first one

    @property
    def lacks_workers(self) -> bool:
        """Whether the run is to have fewer workers on a host than it may use devices there."""
        if self.workers is None:
            return False
        here = [(h, one.disabled) for h, one in self.agents.items() if not one.leaving]
        # The run's own leader, or an agent, lowers the number when workers or the agent leave.
        return any(
            self.workers.get(host, 0) < len(self.devices.get(host, ())) - disabled
            for host, disabled in here
        )

    def busy(self, host: str) -> frozenset[int]:
        """Return the devices of `host` that processes of the run use, by its agent's record."""
        agent = self.agents.get(host)
        return agent.busy if agent else frozenset()

    def uses(self, host: str, device: int) -> bool:
        """Return whether the run may still use `device` of `host`, as far as is known."""
        agent = self.agents.get(host)
        # Silence frees nothing: without its agent's record the run may still use the device.
        if agent is None or device in self.devices.get(host, ()):
            return True
        return device in agent.devices or device in agent.busy


@dataclass(frozen=True)
class JobMeasurements:
    """Speed and length of a job's training: measured in this run, in a former one, or supplied."""

    # the measured step times; each combination of workers, hosts and batch once
    steps: tuple[StepTimeSample, ...] = ()
    # the throughput in samples a second, by number of workers: a profile of the job, or what a
    # former run of the same name measured. It counts where `steps` has nothing.
    curve: Mapping[int, float] = field(default_factory=dict)
    left: float | None = None  # the number of samples to train until the end; None: not known
    done_steps: int = 0  # the number of complete steps
    global_batch: int = 0  # the samples of a step now; 0: not known
    # the noise scale of the gradients, in samples; None: not known
    noise_scale: float | None = None
    # the sizes of the batches as the script gives them; None: not known
    batching: Batching | None = None


@dataclass(frozen=True)
class JobView:
    """One job of the cluster, as the leader has read it."""

    name: str
    # the place in the order of submission; no other submission, of whatever name, has it (the
    # `czxid` of the manifest's node)
    order: int
    manifest: JobRequest  # what was submitted
    # when the job was submitted, in seconds since 1970; 0: at the time of the plan
    submitted_s: float = 0.0
    wanted: Wanted = field(default_factory=Wanted)  # what users want of the job
    # the job's state and history as the leader has recorded them; the default: none yet
    life: JobLife = field(default_factory=JobLife)
    run: RunView | None = None  # the run that the job's own node has; None: there is no such node
    # what is known of its training
    measured: JobMeasurements = field(default_factory=JobMeasurements)
    # why the records of its run cannot be read, in a sentence; empty: they can. Then `run` is what
    # its hosts have for it.
    unreadable: str = ""
    # whether that is so only because its run was not read now; then nothing is taken from it for
    # what its records do not show
    is_unread: bool = False

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
        """Whether somebody has started an ordinary job of the same name, which is not over."""
        run = self.run
        return run is not None and not run.state.over and not is_token_of(run.token, self.order)

    @property
    def wants_slots(self) -> bool:
        """Whether a user wants the job to run, and it is neither halted nor ended."""
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
        """The smallest number of slots with which the job may train, by its manifest."""
        sizes = self.manifest.allowed_sizes
        return sizes.above(sizes.min_np) or sizes.min_np


@dataclass(frozen=True)
class HostView:
    """One host of the cluster, as the leader has read it."""

    name: str
    offer: HostOffer | None = None  # what it offers; None: it offers nothing now
    drained: bool = False  # whether a user wants no slots of jobs on it
    # what the leader has assigned there
    assigned: HostAssignment = field(default_factory=HostAssignment)
    version: int = -1  # the version of the node `assigned` of the host; -1: there is no such node
    # what lives there, as `edl host` has written; None: it never has
    report: HostReport | None = None
    # whether the engine that lends the host still does; True, too, of a host that is not lent
    lease_holds: bool = True

    @property
    def takes_slots(self) -> bool:
        """Whether the host offers slots, is to keep them, and writes records of this format."""
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
        """Return whether the host offers slots, and reports no living process of `job`."""
        # A report about an older assignment may be from before `edl host` knew of the run.
        if self.offer is None or self.report is None or self.report.version < self.version:
            return False
        # A process may still be started, unless the run is to end.
        found = self.report.jobs.get(job)
        return found is None or not found.lives

    def reports_no_start(self, job: str, run: str) -> bool:
        """Return whether the host reports why it has no agent of a run, and offers slots."""
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
        """Return whether the host reports that no process lives of a run that ended there."""
        entry, report = self.assigned.jobs.get(job), self.report
        # A report about an older assignment does not know that the run ends.
        if entry is None or not entry.ends or report is None or report.version < entry.ends:
            return False
        found = report.jobs.get(job)
        return found is None or not found.lives


@dataclass(frozen=True)
class ClusterView:
    """All that a plan is made of, but for the time and the policy."""

    jobs: Sequence[JobView]  # the jobs, in the order of submission
    # the hosts, in the order of their names; also those that offer nothing
    hosts: Sequence[HostView]
    settings: ClusterRecord = field(default_factory=ClusterRecord)  # how the cluster decides
    # the policy's last decision
    allocation: AllocationRecord = field(default_factory=AllocationRecord)
    secrets: Collection[str] = ()  # the names of the secrets that users have given to the cluster
    # the queues by name; empty: the cluster has none, and all jobs share its slots
    queues: Mapping[str, QueueRecord] = field(default_factory=dict)
    # how the cluster gets more hosts, as the end of a sentence for people
    more_hosts: str = "add hosts with `edl host`"
    # path -> the host that an engine had lent, and that did not have it, as the subject of a
    # sentence. For now no host is borrowed for jobs that need the path.
    missing_paths: Mapping[str, str] = field(default_factory=dict)
    tenants: frozenset[str] = frozenset()

    @cached_property
    def by_name(self) -> Mapping[str, JobView]:
        """The jobs of the cluster by name, in the order of submission."""
        return {job.name: job for job in self.jobs}

    @cached_property
    def path_checks(self) -> PathChecks:
        """What the hosts have said of the paths that jobs need."""
        return PathChecks(self.hosts)

    @cached_property
    def host_named(self) -> Mapping[str, HostView]:
        """The hosts of the cluster by name, also those that offer nothing now."""
        return {host.name: host for host in self.hosts}

    def is_closed_to(self, host: str, job: str) -> bool:
        """Return whether `job` is a tenant's, and `host` names no user for that tenant."""
        tenant, offer = tenant_of(job, self.tenants), self.host_named[host].offer
        return bool(tenant) and (offer is None or not {tenant, ""} & set(offer.tenants))
