"""Set how many workers are desired on each host of a job.

:func:`set_desired` does it for a user, a policy or an agent, :func:`place_run` for the leader of a
cluster, :func:`discover` for horovodrun; :func:`record_returned` records that borrowed slots are
back. :class:`edl.coordination.job_store.JobStore` has these functions as methods. The assigned
numbers of workers that follow from such a change, and the event that reports it, are written in the
same transaction.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from edl.coordination.nodes import JobNodes, Values
from edl.coordination.paths import JobPaths
from edl.coordination.reads import get
from edl.coordination.wire import decode, encode
from edl.core.events import Event
from edl.core.job import desired
from edl.core.job.borrowing import NO_LEASE_TERMS, LeaseTerms, describe_returned, without_reclaimed
from edl.core.job.desired import DesiredChange
from edl.core.job.device_sets import NO_DEVICES, DeviceSets
from edl.core.job.placement import Placement
from edl.core.records import Assigned, Desired, Job, JobPolicy, Reclaim, RequestedBy

Choice = Callable[[dict[str, int]], Placement]  # from the workers that are desired on each host


def set_desired(
    nodes: JobNodes,
    choose: Choice,
    by: RequestedBy,
    why: str,
    terms: LeaseTerms = NO_LEASE_TERMS,
    devices: DeviceSets = NO_DEVICES,
) -> DesiredChange:
    """Set how many workers of a job are desired on each host, and log an event that says why.

    The assigned numbers (unless the launcher assigns by slot) are set, too, in the same
    transaction. If a person asks, that also tells a running `edl profile` to leave the job at that
    size, and stops the job's policy from changing the size for its ``hold_s`` seconds.

    Args:
        nodes: The nodes of the job.
        choose: Gets the present desired numbers of workers by host; returns the new ones. It is
            called again when another process wrote meanwhile, and may raise an error to change
            nothing.
        by: Who asks for the change.
        why: A clause such as "edl scale", which begins the sentence of the event.
        terms: Whether the slots of added workers are borrowed, and by when the slots of removed
            workers must be free.
        devices: The devices that the job may use, by host; other hosts keep theirs.

    Returns:
        The change: the desired numbers before and after it. Its truth value is False if nothing
        changed; then no event was written.

    Raises:
        UnknownJob: the job does not exist.
        CoordinationError: ZooKeeper is away, or others keep changing the numbers.
    """
    p, hold = nodes.paths, nodes.paths.profile_hold
    made: list[DesiredChange] = []

    def change(found: Mapping[str, Values]) -> tuple[Mapping[str, Values], Event | None]:
        made.append(_changed(p, found, choose, by, why, terms, devices))
        new, event = _written(p, found, made[-1])
        if by is RequestedBy.PERSON and found.get(hold):
            new |= {hold: {**found[hold], "asked": True}}
        if by is RequestedBy.PERSON and made[-1] and found.get(p.policy):
            held = JobPolicy.from_json(found[p.policy]).held(time.time())
            new |= {p.policy: held.to_json()}
        return new, event

    read = (p.desired, p.assigned, p.generation, p.status, hold, p.policy)
    nodes.change_together(read, change)
    return made[-1]


def place_run(nodes: JobNodes, devices: DeviceSets, version: int, why: str, batch: int = 0) -> bool:
    """Let a job have a worker on each of ``devices`` and none elsewhere, for the cluster's leader.

    The desired and the assigned workers, and the event, are one transaction.

    Args:
        nodes: The nodes of the job, which belong to the run that is to be placed.
        devices: The devices that the job may use, by host; other hosts keep theirs, and get no
            worker.
        version: The version of the record ``assigned`` from which this was decided.
        why: A clause that begins the sentence of the event.
        batch: The global batch that the cluster has chosen, in samples; 0: the job chooses it.

    Returns:
        False, with nothing written, if that record has another version, or another process changes
        one of the job's records during the call; else True, also if nothing had to be changed.

    Raises:
        UnknownJob: the job does not exist, or has another run.
        CoordinationError: ZooKeeper is away.
    """
    p = nodes.paths
    paths = (p.desired, p.assigned, p.generation, p.status)
    answers = nodes.read(*map(get, paths))
    if None in answers:
        raise nodes.unknown()
    versions = {path: answer[1].version for path, answer in zip(paths, answers, strict=True)}
    found = {path: decode(path, answer[0]) for path, answer in zip(paths, answers, strict=True)}
    if versions[p.assigned] != version:
        return False

    def choose(now: Mapping[str, int]) -> Placement:
        return {**dict.fromkeys(now, 0), **{host: len(own) for host, own in devices.items()}}

    change = _changed(p, found, choose, RequestedBy.CLUSTER, why, devices=devices)
    new, event = _written(p, found, change)
    if change.desired.batch != batch:
        new |= {p.desired: replace(change.desired, batch=batch).to_json()}
    writes = [(path, encode(values), versions[path]) for path, values in new.items()]
    return not writes or nodes.try_write(writes, event)


def record_returned(nodes: JobNodes, done: Reclaim, after_s: float) -> None:
    """Remove a demand to give borrowed slots back, which was fulfilled, and log an event.

    Nothing is written if the job has no such demand.

    Args:
        nodes: The nodes of the job.
        done: The demand that was fulfilled: the host, the number of its slots, and its times.
        after_s: For how long the caller has seen the demand, in seconds.

    Raises:
        UnknownJob: the job does not exist.
        CoordinationError: ZooKeeper is away, or others keep changing the numbers.
    """
    p = nodes.paths

    def change(found: Mapping[str, Values]) -> tuple[Mapping[str, Values], Event | None]:
        before = Desired.from_json(found[p.desired])
        after = without_reclaimed(before, [done])
        if after == before:
            return {}, None
        details, reason = describe_returned(done, after_s)
        event = Event(time.time(), *_place(p, found), reason, details)
        return {p.desired: after.to_json()}, event

    nodes.change_together((p.desired, p.generation, p.status), change)


def discover(
    nodes: JobNodes, slots: Mapping[str, int], first: Placement, min_np: int, max_np: int | None
) -> Desired:
    """Record the slots that horovodrun may use; at the first call for a job, desire ``first``.

    Args:
        nodes: The nodes of the job.
        slots: The number of slots of each host; they replace those that were recorded before.
        first: The number of workers to desire on each host; used only if the desired numbers name
            no host yet.
        min_np: The smallest number of workers, written into the job's record if ``first`` is used.
        max_np: The largest number of workers, written in the same case; None keeps the job's
            present one.

    Returns:
        The desired numbers of workers by host after the call.

    Raises:
        UnknownJob: the job does not exist.
        CoordinationError: ZooKeeper is away, or others keep changing the numbers.
    """
    p = nodes.paths

    def change(found: Mapping[str, Values]) -> tuple[Mapping[str, Values], Event | None]:
        begins = _changed(
            p, found, lambda now: now or first, RequestedBy.LAUNCHER, "the job starts"
        )
        new, event = _written(p, found, begins)
        if begins:
            job = Job.from_json(found[p.job])
            sizes = replace(job.sizes, min_np=min_np, max_np=max_np or job.sizes.max_np)
            new |= {p.job: replace(job, spec=replace(job.spec, sizes=sizes)).to_json()}
        return {**new, p.discovered: dict(slots)}, event

    read = (p.desired, p.assigned, p.generation, p.status, p.job, p.discovered)
    return Desired.from_json(nodes.change_together(read, change)[p.desired])


def _changed(
    p: JobPaths,
    found: Mapping[str, Values],
    choose: Choice,
    by: RequestedBy,
    why: str,
    terms: LeaseTerms = NO_LEASE_TERMS,
    devices: DeviceSets = NO_DEVICES,
) -> DesiredChange:
    """Return the change of the desired numbers to those that ``choose`` returns; write nothing.

    Args:
        p: The paths of the job.
        found: The values of the nodes ``desired`` and ``assigned`` (others do not count), by path.
        choose: Gets the present desired numbers by host; returns the new ones.
        by: Who asks for the change.
        why: A clause that begins the sentence of the event.
        terms: Whether the slots of added workers are borrowed, and by when the slots of removed
            workers must be free.
        devices: The devices that the job may use, by host; other hosts keep theirs.
    """
    before = Desired.from_json(found[p.desired])
    hosts = choose(dict(before.hosts))
    assigned = Assigned.from_json(found[p.assigned])
    return desired.set_desired(before, assigned, hosts, by, why, time.time(), terms, devices)


def _written(
    p: JobPaths, found: Mapping[str, Values], change: DesiredChange
) -> tuple[dict[str, Values], Event | None]:
    """Return the new values of the nodes that ``change`` writes, and the event that reports it.

    The values are by path, for the nodes ``desired`` and, if the change has new assigned numbers,
    ``assigned``. A change that changes nothing gives no values, and None for the event.

    Args:
        p: The paths of the job.
        found: The values of the job's nodes as read, by path; the event names their generation and
            step.
        change: The change of the desired numbers of workers.
    """
    if not change:
        return {}, None
    follows = {} if change.assigned is None else {p.assigned: change.assigned.to_json()}
    event = Event(time.time(), *_place(p, found), str(change), change.details)
    return {p.desired: change.desired.to_json(), **follows}, event


def _place(p: JobPaths, found: Mapping[str, Values]) -> tuple[int, int]:
    """Return the number of the newest generation and the newest training step, for an event.

    A number that is not in ``found`` is 0.

    Args:
        p: The paths of the job.
        found: The values of the nodes ``generation`` and ``status``, by path.
    """
    return found[p.generation].get("number", 0), found[p.status].get("step", 0)
