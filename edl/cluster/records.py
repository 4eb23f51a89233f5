"""Define the records of a cluster in ZooKeeper: plain values, which are written as JSON.

docs/adr/0025 says which process writes which record. The record of a job's life is in
:mod:`edl.cluster.lifecycle`, its manifest in ``edl.cluster.manifest``. Times are in
seconds since 1970.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple, Self

from edl.errors import some
from edl.record import Record
from edl.text import counted, is_name

LACKS = "this host lacks "  # begins the reason why a host refuses a run: a path is not there

# ------------------------------------------------------------
# Define what is known of the leases of a cluster: hosts that another engine lends to it.
#
# A *lease* is one loan of a host by an engine such as Slurm: the engine starts an `edl host` there,
# and may take the host back. `leases` decides about them.


class LeaseState(StrEnum):
    ASKED = "asked"  # it waits in the engine's queue, for the first time or again
    HELD = "held"  # the engine will not start it, as a start has failed; never in a record
    RUNNING = "running"  # its `edl host` was started
    ENDED = "ended"  # its `edl host` has ended, or never will be started
    UNKNOWN = "unknown"  # the engine has it, but tells none of these; never in a record


@dataclass(frozen=True)
class HostLease:
    state: LeaseState
    host: str = ""  # the name of the machine, and of its host in the cluster; else empty
    why: str = ""  # why it waits, has ended or has no known state; may be empty
    avoid: tuple[str, ...] | None = None  # what it was told not to lend; None: it cannot be told


@dataclass(frozen=True)
class Shape:
    slots: int  # the number of slots that its `edl host` offers
    labels: Mapping[str, str] = field(default_factory=dict)  # the labels that it offers
    kind: str = ""  # the kind of machine that it names, for policies that tell fast from slow ones
    avoid: tuple[str, ...] = ()  # of no use now, sorted: others are lent if possible


@dataclass(frozen=True)
class LeaseLimits:
    """How many hosts of which shape a cluster borrows, and for how long."""

    shape: Shape  # the shape of each host
    max_hosts: int  # the most leases at a time; 0: none is asked for, idle ones go back
    min_hosts: int = 0  # so many leases are kept although no job needs them
    idle_s: float = 300.0  # a host that no job has had slots of for this time is given back
    start_s: float = 300.0  # a lease that runs is given back if its host offers nothing for so long
    leave_s: float = 60.0  # for a host that is given back to leave; then the engine ends it
    stray_s: float = 60.0  # a lease that the records do not know is given back after this time
    forget: str = ""  # a former engine, gone for good, whose leases are dropped; else empty


@dataclass(frozen=True)
class LeaseRecord(Record):
    """The record of one lease. It is written before the engine is asked. Times are since 1970."""

    slots: int  # the number of slots that its host was to offer
    asked_s: float  # when it was written
    state: LeaseState = LeaseState.ASKED  # the engine's last word
    host: str = ""  # the host that it is, or last was, on; empty: not known
    why: str = ""  # the engine's last reason
    silent_s: float = 0.0  # since when it runs without a host that offers slots; else 0
    offered_s: float = 0.0  # when its host first offered slots; 0: it never has
    idle_s: float = 0.0  # since when no job has slots there, or no host is there; else 0
    back_s: float = 0.0  # since when it is being given back; 0: it is not
    leaves: bool = False  # whether its host has said that it leaves, as a signal makes it do
    is_over: bool = False  # whether it has ended, while its host still offers slots

    @property
    def lease_holds(self) -> bool:
        """Whether jobs may get slots of its host: the lease goes on, as far as is known."""
        # In the queue again: the engine has taken the host back, whatever still lives there.
        taken_back = self.offered_s > 0 and self.state is not LeaseState.RUNNING
        return not (self.back_s or self.is_over or taken_back)


@dataclass(frozen=True)
class MissingPath(Record):
    host: str  # the name of the host
    since_s: float  # when it was first known


@dataclass(frozen=True)
class LeaseTable(Record):
    """The record of all leases of a cluster, at its node `leases`; the leader writes it."""

    engine: str = ""  # the name of the engine that lends the hosts
    last: int = 0  # the number of the newest lease; none is used twice
    leases: Mapping[str, LeaseRecord] = field(default_factory=dict)  # by name
    # name of a lease of this cluster that is in none of the records -> since when the engine has
    # told of it
    strays: Mapping[str, float] = field(default_factory=dict)
    # how many leases in a row have come to nothing, where those that were asked for before such a
    # failure was counted belong to the same one
    failures: int = 0
    failed_to: int = 0  # the number of the newest lease when the last failure was counted
    not_before_s: float = 0.0  # after such a failure, before when no further host is asked for
    why: str = ""  # why the last lease came to nothing, or the engine is not asked
    wanted: int = 0  # how many hosts the jobs need now, within the limits
    # path -> the lent host that did not have it. For a time no host is asked for on behalf of jobs
    # that need the path, also when that host has been given back.
    missing: Mapping[str, MissingPath] = field(default_factory=dict)


def left_borrowed(table: LeaseTable) -> str:
    """Return that the engine lends the hosts of `table` on, a sentence; "" if it lends none."""
    lent = [one for one in table.leases.values() if not one.back_s and not one.is_over]
    if not lent:
        return ""
    hosts = sorted({one.host for one in lent} - {""})
    which = f" ({some(hosts)})" if hosts else ""
    return (
        f"{table.engine} still lends {counted(len(lent), 'host')}{which}, and jobs train on; "
        f"nobody gives {'it' if len(lent) == 1 else 'them'} back until a controller runs again"
    )


# ------------------------------------------------------------
# Choose the logs of a cluster's job that a user wants to see, of those that its hosts have.


OF_AGENTS = "agent-"  # begins the names of the logs of agents


class HostedLog(NamedTuple):
    name: str  # the name of the log, such as "w3"
    host: str  # the name of the host


def chosen_logs(
    there: Mapping[str, Collection[str]], of_workers: Mapping[str, str]
) -> list[HostedLog]:
    found = [
        HostedLog(name, host)
        for host, names in there.items()
        for name in names
        # A worker of an earlier run may have had the same name on another host.
        if not name.startswith(OF_AGENTS) and of_workers.get(name, host) == host
    ]
    return sorted(found, key=lambda log: (len(log.name), log))


# ------------------------------------------------------------
# Define how `edl host` says which part of a log it has sent.


LOGS_PATH = "/logs"
PART_BYTES = 1 << 20  # of a log in one answer, at most


@dataclass(frozen=True)
class LogPart(Record):
    """The place in a log where the part that was sent ends, and the next part begins."""

    file: int  # the number (inode) of the file that the part is of
    next: int  # the offset in the file, in bytes, of the first byte after the part
    missed: bool = False  # whether what was asked for is gone: there is a gap before the part


FORMAT = 1  # of the records of this package; hosts with another one get no slots


@dataclass(frozen=True)
class ClusterRecord(Record):
    """The record of a cluster, at the node `cluster`: its policy, and time limits in seconds."""

    format: int = FORMAT
    version: str = ""  # the version of edl that has created the cluster; empty: it is not known
    policy: str = "edl"  # of `edl.cluster.policies.registry`
    parameters: Mapping[str, Any] = field(default_factory=dict)  # that are not the registered
    interval_s: float = 30.0  # for the policy to be asked again, if nothing comes or goes
    # within this time a start must lead to a ring that trains, and a slot to a worker; longer for a
    # job that gives its first workers more time
    start_timeout_s: float = 120.0
    halt_timeout_s: float = 300.0  # for a run that was told to stop, before its processes are ended
    lost_after_s: float = 10.0  # without an offer, after which a host counts as lost
    gather_s: float = 2.0  # for all slots of a start to be free; then with those that are
    stuck_s: float = 60.0  # a slot not given back for so long counts no more for its host
    limit_s: float = 300.0  # without slots on a host where no worker started in them

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Return the record that JSON `values` describe; of another format, only its version."""
        number = values.get("format", FORMAT)
        if number == FORMAT:
            return super().from_json(values)
        return super().from_json({"format": number, "version": str(values.get("version", ""))})


