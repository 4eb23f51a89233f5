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
    """Set how many workers of a job are desired on each host, and log an event that says why."""
    p, hold = nodes.paths, nodes.paths.profile_hold
    made: list[DesiredChange] = []

    def change(found: Mapping[str, Values]) -> tuple[Mapping[str, Values], Event | None]:
        made.append(_changed(p, found, choose, by, why, terms, devices))
        new, event = _written(p, found, made[-1])
        # A running `edl profile` then leaves the job at that size.
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
    """Let a job have a worker on each of `devices` and none elsewhere, for the cluster's leader."""
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
    # False: somebody else has changed a record since; the cluster's leader decides again
    return not writes or nodes.try_write(writes, event)


def record_returned(nodes: JobNodes, done: Reclaim, after_s: float) -> None:
    """Remove a demand to give borrowed slots back, which was fulfilled, and log an event."""
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
    """Record the slots that horovodrun may use; at the first call for a job, desire `first`."""
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
    """Return the change of the desired numbers to those that `choose` returns; write nothing."""
    before = Desired.from_json(found[p.desired])
    hosts = choose(dict(before.hosts))
    assigned = Assigned.from_json(found[p.assigned])
    return desired.set_desired(before, assigned, hosts, by, why, time.time(), terms, devices)


def _written(
    p: JobPaths, found: Mapping[str, Values], change: DesiredChange
) -> tuple[dict[str, Values], Event | None]:
    """Return the new values of the nodes that `change` writes, and the event that reports it."""
    if not change:
        return {}, None
    follows = {} if change.assigned is None else {p.assigned: change.assigned.to_json()}
    event = Event(time.time(), *_place(p, found), str(change), change.details)
    return {p.desired: change.desired.to_json(), **follows}, event


def _place(p: JobPaths, found: Mapping[str, Values]) -> tuple[int, int]:
    return found[p.generation].get("number", 0), found[p.status].get("step", 0)
