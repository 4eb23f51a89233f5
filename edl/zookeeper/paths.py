"""Define the layout in ZooKeeper: the path of each node of a job, and what the node holds.

::

    /edl/jobs/<job>/
        job            Job; compare-and-set
        desired        Desired; compare-and-set
        assigned       Assigned; written with desired, or by an edl-worker as its driver says
        discovered     {host: slots}; empty unless edl-discover runs
        generation     Generation; empty before the first one; only the leader writes it
        leader         Leader; empty before the first term; written when a term starts
        status         TrainingStatus: the leader's summary for people and tools
        profile        Curve; empty until the job is profiled; the profiling process writes it
        profile/hold   ProfileHold; ephemeral; exists while a process profiles the job
        policy         JobPolicy; empty without a policy; people, the script, the leader
        learned        ScalingProfile: what the job has learned of its sizes; the leader, or the
                       worker that read a checkpoint with it
        hosts/<host>   Host; ephemeral; the node of an agent
        slots/<host>.<slot>   SlotRecord; ephemeral; the node of an edl-worker
        members/<id>   Member; ephemeral; the node of a worker
        election/w<id>-<token>-<sequence>   ephemeral; a candidate; the lowest sequence leads
        requests/r-<sequence>   Request; the leader writes the outcome into it
        evicted/<id>   reason and term of the eviction of that worker
        events/e-<sequence>     Event; its number is ``first`` in the value of events + sequence
        script         what an unchanged script has exchanged before its training; the workers
        ids/           the counter of worker ids; an id is ``first`` in its value + sequence
        run/<token>    identity of this start of the job
        run/creator    ephemeral; the node of the process that created the job

All nodes without ``<...>`` that are not ephemeral (the *fixed* nodes) exist from the creation of
the job on, so a watch can be set on each of them. All nodes have the same ACL, see ``access``.
"""

from __future__ import annotations

from edl.errors import ConfigError
from edl.text import RULE, is_name

JOBS = "/edl/jobs"


def check_name(setting: str, name: str) -> str:
    """Return `name` unchanged if it can be the name of a job, a host or a cluster."""
    if not is_name(name):
        raise ConfigError(
            setting,
            f"{name!r} cannot be the name of a {setting}: use {RULE}",
        )
    return name


class JobPaths:
    """The paths of all ZooKeeper nodes of the job called `name`, as attributes and methods."""

    def __init__(self, name: str) -> None:
        self.name = check_name("job", name)
        self.root = f"{JOBS}/{self.name}"
        self.job = f"{self.root}/job"
        self.desired = f"{self.root}/desired"
        self.assigned = f"{self.root}/assigned"
        self.discovered = f"{self.root}/discovered"
        self.generation = f"{self.root}/generation"
        self.leader = f"{self.root}/leader"
        self.status = f"{self.root}/status"
        self.profile = f"{self.root}/profile"
        self.policy = f"{self.root}/policy"
        self.learned = f"{self.root}/learned"
        self.profile_hold = f"{self.profile}/hold"
        self.hosts = f"{self.root}/hosts"
        self.slots = f"{self.root}/slots"
        self.members = f"{self.root}/members"
        self.election = f"{self.root}/election"
        self.requests = f"{self.root}/requests"
        self.evicted = f"{self.root}/evicted"
        self.events = f"{self.root}/events"
        self.ids = f"{self.root}/ids"
        self.script = f"{self.root}/script"
        self.run = f"{self.root}/run"
        self.creator = f"{self.run}/creator"

    @property
    def describing(self) -> tuple[str, ...]:
        """The paths of the fixed nodes that describe the job and what was decided about it."""
        sizes = (self.desired, self.assigned, self.discovered)
        return (
            self.job,
            *sizes,
            self.generation,
            self.leader,
            self.profile,
            self.policy,
            self.events,
            self.script,
        )

    @property
    def fixed(self) -> tuple[str, ...]:
        """The paths of all nodes that exist from the creation of the job on, parents first."""
        processes = (self.hosts, self.slots, self.members, self.election)
        others = (self.status, self.learned, self.requests, self.evicted, self.ids)
        return (self.root, *self.describing, *processes, *others, self.run)

    def host(self, name: str) -> str:
        """Return the path of the node of the agent on host `name`."""
        return f"{self.hosts}/{check_name('host', name)}"

    def slot(self, host: str, slot: int) -> str:
        """Return the path of the node of the edl-worker process in a slot of horovodrun."""
        return f"{self.slots}/{check_name('host', host)}.{slot}"

    def member(self, worker: int) -> str:
        """Return the path of the member node of the worker with the id `worker`."""
        return f"{self.members}/{worker}"

    def evicted_worker(self, worker: int) -> str:
        return f"{self.evicted}/{worker}"

    def request(self, number: int) -> str:
        return f"{self.requests}/r-{number:010d}"

    def event(self, number: int) -> str:
        """Return the path of the event node with the sequence number `number`."""
        return f"{self.events}/e-{number:010d}"


def sequence(node: str) -> int:
    """Return the number, from 0, that ZooKeeper appended to the name of the node `node`."""
    return int(node[-10:])


def candidate_name(worker: int) -> str:
    """Return `w<id>`, the name of a worker as a candidate for the job's leadership."""
    return f"w{worker}"


def candidate_worker(name: str) -> int:
    """Return the id of the worker whose name as a candidate for the leadership is `name`."""
    return int(name.removeprefix("w"))