@dataclass(frozen=True)
class ControllerRecord(Record):
    """The record of a controller, at its node of the election and, with its term, of the leader."""

    controller: str = ""  # the name of the controller, which no other process has
    host: str = ""  # the name of its machine
    pid: int = 0  # the process id there
    address: str = ""  # the network address at which it listens; empty: it does not
    port: int = 0  # where it listens for as long as it lives
    version: str = ""  # the version of edl
    format: int = FORMAT  # the format of the records that it reads and writes
    term: int = 0  # the number of its term, if it leads; 0: it does not
    machine: str = ""  # the machine and its pid namespace, to say whether it has died; or empty

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


class Goal(StrEnum):
    """The goal that a user has set for a job: to run, to be halted, or to be gone (deleted)."""

    RUN = "run"
    HALT = "halt"
    GONE = "gone"


@dataclass(frozen=True)
class Wanted(Record):
    """The record of what users want of a job, at the node `wanted` of the job."""

    goal: Goal = Goal.RUN  # what the job shall do
    priority: int = 0  # jobs of a higher priority get slots before all others
    removed: bool = False  # whether it was deleted after its end: its records go


@dataclass(frozen=True)
class QueueRecord(Record):
    """The record of a queue, at the node `queues/<name>`: the part of the cluster of its jobs."""

    quota: int = 0  # the guaranteed slots: its jobs get so many whenever they can use them
    weight: float = 1.0  # against that of other queues, of the slots that no quota needs now
    most: int | None = None  # the most slots that its jobs may have together; None: no limit
    tenant: str = ""  # the tenant whose jobs may use it; empty: those of the administrator only
    set_s: float = 0.0
    by: str = ""  # the user and the machine that have set it

    def __str__(self) -> str:
        most = "" if self.most is None else f", at most {counted(self.most, 'slot')}"
        tenant = f", of tenant {self.tenant}" if self.tenant else ""
        return f"quota {self.quota}, weight {self.weight:g}{most}{tenant}"


