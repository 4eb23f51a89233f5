"""The layout in ZooKeeper, in one place: where everything of a job is stored.

::

    /edl/jobs/<job>/
        job            Job; compare-and-set
        desired        Desired; compare-and-set
        assigned       Assigned; written with desired, or by edl-worker as its driver says
        discovered     {host: slots}, empty but for edl-discover
        generation     Generation, empty until the first; only the leader writes it
        leader         Leader, empty until the first term; written when a term starts
        status         the leader's summary for people and tools
        profile        Curve, empty until the job is profiled; whoever profiles it writes it
        profile/hold   ProfileHold, ephemeral, while somebody profiles the job
        policy         JobPolicy, empty without one; people and the script write it
        learned        Learned, what the job has learned of its sizes; only the leader writes it
        hosts/<host>   Host, ephemeral, an agent's
        slots/<host>.<slot>   SlotRecord, ephemeral, an edl-worker's
        members/<id>   Member, ephemeral, a worker's own
        election/w<id>-<token>-<sequence>   ephemeral, a candidate; the lowest sequence leads
        requests/r-<sequence>   Request; the leader writes the outcome into it
        evicted/<id>   why the leader has given that worker up
        events/e-<sequence>     Event; they count from the ``first`` in the value of events on
        ids/           the counter of worker ids, from the ``first`` in its value on
        run/<token>    identity of this start of the job; run/creator is ephemeral, its creator's

All fixed nodes exist from the creation of the job on, so a watch can be set on each of them. All
carry the same ACL, see ``access``.
"""

from __future__ import annotations

import re

from edl.errors import ConfigError

JOBS = "/edl/jobs"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def check_name(setting: str, name: str) -> str:
    """``name``, when it can be the name of a job or of a host.

    Raises:
        ConfigError: it cannot; ``setting`` says which setting it came from.
    """
    if not is_name(name):
        raise ConfigError(
            setting,
            f"{name!r} cannot be the name of a {setting}: use 1 to 64 letters, digits, dots, "
            "dashes and underscores, beginning with a letter or a digit",
        )
    return name


def is_name(name: str) -> bool:
    """Whether ``name`` can be the name of a job or of a host."""
    return _NAME.fullmatch(name) is not None


class JobPaths:
    """The nodes of one job. Raises ConfigError for a name that cannot be one."""

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
        self.run = f"{self.root}/run"
        self.creator = f"{self.run}/creator"

    @property
    def describing(self) -> tuple[str, ...]:
        """Of the fixed nodes those whose values are the job: what it is, and what is decided."""
        sizes = (self.desired, self.assigned, self.discovered)
        return (
            self.job,
            *sizes,
            self.generation,
            self.leader,
            self.profile,
            self.policy,
            self.events,
        )

    @property
    def fixed(self) -> tuple[str, ...]:
        """The nodes that exist from the creation of the job on, parents first."""
        processes = (self.hosts, self.slots, self.members, self.election)
        others = (self.status, self.learned, self.requests, self.evicted, self.ids, self.run)
        return (self.root, *self.describing, *processes, *others)

    def host(self, name: str) -> str:
        return f"{self.hosts}/{check_name('host', name)}"

    def slot(self, host: str, slot: int) -> str:
        return f"{self.slots}/{check_name('host', host)}.{slot}"

    def member(self, worker: int) -> str:
        return f"{self.members}/{worker}"

    def evicted_worker(self, worker: int) -> str:
        return f"{self.evicted}/{worker}"

    def request(self, number: int) -> str:
        return f"{self.requests}/r-{number:010d}"

    def event(self, number: int) -> str:
        return f"{self.events}/e-{number:010d}"


def sequence(node: str) -> int:
    """The number that ZooKeeper appended to the name of a sequential node."""
    return int(node[-10:])


def candidate_name(worker: int) -> str:
    """Return the name under which a worker is a candidate in the election of its job."""
    return f"w{worker}"


def candidate_worker(name: str) -> int:
    """Return the worker that is a candidate under this name; see :func:`candidate_name`."""
    return int(name.removeprefix("w"))