@dataclass(frozen=True)
class HostOffer(Record):
    """The offer of a host, at the ephemeral node `offer` of the host."""

    slots: int  # the number of slots
    devices: tuple[int, ...] = ()  # one for each slot; empty: 0, 1, ... up to `slots`
    labels: Mapping[str, str] = field(default_factory=dict)  # like `gpu: h100`
    kind: str = ""  # the kind of machine, for policies that tell fast from slow ones
    address: str = ""  # the network address of the host
    version: str = ""  # the version of edl there
    format: int = FORMAT  # the format of the records that `edl host` reads and writes
    port: int = 0  # where `edl host` serves the logs of its jobs; 0: it does not
    leaves: bool = False  # whether it leaves soon: it gets no slots, and gives back its own
    lease: str = ""  # under which another engine lends the host; empty: none
    # the tenants whose jobs run there, each as the user that `--user` names for it; "" stands for
    # all others. It is empty of an older edl, too.
    tenants: tuple[str, ...] = ()

    @property
    def numbers(self) -> tuple[int, ...]:
        return self.devices or tuple(range(self.slots))


@dataclass(frozen=True)
class JobAssignment(Record):
    # While `ends` is 0, `edl host` keeps an agent of the run. No process of another job may live on
    # one of the devices.

    run: str  # the token of the run
    # the numbers of the devices on which processes of the run may live, sorted. They belong to the
    # job until the leader takes them out of this record.
    devices: tuple[int, ...] = ()
    leaving: tuple[int, ...] = ()  # those of `devices` that the job is to give back, sorted
    # 0, or the version of the host's assignment with which the run ended here: `edl host` ends the
    # agent and all processes of the run, and reports a version of at least this number when none
    # lives
    ends: int = 0
    changed_s: float = 0.0  # when `devices`, `leaving` or `ends` was last changed
    idle_s: float = 0.0  # since when a device that the run keeps has no process; else 0


@dataclass(frozen=True)
class HostFailure(Record):
    """A job that could not start on a host: it gets no slots there for a while."""

    order: int  # of the job's submission: a later job of the name is another one
    reason: str
    at_s: float
    blamed: bool = False  # the job trains elsewhere, so it is the host's fault


@dataclass(frozen=True)
class HostAssignment(Record):
    """The record of what runs on a host, at the node `assigned` of the host."""

    # It is the only record that `edl host` obeys: it ends what is not in `jobs`.

    jobs: Mapping[str, JobAssignment] = field(default_factory=dict)  # no device is in two
    silent_s: float = 0.0  # since when the host has had no offer; 0: it has one
    failures: Mapping[str, HostFailure] = field(default_factory=dict)  # job -> why not there
    out: str = ""  # why no job gets slots there, after failures of several; else empty


@dataclass(frozen=True)
class JobReport(Record):
    run: str  # the token of the run
    agent: bool = False  # whether the agent lives
    exit_code: int | None = None  # the exit code of the last agent that has ended; None: none has
    processes: tuple[int, ...] = ()  # the process ids of the workers that live
    reason: str = ""  # why no agent lives although one should, as a sentence; else empty
    refused: bool = False  # whether no agent of the run can live there, however often it is started

    @property
    def lives(self) -> bool:
        return self.agent or bool(self.processes)


@dataclass(frozen=True)
class HostReport(Record):
    """The record of what lives on a host, at the node `report` of the host."""

    # The order matters: `edl host` reads `assigned`, then looks at the processes, then writes this
    # record, with the version that it has read. Only after that it starts agents, and only for runs
    # that do not end by what it has read last. So if a report about a version in which a run ends
    # (`JobAssignment.ends`) has no process of the run, none will ever live there again.

    version: int = -1  # of `assigned`, which `edl host` had read before it looked
    jobs: Mapping[str, JobReport] = field(default_factory=dict)  # by name; no other lives


@dataclass(frozen=True)
class AllocationRecord(Record):
    """The record of the policy's last decision, at the node `allocation` of the cluster."""

    at_s: float = 0.0  # when the policy was asked
    inputs: str = ""  # a digest of jobs, hosts and policy: if it changes, it is asked again
    targets: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # job -> host -> slots
    changed_s: Mapping[str, float] = field(default_factory=dict)  # job -> when its target was
    batches: Mapping[str, int] = field(default_factory=dict)  # job -> the batch that was chosen
    reasons: Mapping[str, str] = field(default_factory=dict)  # job -> the policy's reason
    # job -> host -> the number of slots that the policy gives a job which is profiled, and has its
    # target for that
    profiled: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    # what the policy keeps for its next decision, for each group of jobs that it was asked about
    # together
    state: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    problem: str = ""  # the rule that the decision broke: the one before it stands; or empty
    held: str = ""  # why the policy cannot be asked: each job keeps its slots; else empty


@dataclass(frozen=True)
class JobReasons(Record):
    """What the leader says of each job, at the node `reasons`; no decision is made from it."""

    at_s: float = 0.0  # when the plan was made
    # job -> why it has what it has, or its place in the queue and why it waits: the `reasons` of
    # `ClusterPlan`. Jobs that have ended may be left out.
    reasons: Mapping[str, str] = field(default_factory=dict)
    surplus: Mapping[str, int] = field(default_factory=dict)  # job -> slots beyond the quota

    def reason(self, job: str, since_s: float) -> str:
        """Return the reason of `job`; empty if there is none, or if it is outdated."""
        # A reason from before `since_s` is about another state.
        return self.reasons.get(job, "") if self.at_s >= since_s else ""


@dataclass(frozen=True)
class StoredSecret(Record):
    """The record of a secret that a user has given to the cluster, at the node `secrets/<name>`."""

    sealed: str  # the secret, sealed with a key of the cluster (`seal`), in base 64
    set_s: float = 0.0
    by: str = ""  # the user and the machine that have set it


# ------------------------------------------------------------
# Define the names of tenants and of their jobs, and the word that a tenant keeps as its secret.


SEPARATOR = "."  # between the name of a tenant and that of its job
_PREFIX = "tenant"


def secret_word(tenant: str, secret: str) -> str:
    return f"{_PREFIX}:{tenant}:{secret}"


def parsed_word(word: str) -> tuple[str, str] | None:
    """Return the name and the secret of a tenant from its word; None: it is no tenant's."""
    prefix, _, rest = word.partition(":")
    tenant, _, secret = rest.partition(":")
    return (tenant, secret) if prefix == _PREFIX and is_tenant_name(tenant) and secret else None


def is_tenant_name(name: str) -> bool:
    """Return whether `name` can be that of a tenant: of at most 32 characters, without a dot."""
    return is_name(name) and SEPARATOR not in name and len(name) <= 32


def own_name(tenant: str, name: str) -> str:
    return name if name.startswith(f"{tenant}{SEPARATOR}") else f"{tenant}{SEPARATOR}{name}"


def tenant_of(name: str, tenants: Collection[str]) -> str:
    """Return the tenant of the job or secret called `name`; empty: it is the administrator's."""
    first, dot, _ = name.partition(SEPARATOR)
    return first if dot and first in tenants else ""
